// One layer of any format, N × K, in a file of its own or among others, and how to run it. Tests
// only.
#ifndef PARFAIT_DIFFERENTIAL_LAYERS_H_
#define PARFAIT_DIFFERENTIAL_LAYERS_H_

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "parfait/parfait.h"
#include "support/test_file.h"

namespace parfait::testing_layers {

inline constexpr std::uint64_t N = 24, K = 256;

// One layer of a format, N × K, with random contents that decode to values around 1/√K.
inline void add_layer(test::TestFile& file, std::string_view format, const std::string& name) {
  const auto marker = [&](std::string_view json) { file.marker(name, json); };
  if (format == "int8_tensorwise") {
    file.codes(name + ".weight", DType::i8, {N, K});
    file.floats(name + ".weight_scale", DType::f32, {N, 1}, 0.002f);
    marker(R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 64})");
  } else if (format == "convrot_w4a4") {
    file.codes(name + ".weight", DType::i8, {N, K / 2});
    file.floats(name + ".weight_scale", DType::f32, {N}, 0.02f);
    marker(R"({"format": "convrot_w4a4", "convrot_groupsize": 256, "linear_dtype": "int8"})");
  } else if (format == "asym_w4a8_int8" || format == "w6a8_int8") {
    const bool six = format == "w6a8_int8";
    file.codes(name + ".weight", DType::i8, {N, six ? K * 3 / 4 : K / 2});
    file.codes(name + ".weight_s_rel", DType::f8_e4m3, {N, K / 16});
    file.floats(name + ".weight_s_channel", DType::f32, {N}, 0.001f);
    marker(std::string("{\"format\": \"") + std::string(format) +
           "\", \"group_size\": 16, \"convrot_groupsize\": 256}");
  } else if (format == "nvfp4") {
    file.codes(name + ".weight", DType::u8, {N, K / 2});
    file.codes(name + ".weight_scale", DType::f8_e4m3, {128, K / 16});
    file.floats(name + ".weight_scale_2", DType::f32, {}, 0.05f);
    marker(R"({"format": "nvfp4"})");
  } else if (format == "mxfp8") {
    file.codes(name + ".weight", DType::f8_e4m3, {N, K});
    file.raw(name + ".weight_scale", DType::u8, {128, K / 32},
             std::vector<std::byte>(128 * K / 32, std::byte{122}));
    marker(R"({"format": "mxfp8"})");
  } else if (format.starts_with("float8")) {
    file.codes(name + ".weight", format == "float8_e5m2" ? DType::f8_e5m2 : DType::f8_e4m3, {N, K});
    file.floats(name + ".weight_scale", DType::f32, {}, 0.03f);
    marker("{\"format\": \"" + std::string(format) + "\"}");
  } else if (format == "awq_w4a16") {
    file.codes(name + ".weight", DType::i8, {N, K / 2});
    file.floats(name + ".weight_scale", DType::bf16, {K / 64, N}, 0.01f);
    file.floats(name + ".weight_zeros", DType::bf16, {K / 64, N}, 0.005f);
    marker(R"({"format": "awq_w4a16", "group_size": 64})");
  } else {
    file.floats(name + ".weight",
                *parse_dtype(format == "bf16"  ? "BF16"
                             : format == "f16" ? "F16"
                                               : "F32"),
                {N, K}, 0.0625f);
  }
  file.floats(name + ".bias", DType::bf16, {N}, 0.25f);
}

struct Opened {
  test::TemporaryFolder folder;
  std::optional<Checkpoint> checkpoint;
  std::optional<Plan> plan;
};

inline std::unique_ptr<Opened> open_file(const test::TestFile& file,
                                         const OpenOptions& open_options = {},
                                         const PlanOptions& options = {}) {
  auto opened = std::make_unique<Opened>();
  auto checkpoint = open(opened->folder.write("test.safetensors", file.bytes()), open_options);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  opened->checkpoint = *checkpoint;
  auto report = check(*checkpoint);
  EXPECT_TRUE(report.ok() && report->sound());
  for (const Finding& finding : report->findings)
    if (finding.severity == Severity::error) ADD_FAILURE() << finding.line();
  auto plan = make_plan(*report->checked, options);
  EXPECT_TRUE(plan.ok()) << plan.error().message;
  opened->plan = *plan;
  return opened;
}

inline std::vector<float> random_rows(std::uint64_t rows, std::uint64_t columns = K) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(rows * columns);
  for (float& v : x) v = normal(random);
  return x;
}

inline std::vector<float> run(const Plan& plan, const std::string& layer,
                              const std::vector<float>& x, unsigned threads) {
  auto model = load(plan, {.layers = {layer}, .threads = threads, .progress = {}});
  EXPECT_TRUE(model.ok()) << model.error().message;
  Session session(*model, threads);
  const std::uint64_t rows = x.size() / K;
  std::vector<float> y(rows * N);
  auto done =
      session.linear(layer, {x.data(), DType::f32, rows, K, K}, {y.data(), DType::f32, rows, N, N});
  EXPECT_TRUE(done.ok()) << done.error().message;
  return y;
}

}  // namespace parfait::testing_layers

#endif  // PARFAIT_DIFFERENTIAL_LAYERS_H_
