#include "convert/best/factor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "convert/best/product.h"

namespace parfait::convert {
namespace {

constexpr std::uint64_t block = 64;  // rows and columns that are worked on at once
constexpr std::uint64_t tile = 256;  // columns that a thread takes at once; a multiple of block

// --- A = L·Lᵀ ---

// The diagonal block alone, its columns in turn.
bool cholesky_block(float* a, std::uint64_t stride, std::uint64_t size) {
  for (std::uint64_t j = 0; j < size; ++j) {
    for (std::uint64_t i = j; i < size; ++i) {
      double sum = static_cast<double>(a[i * stride + j]);
      for (std::uint64_t p = 0; p < j; ++p)
        sum -= static_cast<double>(a[i * stride + p]) * static_cast<double>(a[j * stride + p]);
      if (i == j) {
        if (!(sum > 0) || !std::isfinite(sum)) return false;
        a[j * stride + j] = static_cast<float>(std::sqrt(sum));
      } else {
        a[i * stride + j] = static_cast<float>(sum / static_cast<double>(a[j * stride + j]));
      }
    }
  }
  return true;
}

// One row below the diagonal block: x·Lᵀ = row.
void solve_row(float* row, const float* l, std::uint64_t stride, std::uint64_t size) {
  for (std::uint64_t j = 0; j < size; ++j) {
    double sum = static_cast<double>(row[j]);
    for (std::uint64_t p = 0; p < j; ++p)
      sum -= static_cast<double>(row[p]) * static_cast<double>(l[j * stride + p]);
    row[j] = static_cast<float>(sum / static_cast<double>(l[j * stride + j]));
  }
}

bool cholesky(float* a, std::uint64_t size, runtime::Threads& threads) {
  std::vector<float> transposed;  // of the columns just finished: block × what is below
  for (std::uint64_t k = 0; k < size; k += block) {
    const std::uint64_t width = std::min(block, size - k);
    float* diagonal = a + k * size + k;
    if (!cholesky_block(diagonal, size, width)) return false;
    const std::uint64_t next = k + width, below = size - next;
    if (below == 0) break;
    transposed.resize(width * below);
    const std::uint64_t pieces = (below + block - 1) / block;
    threads.run(pieces, [&](std::uint64_t piece, unsigned) {
      const std::uint64_t end = std::min(below, (piece + 1) * block);
      for (std::uint64_t i = piece * block; i < end; ++i) {
        float* row = a + (next + i) * size + k;
        solve_row(row, diagonal, size, width);
        for (std::uint64_t p = 0; p < width; ++p) transposed[p * below + i] = row[p];
      }
    });
    threads.run(pieces, [&](std::uint64_t piece, unsigned) {
      const std::uint64_t first = piece * block, end = std::min(below, first + block);
      float* rows = a + (next + first) * size;
      // Up to the diagonal of the last of these rows; a little above it is written in vain.
      subtract_product(rows + next, size, end - first, end, width, {rows + k, size, 1},
                       transposed.data(), below);
    });
  }
  return true;
}

// --- L⁻¹ ---

void invert_block(float* l, std::uint64_t stride, std::uint64_t size) {
  for (std::uint64_t j = 0; j < size; ++j) {
    const double inverse = 1.0 / static_cast<double>(l[j * stride + j]);
    l[j * stride + j] = static_cast<float>(inverse);
  }
  // Row i of the inverse from the rows above it; l's own row i is read before it is replaced.
  std::vector<double> row(size);
  for (std::uint64_t i = 1; i < size; ++i) {
    for (std::uint64_t j = 0; j < i; ++j) {
      double sum = 0;
      for (std::uint64_t p = j; p < i; ++p)
        sum += static_cast<double>(l[i * stride + p]) * static_cast<double>(l[p * stride + j]);
      row[j] = -sum * static_cast<double>(l[i * stride + i]);
    }
    for (std::uint64_t j = 0; j < i; ++j) l[i * stride + j] = static_cast<float>(row[j]);
  }
}

// Block row by block row: M[k][j] = -L[k][k]⁻¹ · Σ_{j ≤ p < k} L[k][p]·M[p][j]. A thread takes a
// tile of columns, from a copy of L's rows.
void invert(float* a, std::uint64_t size, runtime::Threads& threads) {
  std::vector<float> rows;  // L's rows of this block, left of its diagonal block
  std::vector<float> scratch(threads.count() * block * tile);
  for (std::uint64_t k = 0; k < size; k += block) {
    const std::uint64_t height = std::min(block, size - k);
    float* out = a + k * size;
    invert_block(out + k, size, height);
    if (k == 0) continue;
    rows.resize(height * k);
    for (std::uint64_t i = 0; i < height; ++i) std::copy_n(out + i * size, k, rows.data() + i * k);
    threads.run((k + tile - 1) / tile, [&](std::uint64_t piece, unsigned thread) {
      const std::uint64_t first = piece * tile, width = std::min(tile, k - first);
      const std::span<float> sums(scratch.data() + thread * block * tile, height * width);
      std::fill(sums.begin(), sums.end(), 0.0f);
      subtract_product(sums.data(), width, height, width, k - first, {rows.data() + first, k, 1},
                       a + first * size + first, size);
      for (std::uint64_t i = 0; i < height; ++i) std::fill_n(out + i * size + first, width, 0.0f);
      // sums is -Σ, so that L⁻¹·sums is wanted; the product subtracts: the sign is turned back.
      for (float& value : sums) value = -value;
      subtract_product(out + first, size, height, width, height, {out + k, size, 1}, sums.data(),
                       width);
    });
  }
}

}  // namespace

bool factor_of_inverse(std::span<float> a, std::uint64_t size, runtime::Threads& threads) {
  if (!cholesky(a.data(), size, threads)) return false;
  for (std::uint64_t i = 0; i < size; ++i)
    std::fill(a.begin() + static_cast<std::ptrdiff_t>(i * size + i + 1),
              a.begin() + static_cast<std::ptrdiff_t>((i + 1) * size), 0.0f);
  invert(a.data(), size, threads);
  std::reverse(a.begin(), a.end());
  return std::all_of(a.begin(), a.end(), [](float value) { return std::isfinite(value); });
}

}  // namespace parfait::convert
