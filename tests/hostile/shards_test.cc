// Shard sets: indexes that lie, shards that are missing, folders that are ambiguous.

#include <gtest/gtest.h>

#include <algorithm>

#include "base/result.h"
#include "container/shard_index.h"
#include "container/tensor_index.h"
#include "support/test_file.h"

namespace parfait::container {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using test::TestFile;

std::vector<std::byte> shard(const std::vector<std::string>& names, float value = 1) {
  TestFile file;
  for (const std::string& name : names) file.floats(name, DType::f32, {4}, value);
  return file.bytes();
}

std::string index_text(const std::vector<std::pair<std::string, std::string>>& map) {
  std::string text = "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {";
  for (std::size_t i = 0; i < map.size(); ++i)
    text += fmt::format("{}\"{}\": \"{}\"", i ? ", " : "", map[i].first, map[i].second);
  return text + "}}";
}

// Three shards "m-00001-of-00003.safetensors" ... with tensors a, b, c.
struct ThreeShards {
  TemporaryFolder folder;
  ThreeShards() {
    folder.write("m-00001-of-00003.safetensors", shard({"a"}));
    folder.write("m-00002-of-00003.safetensors", shard({"b"}));
    folder.write("m-00003-of-00003.safetensors", shard({"c"}));
  }
  void add_index() {
    folder.write("m.safetensors.index.json", index_text({{"a", "m-00001-of-00003.safetensors"},
                                                         {"b", "m-00002-of-00003.safetensors"},
                                                         {"c", "m-00003-of-00003.safetensors"}}));
  }
};

void expect_error(const Result<TensorIndexPtr>& index, ErrorCode code, std::string_view says) {
  ASSERT_FALSE(index.ok()) << says;
  EXPECT_EQ(error_code_name(index.error().code), error_code_name(code)) << index.error().message;
  EXPECT_NE(index.error().message.find(says), std::string::npos) << index.error().message;
  EXPECT_EQ(index.error().message.find('\n'), std::string::npos);
}

TEST(Shards, P1_P2_a_set_opens_by_folder_index_or_first_shard) {
  ThreeShards set;
  for (bool with_index : {false, true}) {
    if (with_index) set.add_index();
    std::vector<fs::path> paths = {set.folder.path(),
                                   set.folder.path() / "m-00001-of-00003.safetensors"};
    if (with_index) paths.push_back(set.folder.path() / "m.safetensors.index.json");
    for (const fs::path& path : paths) {
      auto index = open_index(path, {});
      ASSERT_TRUE(index.ok()) << path << ": " << index.error().message;
      EXPECT_EQ((*index)->shards().size(), 3u);
      for (const char* name : {"a", "b", "c"}) EXPECT_NE((*index)->find(name), nullptr);
    }
  }
}

TEST(Shards, P4_a_stray_file_is_not_merged_in) {
  ThreeShards set;
  set.add_index();
  set.folder.write("model.safetensors", shard({"stray"}));
  auto index = open_index(set.folder.path(), {});
  ASSERT_TRUE(index.ok()) << index.error().message;
  EXPECT_EQ((*index)->find("stray"), nullptr);
  ASSERT_EQ((*index)->findings().size(), 1u);
  EXPECT_EQ((*index)->findings()[0].code, ErrorCode::index_stray_file);
  EXPECT_EQ((*index)->findings()[0].severity, Severity::warning);
}

TEST(Shards, P5_one_name_in_two_shards) {
  TemporaryFolder folder;
  folder.write("one.safetensors", shard({"a", "both"}));
  folder.write("m.safetensors.index.json", index_text({{"a", "one.safetensors"},
                                                       {"both", "one.safetensors"},
                                                       {"b", "two.safetensors"}}));
  folder.write("two.safetensors", shard({"b", "both"}));
  auto same = open_index(folder.path() / "m.safetensors.index.json", {});
  ASSERT_TRUE(same.ok()) << same.error().message;
  EXPECT_TRUE(std::ranges::any_of((*same)->findings(), [](const Finding& f) {
    return f.code == ErrorCode::index_duplicate && f.severity == Severity::note &&
           f.tensor == "both";
  }));
  folder.write("two.safetensors", shard({"b", "both"}, 2));
  expect_error(open_index(folder.path() / "m.safetensors.index.json", {}),
               ErrorCode::index_duplicate, "both");
}

TEST(Shards, P6_missing_shards_are_counted_and_named) {
  TemporaryFolder folder;
  std::vector<std::pair<std::string, std::string>> map;
  for (int i = 1; i <= 30; ++i) {
    const std::string name = fmt::format("m-{:05}-of-00030.safetensors", i);
    map.emplace_back(fmt::format("t{}", i), name);
    if (i % 2) folder.write(name, shard({fmt::format("t{}", i)}));
  }
  const auto path = folder.write("m.safetensors.index.json", index_text(map));
  expect_error(open_index(path, {}), ErrorCode::index_shard_missing,
               "expects 30 shards, of which 15 are missing: m-00002");
  fs::remove(path);
  expect_error(open_index(folder.path() / "m-00001-of-00030.safetensors", {}),
               ErrorCode::index_shard_missing, "15 are missing");
}

TEST(Shards, an_index_that_disagrees_with_its_shards) {
  TemporaryFolder folder;
  folder.write("one.safetensors", shard({"a", "extra"}));
  const auto path =
      folder.write("m.safetensors.index.json",
                   index_text({{"a", "one.safetensors"}, {"gone", "one.safetensors"}}));
  expect_error(open_index(path, {}), ErrorCode::index_tensor_missing, "gone");
  folder.write("m.safetensors.index.json", index_text({{"a", "one.safetensors"}}));
  auto index = open_index(path, {});
  ASSERT_TRUE(index.ok()) << index.error().message;
  ASSERT_EQ((*index)->findings().size(), 1u);
  EXPECT_EQ((*index)->findings()[0].code, ErrorCode::index_tensor_unlisted);
  EXPECT_EQ((*index)->findings()[0].tensor, "extra");
}

TEST(Shards, K8_names_that_leave_the_folder) {
  TemporaryFolder outside;
  outside.write("x.safetensors", shard({"a"}));
  for (const std::string name : {"../x.safetensors", "/etc/passwd", "a/../../b.safetensors",
                                 "C:\\\\x", "C:x", "..", "a\\\\b.safetensors", "", "a\\u0000b"}) {
    TemporaryFolder folder;
    const auto path = folder.write("m.safetensors.index.json", index_text({{"a", name}}));
    expect_error(open_index(path, {}), ErrorCode::index_path, "m.safetensors.index.json");
  }
  TemporaryFolder folder;
  fs::create_symlink(outside.path() / "x.safetensors", folder.path() / "x.safetensors");
  const auto path = folder.write("m.safetensors.index.json", index_text({{"a", "x.safetensors"}}));
  expect_error(open_index(path, {}), ErrorCode::index_path, "a link out of the index's folder");
}

TEST(Shards, K8_links_inside_a_model_cache_are_followed) {
  TemporaryFolder cache;
  cache.write("blobs/0123abcd", shard({"a"}));
  fs::create_directories(cache.path() / "snapshots/rev");
  fs::create_symlink("../../blobs/0123abcd", cache.path() / "snapshots/rev/x.safetensors");
  const auto path =
      cache.write("snapshots/rev/m.safetensors.index.json", index_text({{"a", "x.safetensors"}}));
  auto index = open_index(path, {});
  ASSERT_TRUE(index.ok()) << index.error().message;
}

TEST(Shards, K12_broken_indexes) {
  TemporaryFolder folder;
  for (const char* text :
       {"", "{", "[]", "3", "{}", "{\"weight_map\": []}", "{\"weight_map\": {}}",
        "{\"weight_map\": {\"a\": 3}}", "{\"weight_map\": {\"a\": \"x\", \"a\": \"y\"}}",
        "{\"weight_map\": {\"a\": \"x\"}} trailing"}) {
    const auto path = folder.write("m.safetensors.index.json", std::string_view(text));
    expect_error(open_index(path, {}), ErrorCode::index_json, "m.safetensors.index.json");
  }
  std::string deep = "{\"weight_map\": " + std::string(100'000, '[');
  EXPECT_EQ(parse_shard_index(deep, "deep").error().code, ErrorCode::index_json);
}

TEST(Shards, folders_without_one_answer) {
  TemporaryFolder empty;
  expect_error(open_index(empty.path(), {}), ErrorCode::folder_empty, "no *.safetensors file");
  TemporaryFolder one;
  one.write("only.safetensors", shard({"a"}));
  EXPECT_TRUE(open_index(one.path(), {}).ok());
  one.write("only-mixed.safetensors", shard({"a"}));
  expect_error(open_index(one.path(), {}), ErrorCode::folder_ambiguous, "only-mixed.safetensors");
  ThreeShards set;
  set.add_index();
  set.folder.write("other.safetensors.index.json",
                   index_text({{"a", "m-00001-of-00003.safetensors"}}));
  expect_error(open_index(set.folder.path(), {}), ErrorCode::folder_ambiguous,
               "other.safetensors.index.json");
}

// The file that was asked for is the one that is opened, whatever lies beside it.
TEST(Shards, B16_a_shard_that_its_index_does_not_list_is_opened_all_the_same) {
  ThreeShards set;
  set.folder.write("old.safetensors", shard({"old"}));
  set.folder.write("m.safetensors.index.json", index_text({{"old", "old.safetensors"}}));
  auto index = open_index(set.folder.path() / "m-00002-of-00003.safetensors", {});
  ASSERT_TRUE(index.ok()) << index.error().message;
  EXPECT_EQ((*index)->shards().size(), 3u);
  EXPECT_NE((*index)->find("b"), nullptr);
  EXPECT_EQ((*index)->find("old"), nullptr);
  ASSERT_EQ((*index)->findings().size(), 1u);
  EXPECT_EQ((*index)->findings()[0].code, ErrorCode::index_stray_file);
  EXPECT_EQ((*index)->findings()[0].severity, Severity::warning);
  auto by_index = open_index(set.folder.path() / "m.safetensors.index.json", {});
  ASSERT_TRUE(by_index.ok()) << by_index.error().message;
  EXPECT_NE((*by_index)->find("old"), nullptr);
}

TEST(Shards, one_file_under_two_spellings_is_read_once) {
  ThreeShards set;
  set.folder.write("m-00001-of-00003.safetensors", shard({"a", "a2"}));
  set.folder.write("m.safetensors.index.json", index_text({{"a", "m-00001-of-00003.safetensors"},
                                                           {"a2", "./m-00001-of-00003.safetensors"},
                                                           {"b", ".//m-00002-of-00003.safetensors"},
                                                           {"c", "m-00003-of-00003.safetensors"}}));
  auto index = open_index(set.folder.path(), {});
  ASSERT_TRUE(index.ok()) << index.error().message;
  EXPECT_EQ((*index)->shards().size(), 3u);
  EXPECT_TRUE((*index)->findings().empty()) << (*index)->findings()[0].line();
}

TEST(Shards, K8_a_folder_that_links_out) {
  TemporaryFolder outside, folder;
  outside.write("x.safetensors", shard({"a"}));
  fs::create_directory_symlink(outside.path(), folder.path() / "sub");
  const auto path =
      folder.write("m.safetensors.index.json", index_text({{"a", "sub/x.safetensors"}}));
  expect_error(open_index(path, {}), ErrorCode::index_path, "a link out of the index's folder");
}

TEST(Shards, P6_a_name_that_claims_a_million_shards) {
  TemporaryFolder folder;
  const auto path = folder.write("m-000001-of-999999.safetensors", shard({"a"}));
  expect_error(open_index(path, {}), ErrorCode::index_shard_missing,
               "999998 are missing: m-000002-of-999999.safetensors");
  expect_error(open_index(folder.path(), {}), ErrorCode::index_shard_missing, "999998 are missing");
}

TEST(Shards, P1_many_small_shards) {
  TemporaryFolder folder;
  constexpr int count = 300;
  for (int i = 1; i <= count; ++i)
    folder.write(fmt::format("m-{:03}-of-{}.safetensors", i, count),
                 shard({fmt::format("t{}", i)}));
  auto index = open_index(folder.path(), {.io = Io::pread});
  ASSERT_TRUE(index.ok()) << index.error().message;
  ASSERT_EQ((*index)->tensors().size(), static_cast<std::size_t>(count));
  for (int i = 1; i <= count; ++i) {
    const TensorInfo* tensor = (*index)->find(fmt::format("t{}", i));
    ASSERT_NE(tensor, nullptr) << i;
    EXPECT_EQ(tensor->shard, static_cast<std::uint32_t>(i - 1));
  }
}

TEST(Shards, folders_and_other_files_beside_a_checkpoint_do_not_count) {
  TemporaryFolder folder;
  folder.write("only.safetensors", shard({"a"}));
  fs::create_directories(folder.path() / "folder.safetensors");
  fs::create_directories(folder.path() / "folder.safetensors.index.json");
  folder.write("config.json", std::string_view("{}"));
  auto index = open_index(folder.path(), {});
  ASSERT_TRUE(index.ok()) << index.error().message;
  EXPECT_NE((*index)->find("a"), nullptr);
}

TEST(Shards, a_bad_shard_is_named) {
  ThreeShards set;
  set.folder.write("m-00002-of-00003.safetensors",
                   std::string_view("version https://git-lfs.github.com/spec/v1\nsize 5\n"));
  expect_error(open_index(set.folder.path(), {}), ErrorCode::file_wrong_kind,
               "m-00002-of-00003.safetensors");
}

}  // namespace
}  // namespace parfait::container
