// Every encoder against comfy-kitchen's, over tests/golden/encoders (tools/make_encoder_goldens.py
// says what is in them): bit for bit wherever sums of the rotation are exact in any order, and
// otherwise but for what the order of these sums can do.

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "formats/common.h"
#include "formats/convrot_w4a4/layout.h"
#include "formats/encode_testing.h"
#include "formats/w6a8_int8/layout.h"
#include "io/json.h"

namespace parfait::formats {
namespace {

using namespace testing;

struct Case {
  std::string name, source;
  EncodeSettings settings;
};

// A file of tests/golden/encoders.
class GoldenFile {
 public:
  explicit GoldenFile(std::string_view name) {
    auto index =
        container::open_index(std::filesystem::path(PARFAIT_SOURCE_DIR) /
                                  fmt::format("tests/golden/encoders/{}.safetensors", name),
                              {});
    EXPECT_TRUE(index.ok()) << (index.ok() ? "" : index.error().message);
    if (index.ok()) index_ = *index;
  }

  std::vector<std::byte> bytes(const std::string& name) const {
    const TensorInfo* tensor = index_ ? index_->find(name) : nullptr;
    EXPECT_NE(tensor, nullptr) << name;
    if (!tensor) return {};
    std::vector<std::byte> scratch;
    auto read = index_->read(*tensor, scratch);
    EXPECT_TRUE(read.ok());
    return {read->begin(), read->end()};
  }
  std::vector<float> floats(const std::string& name) const {
    const TensorInfo* tensor = index_ ? index_->find(name) : nullptr;
    if (!tensor) return {};
    const std::vector<std::byte> from = bytes(name);
    std::vector<float> values(from.size() / (dtype_bits(tensor->dtype) / 8));
    widen(tensor->dtype, from.data(), values.size(), values.data());
    return values;
  }
  std::string shape(const std::string& name) const { return shape_text(index_->find(name)->shape); }
  DType dtype(const std::string& name) const { return index_->find(name)->dtype; }

  std::vector<Case> cases() const {
    std::vector<Case> all;
    for (const auto& [key, value] : index_->shards()[0].metadata) {
      if (key != "cases") continue;
      auto json = io::parse_json(value);
      EXPECT_TRUE(json.ok());
      for (const io::Json& object : *json->array()) {
        const auto text = [&](const char* k) { return *object.find(k)->string(); };
        const auto number = [&](const char* k) {
          return static_cast<std::uint32_t>(*object.find(k)->integer());
        };
        Case one{text("name"), text("source"), {}};
        one.settings.rotate_group = number("rotate");
        one.settings.scale_group = number("scale_group");
        one.settings.scale_of = text("scale_of") == "row" ? ScaleOf::row : ScaleOf::tensor;
        one.settings.arithmetic = text("arithmetic") == "bf16"  ? DType::bf16
                                  : text("arithmetic") == "f16" ? DType::f16
                                                                : DType::f32;
        all.push_back(one);
      }
    }
    return all;
  }

 private:
  container::TensorIndexPtr index_;
};

constexpr std::uint64_t rows = 32, columns = 512;

// Whether the sums of a row's rotation are exact in any order: its values are multiples of a power
// of two, and a group's magnitudes sum up to less than 2^24 of it. (G = 4^n: the factor 1/√G is a
// power of two.)
bool exact_in_any_order(std::span<const float> row, std::uint32_t group) {
  if (group == 0) return true;
  for (std::size_t begin = 0; begin < row.size(); begin += group) {
    double sum = 0;
    int last_bit = 1000;
    for (float value : row.subspan(begin, group)) {
      if (value == 0) continue;
      int exponent = 0;
      auto digits =
          static_cast<std::uint32_t>(std::ldexp(std::frexp(std::fabs(value), &exponent), 24));
      last_bit = std::min(last_bit, exponent - 24 + std::countr_zero(digits));
      sum += std::fabs(value);
    }
    // The rotated values' last bit is worth 1/√G of that, which must be a float, too.
    if (sum >= std::ldexp(1.0, last_bit + 24)) return false;
    if (sum != 0 && last_bit - std::countr_zero(group) / 2 < -149) return false;
  }
  return true;
}

// The codes of a row as numbers, whatever their packing.
std::vector<int> codes_of(const Format& format, std::span<const std::byte> row) {
  std::vector<int> codes(columns);
  for (std::uint64_t k = 0; k < columns; ++k)
    codes[k] = format.name == "int8_tensorwise" ? static_cast<std::int8_t>(row[k])
               : format.name == "convrot_w4a4"  ? int4_code(row.data(), k)
               : format.name == "w6a8_int8"
                   ? static_cast<int>(w6a8_codes(row.data(), columns, k / 4 * 4).codes[k % 4])
                   : static_cast<int>(nibble_low_first(row.data(), k));
  return codes;
}

// Units in the last place between two floats that are not negative.
std::uint32_t ulps(float a, float b) {
  const auto x = std::bit_cast<std::uint32_t>(a), y = std::bit_cast<std::uint32_t>(b);
  return x > y ? x - y : y - x;
}

// Rows for which comfy-kitchen's own result is no number or loses what could be kept (encode.cc of
// the formats says what is stored instead), or depends on the processor: some take bf16 subnormals
// for zeros in products of matrices.
bool kitchen_differs(const Format& format, const EncodeSettings& settings,
                     std::span<const float> row, std::span<const float> scale) {
  const float largest =
      std::fabs(*std::ranges::max_element(row, {}, [](float value) { return std::fabs(value); }));
  if (settings.arithmetic == DType::bf16 && settings.rotate_group != 0 && largest < 0x1p-126f)
    return largest != 0;
  if (format.name == "mxfp8") return largest != 0 && largest <= 448 * 0x1p-126f;
  return format.name == "convrot_w4a4" && scale[0] == 0;
}

// What a row of an encoded weight has: its bytes, its F32 scales, its scales of bytes in order.
struct Row {
  std::vector<std::byte> codes;
  std::vector<float> scales;
  std::vector<int> bytes;
};

Row row_of(const Format& format, const std::vector<EncodedTensor>& tensors,
           const std::vector<std::vector<std::byte>>& data, std::uint64_t row) {
  const auto row_bytes = static_cast<std::ptrdiff_t>(data[0].size() / rows);
  const auto begin = data[0].begin() + static_cast<std::ptrdiff_t>(row) * row_bytes;
  Row all{{begin, begin + row_bytes}, {}, {}};
  for (std::size_t t = 1; t < tensors.size(); ++t) {
    const EncodedTensor& tensor = tensors[t];
    if (tensor.suffix == "weight_codebook") continue;
    if (tensor.dtype == DType::f32) {
      all.scales.push_back(load_at<float>(data[t].data(), tensor.shape.empty() ? 0 : row));
      continue;
    }
    const bool tiled = format.name == "nvfp4" || format.name == "mxfp8";
    const std::uint64_t count = format.name == "nvfp4"   ? columns / 16
                                : format.name == "mxfp8" ? columns / 32
                                                         : tensor.shape[1];
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t at = tiled ? BlockScales{rows, count}.offset(row, i) : row * count + i;
      all.bytes.push_back(std::to_integer<int>(data[t][at]));
    }
  }
  return all;
}

// How far rows are apart whose rotation depends on the order of its sums.
struct Drift {
  std::uint64_t codes = 0, other_codes = 0, bytes = 0, other_bytes = 0;
  int largest_code = 0;
  std::uint32_t largest_ulps = 0;

  void add(const Format& format, const Row& a, const Row& b) {
    const std::vector<int> x = codes_of(format, a.codes), y = codes_of(format, b.codes);
    codes += x.size();
    bytes += a.bytes.size();
    for (std::size_t k = 0; k < x.size(); ++k) {
      other_codes += x[k] != y[k];
      largest_code = std::max(largest_code, std::abs(x[k] - y[k]));
    }
    for (std::size_t i = 0; i < a.scales.size(); ++i)
      largest_ulps = std::max(largest_ulps, ulps(a.scales[i], b.scales[i]));
    for (std::size_t i = 0; i < a.bytes.size(); ++i) other_bytes += a.bytes[i] != b.bytes[i];
  }
};

// The file that it makes is sound and decodes as comfy-kitchen decodes its own, of which the golden
// has rows 0 and 9.
void expect_decodes(const Encoded& encoded, const Format& format, const Case& one,
                    const std::vector<float>& kitchen) {
  const Opened opened(encoded.file());
  expect_sound(opened.check(CheckDepth::data));
  EXPECT_EQ(opened.layer().format, &format);
  EXPECT_EQ(opened.layer().rotate_group, one.settings.rotate_group);
  expect_size_matches(opened.layer());
  ASSERT_EQ(kitchen.size(), 2 * columns);
  std::vector<float> decoded = opened.decode_rows("a", 0, 1);
  const std::vector<float> outlier = opened.decode_rows("a", 9, 1);
  decoded.insert(decoded.end(), outlier.begin(), outlier.end());
  for (std::uint64_t i = 0; i < 2 * columns; ++i) {
    if (one.settings.rotate_group == 0) {
      EXPECT_EQ(decoded[i], kitchen[i]) << i;
    } else {
      EXPECT_NEAR(decoded[i], kitchen[i], i < columns ? 1e-6 : 1e-5) << i;
    }
  }
}

class EncoderGolden : public ::testing::TestWithParam<std::string_view> {};

TEST_P(EncoderGolden, encodes_as_comfy_kitchen_does) {
  const Format& format = *find_format(GetParam());
  const GoldenFile golden(GetParam()), sources("sources");
  const WeightShape shape = linear(rows, columns);
  Drift drift;
  std::uint64_t exact_rows = 0, lowest_codes = 0;
  for (const Case& one : golden.cases()) {
    SCOPED_TRACE(one.name);
    const std::vector<float> values = sources.floats(one.source);
    ASSERT_EQ(values.size(), rows * columns);
    // asym_w4a8_int8's goldens have the fixed codebook.
    const Survey survey =
        format.name == "asym_w4a8_int8" ? Survey{} : survey_of(format, shape, one.settings, values);
    const Encoded encoded = encode_all(format, shape, one.settings, values, survey, rows);
    for (std::uint64_t at_once : {1, 7}) {
      const Encoded again = encode_all(format, shape, one.settings, values, survey, at_once);
      EXPECT_EQ(again.bytes, encoded.bytes) << "depends on the range of rows";
    }
    std::vector<std::vector<std::byte>> expected;
    for (const EncodedTensor& tensor : encoded.tensors) {
      const std::string name = fmt::format("{}.{}", one.name, tensor.suffix);
      expected.push_back(golden.bytes(name));
      EXPECT_EQ(golden.dtype(name), tensor.dtype) << name;
      EXPECT_EQ(golden.shape(name), shape_text(tensor.shape)) << name;
      ASSERT_EQ(expected.back().size(), encoded.bytes[expected.size() - 1].size()) << name;
      if (tensor.suffix == "weight_codebook") {
        EXPECT_EQ(encoded.of(tensor.suffix), expected.back());
      }
    }
    // A rotated weight's one scale is exact only if all its rows are.
    const bool shared = one.settings.rotate_group != 0 && encoded.tensors[1].shape.empty();
    for (std::uint64_t row = 0; row < rows; ++row) {
      const std::span<const float> source(values.data() + row * columns, columns);
      const Row got = row_of(format, encoded.tensors, encoded.bytes, row);
      const Row want = row_of(format, encoded.tensors, expected, row);
      if (kitchen_differs(format, one.settings, source, want.scales)) continue;
      if (shared || !exact_in_any_order(source, one.settings.rotate_group)) {
        drift.add(format, got, want);
        continue;
      }
      ++exact_rows;
      EXPECT_EQ(got.codes, want.codes) << "row " << row;
      EXPECT_EQ(got.scales, want.scales) << "row " << row;
      EXPECT_EQ(got.bytes, want.bytes) << "row " << row;
      lowest_codes += std::ranges::count(want.codes, std::byte{0x80});
    }
    expect_decodes(encoded, format, one, golden.floats(one.name + ".decode"));
  }
  EXPECT_GT(exact_rows, 100u);
  EXPECT_GE(lowest_codes, format.name == "int8_tensorwise" ? 4u : 0u);
  // Measured: no other code and no other byte; scales by up to 4 units of the last place, since
  // comfy-kitchen sums 256 products one after the other.
  EXPECT_LE(drift.largest_ulps, 4u);
  EXPECT_LE(drift.largest_code, 1);
  EXPECT_LE(static_cast<double>(drift.other_codes), 1e-4 * static_cast<double>(drift.codes));
  EXPECT_LE(static_cast<double>(drift.other_bytes), 1e-3 * static_cast<double>(drift.bytes));
}

std::vector<std::string_view> encoded_formats() {
  return {"int8_tensorwise", "convrot_w4a4", "asym_w4a8_int8", "w6a8_int8",
          "nvfp4",           "mxfp8",        "float8_e4m3fn",  "float8_e5m2"};
}
std::string test_name(const ::testing::TestParamInfo<std::string_view>& info) {
  return std::string(info.param);
}
INSTANTIATE_TEST_SUITE_P(Formats, EncoderGolden, ::testing::ValuesIn(encoded_formats()), test_name);

}  // namespace
}  // namespace parfait::formats
