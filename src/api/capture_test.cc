#include "parfait/capture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/floats.h"
#include "parfait/checkpoint.h"
#include "support/test_file.h"

namespace parfait {
namespace {

// Rows whose first value is their number.
std::vector<float> numbered(std::uint64_t first, std::uint64_t rows, std::uint64_t columns) {
  std::vector<float> x(rows * columns, 0.5f);
  for (std::uint64_t m = 0; m < rows; ++m) x[m * columns] = static_cast<float>(first + m);
  return x;
}

std::vector<float> written(const Capture& capture, const std::string& layer,
                           std::vector<std::uint64_t>* shape = nullptr) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "rows.safetensors";
  EXPECT_TRUE(capture.write(path).ok());
  const auto opened = open(path);
  EXPECT_TRUE(opened.ok());
  for (const TensorInfo& tensor : opened->tensors()) {
    if (tensor.name != layer) continue;
    if (shape) shape->assign(tensor.shape.begin(), tensor.shape.end());
    const auto bytes = read_tensor(*opened, tensor);
    std::vector<float> values(bytes->size() / 2);
    widen(tensor.dtype, bytes->data(), values.size(), values.data());
    return values;
  }
  ADD_FAILURE() << layer << " was not written";
  return {};
}

TEST(Capture, keeps_all_rows_where_they_are_few) {
  Capture capture(10);
  const std::vector<float> x = numbered(0, 3, 4), y = numbered(3, 2, 4);
  capture.add("a", {x.data(), DType::f32, 3, 4, 4});
  capture.add("a", {y.data(), DType::f32, 2, 3, 4});  // of another width: left out
  capture.add("a", {y.data(), DType::f32, 2, 4, 4});
  EXPECT_EQ(capture.layers(), 1u);
  std::vector<std::uint64_t> shape;
  EXPECT_EQ(written(capture, "a", &shape), numbered(0, 5, 4));
  EXPECT_EQ(shape, (std::vector<std::uint64_t>{5, 4}));
}

TEST(Capture, keeps_a_fair_and_repeatable_share_of_many) {
  std::vector<float> before;
  for (int run = 0; run < 2; ++run) {
    Capture capture(64);
    for (std::uint64_t i = 0; i < 250; i += 50) {
      const std::vector<float> x = numbered(i, 50, 2);
      capture.add("a", {x.data(), DType::f32, 50, 2, 2});
    }
    std::vector<std::uint64_t> shape;
    const std::vector<float> rows = written(capture, "a", &shape);
    EXPECT_EQ(shape, (std::vector<std::uint64_t>{64, 2}));
    std::set<float> numbers;
    double sum = 0;
    for (std::size_t m = 0; m < 64; ++m) {
      numbers.insert(rows[2 * m]);
      sum += static_cast<double>(rows[2 * m]);
    }
    EXPECT_EQ(numbers.size(), 64u);  // none twice
    EXPECT_NEAR(sum / 64, 125, 30);  // of all parts of the run
    if (run) {
      EXPECT_EQ(rows, before);
    }
    before = rows;
  }
}

TEST(Capture, leaves_out_rows_that_are_not_finite_and_takes_strided_bf16) {
  Capture capture(2);
  std::vector<float> x = numbered(0, 3, 2);
  x[2] = std::numeric_limits<float>::infinity();
  capture.add("a", {x.data(), DType::f32, 3, 2, 2});
  EXPECT_EQ(written(capture, "a"), (std::vector<float>{0, 0.5f, 2, 0.5f}));
  const std::vector<std::uint16_t> narrow = {float_to_bf16(1), float_to_bf16(2), 0x7fff,
                                             float_to_bf16(3), float_to_bf16(4), 0x7fff};
  capture.add("b", {narrow.data(), DType::bf16, 2, 2, 3});
  EXPECT_EQ(written(capture, "b"), (std::vector<float>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace parfait
