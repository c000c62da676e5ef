#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <exception>

#include "bench/contestant.h"

#if defined(PARFAIT_BENCH_ONEDNN)
#include <dnnl.hpp>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace parfait::bench {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// OpenBLAS by name, so that the program does not need it.
struct OpenBlas {
  using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float* a, int lda, const float* b, int ldb, float beta, float* c,
                         int ldc);
  void* library = nullptr;
  Sgemm sgemm = nullptr;
  std::string version;

  explicit OpenBlas(unsigned threads) {
    library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    sgemm = reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
    if (const auto set =
            reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads")))
      set(static_cast<int>(threads));
    if (const auto config =
            reinterpret_cast<const char* (*)()>(dlsym(library, "openblas_get_config"))) {
      const std::string all = config();
      version = all.substr(0, all.find(' ', all.find(' ') + 1));
    }
    if (const auto core =
            reinterpret_cast<const char* (*)()>(dlsym(library, "openblas_get_corename")))
      version += std::string(" (") + core() + " kernels)";
  }
};

#if defined(PARFAIT_BENCH_ONEDNN)

// y [M, N] = x [M, K] · w [K, N], w in the layout that oneDNN likes best.
struct OneDnnProduct {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul primitive;
  dnnl::memory x, w, y;

  OneDnnProduct(dnnl::memory::data_type in, dnnl::memory::data_type out, std::uint64_t M,
                std::uint64_t N, std::uint64_t K) {
    using dnnl::memory;
    const auto m = static_cast<memory::dim>(M), n = static_cast<memory::dim>(N),
               k = static_cast<memory::dim>(K);
    const memory::desc x_desc({m, k}, in, memory::format_tag::ab),
        w_any({k, n}, in, memory::format_tag::any), y_desc({m, n}, out, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(x_desc, w_any, y_desc), engine);
    primitive = dnnl::matmul(desc);
    x = memory(x_desc, engine);
    w = memory(desc.weights_desc(), engine);
    y = memory(y_desc, engine);
    std::memset(x.get_data_handle(), 1, x_desc.get_size());
    std::memset(w.get_data_handle(), 1, desc.weights_desc().get_size());
  }

  double run() {
    const auto start = Clock::now();
    primitive.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
    stream.wait();
    return seconds_since(start);
  }
};

#endif

}  // namespace

struct Rivals::State {
  OpenBlas blas;
  explicit State(unsigned threads) : blas(threads) {}
};

Rivals::Rivals(unsigned threads) : state_(std::make_unique<State>(threads)) {
#if defined(PARFAIT_BENCH_ONEDNN)
#if defined(_OPENMP)
  omp_set_num_threads(static_cast<int>(threads));
#endif
  const dnnl_version_t* version = dnnl_version();
  versions.push_back("oneDNN " + std::to_string(version->major) + "." +
                     std::to_string(version->minor) + "." + std::to_string(version->patch));
#endif
  if (state_->blas.sgemm) versions.push_back(state_->blas.version);
}

Rivals::~Rivals() = default;

std::vector<Contestant> Rivals::contestants(std::uint64_t M, std::uint64_t N, std::uint64_t K) {
  std::vector<Contestant> all;
#if defined(PARFAIT_BENCH_ONEDNN)
  using Type = dnnl::memory::data_type;
  const auto add = [&](std::string what, Unit unit, Type in, Type out, std::uint64_t size) {
    try {
      auto product = std::make_shared<OneDnnProduct>(in, out, M, N, K);
      all.push_back({std::move(what), product->primitive.get_primitive_desc() ? "oneDNN" : "", unit,
                     N * K * size, [product] { return product->run(); }});
    } catch (const dnnl::error&) {  // not for this machine
    }
  };
  add("oneDNN int8 product", Unit::vnni, Type::s8, Type::s32, 1);
  add("oneDNN bf16 product", Unit::bf16, Type::bf16, Type::bf16, 2);
  add("oneDNN f32 product", Unit::f32, Type::f32, Type::f32, 4);
#endif
  if (state_->blas.sgemm) {
    struct Operands {
      std::vector<float> x, w, y;
    };
    auto operands = std::make_shared<Operands>(Operands{
        std::vector<float>(M * K, 1), std::vector<float>(N * K, 1), std::vector<float>(M * N)});
    const OpenBlas::Sgemm sgemm = state_->blas.sgemm;
    all.push_back({"OpenBLAS f32 product", "sgemm", Unit::f32, N * K * 4, [=] {
                     const int m = static_cast<int>(M), n = static_cast<int>(N),
                               k = static_cast<int>(K);
                     constexpr int row_major = 101, as_is = 111, transposed = 112;
                     const auto start = Clock::now();
                     sgemm(row_major, as_is, transposed, m, n, k, 1, operands->x.data(), k,
                           operands->w.data(), k, 0, operands->y.data(), n);
                     return seconds_since(start);
                   }});
  }
  return all;
}

}  // namespace parfait::bench
