// Which weights stay in memory and which are read again, decided from a plan alone.
//
// A graph names its layers in blocks, in the order in which they are used: block 0, which always
// stays and may be empty; blocks that only the preparation of an input needs; then the blocks of a
// pass. Where the allowed memory does not hold all of them, a fixed part of the pass stays and the
// others are read again, one block ahead of the arithmetic where two fit: every pass walks all
// blocks, so that which was used longest ago is the one needed next, and keeping the most recent
// would keep nothing.
#ifndef PARFAIT_MODELS_RESIDENCY_H_
#define PARFAIT_MODELS_RESIDENCY_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "models/finder.h"
#include "parfait/model.h"
#include "parfait/plan.h"

namespace parfait::models {

inline constexpr std::uint64_t all_memory = UINT64_MAX;

struct Block {
  std::string name;                 // for messages
  std::vector<std::string> layers;  // full names
  enum class Use { pass, preparation } use = Use::pass;
};
void add_layers(Block& block, std::initializer_list<const Linear*> linears);

struct WeightsOptions {
  std::uint64_t max_bytes = all_memory;  // of packed weights, with what is read ahead
  unsigned threads = 0;
  ProgressCallback progress = {};
  std::uint64_t before_pass = 0;  // that loading may use beside max_bytes, before any pass
};

struct Residency {
  std::vector<bool> pinned;  // by block
  // By block: while it is in use, or before any block for block 0, the next streamed one is read.
  std::vector<bool> ahead;
  std::uint64_t pinned_bytes = 0;  // of those that stay
  std::uint64_t total_bytes = 0;   // of all blocks
  std::uint64_t window_bytes = 0;  // of the streamed block in use and the one being read
  std::uint64_t peak_bytes = 0;    // at most, with what reading needs beside the layers it makes

  bool all() const { return window_bytes == 0; }
  std::uint64_t bytes() const { return pinned_bytes + window_bytes; }
};
// An error says how much is missing.
Result<Residency> decide_residency(const Plan& plan, const std::vector<Block>& blocks,
                                   const WeightsOptions& options);
// The least max_bytes that decide_residency takes.
std::uint64_t least_bytes(const Plan& plan, const std::vector<Block>& blocks,
                          const WeightsOptions& options);

// The streamed block that is used after this one, around the end of the pass; 0 if there is none.
std::size_t next_streamed(const std::vector<Block>& blocks, const Residency& residency,
                          std::size_t after);

}  // namespace parfait::models

#endif  // PARFAIT_MODELS_RESIDENCY_H_
