// For the tests of formats: a file built in memory, taken apart, checked and decoded.
#ifndef PARFAIT_FORMATS_FORMAT_TESTING_H_
#define PARFAIT_FORMATS_FORMAT_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/format.h"
#include "support/test_file.h"

namespace parfait::formats::testing {

using test::TestFile;

inline std::string text_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) text += finding.line() + "\n";
  return text;
}

// A file with one layer "a", or several. Keeps everything that its layers point to.
class Opened {
 public:
  explicit Opened(const TestFile& file, Compat compat = Compat::none) {
    auto index = container::open_single(io::memory_reader("test.safetensors", file.bytes()), {});
    EXPECT_TRUE(index.ok()) << (index.ok() ? "" : index.error().message);
    auto checkpoint = detect(*index, {.compat = compat});
    EXPECT_TRUE(checkpoint.ok()) << (checkpoint.ok() ? "" : checkpoint.error().message);
    checkpoint_ = *checkpoint;
  }

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const Layer& layer(std::string_view name = "a") const {
    const Layer* found = checkpoint_->find(name);
    EXPECT_NE(found, nullptr) << "no layer " << name << "; findings:\n"
                              << text_of(checkpoint_->findings);
    static const Layer none;
    return found ? *found : none;
  }
  std::vector<Finding> check(CheckDepth depth = CheckDepth::headers) const {
    auto findings = check_layers(*checkpoint_, {.depth = depth, .progress = {}});
    EXPECT_TRUE(findings.ok()) << (findings.ok() ? "" : findings.error().message);
    return *findings;
  }
  std::vector<float> decode(std::string_view name = "a") const {
    const Layer& found = layer(name);
    return decode_rows(name, 0, found.rows);
  }
  std::vector<float> decode_rows(std::string_view name, std::uint64_t first,
                                 std::uint64_t rows) const {
    const Layer& found = layer(name);
    auto data = read_layer(*checkpoint_->index, found);
    EXPECT_TRUE(data.ok()) << (data.ok() ? "" : data.error().message);
    std::vector<float> out(rows * found.columns);
    found.format->decode(*data, first, rows, out.data());
    return out;
  }

 private:
  std::shared_ptr<const Checkpoint> checkpoint_;
};

inline const Finding* find_code(const std::vector<Finding>& findings, ErrorCode code) {
  const auto it = std::ranges::find(findings, code, &Finding::code);
  return it == findings.end() ? nullptr : &*it;
}

// Exactly one finding has that code; it has that severity and speaks of these words.
inline void expect_finding(const std::vector<Finding>& findings, ErrorCode code, Severity severity,
                           std::vector<std::string_view> words = {}) {
  const auto count = std::ranges::count(findings, code, &Finding::code);
  ASSERT_EQ(count, 1) << error_code_name(code) << " in:\n" << text_of(findings);
  const Finding& finding = *find_code(findings, code);
  EXPECT_EQ(finding.severity, severity) << finding.line();
  EXPECT_EQ(finding.layer, "a") << finding.line();
  for (std::string_view word : words)
    EXPECT_NE(finding.line().find(word), std::string::npos)
        << "\"" << word << "\" is not in: " << finding.line();
}

inline void expect_no(const std::vector<Finding>& findings, ErrorCode code) {
  EXPECT_EQ(find_code(findings, code), nullptr) << text_of(findings);
}

// No errors and no warnings.
inline void expect_clean(const std::vector<Finding>& findings) {
  EXPECT_TRUE(std::ranges::all_of(findings, [](const Finding& finding) {
    return finding.severity == Severity::note;
  })) << text_of(findings);
}

inline void expect_sound(const std::vector<Finding>& findings) {
  EXPECT_TRUE(std::ranges::none_of(findings, [](const Finding& finding) {
    return finding.severity == Severity::error;
  })) << text_of(findings);
}

// The bytes of the tensors that size() speaks of.
inline std::uint64_t sized_bytes(const Layer& layer) {
  std::uint64_t bytes = 0;
  for (const PartSpec& spec : layer.format->parts)
    if (const TensorInfo* tensor = layer.part(spec.role);
        tensor && spec.role != "bias" && spec.need != PartSpec::Need::ignored)
      bytes += tensor->bytes;
  return bytes;
}

inline void expect_size_matches(const Layer& layer) {
  EXPECT_EQ(layer.format->size(layer, layer.rows, layer.columns), sized_bytes(layer)) << layer.name;
}

inline std::vector<std::byte> byte_list(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

// n bytes, all of one value.
inline std::vector<std::byte> bytes_of(std::size_t n, int value) {
  return std::vector<std::byte>(n, static_cast<std::byte>(value));
}

inline std::string marker_text(std::string_view format, std::string_view more = "") {
  return "{\"format\": \"" + std::string(format) + "\"" + (more.empty() ? "" : ", ") +
         std::string(more) + "}";
}

// Shapes of weights and scales as tests list them.
using Shape = std::vector<std::uint64_t>;

}  // namespace parfait::formats::testing

#endif  // PARFAIT_FORMATS_FORMAT_TESTING_H_
