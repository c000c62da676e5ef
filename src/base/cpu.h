// What the processor and its operating system offer. The OS is asked too (XGETBV): a register file
// that it does not save may not be used.
#ifndef PARFAIT_BASE_CPU_H_
#define PARFAIT_BASE_CPU_H_

namespace parfait {

struct CpuFeatures {
  bool avx2 = false;
  bool avx512 = false;       // F, BW, DQ, VL, with the OS saving ZMM and mask registers
  bool avx512_vnni = false;  // and VNNI
};

// Asked once, then remembered. Any thread.
const CpuFeatures& cpu_features();

}  // namespace parfait

#endif  // PARFAIT_BASE_CPU_H_
