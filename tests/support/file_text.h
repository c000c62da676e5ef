// A file's bytes. Read at once: without optimisation and with sanitizers, stream iterators take a
// second for each few megabytes.
#ifndef PARFAIT_TESTS_SUPPORT_FILE_TEXT_H_
#define PARFAIT_TESTS_SUPPORT_FILE_TEXT_H_

#include <filesystem>
#include <fstream>
#include <string>

namespace parfait::test {

// Of a file that cannot be read: nothing.
inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = in ? static_cast<std::streamoff>(in.tellg()) : 0;
  std::string text(static_cast<std::size_t>(size), '\0');
  in.seekg(0);
  in.read(text.data(), size);
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

}  // namespace parfait::test

#endif  // PARFAIT_TESTS_SUPPORT_FILE_TEXT_H_
