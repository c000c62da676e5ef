#include "models/residency.h"

#include <algorithm>
#include <optional>

#include "base/result.h"
#include "base/text.h"
#include "plan/state.h"
#include "runtime/model.h"
#include "runtime/threads.h"

namespace parfait::models {
namespace {

struct BlockBytes {
  std::uint64_t packed = 0;
  std::uint64_t reading = 0;  // the most that any layer's reading needs beside itself
  std::uint64_t peak = 0;     // while the block is read, layer by layer in the file's order
};

BlockBytes bytes_of(const plan::State& plan, const Block& block, unsigned threads) {
  std::vector<std::uint32_t> layers;
  for (const std::string& name : block.layers)
    if (const auto it = plan.by_name.find(name); it != plan.by_name.end())
      layers.push_back(it->second);
  std::ranges::sort(layers);
  BlockBytes bytes;
  for (std::uint32_t layer : layers) {
    const std::uint64_t reading = runtime::reading_bytes(plan, layer, threads);
    bytes.packed += plan.layers[layer].resident_bytes;
    bytes.reading = std::max(bytes.reading, reading);
    bytes.peak = std::max(bytes.peak, bytes.packed + reading);
  }
  return bytes;
}

class Decision {
 public:
  Decision(const Plan& plan, const std::vector<Block>& blocks, const WeightsOptions& options)
      : blocks_(blocks), options_(options) {
    const unsigned threads = runtime::thread_count(options.threads);
    for (const Block& block : blocks) bytes_.push_back(bytes_of(*plan.state(), block, threads));
  }

  std::uint64_t total() const { return pinned_all().total_bytes; }

  std::uint64_t least() const {
    const auto needed = [&](const Residency& r) {
      const std::uint64_t loading = loading_bytes(r);
      return std::max(r.peak_bytes, loading - std::min(loading, options_.before_pass));
    };
    return std::min(needed(pinned_all()), needed(pinned_in_part(0)));
  }

  std::optional<Residency> decide() const {
    if (Residency all = pinned_all(); fits(all)) return all;
    // As much of the pass as there is room for, where two blocks at a time fit beside it.
    std::optional<Residency> best;
    for (int part = parts; part >= 0; --part) {
      Residency some = pinned_in_part(part);
      read_ahead(some, Ahead::always);
      if (fits(some) && (!best || some.pinned_bytes > best->pinned_bytes)) best = std::move(some);
    }
    if (best) return best;
    // Else the next block is read ahead of its use only after those that leave it room.
    Residency none = pinned_in_part(0);
    read_ahead(none, Ahead::where_it_fits);
    if (fits(none)) return none;
    return {};
  }

 private:
  static constexpr int parts = 64;

  std::uint64_t in_use(std::size_t block) const { return block == 0 ? 0 : bytes_[block].packed; }

  // While what stays is loaded, in one go.
  std::uint64_t loading_bytes(const Residency& r) const {
    std::uint64_t reading = 0;
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      if (r.pinned[i]) reading = std::max(reading, bytes_[i].reading);
    return r.pinned_bytes + reading;
  }

  bool fits(const Residency& r) const {
    const std::uint64_t loading =
        options_.max_bytes + std::min(options_.before_pass, all_memory - options_.max_bytes);
    return r.peak_bytes <= options_.max_bytes && loading_bytes(r) <= loading;
  }

  Residency pinned_all() const {
    Residency all;
    all.pinned.assign(blocks_.size(), true);
    all.ahead.assign(blocks_.size(), false);
    measure(all);
    return all;
  }

  // Those that stay are spread evenly by their bytes, so that each read has about as much
  // arithmetic beside it.
  Residency pinned_in_part(int part) const {
    Residency some = pinned_all();
    double due = 0;
    for (std::size_t i = 1; i < blocks_.size(); ++i) {
      const std::uint64_t bytes = bytes_[i].packed;
      if (bytes == 0) continue;
      some.pinned[i] = false;
      if (blocks_[i].use == Block::Use::preparation) continue;
      due += static_cast<double>(bytes) * part / parts;
      if (due < static_cast<double>(bytes) / 2) continue;
      some.pinned[i] = true;
      due -= static_cast<double>(bytes);
    }
    measure(some);
    return some;
  }

  // Preparation is short: it is read ahead where that fits, in any case.
  enum class Ahead { always, where_it_fits };
  void read_ahead(Residency& r, Ahead pass) const {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const std::size_t next = r.pinned[i] && i != 0 ? 0 : next_streamed(blocks_, r, i);
      const bool of_pass = i != 0 && blocks_[i].use == Block::Use::pass;
      r.ahead[i] = next != 0 && next != i &&
                   ((of_pass && pass == Ahead::always) ||
                    r.pinned_bytes + in_use(i) + bytes_[next].peak <= options_.max_bytes);
    }
    measure(r);
  }

  void measure(Residency& r) const {
    r.pinned_bytes = r.total_bytes = r.window_bytes = 0;
    std::uint64_t window = 0;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      r.total_bytes += bytes_[i].packed;
      if (i != 0 && !r.pinned[i]) {
        r.window_bytes = std::max(r.window_bytes, bytes_[i].packed);
        window = std::max(window, bytes_[i].peak);
      } else {
        r.pinned_bytes += bytes_[i].packed;
        if (i != 0) continue;
      }
      if (!r.ahead[i]) continue;
      const std::size_t next = next_streamed(blocks_, r, i);
      r.window_bytes = std::max(r.window_bytes, in_use(i) + bytes_[next].packed);
      window = std::max(window, in_use(i) + bytes_[next].peak);
    }
    r.peak_bytes = r.pinned_bytes + window;
  }

  const std::vector<Block>& blocks_;
  const WeightsOptions& options_;
  std::vector<BlockBytes> bytes_;
};

}  // namespace

void add_layers(Block& block, std::initializer_list<const Linear*> linears) {
  for (const Linear* linear : linears)
    block.layers.insert(block.layers.end(), linear->layers.begin(), linear->layers.end());
}

std::size_t next_streamed(const std::vector<Block>& blocks, const Residency& residency,
                          std::size_t after) {
  for (std::size_t i = after + 1; i < blocks.size(); ++i)
    if (!residency.pinned[i]) return i;
  for (std::size_t i = 1; i <= after && i < blocks.size(); ++i)
    if (!residency.pinned[i] && blocks[i].use == Block::Use::pass) return i;
  return 0;
}

std::uint64_t least_bytes(const Plan& plan, const std::vector<Block>& blocks,
                          const WeightsOptions& options) {
  return Decision(plan, blocks, options).least();
}

Result<Residency> decide_residency(const Plan& plan, const std::vector<Block>& blocks,
                                   const WeightsOptions& options) {
  const Decision decision(plan, blocks, options);
  if (std::optional<Residency> residency = decision.decide()) return *std::move(residency);
  const std::uint64_t least = decision.least();
  return make_error(
      ErrorCode::model_memory,
      "{} of weights do not fit into the {} that remain for them: {} is the least that works "
      "(what is used throughout, and one block at a time with what reading it takes), {} more",
      bytes_text(decision.total()), bytes_text(options.max_bytes), bytes_text(least),
      bytes_text(least - std::min(options.max_bytes, least)));
}

}  // namespace parfait::models
