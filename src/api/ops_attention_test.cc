// Attention through the public call: any number of threads, in pieces of heads, and what it
// refuses.

#include <gtest/gtest.h>

#include <cmath>

#include "parfait/ops.h"

namespace parfait {
namespace {

std::vector<float> ramp(std::uint64_t count, float step) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i) * step) * 2;
  return values;
}
ConstMatrix view(const std::vector<float>& values, std::uint64_t rows, std::uint64_t columns) {
  return {values.data(), DType::f32, rows, columns, columns};
}
Matrix view(std::vector<float>& values, std::uint64_t rows, std::uint64_t columns) {
  return {values.data(), DType::f32, rows, columns, columns};
}

TEST(OpsAttention, any_number_of_threads_gives_the_same_bits) {
  constexpr std::uint64_t S = 300, T = 410, heads = 6, kv_heads = 3, D = 40;
  const auto q = ramp(S * heads * D, 0.7f), k = ramp(T * kv_heads * D, 1.3f),
             v = ramp(T * kv_heads * D, 0.3f);
  AttentionOptions options;
  options.heads = heads;
  options.kv_heads = kv_heads;
  options.mask = AttentionMask::causal;
  std::vector<float> first;
  for (unsigned threads : {1u, 2u, 3u, 7u}) {
    auto ops = Ops::make(threads);
    ASSERT_TRUE(ops.ok());
    for (int twice = 0; twice < 2; ++twice) {  // scratch is used again
      std::vector<float> y(S * heads * D, -1);
      auto done = ops->attention(view(q, S, heads * D), view(k, T, kv_heads * D),
                                 view(v, T, kv_heads * D), options, view(y, S, heads * D));
      ASSERT_TRUE(done.ok()) << done.error().message;
      if (first.empty()) first = y;
      EXPECT_EQ(y, first) << threads << " threads";
    }
  }
}

TEST(OpsAttention, every_instruction_set_is_near_the_reference) {
  constexpr std::uint64_t S = 20, heads = 2, D = 16;
  const auto q = ramp(S * heads * D, 0.7f), k = ramp(S * heads * D, 1.3f),
             v = ramp(S * heads * D, 0.3f);
  AttentionOptions options;
  options.heads = heads;
  options.scale = 0.5f;
  std::vector<float> expected;
  for (Isa isa : machine_isas()) {  // the reference first
    auto ops = Ops::make(2, isa);
    ASSERT_TRUE(ops.ok());
    std::vector<float> y(S * heads * D);
    ASSERT_TRUE(ops->attention(view(q, S, heads * D), view(k, S, heads * D), view(v, S, heads * D),
                               options, view(y, S, heads * D))
                    .ok());
    if (expected.empty()) expected = y;
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], 1e-4);
  }
}

TEST(OpsAttention, refuses_what_does_not_fit) {
  auto ops = Ops::make(1);
  ASSERT_TRUE(ops.ok());
  std::vector<float> a(64 * 64), y(64 * 64);
  const std::uint8_t keys[3] = {1, 1, 1};
  AttentionOptions options;
  options.heads = 4;
  const auto code = [&](std::uint64_t q, std::uint64_t k, std::uint64_t v, std::uint64_t out) {
    auto done =
        ops->attention(view(a, 4, q), view(a, 4, k), view(a, 4, v), options, view(y, 4, out));
    return done.ok() ? ErrorCode{} : done.error().code;
  };
  EXPECT_EQ(code(30, 30, 30, 30), ErrorCode::run_shape);  // no whole heads
  EXPECT_EQ(code(16, 16, 16, 16), ErrorCode::run_shape);  // heads of 4
  EXPECT_EQ(code(32, 64, 32, 32), ErrorCode::run_shape);
  EXPECT_EQ(code(32, 32, 64, 32), ErrorCode::run_shape);
  EXPECT_EQ(code(32, 32, 32, 64), ErrorCode::run_shape);
  options.kv_heads = 3;
  EXPECT_EQ(code(32, 24, 24, 32), ErrorCode::run_shape);  // 3 does not divide 4
  options.kv_heads = 0;
  options.keys = keys;
  EXPECT_EQ(code(32, 32, 32, 32), ErrorCode::run_shape);  // 3 marks for 4 keys
  options.keys = {};
  options.heads = 0;
  EXPECT_EQ(code(32, 32, 32, 32), ErrorCode::run_shape);
  const ConstMatrix int8{a.data(), DType::i8, 4, 32, 32};
  options.heads = 4;
  EXPECT_EQ(
      ops->attention(int8, view(a, 4, 32), view(a, 4, 32), options, view(y, 4, 32)).error().code,
      ErrorCode::run_dtype);
  EXPECT_TRUE(
      ops->attention(view(a, 0, 32), view(a, 4, 32), view(a, 4, 32), options, view(y, 0, 32)).ok());
  EXPECT_TRUE(  // no key at all: zeros
      ops->attention(view(a, 4, 32), view(a, 0, 32), view(a, 0, 32), options, view(y, 4, 32)).ok());
  EXPECT_EQ(y[5], 0);
}

}  // namespace
}  // namespace parfait
