// Linear layers against comfy-kitchen's: every golden case, each activation dtype, with and without
// bias. Two references stand in each golden: comfy-kitchen's eager op, which rounds between its
// steps to the activation's dtype, and the same steps in float32 ("f32path"), which is what is done
// here.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>

#include "base/floats.h"
#include "container/tensor_index.h"
#include "formats/format.h"
#include "parfait/parfait.h"
#include "support/test_file.h"

namespace parfait {
namespace {

namespace fs = std::filesystem;
const fs::path golden_folder = fs::path(PARFAIT_SOURCE_DIR) / "tests/golden/formats";

struct Values {
  DType dtype = DType::f32;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;

  std::uint64_t count() const { return bytes.size() / (dtype_bits(dtype) / 8); }
  double at(std::uint64_t i) const {
    return dtype == DType::f64 ? load_at<double>(bytes.data(), i)
                               : load_float(dtype, bytes.data(), i);
  }
};

std::map<std::string, Values> read_all(const fs::path& path) {
  auto index = container::open_index(path, {});
  EXPECT_TRUE(index.ok()) << (index.ok() ? "" : index.error().message);
  std::map<std::string, Values> tensors;
  for (const TensorInfo& tensor : (*index)->tensors()) {
    std::vector<std::byte> scratch;
    const ByteSpan bytes = *(*index)->read(tensor, scratch);
    tensors[std::string(tensor.name)] = {
        tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}, {bytes.begin(), bytes.end()}};
  }
  return tensors;
}

struct Difference {
  double relative = 0;  // L2 of the difference by the L2 that y would have without luck
  double share_within_one_step = 1;  // of the outputs, those at most one step of the dtype away
};

// How far two neighbouring values of the dtype lie apart at x.
double step_at(DType dtype, double x) {
  const int bits = dtype == DType::f32 ? 23 : dtype == DType::f16 ? 10 : 7;
  const int smallest = dtype == DType::f16 ? -14 : -126;
  return std::ldexp(1.0, std::max(x == 0 ? smallest : std::ilogb(x), smallest) - bits);
}

double squares(const Values& values) {
  double sum = 0;
  for (std::uint64_t i = 0; i < values.count(); ++i) sum += std::pow(values.at(i), 2);
  return sum;
}

// The expected L2 of y = x·Wᵀ for rows without relation: Σ |x_m|²·|w_n|² / K under a root. A golden
// has few outputs and they may cancel, so their own norm says little about the size of an error.
double expected_norm(const Values& x, const Values& w) {
  return std::sqrt(squares(x) * squares(w) / static_cast<double>(x.shape[1]));
}

// Differences below float32's rounding error of such a sum count as one step, whatever y's own
// size.
Difference compare(const Values& got, const Values& expected, double norm) {
  EXPECT_EQ(got.count(), expected.count());
  const auto count = static_cast<double>(std::max<std::uint64_t>(expected.count(), 1));
  const double floor = 2e-6 * norm / std::sqrt(count);
  double error = 0, near = 0;
  for (std::uint64_t i = 0; i < expected.count(); ++i) {
    const double difference = std::fabs(got.at(i) - expected.at(i));
    error += difference * difference;
    near += difference <= std::max(step_at(got.dtype, expected.at(i)), floor) * 1.0001;
  }
  return {std::sqrt(error) / norm, near / count};
}

Result<Values> run(const fs::path& file, const std::string& layer, const Values& x,
                   const PlanOptions& options) {
  auto checkpoint = open(file);
  if (!checkpoint) return checkpoint.error();
  auto report = check(*checkpoint);
  if (!report) return report.error();
  for (const Finding& finding : report->findings)
    if (finding.severity == Severity::error) return Error{finding.code, finding.line()};
  auto plan = make_plan(*report->checked, options);
  if (!plan) return plan.error();
  auto model = load(*plan, {.layers = {layer}, .threads = 2, .progress = {}});
  if (!model) return model.error();
  Session session(*model, 2);
  const std::uint64_t rows = x.shape[0], columns = x.shape[1], outputs = plan->find(layer)->rows;
  Values y{
      x.dtype, {rows, outputs}, std::vector<std::byte>(rows * outputs * dtype_bits(x.dtype) / 8)};
  auto done = session.linear(layer, {x.bytes.data(), x.dtype, rows, columns, columns},
                             {y.bytes.data(), y.dtype, rows, outputs, outputs});
  if (!done) return done.error();
  return y;
}

// The same checkpoint without its bias.
fs::path without_bias(const fs::path& file, const test::TemporaryFolder& folder) {
  test::TestFile copy;
  for (auto& [name, values] : read_all(file))
    if (!name.ends_with(".bias")) copy.raw(name, values.dtype, values.shape, values.bytes);
  return folder.write("no_bias.safetensors", copy.bytes());
}

double kitchen_tolerance(const formats::Format& format, DType dtype) {
  return dtype == DType::f32   ? format.tolerance.kitchen_f32
         : dtype == DType::f16 ? format.tolerance.kitchen_f16
                               : format.tolerance.kitchen_bf16;
}

std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(golden_folder)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view end = ".expected.safetensors";
    if (name.ends_with(end)) names.push_back(name.substr(0, name.size() - end.size()));
  }
  std::ranges::sort(names);
  return names;
}

class GoldenLinear : public testing::TestWithParam<std::string> {
 protected:
  // Compares one output with its reference; nothing to do where the golden has none.
  void expect_near(const Values& y, const std::map<std::string, Values>& expected,
                   const std::string& key, double norm, double tolerance, double least_share,
                   const std::string& where) {
    const auto it = expected.find(key);
    if (it == expected.end()) return;
    ++compared_;
    const Difference difference = compare(y, it->second, norm);
    EXPECT_LE(difference.relative, tolerance) << where << " against " << key;
    EXPECT_GE(difference.share_within_one_step, least_share)
        << where << " against " << key << ": relative difference " << difference.relative;
  }

  void compare_layer(const fs::path& file, const std::map<std::string, Values>& expected,
                     const std::string& layer, const std::string& prefix, bool has_bias,
                     const PlanOptions& options, const std::string& suffix) {
    auto checkpoint = open(file);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    const formats::Format& format = *formats::find_format(checkpoint->find(layer)->format());
    for (const char* type : {"f32", "bf16", "f16"}) {
      const auto x = expected.find(prefix + "x." + type);
      if (x == expected.end()) continue;
      auto y = run(file, layer, x->second, options);
      ASSERT_TRUE(y.ok()) << y.error().message;
      const std::string where = GetParam() + " " + layer + (has_bias ? " with bias" : "");
      const std::string what = prefix + (has_bias ? "y_bias" : "y");
      const double norm = expected_norm(x->second, expected.at(prefix + "decode.f32"));
      expect_near(*y, expected, what + suffix + "." + type, norm,
                  kitchen_tolerance(format, x->second.dtype), 0, where);
      // The same steps in float32 are equal up to one rounding of the type, but for a code that
      // falls the other way because another order of summation moved its value across a tie: that
      // moves all outputs of one row, a little.
      const bool integers = format.name == "int8_tensorwise" || format.name == "convrot_w4a4";
      const double rows = static_cast<double>(x->second.shape[0]);
      if (integers && suffix.empty())
        expect_near(*y, expected, what + "_f32path." + type, norm, 4e-3, 0.95 - 1 / rows, where);
      if (!has_bias && x->second.dtype == DType::f32 &&
          format.name != "awq_w4a16")  // decoded in the scales' dtype
        expect_near(*y, expected, prefix + "y64", norm, 1e-6, 0, where);
    }
  }

  int compared_ = 0;
};

TEST_P(GoldenLinear, agrees_with_comfy_kitchen) {
  const fs::path file = golden_folder / (GetParam() + ".safetensors");
  const auto expected = read_all(golden_folder / (GetParam() + ".expected.safetensors"));
  auto checkpoint = open(file);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  test::TemporaryFolder folder;
  const fs::path bare = without_bias(file, folder);
  for (Layer layer : *checkpoint) {
    const std::string name(layer.name());
    const std::string prefix = expected.contains(name + "/x.f32") ? name + "/" : "";
    if (!expected.contains(prefix + "x.f32")) continue;
    compare_layer(bare, expected, name, prefix, false, {}, "");
    PlanOptions int8;
    int8.w4a4_activation = Activation::int8;
    if (layer.format() == "convrot_w4a4")
      compare_layer(bare, expected, name, prefix, false, int8, "_act8");
    const auto parts = layer.parts();
    if (std::ranges::any_of(parts, [](const Layer::Part& p) { return p.role == "bias"; }))
      compare_layer(file, expected, name, prefix, true, {}, "");
  }
  EXPECT_GT(compared_, 0);
}

TEST_P(GoldenLinear, gives_the_same_bits_on_every_instruction_set) {
  const fs::path file = golden_folder / (GetParam() + ".safetensors");
  const auto expected = read_all(golden_folder / (GetParam() + ".expected.safetensors"));
  auto checkpoint = open(file);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  for (Layer layer : *checkpoint) {
    const std::string name(layer.name());
    for (const char* type : {"f32", "bf16", "f16"}) {
      auto x = expected.find(name + "/x." + type);
      if (x == expected.end()) x = expected.find(std::string("x.") + type);
      if (x == expected.end() || x->second.shape[1] != layer.columns()) continue;
      PlanOptions plain;
      plain.isa = Isa::reference;
      const auto reference = run(file, name, x->second, plain);
      ASSERT_TRUE(reference.ok()) << reference.error().message;
      for (Isa isa : machine_isas()) {
        PlanOptions options;
        options.isa = isa;
        const auto y = run(file, name, x->second, options);
        ASSERT_TRUE(y.ok());
        EXPECT_EQ(y->bytes, reference->bytes) << name << " " << isa_name(isa);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenLinear, testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace parfait
