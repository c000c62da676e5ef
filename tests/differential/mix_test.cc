// Random checkpoints: any mixture of formats, shapes and groups in one file, each layer run by its
// planned method on random activations, against the product with its decoded rows.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/floats.h"
#include "parfait/parfait.h"
#include "support/test_file.h"

namespace parfait {
namespace {

class RandomFile {
 public:
  explicit RandomFile(std::uint32_t seed) : engine_(seed) {}

  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(engine_);
  }
  template <std::size_t count>
  std::uint64_t pick(const std::uint64_t (&values)[count]) {
    return values[between(0, count - 1)];
  }
  float normal() { return std::normal_distribution<float>(0, 1)(engine_); }

  // A layer of this format with random shape, groups and contents.
  void add(std::string_view format, const std::string& name) {
    const std::uint64_t N = between(1, 70);
    if (format == "int8_tensorwise") {
      const std::uint64_t group = pick({0, 4, 16, 64, 256});
      const std::uint64_t K = group ? group * between(1, 1024 / group) : between(16, 700);
      bytes(name + ".weight", DType::i8, {N, K}, 1);
      const bool one_scale = group == 0 && between(0, 1);
      scales(name + ".weight_scale", DType::f32, one_scale ? Shape{} : Shape{N, 1}, 1e-3f);
      marker(name,
             group ? fmt::format(R"("int8_tensorwise", "convrot": true, "convrot_groupsize": {})",
                                 group)
                   : R"("int8_tensorwise")");
    } else if (format == "convrot_w4a4") {
      const std::uint64_t group = pick({16, 64, 256}), unit = std::max<std::uint64_t>(group, 64);
      const std::uint64_t K = unit * between(1, 1024 / unit);
      bytes(name + ".weight", DType::i8, {N, K / 2}, 1);
      scales(name + ".weight_scale", DType::f32, {N}, 1e-2f);
      marker(name, fmt::format(R"("convrot_w4a4", "convrot_groupsize": {}, "linear_dtype": "{}")",
                               group, between(0, 1) ? "int4" : "int8"));
    } else if (format == "asym_w4a8_int8" || format == "w6a8_int8") {
      const bool six = format == "w6a8_int8";
      const std::uint64_t group = six ? pick({16, 32, 64}) : pick({4, 8, 16, 32}),
                          K = 256 * between(1, 3);
      bytes(name + ".weight", DType::i8, {N, six ? K / 4 * 3 : K / 2}, 1);
      small_floats(name + ".weight_s_rel", DType::f8_e4m3, {N, K / group});
      scales(name + ".weight_s_channel", DType::f32, {N}, 1e-3f);
      marker(name,
             fmt::format(R"("{}", "group_size": {}, "convrot_groupsize": 256)", format, group));
    } else if (format == "nvfp4") {
      const std::uint64_t K = 16 * between(1, 40);
      bytes(name + ".weight", DType::u8, {N, K / 2}, 1);
      small_floats(name + ".weight_scale", DType::f8_e4m3, {up(N, 128), up(K / 16, 4)});
      scales(name + ".weight_scale_2", DType::f32, {}, 1e-2f);
      if (between(0, 1)) scales(name + ".pre_quant_scale", DType::bf16, {K}, 1);
      marker(name, R"("nvfp4")");
    } else if (format == "mxfp8") {
      const std::uint64_t K = 32 * between(1, 20);
      small_floats(name + ".weight", DType::f8_e4m3, {N, K});
      const Shape shape{up(N, 128), up(K / 32, 4)};
      std::vector<std::byte> exponents(shape[0] * shape[1]);
      for (std::byte& e : exponents) e = static_cast<std::byte>(between(118, 126));
      file.raw(name + ".weight_scale", DType::u8, shape, exponents);
      marker(name, R"("mxfp8")");
    } else if (format == "float8_e4m3fn" || format == "float8_e5m2") {
      const std::uint64_t K = between(16, 600);
      small_floats(name + ".weight", format == "float8_e5m2" ? DType::f8_e5m2 : DType::f8_e4m3,
                   {N, K});
      scales(name + ".weight_scale", DType::f32, {}, 1e-2f);
      marker(name, fmt::format("\"{}\"", format));
    } else if (format == "awq_w4a16") {
      const std::uint64_t K = 64 * between(1, 10);
      const DType dtype = between(0, 1) ? DType::bf16 : DType::f16;
      bytes(name + ".weight", DType::i8, {N, K / 2}, 1);
      scales(name + ".weight_scale", dtype, {K / 64, N}, 1e-2f);
      scales(name + ".weight_zeros", dtype, {K / 64, N}, 1e-2f);
      marker(name, R"("awq_w4a16", "group_size": 64)");
    } else {
      scales(name + ".weight",
             *parse_dtype(format == "bf16"  ? "BF16"
                          : format == "f16" ? "F16"
                                            : "F32"),
             {N, between(16, 600)}, 0.1f);
    }
    if (between(0, 1)) {
      const DType types[] = {DType::f32, DType::f16, DType::bf16};
      scales(name + ".bias", types[between(0, 2)], {N}, 0.1f);
    }
  }

  test::TestFile file;

 private:
  using Shape = std::vector<std::uint64_t>;

  static std::uint64_t up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b * b; }
  static std::uint64_t count(const Shape& shape) {
    std::uint64_t product = 1;
    for (std::uint64_t d : shape) product *= d;
    return product;
  }
  void bytes(const std::string& name, DType dtype, const Shape& shape, std::uint64_t size) {
    std::vector<std::byte> contents(count(shape) * size);
    for (std::byte& b : contents) b = static_cast<std::byte>(engine_());
    file.raw(name, dtype, shape, std::move(contents));
  }
  // F8 codes of numbers around 1.
  void small_floats(const std::string& name, DType dtype, const Shape& shape) {
    std::vector<std::byte> contents(count(shape));
    for (std::byte& b : contents) {
      const float value = std::fabs(normal()) + 0.05f;
      b = static_cast<std::byte>(dtype == DType::f8_e5m2 ? float_to_e5m2(value)
                                                         : float_to_e4m3(value));
    }
    file.raw(name, dtype, shape, std::move(contents));
  }
  // Positive numbers of this order.
  void scales(const std::string& name, DType dtype, const Shape& shape, float order) {
    std::vector<float> values(count(shape));
    for (float& v : values) v = (std::fabs(normal()) + 0.1f) * order;
    file.values(name, dtype, shape, values);
  }
  void marker(const std::string& name, const std::string& format_and_more) {
    file.marker(name, "{\"format\": " + format_and_more + "}");
  }

  std::mt19937 engine_;
};

// The distance of y from the product in double, by the L2 that such a product of unrelated rows
// has.
double error_of(const Checkpoint& checkpoint, const Layer& layer, const std::vector<float>& x,
                const std::vector<float>& y) {
  const std::uint64_t rows = x.size() / layer.columns(), N = layer.rows(), K = layer.columns();
  std::vector<float> product(rows * N), w(N * K);
  auto done = reference_linear(checkpoint, layer, {x.data(), DType::f32, rows, K, K}, product, 1);
  EXPECT_TRUE(done.ok()) << (done.ok() ? "" : done.error().message);
  EXPECT_TRUE(decode(checkpoint, layer, 0, N, w).ok());
  double xx = 0, ww = 0, error = 0, norm = 0;
  for (float v : x) xx += double{v} * v;
  for (float v : w) ww += double{v} * v;
  for (std::size_t i = 0; i < y.size(); ++i) {
    error += std::pow(double{y[i]} - product[i], 2);
    norm += double{product[i]} * product[i];
  }
  return std::sqrt(error / std::max(norm, xx * ww / static_cast<double>(K)));
}

TEST(Mix, every_layer_of_a_random_checkpoint_runs_within_its_tolerance) {
  const auto given = static_cast<std::uint32_t>(GTEST_FLAG_GET(random_seed));
  const std::uint32_t first = given ? given : 20261201u;
  for (std::uint32_t seed = first; seed < first + 6; ++seed) {
    SCOPED_TRACE(fmt::format("replay with --gtest_random_seed={}", seed));
    RandomFile random(seed);
    const std::vector<FormatInfo> formats = formats_table();
    const std::uint64_t layers = random.between(10, 30);
    std::vector<std::string> names;
    for (std::uint64_t i = 0; i < layers; ++i) {
      names.push_back(fmt::format("model.diffusion_model.blocks.{}.mlp.fc1", i));
      random.add(formats[random.between(0, formats.size() - 1)].name, names.back());
    }
    test::TemporaryFolder folder;
    auto checkpoint =
        open(folder.write("mix.safetensors", random.file.bytes(random.between(0, 3))));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    ASSERT_EQ(checkpoint->size(), layers);
    auto report = check(*checkpoint);
    ASSERT_TRUE(report.ok());
    for (const Finding& finding : report->findings)
      EXPECT_NE(finding.severity, Severity::error) << finding.line();
    ASSERT_TRUE(report->sound());
    auto plan = make_plan(*report->checked);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    auto model = load(*plan, {.layers = {}, .threads = 2, .progress = {}});
    ASSERT_TRUE(model.ok()) << model.error().message;
    Session session(*model, 3);
    std::string table = "relative L2 from the product with the decoded weight\n";
    bool failed = false;
    for (const LayerPlan& layer : plan->layers()) {
      // Outputs enough for their relative L2 to mean something.
      const std::uint64_t M = random.between(1, 40) + 100 / layer.rows;
      std::vector<float> x(M * layer.columns), y(M * layer.rows);
      for (float& v : x) v = random.normal();
      auto done =
          session.linear(layer.name, {x.data(), DType::f32, M, layer.columns, layer.columns},
                         {y.data(), DType::f32, M, layer.rows, layer.rows});
      ASSERT_TRUE(done.ok()) << done.error().message;
      const double error = error_of(*checkpoint, *checkpoint->find(layer.name), x, y);
      const double allowed = layer_tolerance(layer, DType::f32);
      failed |= !(error <= allowed);
      table += fmt::format("  {} {} [{}, {}] M {}: {:.1e}, allowed {:.1e}\n", layer.format,
                           method_name(layer.method), layer.rows, layer.columns, M, error, allowed);
    }
    EXPECT_FALSE(failed) << table;
  }
}

}  // namespace
}  // namespace parfait
