#include "base/cpu.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace parfait {
namespace {

CpuFeatures detect() {
  CpuFeatures features;
#if defined(__x86_64__)
  std::uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return features;
  constexpr std::uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  constexpr std::uint32_t before_avx2 = fma | osxsave | avx | f16c;
  if ((c & before_avx2) != before_avx2) return features;
  std::uint32_t xcr0, xcr0_high;
  __asm__("xgetbv" : "=a"(xcr0), "=d"(xcr0_high) : "c"(0));
  constexpr std::uint32_t ymm_state = 0x6,
                          zmm_state = 0xe6;  // XMM+YMM; opmask, ZMM_Hi256, Hi16_ZMM
  if ((xcr0 & ymm_state) != ymm_state) return features;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features;
  const std::uint32_t leaf7_b = b, leaf7_c = c;
  features.avx2 = leaf7_b & (1u << 5);
  const std::uint32_t leaf7_1_a = __get_cpuid_count(7, 1, &a, &b, &c, &d) ? a : 0;
  features.avx_vnni = features.avx2 && (leaf7_1_a & (1u << 4));
  if ((xcr0 & zmm_state) != zmm_state) return features;
  constexpr std::uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
  constexpr std::uint32_t all = f | dq | bw | vl;
  features.avx512_vnni = features.avx2 && (leaf7_b & all) == all && (leaf7_c & (1u << 11));
  features.avx512_bf16 = features.avx512_vnni && (leaf7_1_a & (1u << 5));
#elif defined(__aarch64__) && defined(__linux__)
  features.neon_dotprod = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
  features.neon_i8mm = features.neon_dotprod && (getauxval(AT_HWCAP2) & HWCAP2_I8MM);
#endif
  return features;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace parfait
