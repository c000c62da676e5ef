// Small safetensors files of layers, filled with made-up weights.
#ifndef PARFAIT_TESTS_SUPPORT_TEST_FILE_H_
#define PARFAIT_TESTS_SUPPORT_TEST_FILE_H_

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/safetensors_builder.h"

namespace parfait::test {

class TestFile {
 public:
  void raw(std::string_view name, DType dtype, const std::vector<std::uint64_t>& shape,
           const std::vector<std::byte>& bytes) {
    builder_.add(name, dtype, shape, bytes);
  }

  // Pseudo-random bytes, bell-shaped where they are int8 codes and never NaN where they are floats.
  void codes(std::string_view name, DType dtype, const std::vector<std::uint64_t>& shape) {
    std::vector<std::byte> bytes(count_of(shape) * dtype_bits(dtype) / 8);
    std::normal_distribution<float> bell(0, 30);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const float value = std::fmin(std::fmax(bell(random_), -127.0f), 127.0f);
      auto code = static_cast<std::uint8_t>(static_cast<int>(value));
      if (dtype != DType::i8 && dtype != DType::u8) code &= 0x3f;  // small positive floats
      bytes[i] = static_cast<std::byte>(code);
    }
    raw(name, dtype, shape, bytes);
  }

  void floats(std::string_view name, DType dtype, const std::vector<std::uint64_t>& shape,
              float value) {
    values(name, dtype, shape, std::vector<float>(count_of(shape), value));
  }

  void values(std::string_view name, DType dtype, const std::vector<std::uint64_t>& shape,
              const std::vector<float>& values) {
    raw(name, dtype, shape, float_bytes(dtype, values));
  }

  void marker(std::string_view layer, std::string_view json) { builder_.add_marker(layer, json); }

  void metadata(std::string_view key, std::string_view value) { builder_.add_metadata(key, value); }

  // The file; its data starts 64-byte aligned unless shift moves it by that many bytes.
  std::vector<std::byte> bytes(std::size_t shift = 0) const {
    return builder_.bytes({.shift = shift});
  }

 private:
  static std::size_t count_of(const std::vector<std::uint64_t>& shape) {
    std::uint64_t count = 1;
    for (std::uint64_t d : shape) count *= d;
    return count;
  }

  SafetensorsBuilder builder_;
  std::mt19937 random_{7};
};

}  // namespace parfait::test

#endif  // PARFAIT_TESTS_SUPPORT_TEST_FILE_H_
