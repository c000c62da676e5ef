// Golden files as these tests use them: all tensors of a file in memory, and distances between
// outputs. tests/golden/README.md says what the tensors are.
#ifndef PARFAIT_TESTS_DIFFERENTIAL_GOLDEN_H_
#define PARFAIT_TESTS_DIFFERENTIAL_GOLDEN_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "container/tensor_index.h"
#include "parfait/dtype.h"

namespace parfait::golden {

inline const std::filesystem::path folder =
    std::filesystem::path(PARFAIT_SOURCE_DIR) / "tests/golden/formats";

struct Values {
  DType dtype = DType::f32;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;

  std::uint64_t count() const { return bytes.size() / (dtype_bits(dtype) / 8); }
  double at(std::uint64_t i) const {
    if (dtype == DType::f64) return load_at<double>(bytes.data(), i);
    if (dtype == DType::i8) return load_at<std::int8_t>(bytes.data(), i);
    return static_cast<double>(load_float(dtype, bytes.data(), i));
  }
};

using Tensors = std::map<std::string, Values>;

inline Tensors read_all(const std::filesystem::path& path) {
  auto index = container::open_index(path, {});
  EXPECT_TRUE(index.ok()) << (index.ok() ? "" : index.error().message);
  Tensors tensors;
  for (const TensorInfo& tensor : (*index)->tensors()) {
    std::vector<std::byte> scratch;
    const ByteSpan bytes = *(*index)->read(tensor, scratch);
    tensors[std::string(tensor.name)] = {
        tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}, {bytes.begin(), bytes.end()}};
  }
  return tensors;
}

// The names of the golden cases.
inline std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view end = ".expected.safetensors";
    if (name.ends_with(end)) names.push_back(name.substr(0, name.size() - end.size()));
  }
  std::ranges::sort(names);
  return names;
}

// How far two neighbouring values of the dtype lie apart at x.
inline double step_at(DType dtype, double x) {
  const int bits = dtype == DType::f32 ? 23 : dtype == DType::f16 ? 10 : 7;
  const int smallest = dtype == DType::f16 ? -14 : -126;
  return std::ldexp(1.0, std::max(x == 0 ? smallest : std::ilogb(x), smallest) - bits);
}

}  // namespace parfait::golden

#endif  // PARFAIT_TESTS_DIFFERENTIAL_GOLDEN_H_
