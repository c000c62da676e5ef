// The small floats against formulas of their own, every code of every type, and against the tables
// that torch and comfy-kitchen made (tests/golden/codecs.safetensors).

#include "base/floats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "support/file_text.h"

namespace parfait {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// The value of a code by the textbook: sign, exponent and mantissa fields, subnormals at exponent
// 0.
double textbook(unsigned code, int exponent_bits, int mantissa_bits, int bias) {
  const unsigned mantissa = code & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(code >> mantissa_bits & ((1u << exponent_bits) - 1));
  const double fraction = mantissa / static_cast<double>(1u << mantissa_bits);
  const double magnitude = exponent == 0 ? std::pow(2.0, 1 - bias) * fraction
                                         : std::pow(2.0, exponent - bias) * (1 + fraction);
  return code >> (exponent_bits + mantissa_bits) & 1 ? -magnitude : magnitude;
}

// A small float with everything that its tests need to know.
struct Type {
  const char* name;
  int exponent_bits, mantissa_bits, bias;
  unsigned codes;         // of all signs
  unsigned largest_code;  // finite and positive
  float (*decode)(unsigned);
  unsigned (*encode)(float);
  bool saturates;
};
const Type types[] = {
    {"e2m1", 2, 1, 1, 16, 7, [](unsigned c) { return e2m1_to_float(static_cast<std::uint8_t>(c)); },
     [](float v) -> unsigned { return float_to_e2m1(v); }, true},
    {"e4m3", 4, 3, 7, 256, 0x7e,
     [](unsigned c) { return e4m3_to_float(static_cast<std::uint8_t>(c)); },
     [](float v) -> unsigned { return float_to_e4m3(v); }, true},
    {"e5m2", 5, 2, 15, 256, 0x7b,
     [](unsigned c) { return e5m2_to_float(static_cast<std::uint8_t>(c)); },
     [](float v) -> unsigned { return float_to_e5m2(v); }, true},
    {"f16", 5, 10, 15, 65536, 0x7bff,
     [](unsigned c) { return f16_to_float(static_cast<std::uint16_t>(c)); },
     [](float v) -> unsigned { return float_to_f16(v); }, false},
    {"bf16", 8, 7, 127, 65536, 0x7f7f,
     [](unsigned c) { return bf16_to_float(static_cast<std::uint16_t>(c)); },
     [](float v) -> unsigned { return float_to_bf16(v); }, false},
};
unsigned sign_bit(const Type& type) { return type.codes / 2; }

TEST(SmallFloats, every_finite_code_has_its_textbook_value) {
  for (const Type& type : types)
    for (unsigned code = 0; code < type.codes; ++code) {
      if ((code & (sign_bit(type) - 1)) > type.largest_code) continue;
      const float value = type.decode(code);
      ASSERT_EQ(value, textbook(code, type.exponent_bits, type.mantissa_bits, type.bias))
          << type.name << " " << code;
      ASSERT_EQ(std::signbit(value), code >= sign_bit(type)) << type.name << " " << code;
    }
}

TEST(SmallFloats, every_finite_code_comes_back) {
  for (const Type& type : types)
    for (unsigned code = 0; code < type.codes; ++code) {
      if ((code & (sign_bit(type) - 1)) > type.largest_code) continue;
      ASSERT_EQ(type.encode(type.decode(code)), code) << type.name;
    }
}

TEST(SmallFloats, halfway_values_go_to_the_even_code_and_their_neighbours_do_not) {
  for (const Type& type : types)
    for (unsigned code = 0; code < type.largest_code; ++code) {
      const double low = type.decode(code), high = type.decode(code + 1);
      const auto middle = static_cast<float>((low + high) / 2);
      ASSERT_EQ(static_cast<double>(middle), (low + high) / 2) << "not exact";
      const unsigned even = code % 2 == 0 ? code : code + 1;
      ASSERT_EQ(type.encode(middle), even) << type.name << " " << code;
      ASSERT_EQ(type.encode(std::nextafter(middle, 0.0f)), code) << type.name << " " << code;
      ASSERT_EQ(type.encode(std::nextafter(middle, inf)), code + 1) << type.name << " " << code;
      ASSERT_EQ(type.encode(-middle), even | sign_bit(type)) << type.name << " " << code;
    }
}

TEST(SmallFloats, past_the_largest_value) {
  for (const Type& type : types) {
    const float largest = type.decode(type.largest_code);
    const float step = largest - type.decode(type.largest_code - 1);
    const unsigned beyond = type.saturates ? type.largest_code : type.largest_code + 1;
    EXPECT_EQ(type.encode(std::nextafter(largest, inf)), type.largest_code) << type.name;
    EXPECT_EQ(type.encode(inf), beyond) << type.name;
    EXPECT_EQ(type.encode(-inf), beyond | sign_bit(type)) << type.name;
    if (type.bias == 127) continue;  // half a step past bf16's largest is past float's
    EXPECT_EQ(type.encode(std::nextafter(largest + step / 2, 0.0f)), type.largest_code)
        << type.name;
    EXPECT_EQ(type.encode(largest + step / 2), beyond) << type.name;
    EXPECT_EQ(type.encode(largest * 3), beyond) << type.name;
  }
  EXPECT_EQ(float_to_bf16(float_of(0x7f7f7fff)), 0x7f7f);
  EXPECT_EQ(float_to_bf16(float_of(0x7f7f8000)), 0x7f80)
      << "the tie goes to the even one, infinity";
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(SmallFloats, zeros_keep_their_sign_and_tiny_values_vanish) {
  for (const Type& type : types) {
    EXPECT_EQ(type.encode(0.0f), 0u) << type.name;
    EXPECT_EQ(type.encode(-0.0f), sign_bit(type)) << type.name;
    const float tiny = std::numeric_limits<float>::denorm_min();
    EXPECT_EQ(type.encode(tiny), 0u) << type.name;
    EXPECT_EQ(type.encode(-tiny), sign_bit(type)) << type.name;
  }
}

TEST(SmallFloats, nan_and_infinity) {
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xff)));
  EXPECT_EQ(float_to_e4m3(nan) & 0x7f, 0x7f);
  EXPECT_EQ(float_to_e4m3(-nan) & 0x7f, 0x7f);
  EXPECT_EQ(e5m2_to_float(0x7c), inf);
  EXPECT_EQ(e5m2_to_float(0xfc), -inf);
  for (unsigned code : {0x7du, 0x7eu, 0x7fu, 0xfdu, 0xfeu, 0xffu})
    EXPECT_TRUE(std::isnan(e5m2_to_float(static_cast<std::uint8_t>(code))));
  EXPECT_TRUE(std::isnan(e5m2_to_float(float_to_e5m2(nan))));
  EXPECT_EQ(f16_to_float(0x7c00), inf);
  EXPECT_EQ(f16_to_float(0xfc00), -inf);
  EXPECT_EQ(float_to_f16(inf), 0x7c00);
  EXPECT_EQ(float_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  for (unsigned code = 0; code < 65536; ++code) {
    const auto half = static_cast<std::uint16_t>(code);
    if ((code & 0x7fff) > 0x7c00) {
      EXPECT_TRUE(std::isnan(f16_to_float(half)));
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(f16_to_float(half)))));
    }
    if ((code & 0x7fff) > 0x7f80) {
      EXPECT_TRUE(std::isnan(bf16_to_float(half)));
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(bf16_to_float(half)))));
    }
  }
  // A NaN whose upper bits are those of infinity must not become one.
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(float_of(0x7f800001)))));
  EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(float_of(0xff800001)))));
}

TEST(SmallFloats, e8m0) {
  EXPECT_EQ(e8m0_to_float(0), 0.0f);
  EXPECT_EQ(e8m0_to_float(255), inf);
  for (int code = 1; code < 255; ++code)
    EXPECT_EQ(e8m0_to_float(static_cast<std::uint8_t>(code)), std::ldexp(1.0f, code - 127)) << code;
}

TEST(SmallFloats, random_values_go_to_a_nearest_code) {
  const unsigned seed = 20261201;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (const Type& type : types) {
    const float largest = type.decode(type.largest_code);
    for (int i = 0; i < 20000; ++i) {
      const float value = float_of(static_cast<std::uint32_t>(random()));
      if (!(std::fabs(value) < largest)) continue;
      const unsigned code = type.encode(value);
      const double error = std::fabs(static_cast<double>(type.decode(code)) - value);
      const unsigned magnitude = code & (sign_bit(type) - 1), sign = code & sign_bit(type);
      for (unsigned other : {magnitude - 1, magnitude + 1}) {
        if (other > type.largest_code) continue;  // also below 0
        EXPECT_LE(error, std::fabs(static_cast<double>(type.decode(other | sign)) - value))
            << type.name << " " << value;
      }
    }
  }
}

TEST(SmallFloats, rounding_to_a_type_and_back) {
  EXPECT_EQ(round_to_bf16(1.0f + 1.0f / 256), 1.0f);
  EXPECT_EQ(round_to_bf16(1.0f + 3.0f / 256), 1.0f + 4.0f / 256);
  EXPECT_EQ(round_to_f16(2049.0f), 2048.0f);
  EXPECT_EQ(round_to_f16(2051.0f), 2052.0f);
}

TEST(LoadFloat, unaligned_data_of_every_float_type) {
  std::vector<std::byte> data(1 + 8 * 3);
  std::byte* odd = data.data() + 1;
  store_at(odd, 2, 2.5);
  EXPECT_EQ(load_float(DType::f64, odd, 2), 2.5f);
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    store_float(dtype, odd, 2, -1.5f);
    EXPECT_EQ(load_float(dtype, odd, 2), -1.5f) << dtype_name(dtype);
  }
  odd[2] = std::byte{0x38};
  EXPECT_EQ(load_float(DType::f8_e4m3, odd, 2), 1.0f);
  odd[2] = std::byte{0x3c};
  EXPECT_EQ(load_float(DType::f8_e5m2, odd, 2), 1.0f);
  odd[2] = std::byte{128};
  EXPECT_EQ(load_float(DType::f8_e8m0, odd, 2), 2.0f);
  for (DType dtype : {DType::i8, DType::u8, DType::i32, DType::f4, DType::boolean})
    EXPECT_TRUE(std::isnan(load_float(dtype, odd, 0))) << dtype_name(dtype);
}

// --- Tables by torch and comfy-kitchen ---

// The few bytes of safetensors that one trusted file needs.
class Tables {
 public:
  Tables() {
    file_ = test::file_text(std::filesystem::path(PARFAIT_SOURCE_DIR) /
                            "tests/golden/codecs.safetensors");
    if (file_.size() < 8) return;
    std::uint64_t length = 0;
    std::memcpy(&length, file_.data(), 8);
    header_ = file_.substr(8, length);
    data_ = 8 + length;
  }
  bool there() const { return !header_.empty(); }

  template <class T>
  std::vector<T> read(const std::string& name) const {
    const std::size_t entry = header_.find("\"" + name + "\":{");
    EXPECT_NE(entry, std::string::npos) << name;
    constexpr std::string_view key = "\"data_offsets\":[";
    const std::size_t begin = header_.find(key, entry) + key.size();
    std::size_t comma = 0;
    const std::size_t first = std::stoull(header_.substr(begin, 24), &comma);
    const std::size_t last = std::stoull(header_.substr(begin + comma + 1, 24));
    std::vector<T> values((last - first) / sizeof(T));
    std::memcpy(values.data(), file_.data() + data_ + first, last - first);
    return values;
  }

 private:
  std::string file_, header_;
  std::size_t data_ = 0;
};

class CodecTables : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(tables_.there()) << "no tests/golden/codecs.safetensors"; }

  // Codes of all values, but for NaN, whose code a type may have several of.
  template <class Code>
  void expect_codes(const std::string& x, const std::string& codes, unsigned (*encode)(float),
                    float (*decode)(unsigned)) const {
    const auto values = tables_.read<float>(x);
    const auto expected = tables_.read<Code>(codes);
    ASSERT_EQ(values.size(), expected.size());
    ASSERT_GT(values.size(), 100u);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        if (decode) {
          EXPECT_TRUE(std::isnan(decode(encode(values[i]))));
        }
        continue;
      }
      EXPECT_EQ(encode(values[i]), expected[i])
          << codes << " of " << values[i] << " (bits " << bits_of(values[i]) << ")";
    }
  }
  void expect_values(const std::string& name, float (*decode)(unsigned)) const {
    const auto expected = tables_.read<float>(name);
    for (unsigned code = 0; code < expected.size(); ++code) {
      if (std::isnan(expected[code])) {
        EXPECT_TRUE(std::isnan(decode(code))) << name << " " << code;
      } else {
        EXPECT_EQ(bits_of(decode(code)), bits_of(expected[code])) << name << " " << code;
      }
    }
  }

  const Tables tables_;
};

TEST_F(CodecTables, decoding) {
  expect_values("e2m1.decode", types[0].decode);
  expect_values("e4m3fn.decode", types[1].decode);
  expect_values("e5m2.decode", types[2].decode);
  expect_values("e8m0.decode_kitchen",
                [](unsigned c) { return e8m0_to_float(static_cast<std::uint8_t>(c)); });
}

TEST_F(CodecTables, encoding) {
  expect_codes<std::uint8_t>("e2m1.enc.x", "e2m1.enc.code", types[0].encode, nullptr);
  expect_codes<std::uint8_t>("e4m3fn.enc.x", "e4m3fn.enc.clamped", types[1].encode,
                             types[1].decode);
  expect_codes<std::uint8_t>("e5m2.enc.x", "e5m2.enc.clamped", types[2].encode, types[2].decode);
  expect_codes<std::uint16_t>("f16.enc.x", "f16.enc.code", types[3].encode, types[3].decode);
  expect_codes<std::uint16_t>("bf16.enc.x", "bf16.enc.code", types[4].encode, types[4].decode);
}

TEST(Floats, widen_is_load_float_of_each) {
  std::vector<std::byte> bytes(2 * 65536 + 1);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    std::memcpy(bytes.data() + 1 + 2 * i, &bits, 2);
  }
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    const std::uint64_t count = dtype == DType::f32 ? 32768 : 65536;
    std::vector<float> out(count);
    widen(dtype, bytes.data() + 1, count, out.data());
    for (std::uint64_t i = 0; i < count; ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]),
                std::bit_cast<std::uint32_t>(load_float(dtype, bytes.data() + 1, i)))
          << dtype_name(dtype) << " " << i;
  }
}

}  // namespace
}  // namespace parfait
