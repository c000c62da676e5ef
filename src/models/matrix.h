// Matrices that a graph works on: memory of their own, and views of rows and columns.
#ifndef PARFAIT_MODELS_MATRIX_H_
#define PARFAIT_MODELS_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/linear/linear.h"
#include "parfait/dtype.h"
#include "parfait/model.h"

namespace parfait::models {

// rows × columns elements, 64-byte aligned, zero at first.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::uint64_t rows, std::uint64_t columns, DType dtype)
      : bytes_(rows * columns * (dtype_bits(dtype) / 8)),
        rows_(rows),
        columns_(columns),
        dtype_(dtype) {}

  Matrix view() { return {bytes_.data(), dtype_, rows_, columns_, columns_}; }
  ConstMatrix view() const { return {bytes_.data(), dtype_, rows_, columns_, columns_}; }
  operator Matrix() { return view(); }
  operator ConstMatrix() const { return view(); }

  // Of a Buffer of F32.
  float* floats() { return reinterpret_cast<float*>(bytes_.data()); }
  const float* floats() const { return reinterpret_cast<const float*>(bytes_.data()); }

  std::uint64_t rows() const { return rows_; }
  std::uint64_t columns() const { return columns_; }
  DType dtype() const { return dtype_; }

 private:
  kernels::AlignedBytes bytes_;
  std::uint64_t rows_ = 0, columns_ = 0;
  DType dtype_ = DType::f32;
};

template <class AnyMatrix>
AnyMatrix part_of(AnyMatrix m, std::uint64_t row, std::uint64_t rows, std::uint64_t column,
                  std::uint64_t columns) {
  using Byte = std::conditional_t<std::is_same_v<AnyMatrix, Matrix>, std::byte, const std::byte>;
  m.data = static_cast<Byte*>(m.data) + (row * m.stride + column) * (dtype_bits(m.dtype) / 8);
  m.rows = rows;
  m.columns = columns;
  return m;
}
template <class AnyMatrix>
AnyMatrix rows_of(const AnyMatrix& m, std::uint64_t row, std::uint64_t rows) {
  return part_of(m, row, rows, 0, m.columns);
}
template <class AnyMatrix>
AnyMatrix columns_of(const AnyMatrix& m, std::uint64_t column, std::uint64_t columns) {
  return part_of(m, 0, m.rows, column, columns);
}

}  // namespace parfait::models

#endif  // PARFAIT_MODELS_MATRIX_H_
