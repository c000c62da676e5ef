#include "container/writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "container/tensor_index.h"
#include "support/test_file.h"

namespace parfait::container {
namespace {

namespace fs = std::filesystem;

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

const std::vector<TensorDeclaration> two_tensors = {{"a\"\n", DType::f32, {2, 2}},
                                                    {"b", DType::u8, {3}}};

TEST(Writer, what_was_written_is_read_back) {
  test::TemporaryFolder folder;
  const fs::path path = folder.path() / "out.safetensors";
  auto writer = Writer::create(path, two_tensors, {{"key", "va\"lue"}});
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  EXPECT_FALSE(fs::exists(path)) << "nothing is in place before finish()";
  std::vector<std::byte> data(19, std::byte{7});
  ASSERT_TRUE(writer->append(ByteSpan(data).first(5)).ok());  // in pieces that end anywhere
  ASSERT_TRUE(writer->append(ByteSpan(data).subspan(5)).ok());
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_EQ(files_in(folder.path()), 1u);
  auto index = open_index(path, {});
  ASSERT_TRUE(index.ok()) << index.error().message;
  ASSERT_NE((*index)->find("a\"\n"), nullptr);
  EXPECT_EQ((*index)->find("a\"\n")->offset % 64, 0u);
  EXPECT_EQ((*index)->find("b")->bytes, 3u);
  EXPECT_EQ((*index)->shards()[0].metadata[0].second, "va\"lue");
  struct stat status;
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_TRUE(status.st_mode & S_IRUSR);
}

TEST(Writer, the_same_input_gives_the_same_bytes) {
  test::TemporaryFolder folder;
  for (const char* name : {"one", "two"}) {
    auto writer = Writer::create(folder.path() / name, two_tensors);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->append(std::vector<std::byte>(19)).ok());
    ASSERT_TRUE(writer->finish().ok());
  }
  EXPECT_EQ(contents(folder.path() / "one"), contents(folder.path() / "two"));
}

TEST(Writer, an_unfinished_file_leaves_the_old_one_and_nothing_else) {
  test::TemporaryFolder folder;
  const fs::path path = folder.write("out.safetensors", std::string_view("old"));
  {
    auto writer = Writer::create(path, two_tensors);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->append(std::vector<std::byte>(5)).ok());
    auto early = writer->finish();
    ASSERT_FALSE(early.ok());
    EXPECT_EQ(early.error().code, ErrorCode::file_write);
    EXPECT_FALSE(writer->append(std::vector<std::byte>(15)).ok()) << "more than declared";
  }
  EXPECT_EQ(contents(path), "old");
  EXPECT_EQ(files_in(folder.path()), 1u);
}

TEST(Writer, a_full_disk_leaves_the_old_file_and_nothing_else) {
  test::TemporaryFolder folder;
  const fs::path path = folder.write("out.safetensors", std::string_view("old"));
  // A file size limit fails writes as a full disk does.
  rlimit old_limit;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = old_limit;
  limit.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  {
    auto writer = Writer::create(path, {{"big", DType::u8, {1 << 20}}});
    ASSERT_TRUE(writer.ok());
    auto result = writer->append(std::vector<std::byte>(1 << 20));
    EXPECT_FALSE(result.ok());
    if (!result.ok()) {
      EXPECT_EQ(result.error().code, ErrorCode::file_write);
      EXPECT_NE(result.error().message.find("out.safetensors"), std::string::npos);
    }
  }
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(contents(path), "old");
  EXPECT_EQ(files_in(folder.path()), 1u);
}

TEST(Writer, bad_targets) {
  test::TemporaryFolder folder;
  EXPECT_EQ(Writer::create(folder.path(), two_tensors).error().code, ErrorCode::file_write);
  EXPECT_EQ(Writer::create(folder.path() / "none" / "x", two_tensors).error().code,
            ErrorCode::file_write);
  EXPECT_EQ(
      Writer::create(folder.path() / "x", {{"big", DType::f32, {1ull << 62, 4}}}).error().code,
      ErrorCode::header_shape);
  EXPECT_EQ(files_in(folder.path()), 0u);
}

}  // namespace
}  // namespace parfait::container
