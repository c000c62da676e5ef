#include "convert/best/inputs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <random>

#include "base/floats.h"
#include "convert/best/factor.h"
#include "convert/best/product.h"
#include "convert/best/sums.h"
#include "support/test_file.h"

namespace parfait::convert {
namespace {

std::vector<float> normal_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(Product, is_the_product_however_it_is_cut) {
  constexpr std::uint64_t rows = 5, columns = 531, depth = 11;
  const auto a = normal_values(rows * depth, 1), b = normal_values(depth * columns, 2);
  const auto start = normal_values(rows * columns, 3);
  auto whole = start;
  subtract_product(whole.data(), columns, rows, columns, depth, {a.data(), depth, 1}, b.data(),
                   columns);
  for (std::uint64_t i = 0; i < rows; ++i)
    for (std::uint64_t j = 0; j < columns; ++j) {
      double expected = start[i * columns + j];
      for (std::uint64_t p = 0; p < depth; ++p)
        expected -= static_cast<double>(a[i * depth + p]) * static_cast<double>(b[p * columns + j]);
      ASSERT_NEAR(whole[i * columns + j], expected, 1e-4) << i << ", " << j;
    }
  auto parts = start;
  for (std::uint64_t i = 0; i < rows; ++i)
    for (std::uint64_t j = 0; j < columns; j += 100)
      subtract_product(parts.data() + i * columns + j, columns, 1,
                       std::min<std::uint64_t>(100, columns - j), depth,
                       {a.data() + i * depth, depth, 1}, b.data() + j, columns);
  EXPECT_EQ(parts, whole);
}

TEST(Factor, is_that_of_the_inverse_on_any_number_of_threads) {
  for (std::uint64_t size : {1u, 2u, 63u, 64u, 65u, 200u, 321u}) {
    // J·H·J of H = XᵀX/n + 0.1, as its lower triangle; the upper one is filled with what must not
    // be looked at.
    const std::uint64_t count = size + 20;
    const auto x = normal_values(count * size, static_cast<unsigned>(size));
    std::vector<double> h(size * size);
    std::vector<float> a(size * size, std::numeric_limits<float>::quiet_NaN());
    for (std::uint64_t i = 0; i < size; ++i)
      for (std::uint64_t j = 0; j < size; ++j) {
        for (std::uint64_t r = 0; r < count; ++r)
          h[i * size + j] +=
              static_cast<double>(x[r * size + i]) * static_cast<double>(x[r * size + j]);
        h[i * size + j] = h[i * size + j] / static_cast<double>(count) + (i == j ? 0.1 : 0.0);
        const std::uint64_t row = size - 1 - i, column = size - 1 - j;
        if (column <= row) a[row * size + column] = static_cast<float>(h[i * size + j]);
      }
    auto b = a;
    runtime::Threads one(1), three(3);
    ASSERT_TRUE(factor_of_inverse(a, size, one)) << size;
    ASSERT_TRUE(factor_of_inverse(b, size, three)) << size;
    EXPECT_EQ(a, b) << size;
    // U·H·Uᵀ = 1.
    std::vector<double> uh(size * size);
    for (std::uint64_t i = 0; i < size; ++i)
      for (std::uint64_t j = 0; j < size; ++j) {
        if (j < i) {
          ASSERT_EQ(a[i * size + j], 0.0f);
        }
        for (std::uint64_t p = i; p < size; ++p)
          uh[i * size + j] += static_cast<double>(a[i * size + p]) * h[p * size + j];
      }
    for (std::uint64_t i = 0; i < size; ++i)
      for (std::uint64_t j = 0; j < size; ++j) {
        double sum = 0;
        for (std::uint64_t p = j; p < size; ++p)
          sum += uh[i * size + p] * static_cast<double>(a[j * size + p]);
        ASSERT_NEAR(sum, i == j ? 1.0 : 0.0, 2e-3) << size << ": " << i << ", " << j;
      }
  }
}

TEST(Factor, says_so_where_there_is_none) {
  runtime::Threads threads(1);
  std::vector<float> a{1, 0, 2, 1};  // [[1, 2], [2, 1]]
  EXPECT_FALSE(factor_of_inverse(a, 2, threads));
}

TEST(SmallFloats, are_rounded_as_the_codecs_do) {
  for (int code = 0; code < 0x7f; ++code) {
    const float here = e4m3_to_float(static_cast<std::uint8_t>(code));
    const float next = code < 0x7e ? e4m3_to_float(static_cast<std::uint8_t>(code + 1)) : 1e30f;
    for (float part : {0.0f, 0.25f, 0.5f, 0.75f}) {
      const float value = here + (next - here) * part;
      for (float v : {value, std::nextafter(value, 1e30f), std::nextafter(value, 0.0f), -value}) {
        EXPECT_EQ(round_to<e4m3>(v), e4m3_to_float(float_to_e4m3(v))) << v;
      }
    }
  }
  for (int code = 0; code < 0x7b; ++code) {
    const float here = e5m2_to_float(static_cast<std::uint8_t>(code));
    const float next = e5m2_to_float(static_cast<std::uint8_t>(code + 1));
    for (float part : {0.0f, 0.25f, 0.5f, 0.75f}) {
      const float v = here + (next - here) * part;
      EXPECT_EQ(round_to<e5m2>(v), e5m2_to_float(float_to_e5m2(v))) << v;
    }
  }
}

TEST(Inputs, columns_come_by_their_energy) {
  runtime::Threads threads(1);
  std::vector<float> rows = normal_values(std::size_t{50} * 4, 1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    constexpr float sizes[] = {1, 8, 0, 3};
    rows[i] *= sizes[i % 4];
  }
  const auto inputs = make_inputs(rows, 4, 0, 0.01f, threads);
  ASSERT_TRUE(inputs.ok());
  EXPECT_EQ(inputs->order, (std::vector<std::uint32_t>{1, 3, 0, 2}));
  EXPECT_GT(inputs->energy[2], 0.0f) << "a column without inputs counts a little";
}

// A calibration file with a tensor "a" of 3 rows and 16 columns, and what is asked of it.
class CalibrationFile : public ::testing::Test {
 protected:
  Result<Calibration> open(const test::TestFile& file) {
    const auto path = folder_.path() / "rows.safetensors";
    const auto bytes = file.bytes();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return Calibration::open(path);
  }
  Result<Inputs> ask(const test::TestFile& file, std::string_view layer, std::uint64_t columns,
                     const InputOptions& options = {}) {
    auto calibration = open(file);
    if (!calibration.ok()) return calibration.error();
    const formats::WeightShape weight{LayerKind::linear, {8, columns}, 8, columns};
    return calibration->inputs(layer, weight, {}, options, threads_);
  }
  static void expect_error(const Result<Inputs>& result, ErrorCode code,
                           std::vector<std::string_view> words) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, code) << result.error().message;
    for (std::string_view word : words)
      EXPECT_NE(result.error().message.find(word), std::string::npos)
          << "\"" << word << "\" is not in: " << result.error().message;
  }

  test::TemporaryFolder folder_;
  runtime::Threads threads_{1};
};

TEST_F(CalibrationFile, is_read_by_either_name_and_any_float) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const char* name : {"a", "a.input"}) {
      test::TestFile file;
      file.values(name, dtype, {3, 16}, normal_values(48, 1));
      const auto inputs = ask(file, "a", 16);
      ASSERT_TRUE(inputs.ok()) << inputs.error().message;
      EXPECT_EQ(inputs->factor.size(), 256u);
    }
  }
}

TEST_F(CalibrationFile, rows_beyond_the_limit_are_strided_over) {
  test::TestFile file;
  file.values("a", DType::f32, {2, 2}, {3, 0, 0, 5});
  const auto inputs = ask(file, "a", 2, {.max_rows = 1});
  ASSERT_TRUE(inputs.ok());
  EXPECT_EQ(inputs->energy[0], 9.0f);
  EXPECT_LT(inputs->energy[1], 1e-6f);
}

TEST_F(CalibrationFile, what_it_lacks_is_said) {
  test::TestFile file;
  file.values("a", DType::f32, {3, 16}, normal_values(48, 1));
  expect_error(ask(file, "b", 16), ErrorCode::calibration, {"layer b", "b.input"});
  expect_error(ask(file, "a", 32), ErrorCode::calibration, {"layer a", "16", "K = 32"});
}

TEST_F(CalibrationFile, memory_is_asked_for_first) {
  test::TestFile file;
  file.values("a", DType::f32, {3, 16}, normal_values(48, 1));
  expect_error(ask(file, "a", 16, {.max_memory = 1000}), ErrorCode::model_memory,
               {"layer a", "K = 16", "--max-memory"});
}

TEST_F(CalibrationFile, rows_that_are_no_numbers_or_zeros_are_refused) {
  test::TestFile file;
  std::vector<float> rows(48);
  file.values("zeros", DType::f32, {3, 16}, rows);
  rows[5] = std::numeric_limits<float>::infinity();
  file.values("infinite", DType::f32, {3, 16}, rows);
  rows[5] = std::numeric_limits<float>::quiet_NaN();
  file.values("nan", DType::bf16, {3, 16}, rows);
  expect_error(ask(file, "zeros", 16), ErrorCode::data_all_zero, {"layer zeros", "3 rows"});
  expect_error(ask(file, "infinite", 16), ErrorCode::data_not_finite, {"layer infinite"});
  expect_error(ask(file, "nan", 16), ErrorCode::data_not_finite, {"layer nan"});
}

TEST_F(CalibrationFile, other_tensors_than_rows_are_refused) {
  test::TestFile cube;
  cube.values("a", DType::f32, {1, 3, 16}, normal_values(48, 1));
  expect_error(ask(cube, "a", 16), ErrorCode::calibration, {"tensor a", "rank 3"});
  test::TestFile codes;
  codes.codes("a", DType::i8, {3, 16});
  expect_error(ask(codes, "a", 16), ErrorCode::calibration, {"tensor a", "I8"});
}

}  // namespace
}  // namespace parfait::convert
