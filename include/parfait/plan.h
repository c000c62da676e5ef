// A plan says, for each layer of a sound checkpoint, how it will run and why: format, method,
// kernel, bytes, and its share on each tensor-parallel rank. Making one reads no weight, and may be
// done for a machine that one does not own. A Plan is an immutable value; it keeps its checkpoint
// alive.
#ifndef PARFAIT_PLAN_H_
#define PARFAIT_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parfait/checkpoint.h"
#include "parfait/error.h"

namespace parfait {

// Instruction sets that kernels exist for, plainest first.
enum class Isa {
  reference,     // plain C++
  avx2,          // with FMA and F16C
  avx_vnni,      // 256-bit VNNI
  avx512_vnni,   // AVX-512 F, BW, DQ, VL and VNNI
  avx512_bf16,   // and BF16 products
  neon_dotprod,  // Arm, 8-bit dot products
  neon_i8mm,     // Arm, 8-bit matrix products
};
std::string_view isa_name(Isa isa);  // "reference", "avx512_vnni"
// An instruction set and those that every machine with it has too, plainest first.
std::vector<Isa> isas_within(Isa isa);
std::optional<Isa> parse_isa(std::string_view name);
std::vector<Isa> machine_isas();  // those that this processor and its OS offer, plainest first

// How a linear layer is computed.
enum class Method {
  int8,         // activation to int8 per row, int8 weights, exact int32 sums
  w4a4_int4,    // activation to int4 per row, 4-bit weights, exact int32 sums
  w4a4_int8,    // activation to int8 per row, 4-bit weights, exact int32 sums
  w4a8,         // activation to int8 per row, 4-bit weights that stand for int8, exact int32 sums
  w6a8,         // activation to int8 per row, 6-bit weights that stand for int8, exact int32 sums
  decode_rows,  // weight rows decoded to float as they are needed
  lookup,       // an embedding: the rows asked for are decoded
  decode_only,  // can be decoded but has no method that runs it (a convolution, say)
};
std::string_view method_name(Method method);

enum class SplitAxis {
  whole,       // one rank
  outputs,     // rows of W: each rank makes some output features
  inputs,      // columns of W: each rank takes some input features; results are summed
  replicated,  // every rank holds all of it
};
std::string_view split_axis_name(SplitAxis axis);

struct Range {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

enum class Unevenness { forbidden, allowed };
enum class Unsplittable { replicate, refuse };

struct PlanOptions {
  std::optional<Isa> isa;                     // unset: the best of `machine`
  std::vector<Isa> machine = machine_isas();  // the machine to plan for
  std::optional<Activation> w4a4_activation;  // unset: each layer's marker decides
  std::uint32_t ranks = 1;                    // tensor-parallel ranks, 1 to 1024
  Unevenness unevenness = Unevenness::forbidden;
  Unsplittable unsplittable = Unsplittable::replicate;
  std::string tp_rules;  // the text of a rules file; empty: the built-in rules
};

struct LayerPlan {
  std::string name;
  std::string_view format;
  LayerKind kind = LayerKind::linear;
  std::uint64_t rows = 0, columns = 0;
  Method method = Method::decode_rows;
  std::string_view kernel;           // "int8.avx512_vnni"
  std::uint64_t stored_bytes = 0;    // in the file
  std::uint64_t resident_bytes = 0;  // once loaded, all of the layer
  std::string reason;                // why this method and kernel
  SplitAxis split = SplitAxis::whole;
  std::string split_reason;
  // By rank, the ranges of the split axis that it holds (several where fused parts are split each).
  // Empty unless split is outputs or inputs.
  std::vector<std::vector<Range>> shares;
  std::vector<std::uint64_t> rank_bytes;  // resident bytes by rank

  bool operator==(const LayerPlan&) const = default;
};

struct FormatTotal {
  std::string_view format;
  std::uint64_t layers = 0, weights = 0, stored_bytes = 0, resident_bytes = 0;
};

namespace plan {
struct State;
}

class Plan {
 public:
  std::span<const LayerPlan> layers() const;
  const LayerPlan* find(std::string_view layer) const;
  std::vector<FormatTotal> totals() const;        // by format, in the order of the table
  std::uint64_t plain_bytes() const;              // tensors that belong to no layer
  std::vector<std::uint64_t> rank_bytes() const;  // all layers and plain tensors, by rank
  const PlanOptions& options() const;
  const CheckedCheckpoint& checked() const;
  std::span<const Finding> notes() const;  // what the plan decided that a reader may not expect
  bool operator==(const Plan& other) const;

  explicit Plan(std::shared_ptr<const plan::State> state) : state_(std::move(state)) {}
  const std::shared_ptr<const plan::State>& state() const { return state_; }

 private:
  std::shared_ptr<const plan::State> state_;
};

// How far, in relative L2, a linear layer's output of this dtype may be from the product of its
// input with its decoded weight: what its method loses by quantising the input, and the output's
// rounding. Measured on bell-shaped inputs; inputs with outliers lose more. Where there are few
// outputs luck plays a part, and the tolerance allows for it; 0 outputs: as many as you like.
double layer_tolerance(const LayerPlan& layer, DType output, std::uint64_t outputs = 0);

Result<Plan> make_plan(const CheckedCheckpoint& checkpoint, const PlanOptions& options = {});

// The rules that decide which axis a layer's name asks for, as text; docs/tensor-parallel.md has
// the syntax. What PlanOptions::tp_rules replaces.
std::string_view builtin_tp_rules();

// The bytes of its files that one rank reads for one layer: (shard, offset range) in file order.
struct ByteRange {
  std::uint32_t shard = 0;
  Range bytes;
};
Result<std::vector<ByteRange>> rank_byte_ranges(const Plan& plan, std::string_view layer,
                                                std::uint32_t rank);

}  // namespace parfait

#endif  // PARFAIT_PLAN_H_
