// Files that are cut short or of another kind: named for what they are. Test names begin with the
// row of public failure reports that they stand for.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "hostile/hostile_testing.h"

namespace parfait::container {
namespace {

using namespace hostile;

TEST(Hostile, G1_truncated_files_say_what_is_missing) {
  TestFile file;
  file.floats("first", DType::f32, {16}, 1);
  file.floats("second", DType::f32, {16}, 1);
  const std::vector<std::byte> whole = file.bytes();
  const std::size_t data = whole.size() - 128;
  for (std::size_t cut : {whole.size() - 1, whole.size() - 64, whole.size() - 65, data + 1, data}) {
    const std::vector<std::byte> bytes(whole.begin(),
                                       whole.begin() + static_cast<std::ptrdiff_t>(cut));
    auto index = open_bytes(bytes);
    ASSERT_FALSE(index.ok()) << cut;
    EXPECT_EQ(index.error().code, ErrorCode::file_truncated) << index.error().message;
    EXPECT_NE(index.error().message.find(fmt::format("{} bytes are missing", whole.size() - cut)),
              std::string::npos)
        << index.error().message;
    EXPECT_NE(index.error().message.find(cut <= data + 63 ? "tensor first" : "tensor second"),
              std::string::npos)
        << index.error().message;
  }
  for (std::size_t cut : {data - 1, std::size_t{9}, std::size_t{8}}) {
    const std::vector<std::byte> bytes(whole.begin(),
                                       whole.begin() + static_cast<std::ptrdiff_t>(cut));
    expect_error(bytes, ErrorCode::file_truncated, std::to_string(cut));
  }
  for (std::size_t cut : {7u, 4u, 1u, 0u})
    expect_error({whole.begin(), whole.begin() + cut}, ErrorCode::file_too_small,
                 std::to_string(cut));
}

TEST(Hostile, G2_other_kinds_of_file_are_named) {
  const struct {
    std::string_view contents, says;
  } kinds[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 20970000123\n",
       "20970000123 bytes"},
      {"<!DOCTYPE html><html><head><title>Log in</title>", "web page"},
      {"\n<html lang=\"en\">\n<body>", "web page"},
      {std::string_view("PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00\x00\x00", 14), "zip archive"},
      {std::string_view("\x80\x02}q\x00(X\x05\x00\x00\x00", 11), "pickle"},
      {std::string_view("GGUF\x03\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00", 16), "GGUF"},
      {std::string_view("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x01\x02", 12), "gzip"},
      {"{\"metadata\": {\"total_size\": 1}, \"weight_map\": {}}", "safetensors.index.json"},
      {"Entry not found, see the documentation", "does not start with '{'"},
  };
  for (const auto& kind : kinds) {
    auto index = open_bytes(to_bytes(kind.contents));
    ASSERT_FALSE(index.ok()) << kind.contents;
    EXPECT_EQ(index.error().code, ErrorCode::file_wrong_kind) << index.error().message;
    EXPECT_NE(index.error().message.find(kind.says), std::string::npos) << index.error().message;
    expect_sentence(index.error(), "x.safetensors");
  }
}

TEST(Hostile, G4_the_path_is_in_every_message) {
  TemporaryFolder folder;
  for (const char* name : {"empty.safetensors", "four.safetensors"}) {
    const auto path = folder.write(name, std::string_view(name[0] == 'e' ? "" : "abcd"));
    for (Io io : {Io::mapped, Io::pread}) {
      auto index = open_index(path, {.io = io});
      ASSERT_FALSE(index.ok());
      EXPECT_EQ(index.error().code, ErrorCode::file_too_small);
      expect_sentence(index.error(), path.string());
    }
  }
  auto missing = open_index(folder.path() / "none.safetensors", {});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::file_not_found);
}

TEST(Hostile, G8_a_sound_file_of_no_known_model_is_not_called_damaged) {
  TestFile file;
  file.floats("whatever.nobody.knows", DType::f32, {3, 5}, 1);
  EXPECT_TRUE(open_bytes(file.bytes()).ok());
}

TEST(Hostile, devices_pipes_and_folders_do_not_hang) {
  TemporaryFolder folder;
  const auto fifo = folder.path() / "pipe.safetensors";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const auto& path : {fifo, std::filesystem::path("/dev/zero")}) {
    auto index = open_index(path, {});
    ASSERT_FALSE(index.ok());
    EXPECT_EQ(index.error().code, ErrorCode::file_not_found) << index.error().message;
  }
}

// A header's length may spell another kind's magic number: 640 is a pickle's first bytes, 31520 is
// " {" and 35615 gzip's.
TEST(Hostile, G2_a_length_is_not_taken_for_another_kind) {
  for (std::uint64_t length : {0x280u, 0x480u, 0x580u, 0x7b20u, 0x7bu, 0x8b1fu}) {
    expect_error(file_with_length(length, "{\"a\":{\"dty"), ErrorCode::file_truncated,
                 fmt::format("{:#x}, cut in the header", length));
    expect_error(file_with_length(length, ""), ErrorCode::file_truncated,
                 fmt::format("{:#x}, cut behind the length", length));
    std::vector<std::byte> seven = file_with_length(length, "");
    seven.pop_back();
    expect_error(seven, ErrorCode::file_too_small, fmt::format("{:#x}, cut in the length", length));
    std::string header = "{}";
    header.resize(length, ' ');
    EXPECT_TRUE(open_bytes(raw_file(header)).ok()) << length;
  }
  // Longer than the limit, and all there: not a pickle either.
  std::string header = "{}";
  header.resize(0x10280, ' ');
  auto index = open_bytes(raw_file(header), {.max_header_bytes = 1000});
  ASSERT_FALSE(index.ok());
  EXPECT_EQ(index.error().code, ErrorCode::header_too_large) << index.error().message;
  // A GGUF file of 123 tensors has a brace where a header would.
  expect_error(to_bytes(std::string_view("GGUF\x03\0\0\0{\0\0\0\0\0\0\0", 16)),
               ErrorCode::file_wrong_kind, "GGUF");
}

// A footer that one download tool appends.
TEST(Hostile, G5_an_appended_footer_is_a_finding) {
  SafetensorsBuilder file;
  file.add("a", DType::u8, {3}, to_bytes("abc"));
  auto index = open_bytes(file.bytes({.trailing = "L2P_bypass_/models/a.safetensors"}));
  ASSERT_TRUE(index.ok()) << index.error().message;
  ASSERT_EQ((*index)->findings().size(), 1u);
  EXPECT_EQ((*index)->findings()[0].code, ErrorCode::header_trailing);
  EXPECT_EQ((*index)->findings()[0].severity, Severity::error);
  EXPECT_EQ((*index)->findings()[0].got, "32 bytes behind the last tensor");
}

}  // namespace
}  // namespace parfait::container
