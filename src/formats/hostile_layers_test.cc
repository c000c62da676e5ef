// Layers of random tensors under every format's marker: no combination of dtypes, ranks and shapes
// may be read out of bounds (the sanitizers watch), and what is found sound must decode, have the
// size that it says, and be split at multiples that divide it.

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "formats/format_testing.h"

namespace parfait::formats {
namespace {

using namespace testing;

class RandomLayers {
 public:
  explicit RandomLayers(unsigned seed) : random_(seed) {}

  // Mostly what the format asks for, at times anything.
  TestFile make(const Format& format) {
    TestFile file;
    const std::uint64_t rows = pick<std::uint64_t>({1, 3, 16, 32, 128, 130});
    const std::uint64_t columns = pick<std::uint64_t>({4, 16, 32, 64, 96, 192, 256});
    for (const PartSpec& spec : format.parts) {
      if (chance(spec.need == PartSpec::Need::required ? 2 : 60)) continue;
      const DType dtype = chance(3) ? pick<DType>({DType::u8, DType::f32, DType::i8, DType::f4,
                                                   DType::i64, DType::f8_e4m3, DType::boolean})
                                    : spec.dtypes[random_() % spec.dtypes.size()];
      Shape shape = chance(4) ? any_shape() : shape_of(format, spec.role, rows, columns);
      if (dtype == DType::f4) shape.push_back(2);
      file.codes("a." + std::string(spec.suffixes[random_() % spec.suffixes.size()]), dtype, shape);
    }
    file.marker("a", marker(format));
    return file;
  }

 private:
  bool chance(unsigned percent) { return random_() % 100 < percent; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return *(values.begin() + random_() % values.size());
  }

  Shape any_shape() {
    Shape shape(random_() % 5);
    for (std::uint64_t& dimension : shape) dimension = pick<std::uint64_t>({0, 1, 2, 3, 16, 128});
    return shape;
  }

  Shape shape_of(const Format& format, std::string_view role, std::uint64_t rows,
                 std::uint64_t columns) {
    const bool nibbles = format.weight_bits.starts_with("4");
    const std::uint64_t block = format.name == "mxfp8" ? 32 : 16;
    if (role == "weight") {
      const std::uint64_t stored = nibbles                      ? columns / 2
                                   : format.name == "w6a8_int8" ? columns / 4 * 3
                                                                : columns;
      if (chance(5)) return {2, rows, stored};
      if (chance(3)) return {rows, stored, 1, 1};
      return {rows, stored};
    }
    if (role == "weight_scale" && (format.name == "nvfp4" || format.name == "mxfp8"))
      return {(rows + 127) / 128 * 128, (columns / block + 3) / 4 * 4};
    if (role == "weight_scale" && format.name != "awq_w4a16")
      return pick<Shape>({{}, {1}, {rows}, {rows, 1}});
    if (role == "weight_scale" || role == "weight_zeros" || role == "weight_correction")
      return {columns / 16, rows};
    if (role == "weight_s_rel") return {rows, columns / 16};
    if (role == "weight_s_channel" || role == "bias") return {rows};
    if (role == "weight_codebook") return {16};
    if (role == "pre_quant_scale") return {columns};
    return {};
  }

  std::string marker(const Format& format) {
    std::string more;
    const auto add = [&](const std::string& key) { more += (more.empty() ? "" : ", ") + key; };
    if (format.name != "nvfp4" && format.name != "mxfp8" && chance(80))
      add("\"convrot_groupsize\": " + std::to_string(pick({4, 16, 64, 256, 12})));
    if (format.name == "int8_tensorwise" && chance(60)) add("\"convrot\": true");
    if (chance(80)) add("\"group_size\": " + std::to_string(pick({16, 16, 32, 4, 5})));
    return marker_text(format.name, more);
  }

  std::mt19937 random_;
};

void expect_consistent(const Opened& opened, const Layer& layer) {
  expect_size_matches(layer);
  const std::vector<float> all = opened.decode();
  ASSERT_EQ(all.size(), layer.rows * layer.columns);
  const std::vector<float> last = opened.decode_rows("a", layer.rows - 1, 1);
  for (std::uint64_t k = 0; k < layer.columns; ++k) {
    const float whole = all[(layer.rows - 1) * layer.columns + k];
    ASSERT_TRUE(last[k] == whole || (std::isnan(last[k]) && std::isnan(whole)));
  }
  const SplitRule rule = layer.format->split(layer);
  EXPECT_EQ(rule.rows, 1u);
  EXPECT_FALSE(rule.why.empty());
  if (rule.columns != 0 && layer.rotate_group != 0) {
    EXPECT_EQ(rule.columns % layer.rotate_group, 0u);
  }
}

class HostileLayers : public ::testing::TestWithParam<const Format*> {};

TEST_P(HostileLayers, are_found_out_or_sound) {
  const Format& format = *GetParam();
  int sound = 0, refused = 0;
  for (unsigned seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Opened opened(RandomLayers(seed).make(format));
    const std::vector<Finding> findings = opened.check(CheckDepth::data);
    const Layer* layer = opened.checkpoint().find("a");
    const bool is_sound = layer && std::ranges::none_of(findings, [](const Finding& finding) {
                            return finding.severity == Severity::error &&
                                   !error_code_name(finding.code).starts_with("data.");
                          });
    (is_sound ? sound : refused) += 1;
    if (!is_sound) continue;
    ASSERT_NO_FATAL_FAILURE(expect_consistent(opened, *layer));
  }
  // Neither side of the test may be empty, or it proves nothing.
  EXPECT_GT(sound, 20);
  EXPECT_GT(refused, 20);
}

std::vector<const Format*> declared_formats() {
  std::vector<const Format*> formats;
  for (const Format* format : all_formats())
    if (format->folder != "plain") formats.push_back(format);
  return formats;
}

std::string test_name(const ::testing::TestParamInfo<const Format*>& info) {
  return std::string(info.param->name);
}
INSTANTIATE_TEST_SUITE_P(Formats, HostileLayers, ::testing::ValuesIn(declared_formats()),
                         test_name);

}  // namespace
}  // namespace parfait::formats
