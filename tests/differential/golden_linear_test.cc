// Linear layers against comfy-kitchen's: every golden case, each activation dtype, with and without
// bias. Two references stand in each golden: comfy-kitchen's eager op, which rounds between its
// steps to the activation's dtype, and the same steps in float32 ("f32path"), which is what is done
// here.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>

#include "base/floats.h"
#include "differential/golden.h"
#include "formats/format.h"
#include "parfait/parfait.h"
#include "support/test_file.h"

namespace parfait {
namespace {

namespace fs = std::filesystem;
using golden::read_all;
using golden::step_at;
using golden::Values;
const fs::path& golden_folder = golden::folder;

struct Difference {
  double relative = 0;  // L2 of the difference by the L2 that y would have without luck
  double share_within_one_step = 1;  // of the outputs, those at most one step of the dtype away
};

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

// One case of each format, as made by comfy-kitchen.
const char* const one_of_each[] = {"int8_convrot64", "w4a4_rot64_int4", "w4a8_g16_fixed",
                                   "w6a8_g32",       "nvfp4_small",     "mxfp8_small",
                                   "fp8_e4m3",       "fp8_e5m2",        "awq_g64_bf16",
                                   "plain_bf16",     "plain_f16",       "plain_f32"};

// A file with the pair's two layers and, as blocks.1, blocks.2, ..., the layers of these cases.
fs::path mixed_file(const std::vector<std::string>& names, const test::TemporaryFolder& folder) {
  test::TestFile mixed;
  const auto add = [&](const fs::path& file, const std::string& from, const std::string& to) {
    for (auto& [name, values] : read_all(file)) {
      std::string renamed = name;
      if (!from.empty() && renamed.starts_with(from)) renamed = to + renamed.substr(from.size());
      mixed.raw(renamed, values.dtype, values.shape, values.bytes);
    }
  };
  add(golden_folder / "pair.safetensors", "", "");
  for (std::size_t i = 0; i < names.size(); ++i)
    add(golden_folder / (names[i] + ".safetensors"), "blocks.0.mlp.fc1",
        fmt::format("blocks.{}.mlp.fc1", i + 1));
  return folder.write("mixed.safetensors", mixed.bytes());
}

// What a file with the pair and those cases must be: opened with no option, sound, each layer under
// its own method, and each within its format's tolerance of comfy-kitchen's output.
void expect_mixed_file_runs(const std::vector<std::string>& names) {
  SCOPED_TRACE(testing::PrintToString(names));
  test::TemporaryFolder folder;
  const fs::path file = mixed_file(names, folder);
  auto checkpoint = open(file);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const Layer qkv = *checkpoint->find("blocks.0.attn.qkv_proj"),
              fc1 = *checkpoint->find("blocks.0.mlp.fc1");
  const auto stored = [](const Layer& layer) {
    for (const Layer::Part& part : layer.parts())
      if (part.role == "weight")
        return std::vector<std::uint64_t>(part.tensor.shape.begin(), part.tensor.shape.end());
    return std::vector<std::uint64_t>();
  };
  EXPECT_EQ(stored(qkv), (std::vector<std::uint64_t>{3, 128}));
  EXPECT_EQ(stored(fc1), (std::vector<std::uint64_t>{3, 256}));
  auto report = check(*checkpoint);
  ASSERT_TRUE(report.ok() && report->sound());
  auto plan = make_plan(*report->checked);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  ASSERT_EQ(plan->layers().size(), names.size() + 2);
  EXPECT_EQ(plan->find("blocks.0.attn.qkv_proj")->method, Method::w4a4_int4);
  EXPECT_EQ(plan->find("blocks.0.mlp.fc1")->method, Method::int8);
  for (const LayerPlan& layer : plan->layers()) {
    const formats::Format& format = *formats::find_format(layer.format);
    const Method method = format.name == "int8_tensorwise"  ? Method::int8
                          : format.name == "asym_w4a8_int8" ? Method::w4a8
                          : format.name == "w6a8_int8"      ? Method::w6a8
                                                            : Method::decode_rows;
    if (format.name != "convrot_w4a4") {
      EXPECT_EQ(layer.method, method) << layer.name;
    }
    const bool of_pair = layer.name.starts_with("blocks.0.");
    const std::string golden =
        of_pair ? "pair" : names[static_cast<std::size_t>(std::stoi(layer.name.substr(7))) - 1];
    const std::string prefix = of_pair ? layer.name + "/" : "";
    const auto expected = read_all(golden_folder / (golden + ".expected.safetensors"));
    for (const char* type : {"f32", "bf16", "f16"}) {
      const Values& x = expected.at(prefix + "x." + type);
      auto y = run(file, layer.name, x, {});
      ASSERT_TRUE(y.ok()) << y.error().message;
      const Values& reference = expected.at(prefix + (of_pair ? "y." : "y_bias.") + type);
      const double norm = expected_norm(x, expected.at(prefix + "decode.f32"));
      EXPECT_LE(compare(*y, reference, norm).relative, kitchen_tolerance(format, x.dtype))
          << layer.name << " " << golden << " " << type;
    }
  }
}

TEST(GoldenMixed, one_w4a4_and_one_int8_layer) { expect_mixed_file_runs({}); }

TEST(GoldenMixed, each_other_format_added_in_every_pair) {
  for (const char* a : one_of_each)
    for (const char* b : one_of_each) expect_mixed_file_runs({a, b});
}

TEST(GoldenMixed, all_formats_together) {
  expect_mixed_file_runs({std::begin(one_of_each), std::end(one_of_each)});
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenLinear, testing::ValuesIn(golden::cases()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace parfait
