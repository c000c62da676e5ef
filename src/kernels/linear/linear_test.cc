// The integer product: the reference against arithmetic in 64 bits, every variant against the
// reference bit for bit.

#include "kernels/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/checked.h"
#include "kernels/linear/linear_testing.h"

namespace parfait::kernels {
namespace {

using namespace parfait::kernels::testing;

class LinearKernels : public ::testing::TestWithParam<WeightCode> {
 protected:
  static std::span<const LinearKernel> list() { return linear_kernels(GetParam()); }
  static const LinearKernel& reference() { return list().back(); }
};

TEST_P(LinearKernels, reference_is_the_exact_sum) {
  std::mt19937 random(11);
  for (std::uint64_t columns : {64u, 128u}) {
    const TestWeight w = make_weight(random, GetParam(), 14, columns, Bias::present);
    const TestActivation x = make_activation(random, DType::f32, 4, columns);
    const QuantizedRows q = quantize_with(quantize_kernels().back(), x.view, 0, Activation::int8);
    for (DType dtype : dtypes) {
      const auto bytes = multiply_with(reference(), pack(reference(), w), q, dtype);
      for (std::uint64_t m = 0; m < 4; ++m) {
        for (std::uint64_t n = 0; n < w.rows; ++n) {
          std::int64_t sum = 0;
          for (std::uint64_t k = 0; k < columns; ++k)
            sum += std::int64_t{code_at(q, m, k)} * w.value(n, k);
          std::byte expected[4];
          store_float(dtype, expected, 0,
                      static_cast<float>(sum) * (q.scales[m] * w.scales[n]) + w.bias[n]);
          EXPECT_EQ(load_float(dtype, bytes.data() + 1, m * (w.rows + 5) + n),
                    load_float(dtype, expected, 0))
              << "m " << m << " n " << n;
        }
      }
    }
  }
}

// One shape, with both widths of activation codes by turns, cut into tiles and not.
void expect_equal_to_reference(std::mt19937& random, const LinearKernel& kernel,
                               const LinearKernel& reference, std::uint64_t rows,
                               std::uint64_t outputs, std::uint64_t columns,
                               std::uint64_t scale_group = 16) {
  const Bias bias = outputs % 2 ? Bias::present : Bias::none;
  const TestWeight w = make_weight(random, kernel.code, outputs, columns, bias, scale_group);
  const DType dtype = dtypes[(rows + outputs) % 3];
  TestActivation x = make_activation(random, dtype, rows, columns);
  if (rows > 2) x.set(1, columns - 1, std::numeric_limits<float>::quiet_NaN());
  if (rows > 4)
    for (std::uint64_t k = 0; k < columns; ++k) x.set(3, k, 0);
  const Activation mode = rows % 2 ? Activation::int8 : Activation::int4;
  const QuantizedRows q = quantize_with(quantize_kernels().back(), x.view, 0, mode);
  const PackedWeight packed = pack(kernel, w, kernel.row_tile);
  const auto expected = multiply_with(reference, pack(reference, w), q, dtype);
  const Tiles cuts[] = {
      {}, {1, kernel.row_tile}, {7, 2 * kernel.row_tile}, {13, 4 * kernel.row_tile}};
  for (const Tiles& tiles : cuts)
    EXPECT_EQ(multiply_with(kernel, packed, q, dtype, tiles), expected)
        << kernel.name << " M " << rows << " N " << outputs << " K " << columns << " in tiles of "
        << tiles.m_step << " × " << tiles.n_step;
}

TEST_P(LinearKernels, every_number_of_rows_equals_the_reference) {
  const std::uint32_t seed = seed_of_run();
  SCOPED_TRACE(replay(seed));
  std::mt19937 random(seed);
  for (const LinearKernel& kernel : variants(list()))
    for (std::uint64_t rows = 1; rows <= 26; ++rows)
      for (std::uint64_t outputs : {1u, 32u, 33u, 70u})
        expect_equal_to_reference(random, kernel, reference(), rows, outputs, 64);
}

TEST_P(LinearKernels, every_number_of_outputs_equals_the_reference) {
  const std::uint32_t seed = seed_of_run() + 1;
  SCOPED_TRACE(replay(seed_of_run()));
  std::mt19937 random(seed);
  for (const LinearKernel& kernel : variants(list()))
    for (std::uint64_t outputs = 1; outputs <= 130; ++outputs)
      for (std::uint64_t rows : {1u, 2u, 13u})
        expect_equal_to_reference(random, kernel, reference(), rows, outputs, 64);
}

TEST_P(LinearKernels, every_number_of_columns_equals_the_reference) {
  const std::uint32_t seed = seed_of_run() + 2;
  SCOPED_TRACE(replay(seed_of_run()));
  std::mt19937 random(seed);
  std::vector<std::uint64_t> widths = {128, 192, 384, 1024, 5376};
  if (GetParam() == WeightCode::int8) {
    for (std::uint64_t columns = 1; columns <= 70; ++columns) widths.push_back(columns);
    widths.insert(widths.end(), {127, 129, 1000, 1001});
  }
  if (GetParam() == WeightCode::w4a8) widths.insert(widths.end(), {16, 32, 48, 80, 112, 1008});
  if (GetParam() == WeightCode::w6a8) widths.insert(widths.end(), {32, 96, 160, 992});
  for (const LinearKernel& kernel : variants(list()))
    for (std::uint64_t columns : widths)
      for (std::uint64_t rows : {1u, 3u, 6u, 12u})
        expect_equal_to_reference(random, kernel, reference(), rows, 35, columns);
}

TEST_P(LinearKernels, every_scale_group_equals_the_reference) {
  if (level_count(GetParam()) == 0) return;  // no groups
  const std::uint32_t seed = seed_of_run() + 3;
  SCOPED_TRACE(replay(seed_of_run()));
  std::mt19937 random(seed);
  for (const LinearKernel& kernel : variants(list()))
    for (std::uint64_t group : {16u, 32u, 48u, 64u, 128u, 192u, 384u})
      for (std::uint64_t rows : {1u, 14u})
        for (std::uint64_t outputs : {5u, 32u, 47u})
          expect_equal_to_reference(random, kernel, reference(), rows, outputs, 384, group);
}

// Every entry of T, by a weight of one column group whose rows have all scales and all codes.
TEST_P(LinearKernels, every_scale_and_code_is_widened) {
  const std::uint64_t levels = level_count(GetParam());
  if (levels == 0) return;
  std::mt19937 random(14);
  TestWeight w = make_weight(random, GetParam(), scale_codes, 64, Bias::none, 64);
  for (std::uint64_t n = 0; n < w.rows; ++n) {
    w.scales[n] = 1;
    w.relative[n] = static_cast<std::byte>(n);  // NaN included: its weights are 0
    for (std::uint64_t k = 0; k < 64; k += 2) {
      std::byte* row = w.bytes.data() + 1 + n * row_bytes(w.code, 64);
      row[k / 2] = static_cast<std::byte>((k % 16) | ((k + 1) % 16) << 4);
      if (w.code == WeightCode::w6a8) row[32 + k / 4] = static_cast<std::byte>(k / 16 * 0x55);
    }
  }
  QuantizedRows q;  // one-hot rows pick single weights
  q.resize(64, 64);
  std::fill_n(q.codes.data(), 64 * q.stride, std::byte{0});
  for (std::uint64_t m = 0; m < 64; ++m) {
    q.codes.data()[m * q.stride + m] = std::byte{1};
    q.sums[m] = 1;
    q.scales[m] = 1;
  }
  for (const LinearKernel& kernel : list()) {
    if (!runs_here(kernel.isa)) continue;
    const auto bytes = multiply_with(kernel, pack(kernel, w), q, DType::f32);
    for (std::uint64_t m = 0; m < 64; ++m)
      for (std::uint64_t n = 0; n < w.rows; ++n)
        ASSERT_EQ(load_float(DType::f32, bytes.data() + 1, m * (w.rows + 5) + n),
                  widened(w.levels[m % levels], e4m3_to_float(static_cast<std::uint8_t>(n))))
            << kernel.name << " column " << m << " scale code " << n;
  }
}

TEST_P(LinearKernels, packing_fills_what_packed_bytes_promises) {
  std::mt19937 random(12);
  for (const LinearKernel& kernel : list()) {
    if (!runs_here(kernel.isa)) continue;
    const TestWeight w = make_weight(random, GetParam(), 100, 192, Bias::none);
    const PackedWeight whole = pack(kernel, w), parts = pack(kernel, w, kernel.row_tile);
    EXPECT_EQ(std::vector(whole.codes.data(), whole.codes.data() + whole.codes.size()),
              std::vector(parts.codes.data(), parts.codes.data() + parts.codes.size()));
    // Four and six bits stay four and six: no more than the last panel's rows are added.
    const std::uint64_t stored = row_bytes(w.code, 192) + w.relative.size() / w.rows;
    EXPECT_GE(whole.codes.size(), w.rows * stored);
    EXPECT_LE(whole.codes.size(), round_up(w.rows, kernel.row_tile) * stored + 64 * w.rows);
  }
}

// The largest sums that the formats can make: all codes at their ends, K near the limit.
TEST_P(LinearKernels, extreme_codes_do_not_overflow) {
  const std::uint64_t columns = 131'008;  // the last multiple of 64 below the limit
  for (const LinearKernel& kernel : list()) {
    if (!runs_here(kernel.isa)) continue;
    for (int activation : {-127, 127}) {
      for (std::uint8_t byte : {std::uint8_t{0x80}, std::uint8_t{0x7f}}) {
        TestWeight w;
        w.code = GetParam();
        w.rows = 2;
        w.columns = columns;
        w.bytes.assign(2 * row_bytes(w.code, columns) + 1,
                       std::byte{w.code == WeightCode::int8 ? byte
                                 : byte == 0x80             ? std::uint8_t{0x88}
                                                            : std::uint8_t{0x77}});
        w.scales = {1, 1};
        if (const std::uint64_t levels = level_count(w.code)) {
          w.scale_group = 64;
          w.relative.assign(2 * columns / 64, std::byte{0x7e});  // 448
          for (std::uint64_t i = 0; i < levels; ++i)
            w.levels.push_back(byte == 0x80 ? -100.0f : 100.0f);
        }
        QuantizedRows q;
        q.resize(1, columns);
        std::fill_n(q.codes.data(), columns, static_cast<std::byte>(activation));
        std::fill_n(q.codes.data() + columns, q.stride - columns, std::byte{0});
        q.sums[0] = static_cast<std::int32_t>(columns) * activation;
        q.scales[0] = 1;
        const auto bytes = multiply_with(kernel, pack(kernel, w), q, DType::f32);
        const double expected = static_cast<double>(columns) * activation * w.value(0, 0);
        for (std::uint64_t n = 0; n < 2; ++n)
          EXPECT_EQ(load_float(DType::f32, bytes.data() + 1, n), static_cast<float>(expected))
              << kernel.name;
      }
    }
  }
}

// A NaN scale makes the row NaN, whatever the bias.
TEST_P(LinearKernels, rows_that_are_not_finite_give_nan) {
  std::mt19937 random(13);
  for (const LinearKernel& kernel : list()) {
    if (!runs_here(kernel.isa)) continue;
    for (DType dtype : dtypes) {
      const TestWeight w = make_weight(random, GetParam(), 40, 64, Bias::present);
      TestActivation x = make_activation(random, DType::f32, 3, 64);
      x.set(1, 5, std::numeric_limits<float>::infinity());
      const QuantizedRows q = quantize_with(quantize_kernels().back(), x.view, 0, Activation::int8);
      const auto bytes = multiply_with(kernel, pack(kernel, w), q, dtype);
      for (std::uint64_t n = 0; n < 40; ++n) {
        EXPECT_TRUE(std::isnan(load_float(dtype, bytes.data() + 1, 45 + n)));
        EXPECT_FALSE(std::isnan(load_float(dtype, bytes.data() + 1, n)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, LinearKernels,
                         ::testing::Values(WeightCode::int8, WeightCode::int4, WeightCode::w4a8,
                                           WeightCode::w6a8));

}  // namespace
}  // namespace parfait::kernels
