// Attention plainly: one query at a time, its scores in a row, sums in double.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/variants.h"

namespace parfait::kernels {
namespace {

double at(const ConstMatrix& m, std::uint64_t row, std::uint64_t column) {
  return static_cast<double>(
      load_float(m.dtype, static_cast<const std::byte*>(m.data), row * m.stride + column));
}

bool sees(const AttentionProblem& p, std::uint64_t i, std::uint64_t j) {
  if (p.keys && p.keys[j] == 0) return false;
  return !p.causal || j + p.q.rows <= i + p.k.rows;
}

std::uint64_t packed_bytes(const AttentionProblem&) { return 0; }
void pack(const AttentionProblem&, std::uint64_t, std::uint64_t, std::uint64_t, std::byte*) {}
std::uint64_t scratch_bytes(const AttentionProblem& p) {
  return (p.k.rows + p.head_size) * sizeof(double);
}

void run(const AttentionProblem& p, std::uint64_t head, const std::byte*, std::uint64_t i0,
         std::uint64_t i1, std::byte* scratch) {
  const std::uint64_t T = p.k.rows, D = p.head_size;
  const std::uint64_t q0 = head * D, kv0 = head * p.kv_heads / p.heads * D;
  auto* s = reinterpret_cast<double*>(scratch);
  double* sums = s + T;
  constexpr double unseen = -std::numeric_limits<double>::infinity();
  for (std::uint64_t i = i0; i < i1; ++i) {
    double most = unseen;
    for (std::uint64_t j = 0; j < T; ++j) {
      s[j] = unseen;
      if (!sees(p, i, j)) continue;
      double sum = 0;
      for (std::uint64_t d = 0; d < D; ++d) sum += at(p.q, i, q0 + d) * at(p.k, j, kv0 + d);
      s[j] = sum * static_cast<double>(p.scale);
      if (!(s[j] <= most)) most = s[j];  // NaN is kept
    }
    std::fill_n(sums, D, 0.0);
    double total = 0;
    for (std::uint64_t j = 0; j < T; ++j) {
      if (!sees(p, i, j)) continue;
      const double weight = std::exp(s[j] - most);
      total += weight;
      for (std::uint64_t d = 0; d < D; ++d) sums[d] += weight * at(p.v, j, kv0 + d);
    }
    for (std::uint64_t d = 0; d < D; ++d)
      store_float(p.y.dtype, static_cast<std::byte*>(p.y.data), i * p.y.stride + q0 + d,
                  total == 0 ? 0.0f : static_cast<float>(sums[d] / total));
  }
}

}  // namespace

const AttentionKernel attention_reference = {
    "attention.reference", Isa::reference, false, 64, 16, packed_bytes, pack, scratch_bytes, run};

}  // namespace parfait::kernels
