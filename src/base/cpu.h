// What the processor and its operating system offer. The OS is asked too (XGETBV): a register file
// that it does not save may not be used.
#ifndef PARFAIT_BASE_CPU_H_
#define PARFAIT_BASE_CPU_H_

namespace parfait {

struct CpuFeatures {
  bool avx2 = false;          // with FMA and F16C
  bool avx_vnni = false;      // 256-bit VNNI, VEX-coded
  bool avx512_vnni = false;   // AVX-512 F, BW, DQ, VL and VNNI, the OS saving ZMM and masks
  bool avx512_bf16 = false;   // and BF16
  bool neon_dotprod = false;  // Arm: SDOT
  bool neon_i8mm = false;     // Arm: SMMLA
};

// Asked once, then remembered. Any thread.
const CpuFeatures& cpu_features();

}  // namespace parfait

#endif  // PARFAIT_BASE_CPU_H_
