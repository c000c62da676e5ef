// What the benchmark times: one product or layer of one shape, by one program.
#ifndef PARFAIT_BENCH_CONTESTANT_H_
#define PARFAIT_BENCH_CONTESTANT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace parfait::bench {

enum class Unit { vnni, bf16, f32 };

struct Contestant {
  std::string what, kernel;
  Unit unit = Unit::vnni;
  std::uint64_t weight_bytes = 0;
  std::function<double()> run;  // does the work once; seconds, or less than 0 where it failed
};

// oneDNN's int8, bf16 and f32 products and OpenBLAS' sgemm, where this build or machine has them.
// They run on as many threads as they are given. version names what was found.
struct Rivals {
  std::vector<std::string> versions;
  explicit Rivals(unsigned threads);
  ~Rivals();
  std::vector<Contestant> contestants(std::uint64_t M, std::uint64_t N, std::uint64_t K);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace parfait::bench

#endif  // PARFAIT_BENCH_CONTESTANT_H_
