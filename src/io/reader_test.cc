#include "io/reader.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "support/safetensors_builder.h"

namespace parfait::io {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

std::vector<std::byte> counting(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  return bytes;
}

// One reader of each kind over the same bytes.
struct AllReaders {
  TemporaryFolder folder;
  std::vector<std::byte> bytes;
  fs::path path;
  std::vector<ReaderPtr> readers;

  explicit AllReaders(std::size_t count) : bytes(counting(count)) {
    path = folder.write("x.bin", bytes);
    for (Io io : {Io::mapped, Io::pread}) {
      auto reader = open_file(path, io);
      EXPECT_TRUE(reader.ok()) << reader.error().message;
      readers.push_back(*reader);
    }
    readers.push_back(memory_reader(path.string(), bytes));
  }
};

TEST(Reader, all_kinds_read_the_same) {
  AllReaders all(10'001);
  for (const ReaderPtr& reader : all.readers) {
    EXPECT_EQ(reader->size(), 10'001u);
    EXPECT_EQ(reader->name(), all.path.string());
    std::vector<std::byte> scratch;
    for (std::size_t offset : {0u, 1u, 4095u, 4096u, 10'000u, 10'001u})
      for (std::size_t count : {0u, 1u, 3u, 4097u}) {
        if (offset + count > all.bytes.size()) continue;
        auto got = reader->read(offset, count, scratch);
        ASSERT_TRUE(got.ok()) << got.error().message;
        EXPECT_TRUE(std::ranges::equal(*got, ByteSpan(all.bytes).subspan(offset, count)))
            << offset << " " << count;
      }
  }
}

TEST(Reader, ranges_outside_are_refused_before_anything_is_allocated) {
  AllReaders all(100);
  for (const ReaderPtr& reader : all.readers)
    for (const auto& [offset, count] :
         std::vector<std::pair<std::uint64_t, std::uint64_t>>{{0, 101},
                                                              {100, 1},
                                                              {101, 0},
                                                              {1, ~0ull},
                                                              {~0ull, 1},
                                                              {~0ull, ~0ull},
                                                              {1ull << 63, 1ull << 63}}) {
      std::vector<std::byte> scratch;
      auto got = reader->read(offset, count, scratch);
      ASSERT_FALSE(got.ok()) << offset << " " << count;
      EXPECT_EQ(got.error().code, ErrorCode::file_read);
      EXPECT_NE(got.error().message.find(all.path.string()), std::string::npos);
      EXPECT_EQ(scratch.capacity(), 0u);
    }
}

TEST(Reader, dropped_pages_come_back) {
  AllReaders all(5 * 4096 + 17);
  for (const ReaderPtr& reader : all.readers) {
    std::vector<std::byte> scratch;
    reader->drop(0, reader->size());
    reader->drop(100, 3 * 4096);
    reader->drop(5, 10);  // no whole page
    reader->drop(reader->size(), 0);
    reader->drop(~0ull, 2);  // outside: nothing happens
    auto got = reader->read(0, reader->size(), scratch);
    ASSERT_TRUE(got.ok());
    EXPECT_TRUE(std::ranges::equal(*got, all.bytes));
  }
}

TEST(Reader, empty_files_open) {
  AllReaders all(0);
  for (const ReaderPtr& reader : all.readers) {
    std::vector<std::byte> scratch;
    EXPECT_EQ(reader->size(), 0u);
    EXPECT_TRUE(reader->read(0, 0, scratch).ok());
    EXPECT_FALSE(reader->read(0, 1, scratch).ok());
    reader->drop(0, 0);
  }
}

TEST(Reader, what_is_no_file_is_refused_at_once) {
  TemporaryFolder folder;
  const fs::path fifo = folder.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const fs::path socket_path = folder.path() / "socket";
  const int socket_fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_GE(socket_fd, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  ASSERT_LT(socket_path.string().size(), sizeof address.sun_path);
  socket_path.string().copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const fs::path file = folder.write("file", std::string_view("x"));
  const fs::path loop = folder.path() / "loop";
  fs::create_symlink(loop, loop);
  for (const fs::path& path : {fifo, socket_path, folder.path(), fs::path("/dev/zero"), loop,
                               file / "below", folder.path() / "none", fs::path("")})
    for (Io io : {Io::mapped, Io::pread}) {
      auto reader = open_file(path, io);
      ASSERT_FALSE(reader.ok()) << path;
      EXPECT_EQ(reader.error().code, ErrorCode::file_not_found) << reader.error().message;
      EXPECT_NE(reader.error().message.find(path.string()), std::string::npos);
      EXPECT_EQ(reader.error().message.find('\n'), std::string::npos);
    }
  ::close(socket_fd);
}

TEST(Reader, a_file_that_may_not_be_read_gives_a_sentence) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  TemporaryFolder folder;
  const fs::path path = folder.write("secret", std::string_view("x"));
  fs::permissions(path, fs::perms::none);
  auto reader = open_file(path, Io::mapped);
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().code, ErrorCode::file_not_found);
}

TEST(Reader, a_file_that_shrank_or_grew) {
  for (Io io : {Io::mapped, Io::pread}) {
    TemporaryFolder folder;
    const fs::path path = folder.write("x.bin", counting(20'000));
    auto reader = open_file(path, io);
    ASSERT_TRUE(reader.ok());
    fs::resize_file(path, 30'000);
    std::vector<std::byte> scratch;
    EXPECT_TRUE((*reader)->read(0, 20'000, scratch).ok());
    EXPECT_FALSE((*reader)->read(0, 20'001, scratch).ok()) << "the size when it was opened counts";
    fs::resize_file(path, 10'000);
    EXPECT_TRUE((*reader)->read(0, 10'000, scratch).ok()) << "what is still there";
    auto gone = (*reader)->read(9'999, 2, scratch);
    ASSERT_FALSE(gone.ok());
    EXPECT_EQ(gone.error().code, ErrorCode::file_read);
    EXPECT_NE(gone.error().message.find("from 20000 to 10000"), std::string::npos)
        << gone.error().message;
  }
}

TEST(Reader, a_deleted_file_stays_readable) {
  for (Io io : {Io::mapped, Io::pread}) {
    TemporaryFolder folder;
    const fs::path path = folder.write("x.bin", counting(5000));
    auto reader = open_file(path, io);
    ASSERT_TRUE(reader.ok());
    fs::remove(path);
    std::vector<std::byte> scratch;
    EXPECT_TRUE((*reader)->read(0, 5000, scratch).ok());
  }
}

}  // namespace
}  // namespace parfait::io
