// Loading and running from inside: what is kept, in which order it is read, what is refused, and
// one model under several sessions at once. tests/differential holds the results to other maths.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <thread>

#include "base/floats.h"
#include "formats/format.h"
#include "plan/check_access.h"
#include "plan/make_plan.h"
#include "runtime/layer_rows.h"
#include "runtime/model.h"
#include "support/test_file.h"

namespace parfait::runtime {
namespace {

using test::TestFile;

// A file on disk, planned. Keeps the file.
struct Planned {
  test::TemporaryFolder folder;
  std::shared_ptr<const formats::Checkpoint> checkpoint;
  std::optional<Plan> plan;

  explicit Planned(const TestFile& file, Io io = Io::mapped, const PlanOptions& options = {}) {
    OpenOptions open_options;
    open_options.io = io;
    auto index =
        container::open_index(folder.write("test.safetensors", file.bytes()), open_options);
    EXPECT_TRUE(index.ok()) << (index.ok() ? "" : index.error().message);
    checkpoint = *formats::detect(*index);
    auto findings = formats::check_layers(*checkpoint, {});
    for (const Finding& finding : *findings)
      EXPECT_NE(finding.severity, Severity::error) << finding.line();
    auto state = plan::make(CheckAccess::make(Checkpoint(checkpoint)), options);
    EXPECT_TRUE(state.ok()) << (state.ok() ? "" : state.error().message);
    plan.emplace(*state);
  }

  std::shared_ptr<const Model> load(const LoadOptions& options = {}) const {
    auto model = runtime::load(*plan, options);
    EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message);
    return *model;
  }
};

constexpr std::uint64_t N = 40, K = 128;

void add_int8(TestFile& file, const std::string& name, std::string_view more = "") {
  file.codes(name + ".weight", DType::i8, {N, K});
  file.floats(name + ".weight_scale", DType::f32, {N, 1}, 0.01f);
  file.marker(name, "{\"format\": \"int8_tensorwise\"" + std::string(more) + "}");
}
void add_int4(TestFile& file, const std::string& name) {
  file.codes(name + ".weight", DType::i8, {N, K / 2});
  file.floats(name + ".weight_scale", DType::f32, {N}, 0.1f);
  file.marker(name, R"({"format": "convrot_w4a4", "convrot_groupsize": 64})");
}
void add_fp8(TestFile& file, const std::string& name) {
  file.codes(name + ".weight", DType::f8_e4m3, {N, K});
  file.floats(name + ".weight_scale", DType::f32, {}, 0.5f);
  file.marker(name, R"({"format": "float8_e4m3fn"})");
}

std::vector<float> ramp(std::uint64_t rows) {
  std::vector<float> x(rows * K);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i)) * 2;
  return x;
}

std::vector<float> run(Session& session, std::string_view layer, const std::vector<float>& x) {
  const std::uint64_t rows = x.size() / K;
  std::vector<float> y(rows * N);
  auto done =
      session.linear(layer, {x.data(), DType::f32, rows, K, K}, {y.data(), DType::f32, rows, N, N});
  EXPECT_TRUE(done.ok()) << (done.ok() ? "" : done.error().message);
  return y;
}

TEST(Load, integer_layers_keep_only_what_is_packed_and_others_only_the_file) {
  TestFile file;
  add_int8(file, "a");
  add_int4(file, "b");
  add_fp8(file, "c");
  for (Io io : {Io::mapped, Io::pread}) {
    const Planned planned(file, io);
    const auto model = planned.load();
    for (const char* name : {"a", "b"}) {
      const LoadedLayer& layer = *model->find(name);
      EXPECT_TRUE(layer.data.data.empty() && layer.data.scratch.empty()) << name;
      EXPECT_EQ(layer.packed.scales.size(), N);
    }
    const LoadedLayer& decoded = *model->find("c");
    EXPECT_EQ(decoded.packed.codes.size(), 0u);
    EXPECT_EQ(decoded.data.part("weight").size(), N * K);
    std::size_t copied = 0;  // a mapping is used in place; what pread read is kept
    for (const auto& bytes : decoded.data.scratch) copied += bytes.size();
    EXPECT_EQ(copied >= N * K, io == Io::pread);
  }
}

TEST(Load, reads_in_file_order_whatever_the_names_and_the_request) {
  TestFile file;
  for (const char* name : {"z", "m", "a", "k"}) add_int8(file, name);
  const Planned planned(file);
  std::vector<std::string> order;
  LoadOptions options;
  options.layers = {"k", "a", "z", "a"};
  options.progress = [&](const Progress& progress) {
    order.emplace_back(progress.what);
    EXPECT_EQ(progress.total, 3 * planned.plan->state()->layers[0].stored_bytes);
    return true;
  };
  const auto model = planned.load(options);
  EXPECT_EQ(order, (std::vector<std::string>{"z", "a", "k", "k"}));
  EXPECT_EQ(model->layers.size(), 3u);
  EXPECT_EQ(model->find("m"), nullptr);
  Session session(model, 1);
  EXPECT_EQ(session.linear("m", {}, {}).error().code, ErrorCode::layer_not_found);
}

TEST(Load, any_number_of_threads_packs_the_same_bytes) {
  TestFile file;
  file.codes("a.weight", DType::i8, {900, 100});
  file.floats("a.weight_scale", DType::f32, {}, 0.01f);
  file.marker("a", R"({"format": "int8_tensorwise"})");
  const Planned planned(file);
  const auto one = planned.load({.layers = {}, .threads = 1, .progress = {}});
  const auto four = planned.load({.layers = {}, .threads = 4, .progress = {}});
  const kernels::AlignedBytes &a = one->layers[0].packed.codes, &b = four->layers[0].packed.codes;
  ASSERT_EQ(a.size(), b.size());
  EXPECT_TRUE(std::equal(a.data(), a.data() + a.size(), b.data()));
  EXPECT_EQ(one->layers[0].packed.scales, std::vector<float>(900, 0.01f));
}

// More outputs and rows than one thread takes at a time.
TEST(Session, results_do_not_depend_on_the_number_of_threads_or_the_instruction_set) {
  const std::uint64_t rows = 800, outputs = 300, columns = 64;
  TestFile file;
  file.codes("a.weight", DType::i8, {outputs, columns});
  file.floats("a.weight_scale", DType::f32, {outputs, 1}, 0.01f);
  file.marker("a", R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 16})");
  file.codes("b.weight", DType::i8, {outputs, columns / 2});
  file.floats("b.weight_scale", DType::f32, {outputs}, 0.1f);
  file.marker("b", R"({"format": "convrot_w4a4", "convrot_groupsize": 64})");
  file.codes("c.weight", DType::f8_e4m3, {outputs, columns});
  file.floats("c.weight_scale", DType::f32, {}, 0.5f);
  file.marker("c", R"({"format": "float8_e4m3fn"})");
  std::vector<float> x(rows * columns);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  std::map<std::string, std::vector<float>> expected;
  for (Isa isa : machine_isas()) {
    PlanOptions options;
    options.isa = isa;
    const Planned planned(file, Io::mapped, options);
    const auto model = planned.load();
    for (unsigned threads : {1u, 2u, 3u, 7u}) {
      Session session(model, threads);
      for (const char* name : {"a", "b", "c"}) {
        std::vector<float> y(rows * outputs, -1);
        ASSERT_TRUE(session
                        .linear(name, {x.data(), DType::f32, rows, columns, columns},
                                {y.data(), DType::f32, rows, outputs, outputs})
                        .ok());
        if (!expected.contains(name)) expected[name] = y;
        EXPECT_EQ(y, expected[name]) << name << " " << isa_name(isa) << " " << threads;
      }
    }
  }
}

TEST(Session, sessions_may_share_a_model) {
  TestFile file;
  add_int8(file, "a");
  add_int4(file, "b");
  add_fp8(file, "c");
  const Planned planned(file);
  const auto model = planned.load();
  const std::vector<float> x = ramp(33);
  std::vector<std::vector<float>> expected;
  for (const char* name : {"a", "b", "c"}) {
    Session session(model, 1);
    expected.push_back(run(session, name, x));
  }
  std::vector<std::thread> callers;
  for (unsigned caller = 0; caller < 3; ++caller)
    callers.emplace_back([&, caller] {
      Session session(model, 2);
      for (unsigned i = 0; i < 6; ++i) {
        const unsigned which = (caller + i) % 3;
        const char* names[] = {"a", "b", "c"};
        EXPECT_EQ(run(session, names[which], x), expected[which]);
      }
    });
  for (std::thread& caller : callers) caller.join();
}

// Scratch from a larger call must not leak into a smaller one.
TEST(Session, calls_of_any_size_follow_each_other) {
  TestFile file;
  add_int8(file, "a");
  add_fp8(file, "c");
  const Planned planned(file);
  const auto model = planned.load();
  Session session(model, 2);
  for (const char* name : {"a", "c"}) {
    const std::vector<float> large = run(session, name, ramp(50)),
                             small = run(session, name, ramp(3));
    EXPECT_TRUE(std::equal(small.begin(), small.end(), large.begin())) << name;
    EXPECT_EQ(run(session, name, ramp(50)), large) << name;
    EXPECT_TRUE(
        session.linear(name, {nullptr, DType::f32, 0, K, K}, {nullptr, DType::f32, 0, N, N}).ok());
  }
}

TEST(Session, L6_a_bias_of_any_float_type_is_added_in_float) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3}) {
    for (const char* name : {"a", "b", "c"}) {
      TestFile bare, biased;
      for (TestFile* file : {&bare, &biased}) {
        if (*name == 'a') add_int8(*file, name);
        if (*name == 'b') add_int4(*file, name);
        if (*name == 'c') add_fp8(*file, name);
      }
      if (dtype == DType::f8_e4m3)
        biased.raw(std::string(name) + ".bias", dtype, {N},
                   std::vector<std::byte>(N, std::byte{float_to_e4m3(1.25f)}));
      else
        biased.floats(std::string(name) + ".bias", dtype, {N}, 1.25f);
      const Planned without(bare), with(biased);
      Session a(without.load(), 1), b(with.load(), 1);
      std::vector<float> expected = run(a, name, ramp(2));
      for (float& value : expected) value += 1.25f;
      EXPECT_EQ(run(b, name, ramp(2)), expected) << name << " " << dtype_name(dtype);
    }
  }
}

TEST(Session, matrices_may_be_unaligned_with_any_stride_and_type) {
  TestFile file;
  add_int8(file, "a");
  add_fp8(file, "c");
  const Planned planned(file);
  Session session(planned.load(), 2);
  const std::uint64_t rows = 5, x_stride = K + 7, y_stride = N + 3;
  for (const char* name : {"a", "c"}) {
    for (DType in : {DType::f32, DType::bf16, DType::f16}) {
      // Whole numbers, which all three types hold.
      std::vector<float> x(rows * K);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7 % 31) - 15;
      const std::vector<float> expected = run(session, name, x);
      std::vector<std::byte> packed(rows * x_stride * 4 + 1);
      for (std::uint64_t m = 0; m < rows; ++m)
        for (std::uint64_t k = 0; k < K; ++k)
          store_float(in, packed.data() + 1, m * x_stride + k, x[m * K + k]);
      for (DType out : {DType::f32, DType::bf16, DType::f16}) {
        std::vector<std::byte> y(rows * y_stride * 4 + 1);
        ASSERT_TRUE(session
                        .linear(name, {packed.data() + 1, in, rows, K, x_stride},
                                {y.data() + 1, out, rows, N, y_stride})
                        .ok());
        for (std::uint64_t m = 0; m < rows; ++m) {
          for (std::uint64_t n = 0; n < N; ++n) {
            std::byte rounded[4];
            store_float(out, rounded, 0, expected[m * N + n]);
            EXPECT_EQ(load_float(out, y.data() + 1, m * y_stride + n), load_float(out, rounded, 0));
          }
        }
      }
    }
  }
}

TEST(Session, full_precision_layers_are_decoded_and_not_quantised) {
  TestFile file;
  add_int8(file, "a");
  add_int8(file, "full", ", \"full_precision_matrix_mult\": true");
  const Planned planned(file);
  EXPECT_EQ(planned.plan->state()->layers[0].method, Method::int8);
  EXPECT_EQ(planned.plan->state()->layers[1].method, Method::decode_rows);
  Session session(planned.load(), 1);
  EXPECT_NE(run(session, "full", ramp(2)), run(session, "a", ramp(2)));
}

TEST(Session, a_lookup_that_fails_writes_nothing) {
  TestFile file;
  file.codes("model.embed_tokens.weight", DType::i8, {50, 16});
  file.floats("model.embed_tokens.weight_scale", DType::f32, {50, 1}, 0.25f);
  file.marker("model.embed_tokens", R"({"format": "int8_tensorwise"})");
  const Planned planned(file);
  Session session(planned.load(), 2);
  std::vector<float> y(40 * 16, -1.0f);
  std::vector<std::int64_t> ids(40);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(49 - i);
  const Matrix out{y.data(), DType::f32, 40, 16, 16};
  ids.back() = 50;
  auto refused = session.lookup("model.embed_tokens", ids, out);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("id 50"), std::string::npos) << refused.error().message;
  EXPECT_EQ(y, std::vector<float>(y.size(), -1.0f));
  ids.back() = 0;
  ASSERT_TRUE(session.lookup("model.embed_tokens", ids, out).ok());
  EXPECT_NE(y, std::vector<float>(y.size(), -1.0f));
  EXPECT_EQ(
      session.lookup("model.embed_tokens", ids, {y.data(), DType::f32, 39, 16, 16}).error().code,
      ErrorCode::run_shape);
  EXPECT_EQ(
      session.lookup("model.embed_tokens", ids, {y.data(), DType::i32, 40, 16, 16}).error().code,
      ErrorCode::run_dtype);
}

TEST(Lookup, rows_from_the_file_are_those_of_a_loaded_table) {
  TestFile file;
  file.codes("int8.embed_tokens.weight", DType::i8, {50, 256});
  file.floats("int8.embed_tokens.weight_scale", DType::f32, {50, 1}, 0.25f);
  file.marker("int8.embed_tokens", R"({"format": "int8_tensorwise"})");
  file.codes("fp8.embed_tokens.weight", DType::f8_e4m3, {50, 16});
  file.floats("fp8.embed_tokens.weight_scale", DType::f32, {}, 0.5f);
  file.marker("fp8.embed_tokens", R"({"format": "float8_e4m3fn"})");
  file.floats("plain.embed_tokens.weight", DType::bf16, {50, 24}, 0.01f);
  std::vector<std::int64_t> ids = {49, 0, 7, 7, 31, 0, 49, 48};
  for (const Io io : {Io::mapped, Io::pread}) {
    const Planned planned(file, io);
    Session session(planned.load(), 2);
    for (const formats::Layer& layer : planned.checkpoint->layers) {
      const std::uint64_t columns = layer.columns, stride = columns + 3;
      for (const DType dtype : {DType::f32, DType::bf16}) {
        std::vector<float> loaded(ids.size() * stride, -1.0f), read = loaded;
        const Matrix expected{loaded.data(), dtype, ids.size(), columns, stride};
        const Matrix y{read.data(), dtype, ids.size(), columns, stride};
        ASSERT_TRUE(session.lookup(layer.name, ids, expected).ok()) << layer.name;
        const Result<Done> looked_up = lookup(*planned.checkpoint, layer, ids, y);
        ASSERT_TRUE(looked_up.ok()) << looked_up.error().message;
        EXPECT_EQ(read, loaded) << layer.name;
        EXPECT_NE(read, std::vector<float>(read.size(), -1.0f));
      }
      std::vector<float> y(columns);
      for (const std::int64_t outside : {std::int64_t{-1}, std::int64_t{50}}) {
        const Result<Done> refused = lookup(*planned.checkpoint, layer, {&outside, 1},
                                            {y.data(), DType::f32, 1, columns, columns});
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().code, ErrorCode::run_shape);
      }
      EXPECT_TRUE(
          lookup(*planned.checkpoint, layer, {}, {y.data(), DType::f32, 0, columns, columns}).ok());
      // A few rows of a large table cost a few rows.
      EXPECT_LE(lookup_bytes(layer, 1), layer.parts.size() * 8192 + 8 * columns + 4 * 50);
    }
  }
}

}  // namespace
}  // namespace parfait::runtime
