// Whole outputs on every instruction set, layers that share their input, and weights of 4 and 6
// bits that cannot stay so narrow.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/floats.h"
#include "differential/layers.h"

namespace parfait {
namespace {

using namespace parfait::testing_layers;
using test::TestFile;

TestFile file_of_all_formats() {
  TestFile file;
  for (const FormatInfo& format : formats_table())
    add_layer(file, format.name, "layers." + std::string(format.name));
  return file;
}

TEST(Variants, whole_outputs_are_the_same_bits_on_every_instruction_set) {
  const TestFile file = file_of_all_formats();
  const auto best = open_file(file);
  const std::vector<float> x = random_rows(37);
  for (const Isa isa : machine_isas()) {
    PlanOptions options;
    options.isa = isa;
    const auto forced = open_file(file, {}, options);
    for (const LayerPlan& layer : forced->plan->layers()) {
      EXPECT_EQ(run(*forced->plan, layer.name, x, 2), run(*best->plan, layer.name, x, 2))
          << layer.name << " by " << layer.kernel;
      if (isa == Isa::reference) {
        EXPECT_TRUE(layer.kernel.ends_with(".reference")) << layer.kernel;
      }
    }
  }
}

TEST(Variants, layers_that_share_their_input_give_the_same_bits_as_one_by_one) {
  const auto opened = open_file(file_of_all_formats());
  auto model = load(*opened->plan);
  ASSERT_TRUE(model.ok());
  for (const std::uint64_t rows : {1u, 5u, 130u}) {
    const std::vector<float> x = random_rows(rows);
    std::vector<std::vector<float>> y;
    std::vector<LinearTarget> targets;
    const auto layers = opened->plan->layers();
    for (std::size_t i = 0; i < layers.size(); ++i) y.emplace_back(rows * N, -1.0f);
    for (std::size_t i = 0; i < layers.size(); ++i)
      targets.push_back({layers[i].name, {y[i].data(), DType::f32, rows, N, N}});
    Session session(*model, 3);
    const ConstMatrix input{x.data(), DType::f32, rows, K, K};
    ASSERT_TRUE(session.linear(targets, input).ok());
    for (std::size_t i = 0; i < layers.size(); ++i)
      EXPECT_EQ(y[i], run(*opened->plan, std::string(layers[i].name), x, 1)) << layers[i].name;

    // One that does not fit: nothing runs.
    std::fill(y[0].begin(), y[0].end(), -7.0f);
    targets.back().y.columns = N - 1;
    auto refused = session.linear(targets, input);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::run_shape);
    EXPECT_EQ(y[0], std::vector<float>(rows * N, -7.0f));
  }
}

struct Narrow {
  std::string format = "asym_w4a8_int8";
  std::uint64_t group = 16;
  DType relative = DType::f8_e4m3;
  bool correction = false, codebook = false;
};

// A layer "a" with its relative scales given by a function of row and group.
template <class Scale>
std::unique_ptr<Opened> open_narrow(const Narrow& narrow, Scale scale) {
  TestFile file;
  const std::uint64_t groups = K / narrow.group;
  file.codes("a.weight", DType::i8, {N, narrow.format == "w6a8_int8" ? K * 3 / 4 : K / 2});
  std::vector<float> relative;
  for (std::uint64_t n = 0; n < N; ++n)
    for (std::uint64_t g = 0; g < groups; ++g) relative.push_back(scale(n, g));
  if (narrow.relative == DType::f32) {
    file.values("a.weight_s_rel", DType::f32, {N, groups}, relative);
  } else {
    std::vector<std::byte> codes(relative.size());
    for (std::size_t i = 0; i < codes.size(); ++i)
      codes[i] = static_cast<std::byte>(float_to_e4m3(relative[i]));
    file.raw("a.weight_s_rel", narrow.relative, {N, groups}, codes);
  }
  file.floats("a.weight_s_channel", DType::f32, {N}, 0.001f);
  if (narrow.codebook) {
    std::vector<float> levels;
    for (int i = 0; i < 16; ++i) levels.push_back(static_cast<float>(i * i) / 8 - 12);
    file.values("a.weight_codebook", DType::f32, {16}, levels);
  }
  if (narrow.correction) file.floats("a.weight_correction", DType::f32, {groups, N}, 0.01f);
  file.marker("a", "{\"format\": \"" + narrow.format + "\", \"group_size\": " +
                       std::to_string(narrow.group) + ", \"convrot_groupsize\": 64}");
  return open_file(file);
}

double error_of(const Opened& opened, const std::vector<float>& x, const std::vector<float>& y) {
  std::vector<float> expected(y.size());
  const std::uint64_t rows = x.size() / K;
  auto done = reference_linear(*opened.checkpoint, *opened.checkpoint->find("a"),
                               {x.data(), DType::f32, rows, K, K}, expected);
  EXPECT_TRUE(done.ok()) << done.error().message;
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    error += std::pow(static_cast<double>(y[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(error / norm);
}

TEST(Narrow, weights_stay_as_narrow_as_stored_where_they_can) {
  const std::vector<float> x = random_rows(20);
  const auto scale = [](std::uint64_t n, std::uint64_t g) {
    return 0.5f + static_cast<float>((n * 7 + g * 3) % 13) / 4;
  };
  for (const Narrow& narrow :
       {Narrow{}, Narrow{.group = 32, .codebook = true}, Narrow{.relative = DType::u8},
        Narrow{.format = "w6a8_int8", .group = 32}, Narrow{.group = 8},
        Narrow{.group = 4, .codebook = true}, Narrow{.relative = DType::f32},
        Narrow{.format = "w6a8_int8", .group = 16, .relative = DType::f32},
        Narrow{.correction = true}}) {
    const auto opened = open_narrow(narrow, scale);
    const LayerPlan& layer = opened->plan->layers()[0];
    SCOPED_TRACE(narrow.format + " " + std::to_string(narrow.group) + ": " +
                 std::string(layer.kernel) + ", " + std::string(layer.reason));
    const bool wide = narrow.group < 16 || narrow.relative == DType::f32;
    const char* name = narrow.correction              ? "decode."
                       : wide                         ? "int8."
                       : narrow.format == "w6a8_int8" ? "w6a8."
                                                      : "w4a8.";
    EXPECT_TRUE(layer.kernel.starts_with(name)) << layer.kernel;
    EXPECT_EQ(layer.method, narrow.correction              ? Method::decode_rows
                            : narrow.format == "w6a8_int8" ? Method::w6a8
                                                           : Method::w4a8);
    EXPECT_EQ(layer.reason.find("held as int8") != std::string::npos, wide && !narrow.correction);
    // Held as planned; 4 and 6 bits with their scales are below 8.
    auto model = load(*opened->plan);
    ASSERT_TRUE(model.ok());
    EXPECT_EQ(model->resident_bytes(), layer.resident_bytes);
    const std::vector<float> y = run(*opened->plan, "a", x, 2);
    EXPECT_LE(error_of(*opened, x, y), layer_tolerance(layer, DType::f32));
    for (const Isa isa : machine_isas()) {
      PlanOptions options;
      options.isa = isa;
      auto plan = make_plan(*check(*opened->checkpoint)->checked, options);
      ASSERT_TRUE(plan.ok());
      EXPECT_EQ(run(*plan, "a", x, 3), y) << isa_name(isa);
    }
  }
}

// No writer emits it, so a header check can't know: the row's outputs are NaN, as its decoded row
// is, and the others are untouched.
TEST(Narrow, a_relative_scale_of_nan_makes_its_row_nan) {
  const std::vector<float> x = random_rows(3);
  for (const Narrow& narrow : {Narrow{}, Narrow{.group = 8}, Narrow{.relative = DType::f32},
                               Narrow{.format = "w6a8_int8", .group = 32}}) {
    const auto opened = open_narrow(narrow, [](std::uint64_t n, std::uint64_t g) {
      return n == 5 && g == 2 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
    });
    const std::vector<float> y = run(*opened->plan, "a", x, 2);
    for (std::size_t i = 0; i < y.size(); ++i)
      EXPECT_EQ(std::isnan(y[i]), i % N == 5) << narrow.format << " output " << i;
  }
}

}  // namespace
}  // namespace parfait
