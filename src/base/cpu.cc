#include "base/cpu.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace parfait {
namespace {

CpuFeatures detect() {
  CpuFeatures features;
#if defined(__x86_64__)
  std::uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return features;
  constexpr std::uint32_t osxsave = 1u << 27;
  if (!(c & osxsave)) return features;
  std::uint32_t xcr0, xcr0_high;
  __asm__("xgetbv" : "=a"(xcr0), "=d"(xcr0_high) : "c"(0));
  constexpr std::uint32_t ymm_state = 0x6,
                          zmm_state = 0xe6;  // XMM+YMM; opmask, ZMM_Hi256, Hi16_ZMM
  if ((xcr0 & ymm_state) != ymm_state) return features;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features;
  features.avx2 = b & (1u << 5);
  if ((xcr0 & zmm_state) != zmm_state) return features;
  constexpr std::uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
  constexpr std::uint32_t all = f | dq | bw | vl;
  features.avx512 = (b & all) == all;
  features.avx512_vnni = features.avx512 && (c & (1u << 11));
#endif
  return features;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace parfait
