// The project's own contestants of one shape: a file with a layer of each format is written, opened
// and loaded as anybody's would be.
#ifndef PARFAIT_BENCH_LINEAR_H_
#define PARFAIT_BENCH_LINEAR_H_

#include <filesystem>
#include <memory>
#include <vector>

#include "base/result.h"
#include "bench/bench.h"
#include "bench/contestant.h"

namespace parfait::bench {

class Layers {
 public:
  static Result<std::unique_ptr<Layers>> make(const Shape& shape, const Options& options);
  ~Layers();

  // Contestants refer to this object. "int8 quantize" does the part of "int8 layer" that is not its
  // product.
  std::vector<Contestant> contestants(std::uint64_t M);
  // Packing each integer layer again from the file's bytes.
  Result<std::vector<Packing>> packings(unsigned repeats);

 private:
  Layers() = default;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace parfait::bench

#endif  // PARFAIT_BENCH_LINEAR_H_
