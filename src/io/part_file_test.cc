#include "io/part_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "support/file_text.h"
#include "support/safetensors_builder.h"

namespace parfait::io {
namespace {

namespace fs = std::filesystem;
using test::to_bytes;

class PartFileTest : public ::testing::Test {
 protected:
  test::TemporaryFolder folder_;
  fs::path target_ = folder_.path() / "out.bin";
  fs::path partial_ = folder_.path() / "out.bin.partial";
  fs::path journal_ = folder_.path() / "out.bin.partial.journal";

  static std::string contents(const fs::path& path) { return test::file_text(path); }
  // Leaves a partial file of ten bytes behind, with two lines, as a killed process would.
  void leave_behind() {
    auto file = PartFile::create(target_, 10, "work 1");
    ASSERT_TRUE(file.ok()) << file.error().message;
    ASSERT_TRUE(file->write_at(0, to_bytes("01234")).ok());
    ASSERT_TRUE(file->record("one").ok());
    ASSERT_TRUE(file->record("two").ok());
    file->keep();
  }
};

TEST_F(PartFileTest, appears_when_it_is_whole) {
  auto file = PartFile::create(target_, 10, "work 1");
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_TRUE(file->write_at(5, to_bytes("56789")).ok());
  ASSERT_TRUE(file->write_at(0, to_bytes("01234")).ok());
  std::vector<std::byte> back(4);
  ASSERT_TRUE(file->read_at(3, back).ok());
  EXPECT_EQ(back, to_bytes("3456"));
  EXPECT_FALSE(file->read_at(8, back).ok());
  EXPECT_FALSE(fs::exists(target_));
  EXPECT_EQ(fs::file_size(partial_), 10u);
  ASSERT_TRUE(file->finish().ok());
  EXPECT_EQ(contents(target_), "0123456789");
  EXPECT_FALSE(fs::exists(partial_) || fs::exists(journal_));
}

TEST_F(PartFileTest, leaves_nothing_where_it_is_not_finished) {
  folder_.write("out.bin", std::string_view("old"));
  { ASSERT_TRUE(PartFile::create(target_, 10, "work 1").ok()); }
  EXPECT_EQ(contents(target_), "old");
  EXPECT_FALSE(fs::exists(partial_) || fs::exists(journal_));
}

TEST_F(PartFileTest, is_written_by_one_at_a_time) {
  const auto first = PartFile::create(target_, 10, "work 1");
  ASSERT_TRUE(first.ok());
  const auto second = PartFile::create(target_, 10, "work 1");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::file_write);
  EXPECT_NE(second.error().message.find("another process"), std::string::npos);
  EXPECT_EQ(fs::file_size(partial_), 10u);
}

TEST_F(PartFileTest, goes_on_from_what_was_kept) {
  leave_behind();
  auto file = PartFile::create(target_, 10, "work 1", PartFile::Start::resume);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->journal(), (std::vector<std::string>{"one", "two"}));
  ASSERT_TRUE(file->write_at(5, to_bytes("56789")).ok());
  ASSERT_TRUE(file->finish().ok());
  EXPECT_EQ(contents(target_), "0123456789");
}

TEST_F(PartFileTest, begins_afresh_where_the_work_is_another) {
  struct Case {
    std::uint64_t bytes;
    const char* fingerprint;
    PartFile::Start start;
  };
  for (const Case& other : {Case{10, "work 2", PartFile::Start::resume},
                            {11, "work 1", PartFile::Start::resume},
                            {10, "work 1", PartFile::Start::afresh}}) {
    leave_behind();
    auto file = PartFile::create(target_, other.bytes, other.fingerprint, other.start);
    ASSERT_TRUE(file.ok());
    EXPECT_TRUE(file->journal().empty());
    std::vector<std::byte> back(5);
    ASSERT_TRUE(file->read_at(0, back).ok());
    EXPECT_EQ(back, std::vector<std::byte>(5)) << "old bytes were left";
  }
}

TEST_F(PartFileTest, a_line_that_was_cut_short_says_nothing) {
  leave_behind();
  { std::ofstream(journal_, std::ios::app) << "thr"; }
  {
    auto file = PartFile::create(target_, 10, "work 1", PartFile::Start::resume);
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(file->journal(), (std::vector<std::string>{"one", "two"}));
    ASSERT_TRUE(file->record("three").ok());
    file->keep();
  }
  auto file = PartFile::create(target_, 10, "work 1", PartFile::Start::resume);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->journal(), (std::vector<std::string>{"one", "two", "three"}));
}

// A journal as it is after the machine lost its power: of another boot.
TEST_F(PartFileTest, after_another_boot_only_what_was_synced_counts) {
  leave_behind();
  EXPECT_NE(contents(journal_).find("\none\ntwo\n#synced 2\n"), std::string::npos)
      << "what is kept is synced";
  for (const auto& [text, believed] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"work 1\n#boot other\none\n#synced 1\ntwo\n", {"one"}},
           {"work 1\n#boot other\none\ntwo\n", {}},
           {"work 1\none\n", {}},
           {"work 1\n#boot other\none\n#synced 1\ntwo\n#synced 2\n", {"one", "two"}},
           {"work 1\n#boot other\none\n#synced 99\n", {"one"}},
           {"work 1\n#boot other\none\n#synced x\n", {}}}) {
    leave_behind();
    { std::ofstream(journal_, std::ios::trunc) << text; }
    auto file = PartFile::create(target_, 10, "work 1", PartFile::Start::resume);
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(file->journal(), believed) << text;
    file->keep();
  }
}

TEST_F(PartFileTest, a_second_loss_of_power_forgets_nothing_that_was_synced) {
  leave_behind();
  { std::ofstream(journal_, std::ios::trunc) << "work 1\n#boot other\none\n#synced 1\ntwo\n"; }
  auto file = PartFile::create(target_, 10, "work 1", PartFile::Start::resume);
  ASSERT_TRUE(file.ok());
  const std::string text = contents(journal_);
  EXPECT_NE(text.find("one\n#synced 1\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("two"), std::string::npos) << text;
}

TEST_F(PartFileTest, no_room_is_found_at_once) {
  struct rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = 4096;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto file = PartFile::create(target_, 1 << 20, "work 1");
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::file_write);
  EXPECT_FALSE(fs::exists(target_) || fs::exists(partial_));
}

TEST_F(PartFileTest, what_is_in_the_way_is_named) {
  fs::create_directory(partial_);
  const auto file = PartFile::create(target_, 10, "work 1");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::file_write);
  EXPECT_TRUE(fs::is_directory(partial_));
}

}  // namespace
}  // namespace parfait::io
