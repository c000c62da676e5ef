// Every variant of the integer linear layer against the plain reference, bit for bit, and the
// reference against arithmetic in 64 bits.

#include "kernels/linear/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/checked.h"
#include "base/floats.h"
#include "base/hadamard.h"

namespace parfait::kernels {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16};

bool runs_here(Isa isa) {
  const auto isas = machine_isas();
  return std::ranges::find(isas, isa) != isas.end();
}

// The seed of a test, fixed by --gtest_random_seed where that is given.
std::uint32_t seed_of_run() {
  const int given = testing::UnitTest::GetInstance()->random_seed();
  return given ? static_cast<std::uint32_t>(given) : 20261201u;
}
std::string replay(std::uint32_t seed) {
  return "replay with --gtest_random_seed=" + std::to_string(seed);
}

// An activation with rows that start `stride` apart, at an odd address.
struct TestActivation {
  std::vector<std::byte> bytes;
  ConstMatrix view;
};
TestActivation make_activation(std::mt19937& random, DType dtype, std::uint64_t rows,
                               std::uint64_t columns, std::uint64_t gap = 3) {
  TestActivation x;
  const std::uint64_t stride = columns + gap;
  x.bytes.resize(rows * stride * 4 + 1);
  std::normal_distribution<float> normal(0, 1);
  for (std::uint64_t i = 0; i < rows * stride; ++i)
    store_float(dtype, x.bytes.data() + 1, i, normal(random));
  x.view = {x.bytes.data() + 1, dtype, rows, columns, stride};
  return x;
}
void set(TestActivation& x, std::uint64_t m, std::uint64_t k, float value) {
  store_float(x.view.dtype, x.bytes.data() + 1, m * x.view.stride + k, value);
}

QuantizedRows quantize_with(const QuantizeKernel& kernel, const ConstMatrix& x, std::uint64_t group,
                            Activation mode) {
  QuantizedRows out;
  out.resize(x.rows, x.columns);
  std::fill_n(out.codes.data(), out.codes.size(), std::byte{0x55});  // stale contents
  kernel.run(x, 0, x.rows, group, mode, out);
  return out;
}

void expect_same(const QuantizedRows& a, const QuantizedRows& b, const std::string& where) {
  for (std::uint64_t m = 0; m < a.rows; ++m) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(a.scales[m]), std::bit_cast<std::uint32_t>(b.scales[m]))
        << where << " row " << m;
    EXPECT_EQ(a.sums[m], b.sums[m]) << where << " row " << m;
  }
  ASSERT_EQ(a.stride, b.stride);
  EXPECT_EQ(std::memcmp(a.codes.data(), b.codes.data(), a.rows * a.stride), 0) << where;
}

TEST(Quantize, reference_follows_the_formula) {
  std::mt19937 random(1);
  TestActivation x = make_activation(random, DType::f32, 3, 64);
  for (Activation mode : {Activation::int8, Activation::int4}) {
    const QuantizedRows q = quantize_with(quantize_kernels().back(), x.view, 16, mode);
    const double largest = mode == Activation::int8 ? 127 : 7;
    for (std::uint64_t m = 0; m < 3; ++m) {
      std::vector<float> r(64);
      for (std::uint64_t k = 0; k < 64; ++k)
        r[k] = load_float(DType::f32, x.bytes.data() + 1, m * x.view.stride + k);
      rotate_groups(r, 16);
      float absmax = 0;
      for (float v : r) absmax = std::max(absmax, std::fabs(v));
      EXPECT_FLOAT_EQ(q.scales[m], static_cast<float>(absmax / largest));
      std::int32_t sum = 0;
      for (std::uint64_t k = 0; k < 64; ++k) {
        const int code = static_cast<std::int8_t>(q.codes.data()[m * q.stride + k]);
        EXPECT_LE(std::fabs(static_cast<float>(code) - r[k] / q.scales[m]), 0.5001);
        EXPECT_LE(std::abs(code), largest);
        sum += code;
      }
      EXPECT_EQ(q.sums[m], sum);
    }
  }
}

TEST(Quantize, rows_with_nan_or_infinity_have_a_nan_scale_and_zero_codes) {
  std::mt19937 random(2);
  for (const QuantizeKernel& kernel : quantize_kernels()) {
    if (!runs_here(kernel.isa)) continue;
    for (float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      TestActivation x = make_activation(random, DType::f32, 3, 70);
      set(x, 1, 69, bad);
      const QuantizedRows q = quantize_with(kernel, x.view, 0, Activation::int8);
      EXPECT_TRUE(std::isnan(q.scales[1])) << kernel.name;
      EXPECT_EQ(q.sums[1], 0) << kernel.name;
      for (std::uint64_t k = 0; k < q.stride; ++k)
        EXPECT_EQ(q.codes.data()[q.stride + k], std::byte{0});
      EXPECT_FALSE(std::isnan(q.scales[0])) << kernel.name;
      EXPECT_FALSE(std::isnan(q.scales[2])) << kernel.name;
    }
  }
}

TEST(Quantize, zero_rows_give_zero_codes) {
  std::mt19937 random(3);
  for (const QuantizeKernel& kernel : quantize_kernels()) {
    if (!runs_here(kernel.isa)) continue;
    TestActivation x = make_activation(random, DType::f32, 1, 64);
    for (std::uint64_t k = 0; k < 64; ++k) set(x, 0, k, 0);
    const QuantizedRows q = quantize_with(kernel, x.view, 64, Activation::int4);
    EXPECT_EQ(q.scales[0], 1e-30f);
    EXPECT_EQ(q.sums[0], 0);
  }
}

TEST(Quantize, every_variant_equals_the_reference) {
  const std::uint32_t seed = seed_of_run();
  SCOPED_TRACE(replay(seed));
  std::mt19937 random(seed);
  const QuantizeKernel& reference = quantize_kernels().back();
  for (const QuantizeKernel& kernel : quantize_kernels()) {
    if (!runs_here(kernel.isa) || kernel.isa == Isa::reference) continue;
    for (DType dtype : dtypes) {
      for (Activation mode : {Activation::int8, Activation::int4}) {
        for (std::uint64_t group : {0u, 4u, 16u, 64u, 256u, 1024u}) {
          for (std::uint64_t columns :
               {1u, 4u, 7u, 15u, 16u, 17u, 60u, 64u, 100u, 256u, 320u, 1024u, 3072u}) {
            if (group && columns % group) continue;
            TestActivation x = make_activation(random, dtype, 5, columns);
            for (std::uint64_t k = 0; k < columns; ++k) {
              set(x, 1, k, 0);
              set(x, 2, k,
                  load_float(dtype, x.bytes.data() + 1, 2 * x.view.stride + k) *
                      (dtype == DType::f16 ? 60000.f : 1e38f));
              set(x, 3, k, load_float(dtype, x.bytes.data() + 1, 3 * x.view.stride + k) * 1e-41f);
            }
            const std::string where = std::string(kernel.name) + " " +
                                      std::string(dtype_name(dtype)) + " K " +
                                      std::to_string(columns) + " group " + std::to_string(group);
            expect_same(quantize_with(kernel, x.view, group, mode),
                        quantize_with(reference, x.view, group, mode), where);
          }
        }
      }
    }
  }
}

// --- Multiplication ---

struct Weights {
  std::vector<std::byte> codes;
  std::vector<float> scales, bias;
  std::uint64_t rows, columns;
};

Weights make_weights(std::mt19937& random, int bits, std::uint64_t rows, std::uint64_t columns,
                     bool with_bias) {
  Weights w;
  w.rows = rows;
  w.columns = columns;
  w.codes.resize(rows * columns * static_cast<std::uint64_t>(bits) / 8);
  for (std::byte& b : w.codes) b = static_cast<std::byte>(random());
  if (!w.codes.empty())
    w.codes.front() = std::byte{bits == 8 ? std::uint8_t{0x80} : std::uint8_t{0x88}};
  std::uniform_real_distribution<float> scale(1e-4f, 2e-2f);
  for (std::uint64_t n = 0; n < rows; ++n) {
    w.scales.push_back(n % 7 == 3 ? 0.0f : n % 11 == 5 ? 1e30f : scale(random));
    if (with_bias) w.bias.push_back(scale(random) - 0.01f);
  }
  return w;
}

PackedWeight pack(const LinearKernel& kernel, const Weights& w, bool in_pieces) {
  PackedWeight packed;
  packed.rows = w.rows;
  packed.columns = w.columns;
  packed.scales = w.scales;
  packed.bias = w.bias;
  packed.codes = AlignedBytes(kernel.packed_bytes(w.rows, w.columns));
  const std::uint64_t step = in_pieces ? kernel.row_tile : w.rows;
  for (std::uint64_t n = 0; n < w.rows; n += step) {
    const std::uint64_t end = std::min(n + step, w.rows);
    if (kernel.pack_int8)
      kernel.pack_int8({w.codes.data(), nullptr, w.rows, w.columns, 0}, n, end,
                       packed.codes.data());
    else
      kernel.pack_int4({w.codes.data(), nullptr, w.rows, w.columns}, n, end, packed.codes.data());
  }
  return packed;
}

int weight_code(const Weights& w, int bits, std::uint64_t n, std::uint64_t k) {
  if (bits == 8) return static_cast<std::int8_t>(w.codes[n * w.columns + k]);
  return int4_code(w.codes.data() + n * (w.columns / 2), k);
}

// y as bytes, with a gap between rows that must stay as it was.
std::vector<std::byte> multiply_with(const LinearKernel& kernel, const PackedWeight& w,
                                     const QuantizedRows& x, DType dtype, bool in_tiles) {
  const std::uint64_t stride = w.rows + 5, size = dtype_bits(dtype) / 8;
  std::vector<std::byte> bytes(x.rows * stride * size + 1, std::byte{0x5a});
  const Matrix y{bytes.data() + 1, dtype, x.rows, w.rows, stride};
  const std::uint64_t n_step = in_tiles ? kernel.row_tile : w.rows, m_step = in_tiles ? 7 : x.rows;
  for (std::uint64_t m = 0; m < x.rows; m += m_step)
    for (std::uint64_t n = 0; n < w.rows; n += n_step)
      kernel.multiply(w, x, m, std::min(m + m_step, x.rows), n, std::min(n + n_step, w.rows), y);
  for (std::uint64_t m = 0; m < x.rows; ++m)
    for (std::uint64_t i = (m * stride + w.rows) * size; i < (m + 1) * stride * size; ++i)
      EXPECT_EQ(bytes[1 + i], std::byte{0x5a}) << kernel.name << ": wrote between rows";
  return bytes;
}

class LinearKernels : public testing::TestWithParam<int> {  // bits of the weight
 protected:
  static std::span<const LinearKernel> list() {
    return GetParam() == 8 ? int8_kernels() : int4_kernels();
  }
};

TEST_P(LinearKernels, reference_is_the_exact_sum) {
  std::mt19937 random(11);
  const Weights w = make_weights(random, GetParam(), 9, 64, true);
  TestActivation x = make_activation(random, DType::f32, 4, 64);
  const QuantizedRows q = quantize_with(quantize_kernels().back(), x.view, 0, Activation::int8);
  const LinearKernel& kernel = list().back();
  const auto bytes = multiply_with(kernel, pack(kernel, w, false), q, DType::f32, false);
  for (std::uint64_t m = 0; m < 4; ++m) {
    for (std::uint64_t n = 0; n < 9; ++n) {
      std::int64_t sum = 0;
      for (std::uint64_t k = 0; k < 64; ++k)
        sum += std::int64_t{static_cast<std::int8_t>(q.codes.data()[m * q.stride + k])} *
               weight_code(w, GetParam(), n, k);
      const float expected = static_cast<float>(sum) * (q.scales[m] * w.scales[n]) + w.bias[n];
      EXPECT_EQ(load_float(DType::f32, bytes.data() + 1, m * 14 + n), expected);
    }
  }
}

TEST_P(LinearKernels, every_variant_equals_the_reference) {
  const std::uint32_t seed = seed_of_run();
  SCOPED_TRACE(replay(seed));
  std::mt19937 random(seed);
  const int bits = GetParam();
  const LinearKernel& reference = list().back();
  const std::vector<std::uint64_t> row_counts = {1, 2, 5, 6, 7, 13},
                                   output_counts = {1, 3, 15, 16, 17, 63, 64, 65, 130};
  const std::vector<std::uint64_t> widths =
      bits == 8 ? std::vector<std::uint64_t>{1, 3, 4, 5, 63, 64, 65, 384, 1000}
                : std::vector<std::uint64_t>{64, 128, 192, 384, 1024};
  for (const LinearKernel& kernel : list()) {
    if (!runs_here(kernel.isa) || kernel.isa == Isa::reference) continue;
    for (std::uint64_t columns : widths) {
      for (std::uint64_t outputs : output_counts) {
        const Weights w = make_weights(random, bits, outputs, columns, outputs % 2);
        const PackedWeight packed = pack(kernel, w, true), plain = pack(reference, w, false);
        EXPECT_EQ(packed.codes.size(), kernel.packed_bytes(outputs, columns));
        for (std::uint64_t rows : row_counts) {
          const DType dtype = dtypes[(rows + outputs) % 3];
          TestActivation x = make_activation(random, dtype, rows, columns);
          if (rows > 2) set(x, 1, columns - 1, std::numeric_limits<float>::quiet_NaN());
          const Activation mode = rows % 2 ? Activation::int8 : Activation::int4;
          const QuantizedRows q = quantize_with(quantize_kernels().back(), x.view, 0, mode);
          EXPECT_EQ(multiply_with(kernel, packed, q, dtype, true),
                    multiply_with(reference, plain, q, dtype, false))
              << kernel.name << " M " << rows << " N " << outputs << " K " << columns;
        }
      }
    }
  }
}

// The largest sums that the formats can make: all codes at their ends, K near the limit.
TEST_P(LinearKernels, extreme_codes_do_not_overflow) {
  const std::uint64_t columns = 131'008;  // the last multiple of 64 below the limit
  for (const LinearKernel& kernel : list()) {
    if (!runs_here(kernel.isa)) continue;
    Weights w;
    w.rows = 2;
    w.columns = columns;
    w.codes.assign(2 * columns * static_cast<std::uint64_t>(GetParam()) / 8,
                   GetParam() == 8 ? std::byte{0x80} : std::byte{0x88});
    w.scales = {1, 1};
    QuantizedRows q;
    q.resize(1, columns);
    std::fill_n(q.codes.data(), columns, std::byte{0x80});
    q.sums[0] = static_cast<std::int32_t>(columns) * -128;
    q.scales[0] = 1;
    const auto bytes = multiply_with(kernel, pack(kernel, w, false), q, DType::f32, false);
    const double expected = static_cast<double>(columns) * -128 * (GetParam() == 8 ? -128 : -8);
    EXPECT_EQ(load_float(DType::f32, bytes.data() + 1, 0), static_cast<float>(expected))
        << kernel.name;
    EXPECT_EQ(load_float(DType::f32, bytes.data() + 1, 1), static_cast<float>(expected))
        << kernel.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Bits, LinearKernels, testing::Values(8, 4));

TEST(FloatKernels, every_variant_equals_the_reference_and_the_sum_in_double) {
  std::mt19937 random(seed_of_run());
  std::normal_distribution<float> normal(0, 1);
  const FloatKernel& reference = float_kernels().back();
  for (const FloatKernel& kernel : float_kernels()) {
    if (!runs_here(kernel.isa)) continue;
    for (std::uint64_t columns : {1u, 15u, 16u, 17u, 64u, 100u, 384u}) {
      for (std::uint64_t rows : {1u, 7u, 8u, 9u, 20u}) {
        const std::uint64_t outputs = 5;
        std::vector<float> x(rows * columns), w(outputs * columns), bias(outputs);
        for (auto* values : {&x, &w, &bias})
          for (float& v : *values) v = normal(random);
        std::vector<float> y(rows * outputs), expected(rows * outputs);
        kernel.multiply(x.data(), columns, 0, rows, w.data(), 0, outputs, columns, bias.data(),
                        {y.data(), DType::f32, rows, outputs, outputs});
        reference.multiply(x.data(), columns, 0, rows, w.data(), 0, outputs, columns, bias.data(),
                           {expected.data(), DType::f32, rows, outputs, outputs});
        EXPECT_EQ(std::memcmp(y.data(), expected.data(), 4 * y.size()), 0)
            << kernel.name << " K " << columns;
        for (std::uint64_t i = 0; i < y.size(); ++i) {
          double sum = bias[i % outputs];
          for (std::uint64_t k = 0; k < columns; ++k)
            sum += double{x[i / outputs * columns + k]} * w[i % outputs * columns + k];
          EXPECT_NEAR(y[i], sum, 1e-5 * static_cast<double>(columns)) << kernel.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace parfait::kernels
