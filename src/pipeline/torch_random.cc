#include "pipeline/torch_random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <random>

namespace parfait::pipeline {
namespace {

constexpr double pi = 3.14159265358979323846;

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : engine_(static_cast<std::uint32_t>(seed)) {}

  // 24 bits, in [0, 1).
  float uniform() { return static_cast<float>(engine_() & ((1u << 24) - 1)) * 0x1p-24f; }

  // Pairs: the second is kept for the next call.
  double normal() {
    if (kept_) {
      const double value = *kept_;
      kept_.reset();
      return value;
    }
    const double u1 = uniform_double(), u2 = uniform_double();
    const double radius = std::sqrt(-2.0 * std::log1p(-u2)), angle = 2.0 * pi * u1;
    kept_ = radius * std::sin(angle);
    return radius * std::cos(angle);
  }

 private:
  double uniform_double() {
    const std::uint64_t high = engine_(), low = engine_();
    return static_cast<double>((high << 32 | low) & ((std::uint64_t{1} << 53) - 1)) * 0x1p-53;
  }

  std::mt19937 engine_;
  std::optional<double> kept_;
};

// The logarithm, sine and cosine of Cephes in float, with the multiply-adds where torch's vector
// code has them (aten/src/ATen/native/cpu/avx_mathfun.h, by J. Pommier): its last bits are part of
// the picture.
float torch_log(float x) {
  auto bits = std::bit_cast<std::uint32_t>(std::max(x, 0x1p-126f));
  float e = static_cast<float>(static_cast<int>(bits >> 23) - 127) + 1.0f;
  x = std::bit_cast<float>((bits & 0x807fffffu) | 0x3f000000u);  // in [0.5, 1)
  if (x < 0.707106781186547524f) {
    e -= 1.0f;
    x = (x - 1.0f) + x;
  } else {
    x -= 1.0f;
  }
  const float z = x * x;
  float y = 7.0376836292e-2f;
  for (float p : {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                  -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f})
    y = std::fma(y, x, p);
  y *= x;
  y = std::fma(y, z, e * -2.12194440e-4f);
  y = std::fma(z, -0.5f, y);
  return std::fma(e, 0.693359375f, x + y);
}

struct SineCosine {
  float sine, cosine;
};
// x is not negative.
SineCosine torch_sincos(float x) {
  const auto octant = (static_cast<std::uint32_t>(x * 1.27323954473516f) + 1) & ~1u;
  const auto y = static_cast<float>(octant);
  x = std::fma(y, -0.78515625f, x);
  x = std::fma(y, -2.4187564849853515625e-4f, x);
  x = std::fma(y, -3.77489497744594108e-8f, x);
  const float z = x * x;
  float even = 2.443315711809948e-5f;
  even = std::fma(even, z, -1.388731625493765e-3f);
  even = std::fma(even, z, 4.166664568298827e-2f);
  even *= z;
  even = std::fma(even, z, -(z * 0.5f)) + 1.0f;
  float odd = -1.9515295891e-4f;
  odd = std::fma(odd, z, 8.3321608736e-3f);
  odd = std::fma(odd, z, -1.6666654611e-1f);
  odd *= z;
  odd = std::fma(odd, x, x);
  const bool swapped = octant & 2;
  const float sine = swapped ? even : odd, cosine = swapped ? odd : even;
  return {octant & 4 ? -sine : sine, ((octant - 2) & 4) == 0 ? -cosine : cosine};
}

// 16 uniforms to 16 normals: values i and i + 8 are a pair.
void to_normals(float* values) {
  for (int i = 0; i < 8; ++i) {
    const float radius = std::sqrt(-2.0f * torch_log(1.0f - values[i]));
    const SineCosine angle = torch_sincos(static_cast<float>(2.0 * pi) * values[i + 8]);
    values[i] = radius * angle.cosine;
    values[i + 8] = radius * angle.sine;
  }
}

}  // namespace

std::vector<float> torch_randn(std::uint64_t count, std::uint64_t seed) {
  Generator generator(seed);
  std::vector<float> values(count);
  if (count < 16) {
    for (float& value : values) value = static_cast<float>(generator.normal());
    return values;
  }
  for (float& value : values) value = generator.uniform();
  for (std::uint64_t i = 0; i + 16 <= count; i += 16) to_normals(values.data() + i);
  if (count % 16 != 0) {
    float* last = values.data() + count - 16;
    for (int i = 0; i < 16; ++i) last[i] = generator.uniform();
    to_normals(last);
  }
  return values;
}

}  // namespace parfait::pipeline
