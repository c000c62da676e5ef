// The loops, in assembly: twenty independent instructions, so that neither latency nor a copy that
// a compiler might add is measured.

#include "base/cpu.h"
#include "bench/peaks.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace parfait::bench {

#if defined(__x86_64__)
namespace {

#define PARFAIT_TWENTY(X) \
  X(0)                    \
  X(1)                    \
  X(2)                    \
  X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19)
#define PARFAIT_TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define PARFAIT_ZMM                                                                             \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",      \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm30", \
      "xmm31"
#define PARFAIT_YMM                                                                        \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm14", "xmm15"

// Operands are zeros: a number's value does not change how long these take.
#define PARFAIT_LOOP(name, clear_a, clear_b, many, one, clobbers)                \
  void name(std::uint64_t rounds) {                                              \
    __asm__ volatile(clear_a "\n" clear_b "\n1:\n" many(one) "dec %0\n jnz 1b\n" \
                     : "+r"(rounds)                                              \
                     :                                                           \
                     : "cc", clobbers);                                          \
  }

#define PARFAIT_VNNI(i) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #i "\n"
#define PARFAIT_BF16(i) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #i "\n"
#define PARFAIT_F32(i) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #i "\n"
#define PARFAIT_VNNI_Y(i) "%{vex%} vpdpbusd %%ymm14, %%ymm15, %%ymm" #i "\n"
#define PARFAIT_F32_Y(i) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #i "\n"

__attribute__((target("avx512f")))
PARFAIT_LOOP(vnni_512, "vpxord %%zmm30, %%zmm30, %%zmm30", "vpxord %%zmm31, %%zmm31, %%zmm31",
             PARFAIT_TWENTY, PARFAIT_VNNI, PARFAIT_ZMM) __attribute__((target("avx512f")))
PARFAIT_LOOP(bf16_512, "vpxord %%zmm30, %%zmm30, %%zmm30", "vpxord %%zmm31, %%zmm31, %%zmm31",
             PARFAIT_TWENTY, PARFAIT_BF16, PARFAIT_ZMM) __attribute__((target("avx512f")))
PARFAIT_LOOP(f32_512, "vpxord %%zmm30, %%zmm30, %%zmm30", "vpxord %%zmm31, %%zmm31, %%zmm31",
             PARFAIT_TWENTY, PARFAIT_F32, PARFAIT_ZMM) __attribute__((target("avx2")))
PARFAIT_LOOP(vnni_256, "vpxor %%ymm14, %%ymm14, %%ymm14", "vpxor %%ymm15, %%ymm15, %%ymm15",
             PARFAIT_TWELVE, PARFAIT_VNNI_Y, PARFAIT_YMM) __attribute__((target("avx2")))
PARFAIT_LOOP(f32_256, "vpxor %%ymm14, %%ymm14, %%ymm14", "vpxor %%ymm15, %%ymm15, %%ymm15",
             PARFAIT_TWELVE, PARFAIT_F32_Y, PARFAIT_YMM)

    __attribute__((target("avx512f"))) std::uint64_t
    read_512(const std::byte* from, std::size_t size) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (std::size_t i = 0; i + 256 <= size; i += 256) {
    a = _mm512_xor_si512(a, _mm512_loadu_si512(from + i));
    b = _mm512_xor_si512(b, _mm512_loadu_si512(from + i + 64));
    c = _mm512_xor_si512(c, _mm512_loadu_si512(from + i + 128));
    d = _mm512_xor_si512(d, _mm512_loadu_si512(from + i + 192));
  }
  alignas(64) std::uint64_t sums[8];
  _mm512_store_si512(sums, _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d)));
  std::uint64_t all = 0;
  for (const std::uint64_t sum : sums) all ^= sum;
  return all;
}

}  // namespace

Loop vnni_loop() {
  if (cpu_features().avx512_vnni) return {vnni_512, 20 * 128};
  if (cpu_features().avx_vnni) return {vnni_256, 12 * 64};
  return {};
}
Loop bf16_loop() {
  if (cpu_features().avx512_bf16) return {bf16_512, 20 * 64};
  return {};
}
Loop f32_loop() {
  if (cpu_features().avx512_vnni) return {f32_512, 20 * 32};
  if (cpu_features().avx2) return {f32_256, 12 * 16};
  return {};
}

#else

Loop vnni_loop() { return {}; }
Loop bf16_loop() { return {}; }
Loop f32_loop() { return {}; }

#endif

std::uint64_t read_bytes(const std::byte* from, std::size_t size) {
#if defined(__x86_64__)
  if (cpu_features().avx512_vnni) return read_512(from, size);
#endif
  std::uint64_t sums[4] = {};
  for (std::size_t i = 0; i + 32 <= size; i += 32) {
    std::uint64_t four[4];
    __builtin_memcpy(four, from + i, sizeof(four));
    for (int j = 0; j < 4; ++j) sums[j] ^= four[j];
  }
  return sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
}

}  // namespace parfait::bench
