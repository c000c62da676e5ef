// No hostile file makes the reader ask for much more memory than the file has bytes. Counted where
// all of it passes: this program's operator new.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "container/shard_index.h"
#include "hostile/hostile_testing.h"

namespace {

std::atomic<std::size_t> largest_request{0};

[[gnu::noinline]] void* counted_allocation(std::size_t bytes) noexcept {
  std::size_t before = largest_request.load();
  while (before < bytes && !largest_request.compare_exchange_weak(before, bytes)) {
  }
  return std::malloc(bytes ? bytes : 1);
}
[[gnu::noinline]] void counted_free(void* data) noexcept { std::free(data); }

void* allocation_or_throw(std::size_t bytes) {
  if (void* data = counted_allocation(bytes)) return data;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return allocation_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return allocation_or_throw(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted_allocation(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted_allocation(bytes);
}
void operator delete(void* data) noexcept { counted_free(data); }
void operator delete[](void* data) noexcept { counted_free(data); }
void operator delete(void* data, std::size_t) noexcept { counted_free(data); }
void operator delete[](void* data, std::size_t) noexcept { counted_free(data); }
void operator delete(void* data, const std::nothrow_t&) noexcept { counted_free(data); }
void operator delete[](void* data, const std::nothrow_t&) noexcept { counted_free(data); }

namespace parfait::container {
namespace {

using namespace hostile;

// The largest single request while f runs.
template <class F>
std::size_t largest_request_of(F&& f) {
  largest_request = 0;
  f();
  return largest_request;
}

constexpr std::size_t slack = 64 << 10;  // what any file may cost
constexpr std::size_t factor = 16;       // of the file's size

TEST(Memory, the_count_counts) {
  EXPECT_GE(largest_request_of([] { std::vector<char> v(123'456); }), 123'456u);
}

TEST(Memory, K5_what_a_header_claims_is_not_allocated) {
  std::vector<std::vector<std::byte>> files;
  for (std::uint64_t length : {~0ull, 1ull << 63, 1ull << 40, 100'000'000ull, 99'999'999ull})
    files.push_back(file_with_length(length, "{\"w\":{}}"));
  for (const char* shape : {"[9223372036854775808]", "[4294967296,4294967295]",
                            "[1152921504606846976]", "[1099511627776]", "[1000,1000]"})
    for (const char* offsets : {"[0,4]", "[0,1152921504606846976]", "[0,1099511627776]",
                                "[0,18446744073709551615]", "[18446744073709551615,0]"})
      files.push_back(one_tensor("U8", shape, offsets, 4));
  for (const std::vector<std::byte>& file : files)
    for (Strictness strictness : {Strictness::strict, Strictness::lenient}) {
      auto reader = io::memory_reader("x.safetensors", file);
      const std::size_t largest = largest_request_of(
          [&] { EXPECT_FALSE(open_single(reader, {.strictness = strictness}).ok()); });
      EXPECT_LE(largest, slack + factor * file.size());
    }
}

TEST(Memory, K6_long_headers_cost_a_small_multiple_of_their_size) {
  std::string many = "{", deep = "{\"w\":" + std::string(1 << 20, '['), name(1 << 20, 'n');
  for (int i = 0; i < 20'000; ++i)
    many += fmt::format("{}\"{}\":{{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[{},{}]}}",
                        i ? "," : "", i, i, i + 1);
  const std::vector<std::vector<std::byte>> files = {
      raw_file(many + "}", 20'000), raw_file(deep),
      raw_file("{\"" + name + R"(":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1),
      raw_file("{\"__metadata__\":{\"k\":\"" + name + "\"}}"),
      raw_file("{" + std::string(1 << 20, ' ') + "}")};
  for (const std::vector<std::byte>& file : files) {
    auto reader = io::memory_reader("x.safetensors", file);
    const std::size_t largest = largest_request_of([&] { (void)open_single(reader, {}); });
    EXPECT_LE(largest, slack + factor * file.size());
  }
}

TEST(Memory, both_readers_allocate_no_more_than_the_file_has) {
  TemporaryFolder folder;
  const auto path = folder.write("x.safetensors", one_tensor("U8", "[4]", "[0,4]", 4));
  std::filesystem::resize_file(path, 1ull << 40);  // sparse: a terabyte that is not there
  for (Io io : {Io::mapped, Io::pread}) {
    const std::size_t largest = largest_request_of([&] {
      auto index = open_index(path, {.io = io});
      ASSERT_TRUE(index.ok()) << index.error().message;
      EXPECT_EQ((*index)->findings().size(), 1u) << "a terabyte of trailing bytes";
    });
    EXPECT_LE(largest, slack);
  }
}

TEST(Memory, K12_indexes) {
  std::string deep = "{\"weight_map\": " + std::string(1 << 20, '[');
  std::string wide = "{\"weight_map\": {";
  for (int i = 0; i < 20'000; ++i) wide += fmt::format("{}\"{}\":\"a\"", i ? "," : "", i);
  for (const std::string& text : {deep, wide, wide + "}}"}) {
    const std::size_t largest = largest_request_of([&] { (void)parse_shard_index(text, "index"); });
    EXPECT_LE(largest, slack + factor * text.size());
  }
}

}  // namespace
}  // namespace parfait::container
