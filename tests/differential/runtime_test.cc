// Loading and running: every format in every pair, threads, readers, embeddings, bad calls, memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/floats.h"
#include "base/hadamard.h"
#include "differential/layers.h"
#include "parfait/parfait.h"
#include "support/test_file.h"

namespace parfait {
namespace {

using namespace parfait::testing_layers;
using test::TestFile;

// Relative L2 of y against the float product with the decoded weight and the bias of 0.25.
double error_of(const Checkpoint& checkpoint, const std::string& name, const std::vector<float>& x,
                const std::vector<float>& y) {
  std::vector<float> w(N * K);
  auto decoded = decode(checkpoint, *checkpoint.find(name), 0, N, w);
  EXPECT_TRUE(decoded.ok()) << decoded.error().message;
  double error = 0, norm = 0;
  for (std::uint64_t i = 0; i < y.size(); ++i) {
    double sum = 0.25;
    for (std::uint64_t k = 0; k < K; ++k) sum += double{x[i / N * K + k]} * w[i % N * K + k];
    error += (sum - y[i]) * (sum - y[i]);
    norm += sum * sum;
  }
  return std::sqrt(error / norm);
}

TEST(Runtime, every_pair_of_formats_runs_each_layer_by_its_own_method) {
  const std::vector<FormatInfo> formats = formats_table();
  const std::vector<float> x = random_rows(5);
  for (const FormatInfo& a : formats) {
    for (const FormatInfo& b : formats) {
      TestFile file;
      add_layer(file, a.name, "blocks.0.attn.qkv_proj");
      add_layer(file, b.name, "blocks.0.mlp.fc1");
      const auto opened = open_file(file);
      ASSERT_EQ(opened->plan->layers().size(), 2u);
      for (const LayerPlan& layer : opened->plan->layers()) {
        EXPECT_EQ(layer.format, layer.name == "blocks.0.attn.qkv_proj" ? a.name : b.name);
        const double error =
            error_of(*opened->checkpoint, layer.name, x, run(*opened->plan, layer.name, x, 2));
        EXPECT_LE(error, layer_tolerance(layer, DType::f32))
            << a.name << " + " << b.name << ": " << layer.name;
      }
    }
  }
}

TEST(Runtime, all_formats_in_one_file) {
  TestFile file;
  for (const FormatInfo& format : formats_table())
    add_layer(file, format.name, "layers." + std::string(format.name));
  const auto opened = open_file(file);
  ASSERT_EQ(opened->plan->layers().size(), formats_table().size());
  const std::vector<float> x = random_rows(3);
  for (const LayerPlan& layer : opened->plan->layers())
    EXPECT_LE(error_of(*opened->checkpoint, layer.name, x, run(*opened->plan, layer.name, x, 2)),
              layer_tolerance(layer, DType::f32))
        << layer.name;
  EXPECT_EQ(opened->plan->totals().size(), formats_table().size());
}

TEST(Runtime, results_do_not_depend_on_threads_readers_or_alignment) {
  TestFile file;
  for (const FormatInfo& format : formats_table())
    add_layer(file, format.name, "layers." + std::string(format.name));
  const auto opened = open_file(file);
  const auto pread = open_file(file, {.io = Io::pread});
  test::TemporaryFolder folder;
  auto odd =
      open(folder.write("odd.safetensors", file.bytes(1)));  // no tensor is aligned in this one
  ASSERT_TRUE(odd.ok());
  auto odd_plan = make_plan(*check(*odd)->checked);
  ASSERT_TRUE(odd_plan.ok());
  const std::vector<float> x = random_rows(70);
  for (const LayerPlan& layer : opened->plan->layers()) {
    const std::vector<float> one = run(*opened->plan, layer.name, x, 1);
    for (unsigned threads : {2u, 3u, 7u})
      EXPECT_EQ(run(*opened->plan, layer.name, x, threads), one) << layer.name;
    EXPECT_EQ(run(*pread->plan, layer.name, x, 2), one) << layer.name;
    EXPECT_EQ(run(*odd_plan, layer.name, x, 2), one) << layer.name;
  }
}

// More rows than columns, as many, fewer.
TEST(Runtime, N8_any_number_of_rows) {
  TestFile file;
  add_layer(file, "int8_tensorwise", "a");
  add_layer(file, "convrot_w4a4", "b");
  const auto opened = open_file(file);
  const std::vector<float> x = random_rows(300);
  for (const std::string name : {"a", "b"}) {
    const std::vector<float> all = run(*opened->plan, name, x, 2);
    for (std::uint64_t rows : {1u, 2u, 128u, 256u}) {
      const std::vector<float> some(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(rows * K));
      const std::vector<float> y = run(*opened->plan, name, some, 2);
      EXPECT_TRUE(std::equal(y.begin(), y.end(), all.begin())) << name << " rows " << rows;
    }
  }
}

// Plain bf16 layers have a faster product for many rows of bf16, where the machine has one.
TEST(Runtime, bf16_by_bf16_is_the_same_product_whatever_its_rows_and_threads) {
  TestFile file;
  add_layer(file, "bf16", "a");
  const auto opened = open_file(file);
  const LayerPlan& layer = opened->plan->layers()[0];
  for (const std::uint64_t rows : {1u, 7u, 8u, 70u, 300u}) {
    SCOPED_TRACE(rows);
    std::vector<float> x = random_rows(rows);
    std::vector<std::uint16_t> narrow;
    for (float& v : x) {
      narrow.push_back(float_to_bf16(v));
      v = bf16_to_float(narrow.back());
    }
    auto model = load(*opened->plan);
    ASSERT_TRUE(model.ok());
    std::vector<float> first;
    for (const unsigned threads : {1u, 2u, 3u}) {
      std::vector<float> y(rows * (N + 3), -1.0f);
      auto done = Session(*model, threads)
                      .linear("a", {narrow.data(), DType::bf16, rows, K, K},
                              {y.data(), DType::f32, rows, N, N + 3});
      ASSERT_TRUE(done.ok()) << done.error().message;
      std::vector<float> dense;
      for (std::uint64_t m = 0; m < rows; ++m) {
        dense.insert(dense.end(), y.begin() + static_cast<std::ptrdiff_t>(m * (N + 3)),
                     y.begin() + static_cast<std::ptrdiff_t>(m * (N + 3) + N));
        for (std::uint64_t n = N; n < N + 3; ++n) EXPECT_EQ(y[m * (N + 3) + n], -1.0f);
      }
      EXPECT_LE(error_of(*opened->checkpoint, "a", x, dense), layer_tolerance(layer, DType::f32));
      if (threads == 1) first = dense;
      EXPECT_EQ(dense, first) << threads << " threads";
    }
  }
}

TEST(Runtime, A6_pre_quant_scale_multiplies_the_activation) {
  TestFile plain, scaled;
  for (TestFile* file : {&plain, &scaled}) {
    file->codes("a.weight", DType::u8, {N, K / 2});
    file->codes("a.weight_scale", DType::f8_e4m3, {128, K / 16});
    file->floats("a.weight_scale_2", DType::f32, {}, 0.05f);
    file->marker("a", R"({"format": "nvfp4"})");
  }
  scaled.floats("a.pre_quant_scale", DType::f32, {K}, 2.0f);
  const std::vector<float> x = random_rows(3);
  const std::vector<float> one = run(*open_file(plain)->plan, "a", x, 2);
  const auto opened = open_file(scaled);
  EXPECT_NE(opened->plan->layers()[0].reason.find("pre_quant_scale applied"), std::string::npos);
  const std::vector<float> two = run(*opened->plan, "a", x, 2);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_EQ(two[i], 2 * one[i]);
}

TEST(Runtime, A16_diff_names_the_layers_that_differ) {
  TestFile a, b;
  for (int i = 0; i < 6; ++i) {
    const std::string name = "blocks." + std::to_string(i) + ".mlp.fc1";
    add_layer(a, "int8_tensorwise", name);
    add_layer(b, i % 2 ? "int8_tensorwise" : "bf16", name);
  }
  const auto file_a = open_file(a), file_b = open_file(b), same = open_file(a);
  auto differences = diff(*file_a->checkpoint, *file_b->checkpoint);
  ASSERT_TRUE(differences.ok());
  std::vector<std::string> formats;
  for (const LayerDifference& difference : *differences)
    if (difference.what == "format") formats.push_back(difference.layer);
  EXPECT_EQ(formats,
            (std::vector<std::string>{"blocks.0.mlp.fc1", "blocks.2.mlp.fc1", "blocks.4.mlp.fc1"}));
  EXPECT_TRUE(diff(*file_a->checkpoint, *same->checkpoint)->empty());
}

TEST(Runtime, diff_tells_scales_bytes_and_shapes_apart) {
  const auto file = [](float scale, std::byte code, std::uint64_t columns, const char* marker) {
    TestFile f;
    f.raw("a.weight", DType::i8, {2, columns}, std::vector<std::byte>(2 * columns, code));
    f.floats("a.weight_scale", DType::f32, {2, 1}, scale);
    f.marker("a", marker);
    return open_file(f);
  };
  const char* plain = R"({"format": "int8_tensorwise"})";
  const auto base = file(0.5f, std::byte{1}, 16, plain);
  const auto what = [&](const std::unique_ptr<Opened>& other) {
    auto differences = diff(*base->checkpoint, *other->checkpoint);
    EXPECT_TRUE(differences.ok() && differences->size() == 1);
    return differences->empty() ? std::string() : differences->front().what;
  };
  EXPECT_EQ(what(file(0.25f, std::byte{1}, 16, plain)), "scales");
  EXPECT_EQ(what(file(0.5f, std::byte{2}, 16, plain)), "bytes");
  EXPECT_EQ(what(file(0.5f, std::byte{1}, 32, plain)), "shape");
  EXPECT_EQ(
      what(file(0.5f, std::byte{1}, 16,
                R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 16})")),
      "groups");
}

TEST(Runtime, diff_sees_settings_and_tensors_that_no_layer_holds) {
  const auto w4a4 = [](const char* marker) {
    TestFile f;
    f.raw("a.weight", DType::i8, {3, 128}, std::vector<std::byte>(384, std::byte{0x12}));
    f.floats("a.weight_scale", DType::f32, {3}, 0.5f);
    f.marker("a", marker);
    return f;
  };
  test::TemporaryFolder folder;
  const auto open_any = [&](const char* name, const TestFile& file) {
    return *open(folder.write(name, file.bytes()));
  };
  const Checkpoint a =
      open_any("a", w4a4(R"({"format": "convrot_w4a4", "convrot_groupsize": 64})"));
  const Checkpoint b = open_any(
      "b", w4a4(R"({"format": "convrot_w4a4", "convrot_groupsize": 64, "linear_dtype": "int8"})"));
  auto differences = diff(a, b);
  ASSERT_TRUE(differences.ok() && differences->size() == 1);
  EXPECT_EQ(differences->front().what, "settings");

  // Unmarked int8 weights are findings, not layers; their bytes still count.
  TestFile c, d;
  c.raw("x.weight", DType::i8, {4, 4}, std::vector<std::byte>(16, std::byte{1}));
  d.raw("x.weight", DType::i8, {4, 4}, std::vector<std::byte>(16, std::byte{2}));
  auto unmarked = diff(open_any("c", c), open_any("d", d));
  ASSERT_TRUE(unmarked.ok() && unmarked->size() == 1);
  EXPECT_EQ(unmarked->front().layer, "x.weight");
}

TEST(Runtime, A5_a_machine_without_kernels_runs_nothing) {
  TestFile file;
  add_layer(file, "int8_tensorwise", "a");
  test::TemporaryFolder folder;
  auto checkpoint = open(folder.write("a.safetensors", file.bytes()));
  ASSERT_TRUE(checkpoint.ok());
  PlanOptions options;
  options.machine = {};
  auto plan = make_plan(*check(*checkpoint)->checked, options);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::plan_isa);
}

TEST(Runtime, A20_decode_gives_the_original_basis) {
  TestFile rotated;
  rotated.codes("a.weight", DType::i8, {2, 16});
  rotated.floats("a.weight_scale", DType::f32, {2, 1}, 0.5f);
  rotated.marker("a", R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 16})");
  TestFile plain;
  plain.codes("a.weight", DType::i8, {2, 16});
  plain.floats("a.weight_scale", DType::f32, {2, 1}, 0.5f);
  plain.marker("a", R"({"format": "int8_tensorwise"})");
  std::vector<float> original(32), stored(32);
  const auto a = open_file(rotated), b = open_file(plain);
  ASSERT_TRUE(decode(*a->checkpoint, (*a->checkpoint)[0], 0, 2, original).ok());
  ASSERT_TRUE(decode(*b->checkpoint, (*b->checkpoint)[0], 0, 2, stored).ok());
  rotate_groups(original, 16);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_NEAR(original[i], stored[i], 1e-5f * 64);
}

TEST(Runtime, A21_resident_bytes_are_those_of_the_file) {
  TestFile file;
  for (const FormatInfo& format : formats_table())
    add_layer(file, format.name, "layers." + std::string(format.name));
  const auto opened = open_file(file);
  for (const LayerPlan& layer : opened->plan->layers()) {
    if (layer.method != Method::decode_rows) continue;
    // The marker is read once and not kept.
    EXPECT_GE(static_cast<double>(layer.resident_bytes),
              0.95 * static_cast<double>(layer.stored_bytes))
        << layer.name;
    EXPECT_LE(layer.resident_bytes, layer.stored_bytes) << layer.name;
  }
  auto model = load(*opened->plan);
  ASSERT_TRUE(model.ok());
  std::uint64_t planned = 0;
  for (const LayerPlan& layer : opened->plan->layers()) planned += layer.resident_bytes;
  EXPECT_EQ(model->resident_bytes(), planned);
}

TEST(Runtime, A22_one_second_scale_serves_all_fused_parts) {
  TestFile file;
  add_layer(file, "nvfp4", "blocks.0.attn.qkv_proj");
  PlanOptions two_ranks;
  two_ranks.ranks = 2;
  const auto opened = open_file(file, {}, two_ranks);
  const LayerPlan& layer = opened->plan->layers()[0];
  ASSERT_EQ(layer.split, SplitAxis::outputs) << layer.split_reason;
  ASSERT_EQ(layer.shares[0].size(), 3u);  // q, k and v, each halved
  std::vector<float> row(K);
  for (std::uint64_t n = 0; n < N; ++n)
    EXPECT_TRUE(decode(*opened->checkpoint, (*opened->checkpoint)[0], n, 1, row).ok());
}

TEST(Runtime, L1_L2_embedding_rows) {
  const std::uint64_t rows = 100, columns = 64;
  for (int kind = 0; kind < 3; ++kind) {  // one scale, a scale a row, rotated
    TestFile file;
    file.codes("model.embed_tokens.weight", DType::i8, {rows, columns});
    if (kind == 0)
      file.floats("model.embed_tokens.weight_scale", DType::f32, {}, 0.5f);
    else
      file.floats("model.embed_tokens.weight_scale", DType::f32, {rows, 1}, 0.25f);
    file.marker("model.embed_tokens",
                kind == 2
                    ? R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 16})"
                    : R"({"format": "int8_tensorwise"})");
    const auto opened = open_file(file);
    ASSERT_EQ(opened->plan->layers()[0].method, Method::lookup);
    auto model = load(*opened->plan);
    ASSERT_TRUE(model.ok());
    Session session(*model);
    const std::vector<std::int64_t> ids = {99, 0, 41};
    std::vector<std::uint16_t> y(3 * columns);
    ASSERT_TRUE(
        session.lookup("model.embed_tokens", ids, {y.data(), DType::bf16, 3, columns, columns})
            .ok());
    std::vector<float> table(rows * columns);
    ASSERT_TRUE(decode(*opened->checkpoint, (*opened->checkpoint)[0], 0, rows, table).ok());
    for (std::size_t i = 0; i < ids.size(); ++i)
      for (std::uint64_t k = 0; k < columns; ++k)
        EXPECT_EQ(y[i * columns + k],
                  float_to_bf16(table[static_cast<std::uint64_t>(ids[i]) * columns + k]));
    for (std::int64_t bad : {std::int64_t{-1}, std::int64_t{100}}) {
      const auto refused = session.lookup("model.embed_tokens", {&bad, 1},
                                          {y.data(), DType::bf16, 1, columns, columns});
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, ErrorCode::run_shape);
    }
    EXPECT_EQ(session.linear("model.embed_tokens", {}, {}).error().code, ErrorCode::run_kind);
  }
}

TEST(Runtime, L4_a_convolution_is_decoded_but_not_run) {
  TestFile file;
  file.codes("c.weight", DType::i8, {8, 4, 3, 3});
  file.floats("c.weight_scale", DType::f32, {8, 1, 1, 1}, 0.5f);
  file.marker("c", R"({"format": "int8_tensorwise"})");
  const auto opened = open_file(file);
  EXPECT_EQ(opened->plan->layers()[0].method, Method::decode_only);
  std::vector<float> w(8 * 36);
  ASSERT_TRUE(decode(*opened->checkpoint, (*opened->checkpoint)[0], 0, 8, w).ok());
  for (float value : w) EXPECT_EQ(value, std::nearbyint(2 * value) / 2);
  auto model = load(*opened->plan);
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(Session(*model).linear("c", {}, {}).error().code, ErrorCode::run_kind);
}

TEST(Runtime, N1_extreme_codes_stay_exact) {
  const std::uint64_t columns = 16384;
  TestFile file;
  file.raw("a.weight", DType::i8, {1, columns}, std::vector<std::byte>(columns, std::byte{0x80}));
  file.floats("a.weight_scale", DType::f32, {1}, 1.0f);
  file.marker("a", R"({"format": "int8_tensorwise"})");
  const auto opened = open_file(file);
  auto model = load(*opened->plan);
  ASSERT_TRUE(model.ok());
  Session session(*model);
  std::vector<float> x(columns, 127.0f), y(1);
  ASSERT_TRUE(
      session
          .linear("a", {x.data(), DType::f32, 1, columns, columns}, {y.data(), DType::f32, 1, 1, 1})
          .ok());
  EXPECT_EQ(y[0], -128.0f * 127.0f * 16384.0f);
}

TEST(Runtime, N5_zero_rows_give_the_bias_and_nan_rows_give_nan) {
  TestFile file;
  add_layer(file, "int8_tensorwise", "a");
  const auto opened = open_file(file);
  std::vector<float> x = random_rows(3);
  std::fill_n(x.begin(), K, 0.0f);
  x[K + 7] = std::nanf("");
  const std::vector<float> y = run(*opened->plan, "a", x, 2);
  for (std::uint64_t n = 0; n < N; ++n) {
    EXPECT_EQ(y[n], 0.25f);
    EXPECT_TRUE(std::isnan(y[N + n]));
    EXPECT_TRUE(std::isfinite(y[2 * N + n]));
  }
}

TEST(Runtime, bad_calls_are_errors_that_name_the_layer) {
  TestFile file;
  add_layer(file, "int8_tensorwise", "blocks.0.mlp.fc1");
  const auto opened = open_file(file);
  auto model = load(*opened->plan);
  ASSERT_TRUE(model.ok());
  Session session(*model);
  std::vector<float> x(2 * K), y(2 * N);
  const Matrix out{y.data(), DType::f32, 2, N, N};
  const auto expect = [&](Result<Done> result, ErrorCode code) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_NE(result.error().message.find("blocks.0.mlp.fc1"), std::string::npos)
        << result.error().message;
  };
  expect(session.linear("blocks.0.mlp.fc1", {x.data(), DType::f32, 2, K - 1, K}, out),
         ErrorCode::run_shape);
  expect(session.linear("blocks.0.mlp.fc1", {x.data(), DType::f32, 1, K, K}, out),
         ErrorCode::run_shape);
  expect(session.linear("blocks.0.mlp.fc1", {x.data(), DType::f32, 2, K, K - 1}, out),
         ErrorCode::run_shape);
  expect(session.linear("blocks.0.mlp.fc1", {x.data(), DType::i8, 2, K, K}, out),
         ErrorCode::run_dtype);
  EXPECT_EQ(session.linear("nothing", {x.data(), DType::f32, 2, K, K}, out).error().code,
            ErrorCode::layer_not_found);
  auto unknown =
      load(*opened->plan, {.layers = {"blocks.0.mlp.fc2"}, .threads = 1, .progress = {}});
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("the nearest is blocks.0.mlp.fc1"), std::string::npos)
      << unknown.error().message;
}

TEST(Runtime, loading_reports_progress_and_can_be_cancelled) {
  TestFile file;
  for (int i = 0; i < 5; ++i)
    add_layer(file, "int8_tensorwise", "blocks." + std::to_string(i) + ".mlp.fc1");
  const auto opened = open_file(file);
  std::vector<std::uint64_t> seen;
  auto model = load(*opened->plan, {.layers = {}, .threads = 1, .progress = [&](const Progress& p) {
                                      seen.push_back(p.done);
                                      EXPECT_LE(p.done, p.total);
                                      return true;
                                    }});
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->size(), 5u);
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  EXPECT_EQ(seen.size(), 6u);
  auto cancelled =
      load(*opened->plan,
           {.layers = {}, .threads = 1, .progress = [](const Progress& p) { return p.done == 0; }});
  ASSERT_FALSE(cancelled.ok());
  EXPECT_EQ(cancelled.error().code, ErrorCode::cancelled);
}

TEST(Runtime, a_plan_for_another_machine_does_not_load_here) {
  TestFile file;
  add_layer(file, "int8_tensorwise", "a");
  PlanOptions other;
  other.machine = {Isa::reference, Isa::avx512_vnni};
  const auto opened = open_file(file, {}, other);
  EXPECT_EQ(opened->plan->layers()[0].kernel, "int8.avx512_vnni");
  const auto isas = machine_isas();
  const bool here = std::ranges::find(isas, Isa::avx512_vnni) != isas.end();
  auto model = load(*opened->plan);
  EXPECT_EQ(model.ok(), here);
  if (!here) {
    EXPECT_EQ(model.error().code, ErrorCode::plan_isa);
  }
}

TEST(Runtime, asking_for_a_missing_instruction_set_is_an_error) {
  TestFile file;
  add_layer(file, "int8_tensorwise", "a");
  test::TemporaryFolder folder;
  auto checkpoint = open(folder.write("a.safetensors", file.bytes()));
  ASSERT_TRUE(checkpoint.ok());
  PlanOptions options;
  options.machine = {Isa::reference};
  options.isa = Isa::avx512_vnni;
  auto plan = make_plan(*check(*checkpoint)->checked, options);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::plan_isa);
}

}  // namespace
}  // namespace parfait
