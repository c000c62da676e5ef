// The state behind parfait/ops.h: threads, the instruction sets that may be used, scratch. Each
// family of operations has its own source: ops_rows.cc, ops_image.cc, ops_attention.cc,
// ops_dense.cc. Arguments are checked there (ops_checks.h); kernels/ trust their callers.
#ifndef PARFAIT_RUNTIME_OPS_H_
#define PARFAIT_RUNTIME_OPS_H_

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/linear/linear.h"
#include "parfait/ops.h"
#include "runtime/threads.h"

namespace parfait::runtime {

struct Ops {
  Ops(unsigned threads, std::vector<Isa> allowed) : pool(threads), isas(std::move(allowed)) {}

  // The first kernel of a list (fastest first, the plain reference last) that may be used.
  template <class Kernel>
  const Kernel& choose(std::span<const Kernel> list) const {
    for (const Kernel& kernel : list)
      if (std::ranges::find(isas, kernel.isa) != isas.end()) return kernel;
    return list.back();
  }

  Threads pool;
  std::vector<Isa> isas;
  std::vector<std::vector<float>> scratch;   // by thread
  std::vector<kernels::AlignedBytes> bytes;  // by thread
  kernels::AlignedBytes packed;              // what threads share

  // To be called before the threads start: what they share must not fail, and memory can.
  void reserve_bytes(std::uint64_t size) {
    bytes.resize(pool.count());
    for (kernels::AlignedBytes& one : bytes)
      if (one.size() < size) one = kernels::AlignedBytes(size);
  }
  void reserve_packed(std::uint64_t size) {
    if (packed.size() < size) packed = kernels::AlignedBytes(size);
  }
};

}  // namespace parfait::runtime

#endif  // PARFAIT_RUNTIME_OPS_H_
