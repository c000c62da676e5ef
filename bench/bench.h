// The benchmark of the linear layers: this machine's peaks, the project's kernels, and peers, on
// shapes of real models, all interleaved in one run; medians of repeats.
#ifndef PARFAIT_BENCH_BENCH_H_
#define PARFAIT_BENCH_BENCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parfait/checkpoint.h"
#include "parfait/error.h"
#include "parfait/plan.h"

namespace parfait::bench {

struct Shape {
  std::string name;                     // "H3 fc1"
  std::uint64_t rows = 0, columns = 0;  // N, K
};
// The block linears of FLUX.2 klein 4B, Z-Image and MiniMax-H3.
std::vector<Shape> known_shapes();

struct Options {
  std::vector<Shape> shapes;        // empty: known_shapes()
  std::vector<std::uint64_t> rows;  // M; empty: 1, 4, 16, 64, 256, 1024, 4096
  unsigned threads = 0;             // 0: as many as the machine has
  unsigned repeats = 5;
  std::optional<Isa> isa;
  std::vector<std::string> peers;  // programs that speak the protocol of peer.h, by command line
  bool attention = true;
  ProgressCallback progress;
};

// What the machine does at best, in one run: medians over the whole benchmark.
struct Peaks {
  double vnni = 0, bf16 = 0, f32 = 0;  // 1e9 operations a second; 0: the machine has no such
  double read = 0, copy = 0;           // 1e9 bytes a second; copied bytes count once
};

struct Entry {
  std::string what;    // "int8 product", "int8 layer", "oneDNN bf16"
  std::string kernel;  // "int8.avx512_vnni"
  std::string shape;
  std::uint64_t M = 0, N = 0, K = 0;
  double seconds = 0;  // median
  double peak = 0;     // 1e9 operations a second of the unit it uses, measured beside it
  std::uint64_t weight_bytes = 0;  // packed; 0: not known
  double quantize_share = 0;       // of a layer's time; 0: not measured
  double gops() const;
};

struct Packing {
  std::string kernel, shape;
  std::uint64_t bytes = 0;
  double seconds = 0;
  double copy_seconds = 0;  // to copy as many bytes in memory, in turn with packing
};

struct Attention {
  std::string what;  // the type of q, k and v
  std::uint64_t queries = 0, keys = 0, heads = 0, head_size = 0;
  double seconds = 0;
  double peak = 0;        // bf16, measured beside it
  double gflops() const;  // 4 · queries · keys · head size · heads
};

struct Report {
  std::string machine;  // processor, caches, system, compiler
  unsigned threads = 0, repeats = 0;
  Peaks peaks;
  std::vector<std::string> peers;  // names with versions
  std::vector<Entry> entries;
  std::vector<Packing> packings;
  std::vector<Attention> attentions;
};

Result<Report> run(const Options& options);

std::string to_text(const Report& report);
std::string to_json(const Report& report);

}  // namespace parfait::bench

#endif  // PARFAIT_BENCH_BENCH_H_
