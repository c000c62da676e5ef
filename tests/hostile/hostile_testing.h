// What the tests of hostile files share.
#ifndef PARFAIT_TESTS_HOSTILE_HOSTILE_TESTING_H_
#define PARFAIT_TESTS_HOSTILE_HOSTILE_TESTING_H_

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "container/tensor_index.h"
#include "support/test_file.h"

namespace parfait::container::hostile {

using test::file_with_length;
using test::raw_file;
using test::SafetensorsBuilder;
using test::TemporaryFolder;
using test::TestFile;
using test::to_bytes;

inline Result<TensorIndexPtr> open_bytes(std::vector<std::byte> bytes,
                                         const OpenOptions& options = {}) {
  return open_single(io::memory_reader("x.safetensors", std::move(bytes)), options);
}

// The message is one line, says which file, and is not longer than a person will read.
inline void expect_sentence(const Error& error, std::string_view file) {
  EXPECT_NE(error.message.find(file), std::string::npos) << error.message;
  EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
  EXPECT_LE(error.message.size(), 600u) << error.message;
}

inline void expect_error(std::vector<std::byte> bytes, ErrorCode code,
                         const std::string& note = "") {
  auto index = open_bytes(std::move(bytes));
  ASSERT_FALSE(index.ok()) << note;
  EXPECT_EQ(error_code_name(index.error().code), error_code_name(code))
      << note << ": " << index.error().message;
  expect_sentence(index.error(), "x.safetensors");
}

// A header with one tensor "w" of these fields, and data bytes behind it.
inline std::vector<std::byte> one_tensor(std::string_view dtype, std::string_view shape,
                                         std::string_view offsets, std::size_t data) {
  return raw_file(fmt::format("{{\"w\":{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":{}}}}}",
                              dtype, shape, offsets),
                  data);
}

}  // namespace parfait::container::hostile

#endif  // PARFAIT_TESTS_HOSTILE_HOSTILE_TESTING_H_
