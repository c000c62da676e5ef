#include "bench/bench.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "base/text.h"
#include "bench/linear.h"
#include "bench/peaks.h"
#include "bench/peer.h"
#include "parfait/ops.h"

namespace parfait::bench {
namespace {

// Libraries keep their threads spinning for a while after a call, and other programs run now and
// then. A sample is taken when the peak loop reaches this share of the best that it ever reached,
// and taken again, some times, when the loop does not reach it right after.
constexpr double quiet = 0.8;
constexpr auto longest_wait = std::chrono::milliseconds(400);
constexpr int most_tries = 3;
// Samples are made at least this long by repetition.
constexpr double least_sample = 0.004;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::string first_line_with(const char* path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return line.substr(std::min(line.find(": ") + 2, line.size()));
  return "";
}

std::string read_word(const std::string& path) {
  std::ifstream in(path);
  std::string word;
  in >> word;
  return word;
}

std::string describe_machine() {
  std::string text = first_line_with("/proc/cpuinfo", "model name");
  if (text.empty()) text = "unknown processor";
  text += fmt::format(", family {} model {}", first_line_with("/proc/cpuinfo", "cpu family"),
                      first_line_with("/proc/cpuinfo", "model\t"));
  text += fmt::format(", {} hardware threads", std::thread::hardware_concurrency());
  for (int i = 0; i < 4; ++i) {
    const std::string base = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", i);
    const std::string size = read_word(base + "size");
    if (!size.empty() && read_word(base + "type") != "Instruction")
      text += fmt::format(", L{} {}", read_word(base + "level"), size);
  }
  std::string isas;
  for (Isa isa : machine_isas()) isas += fmt::format(" {}", isa_name(isa));
  text += "; offers" + isas;
#if defined(__VERSION__)
  text += "; built by GCC-compatible compiler " __VERSION__;
#endif
  return text;
}

class Run {
 public:
  explicit Run(const Options& options)
      : options_(options), pool_(options.threads), rivals_(pool_.count()) {
    if (options_.shapes.empty()) options_.shapes = known_shapes();
    if (options_.rows.empty()) options_.rows = {1, 4, 16, 64, 256, 1024, 4096};
    options_.threads = pool_.count();
  }

  Result<Report> run() {
    report_.machine = describe_machine();
    report_.threads = pool_.count();
    report_.repeats = options_.repeats;
    for (const std::string& command : options_.peers) {
      PARFAIT_TRY(Peer peer, Peer::start(command));
      peers_.push_back(std::move(peer));
    }
    report_.peers = rivals_.versions;
    for (const Peer& peer : peers_)
      for (const std::string& method : peer.methods()) report_.peers.push_back(method);
    for (int i = 0; i < 50; ++i) gauge();
    progress_.total = options_.shapes.size() * options_.rows.size();
    for (const Shape& shape : options_.shapes) PARFAIT_CHECK_OK(measure_shape(shape));
    if (options_.attention) PARFAIT_CHECK_OK(measure_attention());
    report_.peaks = {median(vnni_), median(bf16_), median(f32_), median(read_), median(copy_)};
    return std::move(report_);
  }

 private:
  Result<Done> measure_shape(const Shape& shape) {
    PARFAIT_TRY(const std::unique_ptr<Layers> layers, Layers::make(shape, options_));
    PARFAIT_TRY(const std::vector<Packing> packings, layers->packings(options_.repeats));
    report_.packings.insert(report_.packings.end(), packings.begin(), packings.end());
    for (std::uint64_t M : options_.rows) {
      progress_.what = shape.name;
      if (options_.progress && !options_.progress(progress_))
        return make_error(ErrorCode::cancelled, "the benchmark was cancelled at {}", shape.name);
      measure_memory();
      std::vector<Contestant> all = layers->contestants(M);
      const std::size_t own = all.size();
      for (Contestant& rival : rivals_.contestants(M, shape.rows, shape.columns))
        all.push_back(std::move(rival));
      for (Peer& peer : peers_)
        for (Contestant& one : peer.contestants(M, shape.rows, shape.columns))
          all.push_back(std::move(one));
      measure(shape, M, all, own);
      ++progress_.done;
    }
    return Done{};
  }

  void measure(const Shape& shape, std::uint64_t M, std::vector<Contestant>& all, std::size_t own) {
    std::vector<std::vector<double>> seconds(all.size()), peaks(all.size());
    std::vector<unsigned> inner(all.size(), 1);
    std::vector<bool> failed(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {  // warm
      const double first = all[i].run(), second = first < 0 ? -1 : all[i].run();
      failed[i] = second < 0;
      if (second > 0 && second < least_sample)
        inner[i] = static_cast<unsigned>(std::min(1000.0, least_sample / second + 1));
    }
    for (unsigned repeat = 0; repeat < options_.repeats; ++repeat) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (failed[i]) continue;
        const Sample sample = take(all[i], inner[i]);
        peaks[i].push_back(sample.peak);
        seconds[i].push_back(sample.seconds);
      }
    }
    double quantize[2] = {};
    for (std::size_t i = 0; i < own; ++i) {
      if (all[i].what == "int8 quantize") quantize[0] = median(seconds[i]);
      if (all[i].what == "w4a4 quantize") quantize[1] = median(seconds[i]);
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (failed[i] || all[i].what.ends_with(" quantize")) continue;
      Entry entry{
          all[i].what,        all[i].kernel,    shape.name,          M, shape.rows, shape.columns,
          median(seconds[i]), median(peaks[i]), all[i].weight_bytes, 0};
      if (entry.what == "int8 layer") entry.quantize_share = quantize[0] / entry.seconds;
      if (entry.what == "w4a4 layer") entry.quantize_share = quantize[1] / entry.seconds;
      report_.entries.push_back(std::move(entry));
    }
  }

  // The queries and keys of a 1024 × 1024 picture of klein: 4,096 tokens, 24 heads × 128.
  Result<Done> measure_attention() {
    constexpr std::uint64_t tokens = 4096, heads = 24, head_size = 128, columns = heads * head_size;
    PARFAIT_TRY(Ops ops, Ops::make(options_.threads, options_.isa));
    std::vector<std::uint16_t> q(tokens * columns), k(q.size()), v(q.size()), y(q.size());
    std::uint32_t noise = 1;
    for (auto* all : {&q, &k, &v})
      for (std::uint16_t& value : *all) {
        noise = noise * 1664525 + 1013904223;
        value = static_cast<std::uint16_t>(0x3f00 | (noise >> 16 & 0x80ff));  // ± 0.5 to 1
      }
    const auto matrix = [](auto& data) {
      return Matrix{data.data(), DType::bf16, tokens, columns, columns};
    };
    const auto input = [](auto& data) {
      return ConstMatrix{data.data(), DType::bf16, tokens, columns, columns};
    };
    AttentionOptions attention;
    attention.heads = heads;
    std::vector<double> seconds, peaks;
    for (unsigned repeat = 0; repeat <= options_.repeats; ++repeat) {
      wait_for_quiet();
      const auto start = std::chrono::steady_clock::now();
      PARFAIT_CHECK_OK(ops.attention(input(q), input(k), input(v), attention, matrix(y)));
      const double took =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (repeat == 0) continue;  // warm
      seconds.push_back(took);
      peaks.push_back(peak_of(Unit::bf16));
    }
    report_.attentions.push_back(
        {"bf16", tokens, tokens, heads, head_size, median(seconds), median(peaks)});
    return Done{};
  }

  struct Sample {
    double seconds, peak;
  };
  // The best of a few tries that were disturbed, or the first that was not.
  Sample take(const Contestant& one, unsigned inner) {
    Sample best{0, 0};
    for (int attempt = 0; attempt < most_tries; ++attempt) {
      wait_for_quiet();
      double sum = 0;
      for (unsigned j = 0; j < inner; ++j) sum += one.run();
      const double after = gauge();
      if (best.seconds == 0 || sum / inner < best.seconds) best.seconds = sum / inner;
      if (after >= quiet * best_gauge_) break;
    }
    best.peak = peak_of(one.unit);
    return best;
  }

  // The speed of all threads together in the plainest peak loop.
  double gauge() {
    const double now = measure_loop(f32_loop(), pool_);
    best_gauge_ = std::max(best_gauge_, now);
    return now;
  }
  void wait_for_quiet() {
    const auto start = std::chrono::steady_clock::now();
    while (gauge() < quiet * best_gauge_ && std::chrono::steady_clock::now() - start < longest_wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  // Of the unit, now: the best of three loops of about a millisecond.
  double peak_of(Unit unit) {
    switch (unit) {
      case Unit::vnni:
        return note(vnni_, vnni_loop());
      case Unit::bf16:
        return note(bf16_, bf16_loop());
      case Unit::f32:
        return note(f32_, f32_loop());
    }
    return 0;
  }
  double note(std::vector<double>& all, const Loop& loop) {
    double best = 0;
    for (int i = 0; i < 3; ++i) best = std::max(best, measure_loop(loop, pool_));
    all.push_back(best);
    return best;
  }

  void measure_memory() {
    if (!streams_) streams_ = std::make_unique<Streams>(std::size_t{512} << 20);
    wait_for_quiet();
    read_.push_back(streams_->read(pool_));
    copy_.push_back(streams_->copy(pool_));
  }

  Options options_;
  runtime::Threads pool_;
  Rivals rivals_;
  std::vector<Peer> peers_;
  std::unique_ptr<Streams> streams_;
  std::vector<double> vnni_, bf16_, f32_, read_, copy_;
  double best_gauge_ = 0;
  Report report_;
  Progress progress_;
};

}  // namespace

std::vector<Shape> known_shapes() {
  return {{"klein qkv", 9216, 3072},      {"klein linear1", 27648, 3072},
          {"klein linear2", 3072, 12288}, {"Z-Image qkv", 11520, 3840},
          {"Z-Image w1", 10240, 3840},    {"Z-Image w2", 3840, 10240},
          {"H3 qkv", 21504, 5376},        {"H3 out", 5376, 7168},
          {"H3 fc1", 28672, 5376},        {"H3 fc2", 5376, 14336}};
}

double Entry::gops() const {
  return 2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K) / seconds /
         1e9;
}

double Attention::gflops() const {
  return 4.0 * static_cast<double>(queries) * static_cast<double>(keys) *
         static_cast<double>(heads * head_size) / seconds / 1e9;
}

Result<Report> run(const Options& options) { return Run(options).run(); }

}  // namespace parfait::bench
