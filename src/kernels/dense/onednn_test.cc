// That oneDNN computes with its fast code. Where a layout does not suit that code, oneDNN takes
// plain loops, some thousand times slower, and only its log says so.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/dense/dense.h"
#include "kernels/linear/linear_testing.h"

namespace parfait::kernels {
namespace {

using namespace parfait::kernels::testing;

// What oneDNN logs while it lives. Found by name: this program may be linked without oneDNN.
class Log {
 public:
  Log() : set_(reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "dnnl_set_verbose"))) {
    ::testing::internal::CaptureStdout();
    if (set_) set_(1);
  }
  std::string end() {
    if (set_) set_(0);
    return ::testing::internal::GetCapturedStdout();
  }

 private:
  int (*set_)(int);
};

void expect_fast(const std::string& log, const std::string& what) {
  if (log.empty()) GTEST_SKIP() << "there is no oneDNN, or it keeps no log";
  std::size_t products = 0;
  for (std::size_t at = 0, end; (end = log.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string line = log.substr(at, end - at);
    if (line.find("exec,cpu,matmul") == std::string::npos &&
        line.find("exec,cpu,convolution") == std::string::npos)
      continue;
    ++products;
    EXPECT_EQ(line.find(",ref"), std::string::npos) << what << ": " << line;
  }
  EXPECT_GT(products, 0u) << what << ": " << log;
}

const DenseKernel* fast_dense() {
  const auto found = variants(dense_kernels());
  return found.empty() ? nullptr : &dense_kernels().front();
}

TEST(Onednn, dense_products_take_the_fast_code) {
  const DenseKernel* kernel = fast_dense();
  if (!kernel) GTEST_SKIP() << "only the reference runs here";
  std::mt19937 random(1);
  for (const DType w_type : dtypes) {
    for (const DType x_type : dtypes) {
      for (const std::uint64_t gap : {0u, 3u}) {
        for (const std::uint64_t M : {1u, 40u}) {
          const TestActivation w = make_activation(random, w_type, 600, 96, gap),
                               x = make_activation(random, x_type, M, 96, gap);
          PackedDense packed;
          ASSERT_TRUE(kernel->pack(w.view, packed));
          for (const DType y_type : dtypes) {
            TestActivation y = make_activation(random, y_type, M, 600, gap);
            const Matrix out{y.bytes.data() + 1, y_type, M, 600, 600 + gap};
            std::vector<float> scratch;
            Log log;
            const bool whole = kernel->multiply(packed, x.view, 0, M, 0, 512, out, scratch),
                       last = kernel->multiply(packed, x.view, 0, M, 512, 600, out, scratch);
            const std::string lines = log.end();
            ASSERT_TRUE(whole && last);
            expect_fast(lines, "M " + std::to_string(M) + " gap " + std::to_string(gap));
          }
        }
      }
    }
  }
}

TEST(Onednn, convolutions_take_the_fast_code) {
  if (variants(conv_kernels()).empty()) GTEST_SKIP() << "only the reference runs here";
  const ConvKernel& kernel = conv_kernels().front();
  std::mt19937 random(2);
  for (const DType w_type : dtypes) {
    for (const DType x_type : dtypes) {
      for (const std::uint64_t gap : {0u, 3u}) {
        const TestActivation w = make_activation(random, w_type, 48, 32 * 9, 0),
                             x = make_activation(random, x_type, 8 * 20, 32, gap);
        PackedConv packed{w_type, 32, 48, {}, {}, AlignedBytes(w.bytes.size() - 1)};
        std::copy(w.bytes.begin() + 1, w.bytes.end(), packed.plain.data());
        const ConvShape shape{{8, 20}, {8, 20}, 32, 48, {}};
        for (const DType y_type : dtypes) {
          TestActivation y = make_activation(random, y_type, 8 * 20, 48, gap);
          const Matrix out{y.bytes.data() + 1, y_type, 8 * 20, 48, 48 + gap};
          std::vector<float> scratch;
          Log log;
          const bool first = kernel.convolve(packed, shape, x.view, 0, 5, out, scratch),
                     last = kernel.convolve(packed, shape, x.view, 5, 8, out, scratch);
          const std::string lines = log.end();
          ASSERT_TRUE(first && last);
          expect_fast(lines, "gap " + std::to_string(gap));
        }
      }
    }
  }
}

}  // namespace
}  // namespace parfait::kernels
