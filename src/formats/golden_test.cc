// Every golden checkpoint that comfy-kitchen made: detected, sound, of the size that the format
// says, and decoded as comfy-kitchen decodes it: bit for bit where nothing is rotated, otherwise
// but for the order of the rotation's sums.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "formats/common.h"
#include "formats/convrot_w4a4/layout.h"
#include "formats/format_testing.h"
#include "formats/w6a8_int8/layout.h"

namespace parfait::formats {
namespace {

using testing::expect_size_matches;
using testing::expect_sound;

std::vector<std::string> golden_cases() {
  std::vector<std::string> names;
  const auto folder = std::filesystem::path(PARFAIT_SOURCE_DIR) / "tests/golden/formats";
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder, missing)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view ending = ".expected.safetensors";
    if (name.ends_with(ending)) names.push_back(name.substr(0, name.size() - ending.size()));
  }
  std::ranges::sort(names);
  return names;
}

container::TensorIndexPtr open_golden(const std::string& file) {
  auto index = container::open_index(
      std::filesystem::path(PARFAIT_SOURCE_DIR) / "tests/golden/formats" / file, {});
  EXPECT_TRUE(index.ok()) << (index.ok() ? "" : index.error().message);
  return index.ok() ? *index : nullptr;
}

std::vector<float> read_floats(const container::TensorIndex& index, const TensorInfo& tensor) {
  std::vector<std::byte> scratch;
  auto bytes = index.read(tensor, scratch);
  EXPECT_TRUE(bytes.ok());
  std::vector<float> values(tensor.bytes / (dtype_bits(tensor.dtype) / 8));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = load_float(tensor.dtype, bytes->data(), i);
  return values;
}

// Decodes in blocks of rows, each on a thread of its own, which must be the same as at once.
std::vector<float> decode_in_threads(const LayerData& data) {
  const Layer& layer = *data.layer;
  std::vector<float> out(layer.rows * layer.columns);
  const std::uint64_t block = 3;
  std::vector<std::thread> threads;
  for (std::uint64_t first = 0; first < layer.rows; first += block)
    threads.emplace_back([&, first] {
      layer.format->decode(data, first, std::min(block, layer.rows - first),
                           out.data() + first * layer.columns);
    });
  for (std::thread& thread : threads) thread.join();
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The largest difference, by the largest value of its row.
double row_error(const std::vector<float>& got, const std::vector<float>& expected,
                 std::uint64_t columns) {
  double worst = 0;
  for (std::size_t row = 0; row < got.size(); row += columns) {
    double largest = 0, difference = 0;
    for (std::size_t i = row; i < row + columns; ++i) {
      largest = std::fmax(largest, std::fabs(expected[i]));
      difference = std::fmax(difference, std::fabs(static_cast<double>(got[i]) - expected[i]));
    }
    if (difference > 0) worst = std::fmax(worst, difference / largest);
  }
  return worst;
}

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, is_sound_and_decodes_as_comfy_kitchen_does) {
  const auto index = open_golden(GetParam() + ".safetensors");
  const auto expected = open_golden(GetParam() + ".expected.safetensors");
  ASSERT_TRUE(index && expected);
  auto checkpoint = detect(index);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  auto findings = check_layers(**checkpoint, {.depth = CheckDepth::data, .progress = {}});
  ASSERT_TRUE(findings.ok()) << findings.error().message;
  expect_sound(*findings);

  int decoded = 0;
  for (const Layer& layer : (*checkpoint)->layers) {
    SCOPED_TRACE(layer.name);
    expect_size_matches(layer);
    // AWQ is evaluated in the type of its scales; the others in float.
    const bool awq = layer.format->name == "awq_w4a16";
    const std::string key = !awq                                               ? "decode.f32"
                            : layer.part("weight_scale")->dtype == DType::bf16 ? "decode.bf16"
                                                                               : "decode.f16";
    const TensorInfo* wanted = expected->find(key);
    if (!wanted) wanted = expected->find(std::string(layer.name) + "/" + key);
    if (!wanted) continue;  // a layer of the file of all formats that has no such table
    ASSERT_EQ(shape_text(wanted->shape), fmt::format("[{}, {}]", layer.rows, layer.columns));
    auto data = read_layer(*index, layer);
    ASSERT_TRUE(data.ok()) << data.error().message;
    std::vector<float> got(layer.rows * layer.columns);
    layer.format->decode(*data, 0, layer.rows, got.data());
    EXPECT_TRUE(same_bits(decode_in_threads(*data), got)) << "rows depend on how they are divided";
    const std::vector<float> values = read_floats(*expected, *wanted);
    const double error = row_error(got, values, layer.columns);
    if (layer.rotate_group == 0) {
      EXPECT_TRUE(same_bits(got, values))
          << "differs by " << error << " of the row's largest value";
    } else {
      EXPECT_LE(error, 1e-6);
    }
    ++decoded;
  }
  EXPECT_GT(decoded, 0);
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(Formats, Golden, ::testing::ValuesIn(golden_cases()), test_name);

TEST(GoldenFiles, are_there) { EXPECT_GE(golden_cases().size(), 30u); }

std::vector<std::byte> table(const container::TensorIndex& index, std::string_view name) {
  const TensorInfo* tensor = index.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<std::byte> scratch;
  auto bytes = index.read(*tensor, scratch);
  EXPECT_TRUE(bytes.ok());
  return {bytes->begin(), bytes->end()};
}

TEST(GoldenTables, block_scales_stand_where_comfy_kitchen_puts_them) {
  const auto index = open_golden("../codecs.safetensors");
  ASSERT_TRUE(index);
  const std::vector<std::byte> blocked = table(*index, "swizzle.index.blocked");
  const BlockScales layout{300, 17};
  ASSERT_EQ(blocked.size(), 4 * layout.stored_bytes());
  for (std::uint64_t row = 0; row < 300; ++row)
    for (std::uint64_t column = 0; column < 17; ++column)
      ASSERT_EQ(load_at<std::int32_t>(blocked.data(), layout.offset(row, column)),
                static_cast<std::int32_t>(1 + 17 * row + column));
}

TEST(GoldenTables, codes_are_packed_as_comfy_kitchen_packs_them) {
  const auto index = open_golden("../codecs.safetensors");
  ASSERT_TRUE(index);
  const auto each = [&](const std::string& name, std::uint64_t columns, auto read) {
    const std::vector<std::byte> packed = table(*index, name + ".byte");
    const std::vector<std::byte> codes = table(*index, name + ".code");
    const std::uint64_t row_bytes = packed.size() / 2;
    ASSERT_EQ(codes.size(), 2 * columns) << name;
    for (std::uint64_t i = 0; i < codes.size(); ++i)
      EXPECT_EQ(
          static_cast<std::uint8_t>(read(packed.data() + i / columns * row_bytes, i % columns)),
          std::to_integer<std::uint8_t>(codes[i]))
          << name << " " << i;
  };
  each("pack.int4", 32, [](const std::byte* row, std::uint64_t k) { return int4_code(row, k); });
  each("pack.u4", 64, nibble_low_first);
  each("pack.fp4", 32, nibble_high_first);
  each("pack.u6", 64, [](const std::byte* row, std::uint64_t k) {
    return w6a8_codes(row, 64, k / 4 * 4).codes[k % 4];
  });
}

// Each format of the table has a golden file, so that none is added without one.
TEST(GoldenFiles, cover_every_format) {
  std::vector<std::string_view> seen;
  for (const std::string& name : golden_cases()) {
    const auto index = open_golden(name + ".safetensors");
    ASSERT_TRUE(index);
    auto checkpoint = detect(index);
    ASSERT_TRUE(checkpoint.ok());
    for (const Layer& layer : (*checkpoint)->layers) seen.push_back(layer.format->name);
  }
  for (const Format* format : all_formats())
    EXPECT_NE(std::ranges::find(seen, format->name), seen.end()) << format->name;
}

}  // namespace
}  // namespace parfait::formats
