// torch.randn on the CPU: the same numbers for the same seed, so that a picture's seed means here
// what it means in other programs.
#ifndef PARFAIT_PIPELINE_TORCH_RANDOM_H_
#define PARFAIT_PIPELINE_TORCH_RANDOM_H_

#include <cstdint>
#include <vector>

namespace parfait::pipeline {

// torch.randn(count, generator=torch.Generator("cpu").manual_seed(seed)), float32. The generator is
// the Mersenne Twister, seeded with the low 32 bits; normals are Box–Muller's, of 16 uniforms at a
// time where there are 16, else in double one by one. The bits are those of torch on processors
// with AVX2 or more; on others it uses the C library's functions, and 16 values or more differ by
// 2e-6.
std::vector<float> torch_randn(std::uint64_t count, std::uint64_t seed);

}  // namespace parfait::pipeline

#endif  // PARFAIT_PIPELINE_TORCH_RANDOM_H_
