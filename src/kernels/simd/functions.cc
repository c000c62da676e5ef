#include "kernels/simd/functions.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace parfait::kernels::simd {
namespace {

// p · 2ⁿ for n from −254 to 254, in two steps of which only the second one rounds. n stands in the
// low bits of rounded.
float times_power(float p, float rounded) {
  const auto n = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(rounded) -
                                           std::bit_cast<std::uint32_t>(rounding));
  const auto first = static_cast<std::uint32_t>(n >> 1);
  const std::uint32_t second = static_cast<std::uint32_t>(n) - first;
  return p * std::bit_cast<float>((first + 127) << 23) * std::bit_cast<float>((second + 127) << 23);
}

}  // namespace

float exp(float x) {
  float c = exp_highest < x ? exp_highest : x;
  c = exp_lowest > c ? exp_lowest : c;
  const float rounded = std::fma(c, log2_e, rounding);
  const float n = rounded - rounding;
  float r = std::fma(n, -ln2_high, c);
  r = std::fma(n, -ln2_low, r);
  float p = exp_coefficients[4];
  for (int i = 3; i >= 0; --i) p = std::fma(p, r, exp_coefficients[i]);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  return times_power(p, rounded);
}

float silu(float x) { return x / (1.0f + exp(-x)); }

float gelu_tanh(float x) { return x / (1.0f + exp(x * std::fma(tanh_cubic, x * x, tanh_linear))); }

float gelu_erf(float x) {
  const float magnitude = std::fabs(x);
  const float a = tail_end < magnitude ? tail_end : magnitude;
  const float t = 1.0f / std::fma(tail_t, a, 1.0f);
  float q = tail_coefficients[8];
  for (int i = 7; i >= 0; --i) q = std::fma(q, t, tail_coefficients[i]);
  const float s = a * a, l = std::fma(a, a, -s);
  const float e = exp(-0.5f * s);
  const float h = std::fma(e, -0.5f * l, e) * (t * q);
  return x * (x < 0 ? h : 1.0f - h);
}

}  // namespace parfait::kernels::simd
