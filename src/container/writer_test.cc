#include "container/writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "container/tensor_index.h"
#include "support/file_text.h"
#include "support/safetensors_builder.h"

namespace parfait::container {
namespace {

// As long as it must be to be taken for a safetensors file.
constexpr std::string_view old = "\x02.......{}";

namespace fs = std::filesystem;

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

std::string contents(const fs::path& path) { return test::file_text(path); }

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

TEST(Writer, J5_names_are_kept_as_they_are) {
  test::TemporaryFolder folder;
  const std::vector<std::string> names = {"x.key_norm.weight", "x.key_norm.scale",
                                          "blocks.0._orig_mod.q.weight",
                                          "model.diffusion_model.q.weight", "\xc3\xa4 \"\\.weight"};
  std::vector<TensorDeclaration> tensors;
  for (const std::string& name : names) tensors.push_back({name, DType::u8, {1}});
  auto writer = Writer::create(folder.path() / "out.safetensors", tensors);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  ASSERT_TRUE(writer->append(std::vector<std::byte>(names.size())).ok());
  ASSERT_TRUE(writer->finish().ok());
  auto index = open_index(folder.path() / "out.safetensors", {});
  ASSERT_TRUE(index.ok()) << index.error().message;
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ((*index)->tensors()[i].name, names[i]);
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
  const fs::path path = folder.write("out.safetensors", old);
  {
    auto writer = Writer::create(path, two_tensors);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->append(std::vector<std::byte>(5)).ok());
    auto early = writer->finish();
    ASSERT_FALSE(early.ok());
    EXPECT_EQ(early.error().code, ErrorCode::file_write);
    EXPECT_FALSE(writer->append(std::vector<std::byte>(15)).ok()) << "more than declared";
  }
  EXPECT_EQ(contents(path), old);
  EXPECT_EQ(files_in(folder.path()), 1u);
}

TEST(Writer, a_full_disk_leaves_the_old_file_and_nothing_else) {
  test::TemporaryFolder folder;
  const fs::path path = folder.write("out.safetensors", old);
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
  EXPECT_EQ(contents(path), old);
  EXPECT_EQ(files_in(folder.path()), 1u);
}

TEST(Writer, a_failed_append_is_not_forgotten) {
  test::TemporaryFolder folder;
  const fs::path path = folder.write("out.safetensors", old);
  {
    auto writer = Writer::create(path, two_tensors);
    ASSERT_TRUE(writer.ok());
    ASSERT_FALSE(writer->append(std::vector<std::byte>(20)).ok()) << "more than declared";
    ASSERT_TRUE(writer->append(std::vector<std::byte>(19)).ok());
    auto finished = writer->finish();
    ASSERT_FALSE(finished.ok()) << "a caller that ignored the failure";
    EXPECT_EQ(finished.error().code, ErrorCode::file_write);
  }
  EXPECT_EQ(contents(path), old);
  EXPECT_EQ(files_in(folder.path()), 1u);
}

TEST(Writer, temporaries_of_killed_processes_are_no_obstacle) {
  test::TemporaryFolder folder;
  // Numbers are used once in a process, so the next few cover the one that comes.
  for (int i = 0; i < 60; ++i)
    folder.write("out.safetensors.partial-" + std::to_string(::getpid()) + "-" + std::to_string(i),
                 std::string_view("stale"));
  auto writer = Writer::create(folder.path() / "out.safetensors", two_tensors);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  ASSERT_TRUE(writer->append(std::vector<std::byte>(19)).ok());
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_TRUE(open_index(folder.path() / "out.safetensors", {}).ok());
}

TEST(Writer, what_no_reader_would_take_is_not_written) {
  const auto code = [](const std::vector<TensorDeclaration>& tensors,
                       const std::vector<std::pair<std::string, std::string>>& metadata) {
    auto header = make_header(tensors, metadata);
    return header.ok() ? std::string_view("written") : error_code_name(header.error().code);
  };
  EXPECT_EQ(code({{"a", DType::u8, {}}, {"a", DType::u8, {}}}, {}), "header.duplicate");
  EXPECT_EQ(code({{"__metadata__", DType::u8, {}}}, {}), "header.duplicate");
  EXPECT_EQ(code({}, {{"k", "1"}, {"k", "2"}}), "header.duplicate");
  EXPECT_EQ(code({{"\xff", DType::u8, {}}}, {}), "header.json");
  EXPECT_EQ(code({}, {{"k", "\xed\xa0\x80"}}), "header.json") << "a surrogate half";
  EXPECT_EQ(code({{"a", DType::u8, std::vector<std::uint64_t>(max_rank + 1, 1)}}, {}),
            "header.shape");
  EXPECT_EQ(code({{"a", DType::f4, {3}}}, {}), "header.shape") << "half a byte";
  EXPECT_EQ(code({{"\xc3\xa9", DType::u8, std::vector<std::uint64_t>(max_rank, 1)}}, {}),
            "written");
}

TEST(Writer, Q2_data_starts_aligned_whatever_the_names) {
  for (std::size_t length = 1; length <= 70; ++length) {
    auto header = make_header({{std::string(length, 'n'), DType::f64, {1}}});
    ASSERT_TRUE(header.ok());
    EXPECT_EQ(header->size() % 64, 0u) << length;
  }
}

TEST(Writer, a_file_of_another_kind_stays) {
  const test::TemporaryFolder folder;
  for (const std::string_view text : {"{}", "a recipe\n", "12345678 {", "\x89PNG\r\n\x1a\n"}) {
    const fs::path path = folder.write("out", text);
    const auto writer = Writer::create(path, {{"a", DType::u8, {1}}});
    ASSERT_FALSE(writer.ok()) << text;
    EXPECT_EQ(writer.error().code, ErrorCode::file_write);
    EXPECT_NE(writer.error().message.find("is not a safetensors file"), std::string::npos)
        << writer.error().message;
    EXPECT_EQ(contents(path), text);
  }
  const fs::path empty = folder.write("out", std::string_view(""));
  EXPECT_TRUE(Writer::create(empty, {{"a", DType::u8, {1}}}).ok());
}

TEST(Writer, only_files_are_replaced_and_links_are_followed) {
  test::TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  auto refused = Writer::create(pipe, two_tensors);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::file_write);
  EXPECT_TRUE(fs::is_fifo(pipe));

  const fs::path file = folder.write("file", old);
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  fs::create_symlink("file", folder.path() / "link");
  auto writer = Writer::create(folder.path() / "link", two_tensors);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  ASSERT_TRUE(writer->append(std::vector<std::byte>(19)).ok());
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_TRUE(fs::is_symlink(folder.path() / "link"));
  EXPECT_NE(contents(file), old);
  struct stat status;
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u) << "as private as it was";
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
