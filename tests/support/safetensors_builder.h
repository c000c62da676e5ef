// Safetensors files for tests, built in memory and independently of the writer that they test:
// sound ones by default, broken ones on request. Nothing is checked.
#ifndef PARFAIT_TESTS_SUPPORT_SAFETENSORS_BUILDER_H_
#define PARFAIT_TESTS_SUPPORT_SAFETENSORS_BUILDER_H_

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "parfait/dtype.h"

namespace parfait::test {

inline std::vector<std::byte> to_bytes(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// Values as F32, F16 or BF16 data.
inline std::vector<std::byte> float_bytes(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * dtype_bits(dtype) / 8);
  for (std::size_t i = 0; i < values.size(); ++i) store_float(dtype, bytes.data(), i, values[i]);
  return bytes;
}

// A file whose header says that it is `length` bytes long, whatever follows.
inline std::vector<std::byte> file_with_length(std::uint64_t length, std::string_view behind) {
  std::vector<std::byte> file(8 + behind.size());
  store_at(file.data(), 0, length);
  if (!behind.empty()) std::memcpy(file.data() + 8, behind.data(), behind.size());
  return file;
}

// A file with this header text and zeros for data.
inline std::vector<std::byte> raw_file(std::string_view header, std::size_t data_bytes = 0) {
  std::vector<std::byte> file = file_with_length(header.size(), header);
  file.resize(file.size() + data_bytes);
  return file;
}

inline std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + '"';
}

class SafetensorsBuilder {
 public:
  void add(std::string_view name, DType dtype, const std::vector<std::uint64_t>& shape,
           const std::vector<std::byte>& bytes) {
    entries_ += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                            entries_.empty() ? "" : ",", json_string(name), dtype_name(dtype),
                            fmt::join(shape, ","), data_.size(), data_.size() + bytes.size());
    data_.insert(data_.end(), bytes.begin(), bytes.end());
  }
  void add_marker(std::string_view layer, std::string_view json) {
    add(std::string(layer) + ".comfy_quant", DType::u8, {json.size()}, to_bytes(json));
  }
  void add_metadata(std::string_view key, std::string_view value) {
    metadata_ +=
        fmt::format("{}{}:{}", metadata_.empty() ? "" : ",", json_string(key), json_string(value));
  }

  struct Knobs {
    std::size_t alignment = 64;  // of the data, by spaces behind the header; 1: no padding
    std::size_t shift = 0;       // more spaces, to move the data off its alignment
    std::string trailing = {};   // bytes behind the last tensor
  };
  std::vector<std::byte> bytes(const Knobs& knobs) const {
    std::string header = "{";
    if (!metadata_.empty())
      header += "\"__metadata__\":{" + metadata_ + (entries_.empty() ? "}" : "},");
    header += entries_ + "}";
    while ((8 + header.size()) % knobs.alignment) header += ' ';
    header.append(knobs.shift, ' ');
    std::vector<std::byte> file = raw_file(header);
    file.insert(file.end(), data_.begin(), data_.end());
    const std::vector<std::byte> trailing = to_bytes(knobs.trailing);
    file.insert(file.end(), trailing.begin(), trailing.end());
    return file;
  }
  std::vector<std::byte> bytes() const { return bytes(Knobs{}); }

 private:
  std::string entries_, metadata_;
  std::vector<std::byte> data_;
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

#endif  // PARFAIT_TESTS_SUPPORT_SAFETENSORS_BUILDER_H_
