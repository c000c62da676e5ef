// Every variant of attention against the plain reference, and the reference against two cases that
// can be worked out.

#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/floats.h"
#include "kernels/linear/linear_testing.h"

namespace parfait::kernels {
namespace {

using namespace parfait::kernels::testing;

struct Case {
  std::uint64_t S = 1, T = 1, heads = 1, kv_heads = 1, D = 8;
  DType q = DType::f32, k = DType::f32, v = DType::f32, y = DType::f32;
  bool causal = false, padding = false;
  float spread = 1;  // of q
};

struct Operands {
  TestActivation q, k, v;
  std::vector<std::uint8_t> keys;
};

Operands make_operands(std::mt19937& random, const Case& c) {
  Operands o{make_activation(random, c.q, c.S, c.heads * c.D),
             make_activation(random, c.k, c.T, c.kv_heads * c.D),
             make_activation(random, c.v, c.T, c.kv_heads * c.D),
             {}};
  for (std::uint64_t i = 0; i < c.S; ++i)
    for (std::uint64_t d = 0; d < c.heads * c.D; ++d) o.q.set(i, d, o.q.at(i, d) * c.spread);
  if (c.padding)
    for (std::uint64_t j = 0; j < c.T; ++j) o.keys.push_back(random() % 3 != 0 && j % 97 < 80);
  return o;
}

// y by one kernel, its queries cut into tiles of `step`; 0: as many as it takes at once.
std::vector<float> attend(const AttentionKernel& kernel, const Case& c, const Operands& o,
                          std::uint64_t step = 0) {
  const std::uint64_t columns = c.heads * c.D, stride = columns + 5, size = dtype_bits(c.y) / 8;
  std::vector<std::byte> bytes(c.S * stride * size + 1, std::byte{0x5a});
  AttentionProblem p{o.q.view, o.k.view, o.v.view, {bytes.data() + 1, c.y, c.S, columns, stride}};
  p.heads = c.heads;
  p.kv_heads = c.kv_heads;
  p.head_size = c.D;
  p.scale = 1 / std::sqrt(static_cast<float>(c.D));
  p.causal = c.causal;
  p.keys = o.keys.empty() ? nullptr : o.keys.data();
  AlignedBytes packed(kernel.packed_bytes(p)), scratch(kernel.scratch_bytes(p));
  if (step == 0) step = kernel.query_tile;
  for (std::uint64_t head = 0; head < c.heads; ++head) {
    std::fill_n(packed.data(), packed.size(), std::byte{0xff});  // stale contents: NaN
    for (std::uint64_t j = 0; j < c.T; j += kernel.key_block)
      kernel.pack(p, head * c.kv_heads / c.heads, j, std::min(j + kernel.key_block, c.T),
                  packed.data());
    for (std::uint64_t i = 0; i < c.S; i += step) {
      std::fill_n(scratch.data(), scratch.size(), std::byte{0xff});
      kernel.run(p, head, packed.data(), i, std::min(i + step, c.S), scratch.data());
    }
  }
  std::vector<float> y;
  for (std::uint64_t i = 0; i < c.S; ++i) {
    for (std::uint64_t d = 0; d < columns; ++d)
      y.push_back(load_float(c.y, bytes.data() + 1, i * stride + d));
    for (std::uint64_t b = (i * stride + columns) * size; b < (i + 1) * stride * size; ++b)
      EXPECT_EQ(bytes[1 + b], std::byte{0x5a}) << kernel.name << ": wrote between rows";
  }
  return y;
}

const AttentionKernel& reference() { return attention_kernels().back(); }

// What an output may differ by: float sums of T weights near 1, bf16 weights where they are used,
// and one rounding to y's type. Values are normal, a few units at most.
float tolerance(const AttentionKernel& kernel, const Case& c) {
  const float sums = kernel.bf16_only ? 0.012f : 2e-5f;
  return (c.y == DType::bf16 ? 0.02f : c.y == DType::f16 ? 0.003f : 0) + sums * (1 + c.spread / 8);
}

void expect_near_reference(std::mt19937& random, const Case& c) {
  const Operands o = make_operands(random, c);
  const std::vector<float> expected = attend(reference(), c, o);
  const bool bf16 = c.q == DType::bf16 && c.k == DType::bf16 && c.v == DType::bf16;
  for (const AttentionKernel& kernel : variants(attention_kernels())) {
    if (kernel.bf16_only && !bf16) continue;
    const std::vector<float> y = attend(kernel, c, o);
    for (std::size_t i = 0; i < y.size(); ++i)
      ASSERT_NEAR(y[i], expected[i], tolerance(kernel, c))
          << kernel.name << " S " << c.S << " T " << c.T << " heads " << c.heads << "/"
          << c.kv_heads << " D " << c.D << (c.causal ? " causal" : "")
          << (c.padding ? " padding" : "") << " at " << i;
    for (const std::uint64_t step : {std::uint64_t{1}, std::uint64_t{7}})
      EXPECT_EQ(attend(kernel, c, o, step), y) << kernel.name << " in tiles of " << step;
  }
}

TEST(Attention, reference_of_one_key_and_of_equal_keys) {
  std::mt19937 random(1);
  const Case one{.S = 3, .T = 1, .D = 16};
  const Operands o = make_operands(random, one);
  const std::vector<float> y = attend(reference(), one, o);
  for (std::uint64_t i = 0; i < 3; ++i)
    for (std::uint64_t d = 0; d < 16; ++d) EXPECT_EQ(y[i * 16 + d], o.v.at(0, d));

  const Case equal{.S = 2, .T = 5, .D = 8};
  Operands same = make_operands(random, equal);
  for (std::uint64_t j = 1; j < 5; ++j)
    for (std::uint64_t d = 0; d < 8; ++d) same.k.set(j, d, same.k.at(0, d));
  const std::vector<float> mean = attend(reference(), equal, same);
  for (std::uint64_t d = 0; d < 8; ++d) {
    double sum = 0;
    for (std::uint64_t j = 0; j < 5; ++j) sum += static_cast<double>(same.v.at(j, d));
    EXPECT_NEAR(mean[d], sum / 5, 1e-6);
  }
}

TEST(Attention, every_number_of_queries_and_keys) {
  const std::uint32_t seed = seed_of_run();
  SCOPED_TRACE(replay(seed));
  std::mt19937 random(seed);
  for (std::uint64_t n = 1; n <= 70; ++n) {
    for (const bool causal : {false, true}) {
      const DType type = dtypes[n % 3];
      expect_near_reference(random, {.S = n,
                                     .T = 71 - n,
                                     .D = 16,
                                     .q = type,
                                     .k = type,
                                     .v = type,
                                     .y = dtypes[(n / 3) % 3],
                                     .causal = causal,
                                     .padding = n % 5 == 0});
    }
  }
}

TEST(Attention, around_the_blocks_of_keys) {
  const std::uint32_t seed = seed_of_run() + 1;
  SCOPED_TRACE(replay(seed_of_run()));
  std::mt19937 random(seed);
  for (const std::uint64_t T : {127u, 128u, 129u, 255u, 256u, 257u, 513u, 700u})
    for (const bool causal : {false, true})
      for (const DType type : dtypes)
        expect_near_reference(random, {.S = 1 + T % 40,
                                       .T = T,
                                       .heads = 2,
                                       .D = 32,
                                       .q = type,
                                       .k = type,
                                       .v = type,
                                       .causal = causal,
                                       .padding = T % 2 == 1});
}

TEST(Attention, every_head_size_and_shared_keys) {
  const std::uint32_t seed = seed_of_run() + 2;
  SCOPED_TRACE(replay(seed_of_run()));
  std::mt19937 random(seed);
  for (std::uint64_t D = 8; D <= 512; D += D < 256 ? 8 : 64)
    for (const std::uint64_t kv_heads : {1u, 2u, 4u})
      expect_near_reference(random, {.S = 13,
                                     .T = 40,
                                     .heads = 4,
                                     .kv_heads = kv_heads,
                                     .D = D,
                                     .q = DType::bf16,
                                     .k = DType::bf16,
                                     .v = DType::bf16,
                                     .causal = D % 16 == 0});
  expect_near_reference(random, {.S = 9,
                                 .T = 33,
                                 .heads = 2,
                                 .kv_heads = 2,
                                 .D = 64,
                                 .q = DType::bf16,
                                 .k = DType::f16,
                                 .v = DType::f32});
}

// Scores of some ±80 and more: nothing overflows, and the largest wins.
TEST(Attention, large_scores) {
  const std::uint32_t seed = seed_of_run() + 3;
  SCOPED_TRACE(replay(seed_of_run()));
  std::mt19937 random(seed);
  for (const DType type : {DType::f32, DType::bf16})
    expect_near_reference(
        random, {.S = 30, .T = 300, .D = 64, .q = type, .k = type, .v = type, .spread = 30});
}

TEST(Attention, nothing_seen_gives_zero_and_hidden_keys_may_hold_anything) {
  std::mt19937 random(5);
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const DType type : {DType::f32, DType::bf16}) {
    const Case c{.S = 5, .T = 300, .D = 24, .q = type, .k = type, .v = type};
    Operands o = make_operands(random, c);
    o.keys.assign(c.T, 0);
    for (const AttentionKernel& kernel : attention_kernels()) {
      if (!runs_here(kernel.isa) || (kernel.bf16_only && type != DType::bf16)) continue;
      for (const float y : attend(kernel, c, o)) EXPECT_EQ(y, 0) << kernel.name;
    }
    for (std::uint64_t j = 0; j < c.T; j += 3) o.keys[j] = 1;
    const std::vector<float> expected = attend(reference(), c, o);
    for (std::uint64_t j = 1; j < c.T; j += 3)
      for (std::uint64_t d = 0; d < c.D; ++d) {
        o.k.set(j, d, nan);
        o.v.set(j, d, std::numeric_limits<float>::infinity());
      }
    EXPECT_EQ(attend(reference(), c, o), expected);
    for (const AttentionKernel& kernel : variants(attention_kernels())) {
      if (kernel.bf16_only && type != DType::bf16) continue;
      const std::vector<float> y = attend(kernel, c, o);
      for (std::size_t i = 0; i < y.size(); ++i)
        EXPECT_NEAR(y[i], expected[i], tolerance(kernel, c)) << kernel.name;
    }
  }
  // Fewer keys than queries: the first queries see none.
  const Case early{.S = 9, .T = 4, .D = 8, .causal = true};
  const Operands o = make_operands(random, early);
  for (const AttentionKernel& kernel : attention_kernels()) {
    if (!runs_here(kernel.isa) || kernel.bf16_only) continue;
    const std::vector<float> y = attend(kernel, early, o);
    for (std::uint64_t i = 0; i < 9; ++i)
      for (std::uint64_t d = 0; d < 8; ++d)
        EXPECT_EQ(y[i * 8 + d] == 0, i < 5) << kernel.name << " query " << i;
  }
}

TEST(Attention, a_query_with_nan_gives_nan_and_no_other_does) {
  std::mt19937 random(6);
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const Case c{.S = 15, .T = 270, .D = 16, .q = type, .k = type, .v = type};
    Operands o = make_operands(random, c);
    o.q.set(7, 3, std::numeric_limits<float>::quiet_NaN());
    for (const AttentionKernel& kernel : attention_kernels()) {
      if (!runs_here(kernel.isa) || (kernel.bf16_only && type != DType::bf16)) continue;
      const std::vector<float> y = attend(kernel, c, o);
      for (std::uint64_t i = 0; i < c.S; ++i)
        for (std::uint64_t d = 0; d < c.D; ++d)
          EXPECT_EQ(std::isnan(y[i * c.D + d]), i == 7) << kernel.name << " query " << i;
    }
  }
}

}  // namespace
}  // namespace parfait::kernels
