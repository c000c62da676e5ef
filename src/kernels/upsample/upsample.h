// Nearest-neighbour upsampling of an image whose pixels are rows.
//
//   x [H · W, C]; y [H·f · W·f, C]: y[r·W·f + p] = x[(r/f)·W + p/f], r and p a row and a column of
//   pixels of y, f the factor
//
// Values are rounded once to y's type; where that is x's type, their bytes are copied. y may not
// overlap x.
#ifndef PARFAIT_KERNELS_UPSAMPLE_UPSAMPLE_H_
#define PARFAIT_KERNELS_UPSAMPLE_UPSAMPLE_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "parfait/model.h"
#include "parfait/plan.h"

namespace parfait::kernels {

struct UpsampleKernel {
  std::string_view name;  // "upsample.reference"
  Isa isa;
  // What rows [first, last) of x's H rows of pixels become. Any range may run on any thread.
  void (*run)(const ConstMatrix& x, std::uint64_t width, std::uint64_t factor, std::uint64_t first,
              std::uint64_t last, const Matrix& y);
};

// Fastest first, the plain reference last.
std::span<const UpsampleKernel> upsample_kernels();

// What the list is made of, one a source.
extern const UpsampleKernel upsample_reference;
#if defined(__x86_64__)
extern const UpsampleKernel upsample_avx512_vnni, upsample_avx2;
#endif

}  // namespace parfait::kernels

#endif  // PARFAIT_KERNELS_UPSAMPLE_UPSAMPLE_H_
