// Operations on single elements: every variant against the reference bit for bit, and all against
// libm in double.

#include "kernels/pointwise/pointwise.h"

#include <gtest/gtest.h>

#include <numbers>

#include "kernels/simd/rows_testing.h"

namespace parfait::kernels {
namespace {

using namespace parfait::kernels::testing;

constexpr Function functions[] = {Function::silu, Function::gelu_erf, Function::gelu_tanh};

double right(Function f, double x) {
  if (f == Function::silu) return x / (1 + std::exp(-x));
  if (f == Function::gelu_erf) return 0.5 * x * std::erfc(-x * std::numbers::sqrt2 / 2);
  const double u = std::sqrt(2 * std::numbers::inv_pi) * (x + 0.044715 * x * x * x);
  return x > -2 ? 0.5 * x * (1 + std::tanh(u)) : x * std::exp(2 * u) / (1 + std::exp(2 * u));
}

// All 65,536 values of a type, in rows that end within a vector.
TestActivation all_values(DType dtype) {
  TestActivation x;
  constexpr std::uint64_t columns = 241, rows = (65'536 + columns - 1) / columns;
  x.bytes.resize(rows * columns * 2 + 1);
  x.view = {x.bytes.data() + 1, dtype, rows, columns, columns};
  for (std::uint64_t i = 0; i < rows * columns; ++i)
    store_at(x.bytes.data() + 1, i, static_cast<std::uint16_t>(i));
  return x;
}

// The number of steps between two bf16 values of one sign.
int steps(float a, float b) {
  return std::abs(int{float_to_bf16(a) & 0x7fff} - int{float_to_bf16(b) & 0x7fff});
}

// In bf16, all but a few values are the right ones, rounded. The others are one step away, but for
// results below 3e-37, which exp's overflow may turn into 0.
TEST(PointwiseKernels, every_bf16_value_against_libm) {
  const TestActivation x = all_values(DType::bf16);
  const ConstMatrix& v = x.view;
  for (const PointwiseKernel& kernel : pointwise_kernels()) {
    if (!runs_here(kernel.isa)) continue;
    for (Function f : functions) {
      TestOutput y(DType::bf16, v.rows, v.columns);
      kernel.unary(f, v, 0, v.rows, y.view);
      int wrong = 0, seen = 0;
      for (std::uint64_t m = 0; m < v.rows; ++m) {
        for (std::uint64_t c = 0; c < v.columns; ++c) {
          const float in = x.at(m, c), got = y.at(m, c);
          const double want = right(f, in);
          // −∞ is NaN by the formulas in float.
          if (std::isnan(want) || in == -infinity) {
            ASSERT_TRUE(std::isnan(got)) << kernel.name << " of " << in << " is " << got;
            continue;
          }
          ++seen;
          const auto rounded = round_to_bf16(static_cast<float>(want));
          if (got == rounded) continue;
          ++wrong;
          if (std::fabs(want) < 3e-37)
            ASSERT_LE(std::fabs(got), 3e-37f) << kernel.name << " of " << in;
          else
            ASSERT_LE(steps(got, rounded), 1) << kernel.name << " of " << in;
        }
      }
      EXPECT_GT(seen, 65'000);
      EXPECT_LE(wrong, f == Function::silu ? 17 : f == Function::gelu_tanh ? 5 : 0) << kernel.name;
    }
  }
}

TEST(PointwiseKernels, every_half_value_equals_the_reference) {
  const PointwiseKernel& reference = pointwise_kernels().back();
  for (const PointwiseKernel& kernel : variants(pointwise_kernels())) {
    for (DType dtype : {DType::bf16, DType::f16}) {
      const TestActivation x = all_values(dtype);
      for (Function f : functions) {
        for (DType out : dtypes) {
          TestOutput want(out, x.view.rows, x.view.columns), got(out, x.view.rows, x.view.columns);
          reference.unary(f, x.view, 0, x.view.rows, want.view);
          kernel.unary(f, x.view, 0, x.view.rows, got.view);
          expect_same(got, want, std::string(kernel.name));
        }
      }
    }
  }
}

TEST(PointwiseKernels, floats_of_any_bits_equal_the_reference) {
  const std::uint32_t seed = seed_of_run();
  SCOPED_TRACE(replay(seed));
  std::mt19937 random(seed);
  const PointwiseKernel& reference = pointwise_kernels().back();
  constexpr std::uint64_t rows = 200, columns = 1000;
  TestActivation x = make_activation(random, DType::f32, rows, columns);
  for (std::uint64_t m = 0; m < rows / 2; ++m)
    for (std::uint64_t c = 0; c < columns; ++c)
      x.set(m, c, std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  std::uniform_real_distribution<float> wide(-110, 110);
  for (std::uint64_t m = rows / 2; m < rows * 3 / 4; ++m)
    for (std::uint64_t c = 0; c < columns; ++c) x.set(m, c, wide(random));
  for (const PointwiseKernel& kernel : variants(pointwise_kernels())) {
    for (Function f : functions) {
      TestOutput want(DType::f32, rows, columns), got(DType::f32, rows, columns);
      reference.unary(f, x.view, 0, rows, want.view);
      kernel.unary(f, x.view, 0, rows, got.view);
      expect_same(got, want, std::string(kernel.name));
    }
  }
}

enum class Operation {
  silu,
  gelu_erf,
  gelu_tanh,
  silu_gate,
  gelu_erf_gate,
  gelu_tanh_gate,
  add,
  add_gated
};

struct Inputs {
  TestActivation first, second;
  std::vector<float> gate;
};

void run(const PointwiseKernel& kernel, Operation operation, const Inputs& in, std::uint64_t step,
         const Matrix& y) {
  const int which = static_cast<int>(operation);
  for (std::uint64_t m = 0; m < y.rows; m += step) {
    const std::uint64_t end = std::min(m + step, y.rows);
    if (which < 3)
      kernel.unary(functions[which], in.first.view, m, end, y);
    else if (which < 6)
      kernel.gate(functions[which - 3], in.first.view, in.second.view, m, end, y);
    else
      kernel.add(in.first.view, operation == Operation::add ? nullptr : in.gate.data(),
                 in.second.view, m, end, y);
  }
}

constexpr Operation operations[] = {Operation::silu,          Operation::gelu_erf,
                                    Operation::gelu_tanh,     Operation::silu_gate,
                                    Operation::gelu_erf_gate, Operation::gelu_tanh_gate,
                                    Operation::add,           Operation::add_gated};

Inputs make_inputs(std::mt19937& random, DType first, DType second, std::uint64_t rows,
                   std::uint64_t columns) {
  return {make_activation(random, first, rows, columns, 3),
          make_activation(random, second, rows, columns, 7), make_vector(random, columns)};
}

TEST(PointwiseKernels, every_variant_equals_the_reference) {
  const std::uint32_t seed = seed_of_run();
  SCOPED_TRACE(replay(seed));
  std::mt19937 random(seed);
  const PointwiseKernel& reference = pointwise_kernels().back();
  for (std::uint64_t columns : awkward_lengths()) {
    for (int combination = 0; combination < 27; ++combination) {
      const DType first = dtypes[combination % 3], second = dtypes[combination / 3 % 3],
                  out = dtypes[combination / 9];
      const std::uint64_t rows = 1 + random() % 5;
      Inputs in = make_inputs(random, first, second, rows, columns);
      make_awkward(random, in.first, 8);
      make_awkward(random, in.second, 8);
      for (Operation operation : operations) {
        TestOutput want(out, rows, columns);
        run(reference, operation, in, rows, want.view);
        for (const PointwiseKernel& kernel : variants(pointwise_kernels())) {
          TestOutput got(out, rows, columns);
          run(kernel, operation, in, 2, got.view);
          expect_same(
              got, want,
              fmt::format("{} operation {} D {} {} {} {}", kernel.name, static_cast<int>(operation),
                          columns, dtype_name(first), dtype_name(second), dtype_name(out)));
        }
      }
    }
  }
}

TEST(PointwiseKernels, gates_and_sums_are_what_the_formulas_say) {
  std::mt19937 random(5);
  const PointwiseKernel& reference = pointwise_kernels().back();
  constexpr std::uint64_t rows = 7, columns = 77;
  const Inputs in = make_inputs(random, DType::f32, DType::bf16, rows, columns);
  for (Operation operation : operations) {
    TestOutput y(DType::f32, rows, columns);
    run(reference, operation, in, rows, y.view);
    for (std::uint64_t m = 0; m < rows; ++m) {
      for (std::uint64_t c = 0; c < columns; ++c) {
        const double a = in.first.at(m, c), b = in.second.at(m, c);
        const int which = static_cast<int>(operation);
        const double want = which < 3                     ? right(functions[which], a)
                            : which < 6                   ? right(functions[which - 3], a) * b
                            : operation == Operation::add ? a + b
                                                          : a + in.gate[c] * b;
        // A sum may cancel: its error is measured against its terms.
        const double size = which < 6 ? 0x1p-126 : std::fabs(a);
        ASSERT_LE(ulps(y.at(m, c), want, size), which < 6 ? 40.0 : 1.0) << which << ' ' << a;
      }
    }
  }
}

TEST(PointwiseKernels, in_place) {
  std::mt19937 random(6);
  constexpr std::uint64_t rows = 3, columns = 53;
  for (const PointwiseKernel& kernel : pointwise_kernels()) {
    if (!runs_here(kernel.isa)) continue;
    for (DType dtype : dtypes) {
      for (Operation operation : operations) {
        const Inputs in = make_inputs(random, dtype, dtype, rows, columns);
        TestOutput want(dtype, rows, columns);
        run(kernel, operation, in, rows, want.view);
        for (int over = 0; over < 2; ++over) {  // the first input, then the second
          Inputs own = in;
          own.first.view.data = own.first.bytes.data() + 1;
          own.second.view.data = own.second.bytes.data() + 1;
          TestActivation& target = over == 0 ? own.first : own.second;
          if (over == 1 && operation <= Operation::gelu_tanh) continue;
          const Matrix y{target.bytes.data() + 1, dtype, rows, columns, target.view.stride};
          run(kernel, operation, own, rows, y);
          for (std::uint64_t m = 0; m < rows; ++m)
            for (std::uint64_t c = 0; c < columns; ++c)
              ASSERT_TRUE(same(target.at(m, c), want.at(m, c))) << kernel.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace parfait::kernels
