// The operations on rows as a caller sees them: what they compute, that threads and instruction
// sets don't change a bit of it, and what is refused. The kernels' own tests look closer.

#include "runtime/ops_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/floats.h"
#include "runtime/ops.h"

namespace parfait::runtime {
namespace {

struct Data {
  std::vector<std::byte> bytes;
  DType dtype;
  std::uint64_t rows, columns, stride;

  Data(DType type, std::uint64_t m, std::uint64_t d, std::uint64_t gap = 3)
      : bytes(m * (d + gap) * (dtype_bits(type) / 8)),
        dtype(type),
        rows(m),
        columns(d),
        stride(d + gap) {}
  void fill(std::mt19937& random) {
    std::normal_distribution<float> normal(0, 1.5f);
    for (std::uint64_t i = 0; i < rows * stride; ++i)
      store_float(dtype, bytes.data(), i, normal(random));
  }
  double at(std::uint64_t m, std::uint64_t c) const {
    return load_float(dtype, bytes.data(), m * stride + c);
  }
  ConstMatrix in() const { return {bytes.data(), dtype, rows, columns, stride}; }
  Matrix out() { return {bytes.data(), dtype, rows, columns, stride}; }
};

Data random_data(std::mt19937& random, DType dtype, std::uint64_t rows, std::uint64_t columns) {
  Data data(dtype, rows, columns);
  data.fill(random);
  return data;
}

// Enough rows for several pieces, and one that is not full.
constexpr std::uint64_t M = 1003, D = 136;

struct Inputs {
  Data x, h, cos, sin;
  std::vector<float> weight, bias, scale, shift;

  explicit Inputs(DType dtype, std::uint32_t seed = 7)
      : x(dtype, M, D), h(dtype, M, D), cos(DType::f32, M, 17), sin(DType::f32, M, 17) {
    std::mt19937 random(seed);
    for (Data* data : {&x, &h, &cos, &sin}) data->fill(random);
    std::normal_distribution<float> normal(0, 1);
    for (std::vector<float>* values : {&weight, &bias, &scale, &shift})
      for (std::uint64_t c = 0; c < D; ++c) values->push_back(normal(random));
  }
};

NormOptions options_of(float epsilon, std::span<const float> weight,
                       std::span<const float> bias = {}, std::span<const float> scale = {},
                       std::span<const float> shift = {}) {
  NormOptions options;
  options.epsilon = epsilon;
  options.weight = weight;
  options.bias = bias;
  options.scale = scale;
  options.shift = shift;
  return options;
}

// An operation, and what it is by a formula in double. Each takes x first and may write over it.
struct Case {
  std::string name;
  std::function<Result<Done>(Ops&, const Inputs&, const ConstMatrix& x, const Matrix& y)> run;
  std::function<double(const Inputs&, std::uint64_t m, std::uint64_t c)> right;
};

double silu_of(double x) { return x / (1 + std::exp(-x)); }
double gelu_of(double x) { return 0.5 * x * std::erfc(-x * std::numbers::sqrt2 / 2); }
double gelu_tanh_of(double x) {
  return 0.5 * x *
         (1 + std::tanh(std::sqrt(2 * std::numbers::inv_pi) * (x + 0.044715 * x * x * x)));
}

double normal_of(const Inputs& in, std::uint64_t m, std::uint64_t c, double epsilon, bool centred) {
  double mean = 0, squares = 0;
  for (std::uint64_t k = 0; centred && k < D; ++k) mean += in.x.at(m, k) / D;
  for (std::uint64_t k = 0; k < D; ++k) squares += std::pow(in.x.at(m, k) - mean, 2) / D;
  return (in.x.at(m, c) - mean) / std::sqrt(squares + epsilon);
}

// Heads of 34: four of them.
double turned(const Inputs& in, std::uint64_t m, std::uint64_t c, RopePairs pairs) {
  const std::uint64_t head = c / 34 * 34, i = c % 34;
  const bool adjacent = pairs == RopePairs::adjacent;
  const std::uint64_t pair = adjacent ? i / 2 : i % 17;
  const std::uint64_t a = head + (adjacent ? 2 * pair : pair);
  const std::uint64_t b = adjacent ? a + 1 : a + 17;
  const double cos = in.cos.at(m, pair), sin = in.sin.at(m, pair);
  return c == a ? in.x.at(m, a) * cos - in.x.at(m, b) * sin
                : in.x.at(m, b) * cos + in.x.at(m, a) * sin;
}

using C = const ConstMatrix&;
using Y = const Matrix&;
const Case cases[] = {
    {"rms_norm",
     [](Ops& ops, const Inputs& in, C x, Y y) {
       return rms_norm(ops, x, options_of(0.25f, in.weight), y);
     },
     [](const Inputs& in, auto m, auto c) {
       return normal_of(in, m, c, 0.25, false) * in.weight[c];
     }},
    {"layer_norm",
     [](Ops& ops, const Inputs& in, C x, Y y) {
       return layer_norm(ops, x, options_of(0.5f, in.weight, in.bias), y);
     },
     [](const Inputs& in, auto m, auto c) {
       return normal_of(in, m, c, 0.5, true) * in.weight[c] + in.bias[c];
     }},
    {"layer_norm, modulated",
     [](Ops& ops, const Inputs& in, C x, Y y) {
       return layer_norm(ops, x, options_of(1e-6f, {}, {}, in.scale, in.shift), y);
     },
     [](const Inputs& in, auto m, auto c) {
       return normal_of(in, m, c, 1e-6, true) * (1 + in.scale[c]) + in.shift[c];
     }},
    {"rope, adjacent",
     [](Ops& ops, const Inputs& in, C x, Y y) {
       return rope(ops, x, in.cos.in(), in.sin.in(), {34, RopePairs::adjacent}, y);
     },
     [](const Inputs& in, auto m, auto c) { return turned(in, m, c, RopePairs::adjacent); }},
    {"rope, halves",
     [](Ops& ops, const Inputs& in, C x, Y y) {
       return rope(ops, x, in.cos.in(), in.sin.in(), {34, RopePairs::halves}, y);
     },
     [](const Inputs& in, auto m, auto c) { return turned(in, m, c, RopePairs::halves); }},
    {"silu", [](Ops& ops, const Inputs&, C x, Y y) { return silu(ops, x, y); },
     [](const Inputs& in, auto m, auto c) { return silu_of(in.x.at(m, c)); }},
    {"gelu, erf", [](Ops& ops, const Inputs&, C x, Y y) { return gelu(ops, x, Gelu::erf, y); },
     [](const Inputs& in, auto m, auto c) { return gelu_of(in.x.at(m, c)); }},
    {"gelu, tanh", [](Ops& ops, const Inputs&, C x, Y y) { return gelu(ops, x, Gelu::tanh, y); },
     [](const Inputs& in, auto m, auto c) { return gelu_tanh_of(in.x.at(m, c)); }},
    {"silu_gate",
     [](Ops& ops, const Inputs& in, C x, Y y) { return silu_gate(ops, x, in.h.in(), y); },
     [](const Inputs& in, auto m, auto c) { return silu_of(in.x.at(m, c)) * in.h.at(m, c); }},
    {"gelu_gate, erf",
     [](Ops& ops, const Inputs& in, C x, Y y) {
       return gelu_gate(ops, x, in.h.in(), Gelu::erf, y);
     },
     [](const Inputs& in, auto m, auto c) { return gelu_of(in.x.at(m, c)) * in.h.at(m, c); }},
    {"gelu_gate, tanh",
     [](Ops& ops, const Inputs& in, C x, Y y) {
       return gelu_gate(ops, x, in.h.in(), Gelu::tanh, y);
     },
     [](const Inputs& in, auto m, auto c) { return gelu_tanh_of(in.x.at(m, c)) * in.h.at(m, c); }},
    {"add_gated",
     [](Ops& ops, const Inputs& in, C x, Y y) {
       return add_gated(ops, x, in.weight, in.h.in(), y);
     },
     [](const Inputs& in, auto m, auto c) { return in.x.at(m, c) + in.weight[c] * in.h.at(m, c); }},
    {"add_gated without a gate",
     [](Ops& ops, const Inputs& in, C x, Y y) { return add_gated(ops, x, {}, in.h.in(), y); },
     [](const Inputs& in, auto m, auto c) { return in.x.at(m, c) + in.h.at(m, c); }},
};

TEST(OpsRows, each_is_what_its_formula_says) {
  const Inputs in(DType::f32);
  Ops ops(2, machine_isas());
  for (const Case& one : cases) {
    Data y(DType::f32, M, D, 1);
    const auto done = one.run(ops, in, in.x.in(), y.out());
    ASSERT_TRUE(done.ok()) << one.name;
    for (std::uint64_t m = 0; m < M; m += 17)
      for (std::uint64_t c = 0; c < D; ++c)
        ASSERT_NEAR(y.at(m, c), one.right(in, m, c), 2e-5) << one.name << ' ' << m << ' ' << c;
    for (std::uint64_t c = 0; c < D; ++c)
      ASSERT_NEAR(y.at(M - 1, c), one.right(in, M - 1, c), 2e-5) << one.name << " in the last row";
  }
}

TEST(OpsRows, threads_and_instruction_sets_change_no_bit) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Inputs in(dtype);
    for (const Case& one : cases) {
      Data want(dtype, M, D);
      Ops plain(1, {Isa::reference});
      ASSERT_TRUE(one.run(plain, in, in.x.in(), want.out()).ok());
      for (Isa isa : machine_isas()) {
        for (unsigned threads : {1u, 2u, 3u, 7u}) {
          Ops ops(threads, isas_within(isa));
          Data y(dtype, M, D);
          ASSERT_TRUE(one.run(ops, in, in.x.in(), y.out()).ok());
          EXPECT_EQ(y.bytes, want.bytes) << one.name << ' ' << isa_name(isa) << ' ' << threads;
        }
      }
    }
  }
}

TEST(OpsRows, in_place) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Inputs in(dtype);
    Ops ops(3, machine_isas());
    for (const Case& one : cases) {
      Data want(dtype, M, D), y = in.x;
      ASSERT_TRUE(one.run(ops, in, in.x.in(), want.out()).ok());
      ASSERT_TRUE(one.run(ops, in, y.in(), y.out()).ok());
      for (std::uint64_t m = 0; m < M; ++m)
        for (std::uint64_t c = 0; c < D; ++c)
          ASSERT_EQ(y.at(m, c), want.at(m, c)) << one.name << ' ' << m << ' ' << c;
    }
  }
}

TEST(OpsRows, no_rows_and_no_columns_are_no_work) {
  Ops ops(2, machine_isas());
  const ConstMatrix no_rows{nullptr, DType::f32, 0, 8, 8}, no_columns{nullptr, DType::f32, 5, 0, 0};
  EXPECT_TRUE(rms_norm(ops, no_rows, {}, {nullptr, DType::f32, 0, 8, 8}).ok());
  EXPECT_TRUE(layer_norm(ops, no_columns, {}, {nullptr, DType::f32, 5, 0, 0}).ok());
  EXPECT_TRUE(silu(ops, no_rows, {nullptr, DType::bf16, 0, 8, 8}).ok());
  EXPECT_TRUE(add_gated(ops, no_columns, {}, no_columns, {nullptr, DType::f32, 5, 0, 0}).ok());
}

// What a call of each kind refuses: by code, and by the words that tell what is wrong.
TEST(OpsRows, what_does_not_fit_is_refused) {
  std::mt19937 random(1);
  Ops ops(1, machine_isas());
  const Data x = random_data(random, DType::f32, 4, 8),
             other = random_data(random, DType::f32, 4, 9),
             fewer = random_data(random, DType::f32, 3, 8),
             angle = random_data(random, DType::f32, 4, 2);
  Data y(DType::f32, 4, 8);
  const std::vector<std::byte> before = y.bytes;
  const std::vector<float> eight(8), nine(9);
  const auto refused = [&](const Result<Done>& done, ErrorCode code, std::string_view words) {
    ASSERT_FALSE(done.ok()) << words;
    EXPECT_EQ(done.error().code, code) << done.error().message;
    EXPECT_NE(done.error().message.find(words), std::string::npos) << done.error().message;
    EXPECT_EQ(y.bytes, before) << words;
  };
  const auto shape = ErrorCode::run_shape, dtype = ErrorCode::run_dtype;
  refused(rms_norm(ops, other.in(), {}, y.out()), shape, "rms_norm: y is [4, 8], expected [4, 9]");
  refused(layer_norm(ops, fewer.in(), {}, y.out()), shape, "layer_norm: y is [4, 8]");
  refused(rms_norm(ops, x.in(), options_of(0, nine), y.out()), shape, "weight has 9 values");
  refused(layer_norm(ops, x.in(), options_of(0, {}, nine), y.out()), shape, "bias has 9 values");
  refused(layer_norm(ops, x.in(), options_of(0, {}, {}, nine), y.out()), shape,
          "scale has 9 values");
  refused(layer_norm(ops, x.in(), options_of(0, {}, {}, {}, nine), y.out()), shape,
          "shift has 9 values");
  ConstMatrix odd = x.in();
  odd.dtype = DType::i8;
  refused(silu(ops, odd, y.out()), dtype, "silu: x is I8");
  refused(add_gated(ops, x.in(), {}, odd, y.out()), dtype, "add_gated: h is I8");
  ConstMatrix dense = x.in();
  dense.stride = 7;
  refused(gelu(ops, dense, Gelu::erf, y.out()), shape, "start 7 apart");
  ConstMatrix nothing = x.in();
  nothing.data = nullptr;
  refused(gelu(ops, nothing, Gelu::tanh, y.out()), shape, "x has no data");
  refused(silu_gate(ops, x.in(), other.in(), y.out()), shape, "silu_gate: up is [4, 9]");
  refused(gelu_gate(ops, x.in(), fewer.in(), Gelu::erf, y.out()), shape, "gelu_gate: up is [3, 8]");
  refused(gelu_gate(ops, other.in(), other.in(), Gelu::erf, y.out()), shape, "gelu_gate: y is");
  refused(add_gated(ops, x.in(), nine, x.in(), y.out()), shape, "gate has 9 values");
  refused(add_gated(ops, x.in(), eight, fewer.in(), y.out()), shape, "add_gated: h is [3, 8]");
  refused(rope(ops, x.in(), angle.in(), angle.in(), {0}, y.out()), shape, "heads of 0 columns");
  refused(rope(ops, other.in(), angle.in(), angle.in(), {3}, y.out()), shape, "heads of 3 columns");
  refused(rope(ops, x.in(), angle.in(), angle.in(), {6}, y.out()), shape, "are not heads of 6");
  refused(rope(ops, x.in(), x.in(), angle.in(), {4}, y.out()), shape, "cos is [4, 8]");
  refused(rope(ops, x.in(), angle.in(), x.in(), {4}, y.out()), shape, "sin is [4, 8]");
  refused(
      rope(ops, x.in(), angle.in(), angle.in(), {4}, Matrix{y.out().data, DType::f32, 4, 7, 11}),
      shape, "rope: y is [4, 7]");
}

}  // namespace
}  // namespace parfait::runtime
