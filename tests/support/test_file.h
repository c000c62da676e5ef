// Builds small safetensors files in memory for tests: valid ones by default, broken ones on
// request.
#ifndef PARFAIT_TESTS_SUPPORT_TEST_FILE_H_
#define PARFAIT_TESTS_SUPPORT_TEST_FILE_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/floats.h"
#include "container/writer.h"
#include "parfait/dtype.h"

namespace parfait::test {

inline std::vector<std::byte> to_bytes(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// The bytes of a file with this header text and data: nothing is checked.
inline std::vector<std::byte> raw_file(std::string_view header, std::size_t data_bytes = 0) {
  std::vector<std::byte> file(8 + header.size() + data_bytes);
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  if (!header.empty()) std::memcpy(file.data() + 8, header.data(), header.size());
  return file;
}

class TestFile {
 public:
  void raw(std::string name, DType dtype, std::vector<std::uint64_t> shape,
           std::vector<std::byte> bytes) {
    tensors_.push_back({std::move(name), dtype, std::move(shape)});
    data_.insert(data_.end(), bytes.begin(), bytes.end());
  }

  // Pseudo-random bytes, bell-shaped where they are int8 codes and never NaN where they are floats.
  void codes(std::string name, DType dtype, std::vector<std::uint64_t> shape) {
    std::uint64_t count = 1;
    for (std::uint64_t d : shape) count *= d;
    std::vector<std::byte> bytes(count * dtype_bits(dtype) / 8);
    std::normal_distribution<float> bell(0, 30);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const float value = std::fmin(std::fmax(bell(random_), -127.0f), 127.0f);
      auto code = static_cast<std::uint8_t>(static_cast<int>(value));
      if (dtype != DType::i8 && dtype != DType::u8) code &= 0x3f;  // small positive floats
      bytes[i] = static_cast<std::byte>(code);
    }
    raw(std::move(name), dtype, std::move(shape), std::move(bytes));
  }

  void floats(std::string name, DType dtype, std::vector<std::uint64_t> shape, float value) {
    std::uint64_t count = 1;
    for (std::uint64_t d : shape) count *= d;
    values(std::move(name), dtype, std::move(shape), std::vector<float>(count, value));
  }

  void values(std::string name, DType dtype, std::vector<std::uint64_t> shape,
              const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * dtype_bits(dtype) / 8);
    for (std::size_t i = 0; i < values.size(); ++i) store_float(dtype, bytes.data(), i, values[i]);
    raw(std::move(name), dtype, std::move(shape), std::move(bytes));
  }

  void marker(std::string_view layer, std::string_view json) {
    raw(std::string(layer) + ".comfy_quant", DType::u8, {json.size()}, to_bytes(json));
  }

  void metadata(std::string key, std::string value) {
    metadata_.emplace_back(std::move(key), std::move(value));
  }

  // The file; its data starts 64-byte aligned unless shift moves it by that many bytes.
  std::vector<std::byte> bytes(std::size_t shift = 0) const {
    auto header = container::make_header(tensors_, metadata_);
    EXPECT_TRUE(header.ok());
    std::vector<std::byte> file = *header;
    if (shift) {
      file.insert(file.end(), shift, static_cast<std::byte>(' '));
      std::uint64_t length = file.size() - 8;
      std::memcpy(file.data(), &length, 8);
    }
    file.insert(file.end(), data_.begin(), data_.end());
    return file;
  }

 private:
  std::vector<container::TensorDeclaration> tensors_;
  std::vector<std::byte> data_;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::mt19937 random_{7};
};

// A folder that vanishes with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "parfait-test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(const std::string& name, const std::vector<std::byte>& bytes) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream out(file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(out.good());
    return file;
  }
  std::filesystem::path write(const std::string& name, std::string_view text) const {
    return write(name, to_bytes(text));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace parfait::test

#endif  // PARFAIT_TESTS_SUPPORT_TEST_FILE_H_
