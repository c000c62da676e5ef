// Where a model will run, for counting what it holds beside its weights before anything is loaded.
#ifndef PARFAIT_MODELS_WORKPLACE_H_
#define PARFAIT_MODELS_WORKPLACE_H_

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "models/finder.h"
#include "parfait/plan.h"
#include "runtime/model.h"
#include "runtime/ops_attention.h"

namespace parfait::models {

// The type in which a graph hands activations from op to op: F32 where every linear layer is F32
// or F16, else BF16.
DType activation_dtype(const Plan& plan);

struct Workplace {
  const Plan& plan;
  unsigned threads = 1;
  std::vector<Isa> isas;

  DType activation_dtype() const { return models::activation_dtype(plan); }
  runtime::ScratchBytes scratch() const;
  // Counts layers that take so many rows of this type; returns the scratch's bytes.
  std::uint64_t count(runtime::ScratchBytes& scratch, std::initializer_list<const Linear*> linears,
                      std::uint64_t rows, DType dtype) const;
  // Scratch of one call.
  std::uint64_t lookup(const Linear& table, std::uint64_t ids) const;
  std::uint64_t attention(const runtime::AttentionShape& shape) const;
};

}  // namespace parfait::models

#endif  // PARFAIT_MODELS_WORKPLACE_H_
