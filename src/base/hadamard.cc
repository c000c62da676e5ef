#include "base/hadamard.h"

#include <cstddef>

namespace parfait {

void rotate_groups(std::span<float> values, std::uint64_t group) {
  if (group == 0) return;
  for (std::size_t start = 0; start + group <= values.size(); start += group) {
    float* v = values.data() + start;
    for (std::uint64_t stride = 1; stride < group; stride *= 4) {
      for (std::uint64_t block = 0; block < group; block += 4 * stride) {
        for (std::uint64_t i = block; i < block + stride; ++i) {
          const float a = v[i], b = v[i + stride], c = v[i + 2 * stride], d = v[i + 3 * stride];
          const float t = 0.5f * ((a + b) + (c + d));
          v[i] = t - d;
          v[i + stride] = t - c;
          v[i + 2 * stride] = t - b;
          v[i + 3 * stride] = t - a;
        }
      }
    }
  }
}

}  // namespace parfait
