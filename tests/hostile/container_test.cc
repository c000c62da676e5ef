// Hostile headers: one sentence each, in bounded time. Test names begin with the row of public
// failure reports that they stand for.

#include <gtest/gtest.h>

#include <algorithm>

#include "hostile/hostile_testing.h"

namespace parfait::container {
namespace {

using namespace hostile;

TEST(Hostile, a_plain_file_opens) {
  auto index = open_bytes(one_tensor("F32", "[2,3]", "[0,24]", 24));
  ASSERT_TRUE(index.ok()) << index.error().message;
  ASSERT_EQ((*index)->tensors().size(), 1u);
  EXPECT_EQ((*index)->tensors()[0].bytes, 24u);
  EXPECT_NE((*index)->find("w"), nullptr);
  EXPECT_EQ((*index)->find("v"), nullptr);
}

// --- K: hardening ---

TEST(Hostile, K1_big_shape_tiny_offsets) {
  expect_error(one_tensor("F32", "[1000,1000]", "[0,4]", 4), ErrorCode::header_offsets);
}

TEST(Hostile, K1_shapes_whose_product_overflows) {
  for (const char* shape :
       {"[9223372036854775808,2]", "[9223372036854775808]", "[4294967296,4294967296]",
        "[18446744073709551615,18446744073709551615,4]", "[65536,65536,65536,65536,65536]"})
    expect_error(one_tensor("F32", shape, "[0,4]", 4), ErrorCode::header_shape, shape);
  // A zero makes the product zero, whatever stands beside it.
  EXPECT_TRUE(
      open_bytes(one_tensor("F32", "[18446744073709551615,18446744073709551615,0]", "[0,0]", 0))
          .ok());
}

TEST(Hostile, K2_offsets_out_of_order_or_out_of_the_file) {
  expect_error(one_tensor("F32", "[1]", "[4,0]", 8), ErrorCode::header_offsets, "begin > end");
  expect_error(one_tensor("F32", "[1]", "[0,9223372036854775808]", 8), ErrorCode::header_offsets,
               "2^63");
  expect_error(one_tensor("F32", "[1]", "[18446744073709551612,18446744073709551615]", 8),
               ErrorCode::header_offsets, "2^64");
  expect_error(one_tensor("U8", "[1]", "[18446744073709551614,18446744073709551615]", 8),
               ErrorCode::header_offsets, "past 2^64");
  expect_error(one_tensor("F32", "[2]", "[0,8]", 4), ErrorCode::file_truncated, "past the end");
  expect_error(one_tensor("F32", "[288230376151711744]", "[0,1152921504606846976]", 4),
               ErrorCode::file_truncated, "2^60 bytes");
}

TEST(Hostile, K4_overlap_hole_and_trailing_bytes) {
  const auto two = [](std::string_view a, std::string_view b, std::size_t data) {
    return raw_file(fmt::format("{{\"k\":{{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":{}}},"
                                "\"v\":{{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":{}}}}}",
                                a, b),
                    data);
  };
  expect_error(two("[0,8]", "[0,8]", 8), ErrorCode::header_overlap, "aliases");
  expect_error(two("[0,8]", "[7,15]", 15), ErrorCode::header_overlap, "one byte shared");
  expect_error(two("[0,8]", "[16,24]", 24), ErrorCode::header_hole, "hole between");
  expect_error(two("[8,16]", "[16,24]", 24), ErrorCode::header_hole, "hole in front");
  EXPECT_TRUE(open_bytes(two("[8,16]", "[0,8]", 16)).ok()) << "any order of names";
  expect_error(raw_file(R"({"k":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
                            "z":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})",
                        8),
               ErrorCode::header_overlap, "an empty tensor inside another");

  for (Strictness strictness : {Strictness::strict, Strictness::lenient}) {
    auto index = open_bytes(two("[0,8]", "[8,16]", 40), {.strictness = strictness});
    ASSERT_TRUE(index.ok()) << "trailing bytes leave the tensors whole";
    ASSERT_EQ((*index)->findings().size(), 1u);
    EXPECT_EQ((*index)->findings()[0].code, ErrorCode::header_trailing);
    EXPECT_EQ((*index)->findings()[0].severity,
              strictness == Strictness::lenient ? Severity::warning : Severity::error);
    EXPECT_NE((*index)->findings()[0].got.find("24 bytes"), std::string::npos);
  }
}

TEST(Hostile, K4_empty_tensors_are_legal_anywhere) {
  EXPECT_TRUE(open_bytes(raw_file(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},
      "b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"c":{"dtype":"F32","shape":[3,0],"data_offsets":[4,4]},
      "d":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})",
                                  8))
                  .ok());
}

TEST(Hostile, K5_header_lengths) {
  const auto with_length = [](std::uint64_t length) {
    std::vector<std::byte> bytes = one_tensor("F32", "[1]", "[0,4]", 4);
    std::memcpy(bytes.data(), &length, 8);
    return bytes;
  };
  expect_error(with_length(~std::uint64_t{0}), ErrorCode::header_too_large, "2^64 - 1");
  expect_error(with_length(std::uint64_t{1} << 63), ErrorCode::header_too_large, "2^63");
  expect_error(with_length(100'000'001), ErrorCode::header_too_large, "one above the limit");
  expect_error(with_length(99'999'999), ErrorCode::file_truncated,
               "below the limit, beyond the file");
  expect_error(with_length(0), ErrorCode::header_json, "0");
  expect_error(with_length(1), ErrorCode::header_json, "1");
  expect_error(with_length(20), ErrorCode::header_json, "in the middle of the JSON");
}

TEST(Hostile, K5_duplicate_keys) {
  const char* tensor = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  expect_error(raw_file(fmt::format("{{\"w\":{},\"w\":{}}}", tensor, tensor)),
               ErrorCode::header_duplicate, "name");
  expect_error(raw_file(fmt::format("{{\"\\u0077\":{},\"w\":{}}}", tensor, tensor)),
               ErrorCode::header_duplicate, "escaped name");
  // The same bytes, bytes of their own, and bytes behind a hole: the name is what is wrong.
  for (const char* offsets : {"[0,4]", "[4,8]", "[5,9]"})
    expect_error(raw_file(fmt::format(R"({{"w":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},
                                          "w":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                                      offsets),
                          9),
                 ErrorCode::header_duplicate, offsets);
  expect_error(raw_file(R"({"__metadata__":{},"__metadata__":{}})"), ErrorCode::header_duplicate,
               "metadata");
  expect_error(raw_file(R"({"__metadata__":{"a":"1","a":"2"}})"), ErrorCode::header_duplicate,
               "metadata key");
  expect_error(raw_file(R"({"w":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
               ErrorCode::header_duplicate, "field");
}

TEST(Hostile, K5_numbers_that_are_no_sizes) {
  for (const char* number :
       {"-16", "-1", "1.5", "1e3", "\"4\"", "null", "true", "[4]", "18446744073709551616", "NaN",
        "99999999999999999999999999", "0x10", "+4", "04"}) {
    expect_error(one_tensor("U8", fmt::format("[{}]", number), "[0,4]", 4), ErrorCode::header_json,
                 number);
    expect_error(one_tensor("U8", "[4]", fmt::format("[0,{}]", number), 4), ErrorCode::header_json,
                 number);
  }
  for (const char* offsets : {"[]", "[0]", "[0,4,8]", "{}", "4", "null"})
    expect_error(one_tensor("U8", "[4]", offsets, 4), ErrorCode::header_json, offsets);
  for (const char* shape : {"{}", "4", "null", "\"4\"", "[[4]]"})
    expect_error(one_tensor("U8", shape, "[0,4]", 4), ErrorCode::header_json, shape);
}

TEST(Hostile, K5_json_that_is_no_header) {
  std::string deep = "{\"w\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  const std::string headers[] = {
      "{}x",
      "{} {}",
      "{",
      "{\"w\"}",
      "{\"w\":}",
      "{\"w\":3}",
      "{\"w\":null}",
      "{\"w\":[]}",
      "{\"w\":{}}",
      R"({"w":{"dtype":"U8","shape":[0]}})",
      R"({"w":{"dtype":"U8","data_offsets":[0,0]}})",
      R"({"w":{"shape":[0],"data_offsets":[0,0]}})",
      R"({"w":{"dtype":8,"shape":[0],"data_offsets":[0,0]}})",
      R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"extra":1}})",
      R"({"__metadata__":[]})",
      R"({"__metadata__":"x"})",
      R"({"__metadata__":{"a":1}})",
      R"({"__metadata__":{"a":null}})",
      R"({"__metadata__":{"a":{"b":"c"}}})",
      "{\"w\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
      "{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
      "{'w':1}",
      "{\"w\":{\"dtype\":\"U8\",}}",
      std::string("{}\0", 3),
      "{\"\\ud800\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
      deep,
  };
  for (const std::string& header : headers)
    expect_error(raw_file(header), ErrorCode::header_json, header.substr(0, 60));
  expect_error(raw_file("[]"), ErrorCode::file_wrong_kind);
  EXPECT_TRUE(open_bytes(raw_file("{}")).ok());
  EXPECT_TRUE(open_bytes(raw_file("{}      ")).ok()) << "padding with spaces is part of the format";
}

TEST(Hostile, unknown_dtypes_and_too_many_dimensions) {
  expect_error(one_tensor("F12", "[1]", "[0,4]", 4), ErrorCode::header_dtype);
  expect_error(one_tensor("f32", "[1]", "[0,4]", 4), ErrorCode::header_dtype);
  expect_error(one_tensor("", "[1]", "[0,4]", 4), ErrorCode::header_dtype);
  expect_error(one_tensor("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]", 1),
               ErrorCode::header_shape);
  EXPECT_TRUE(open_bytes(one_tensor("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]", 1)).ok());
  expect_error(one_tensor("F4", "[3]", "[0,1]", 1), ErrorCode::header_shape, "half a byte");
  EXPECT_TRUE(open_bytes(one_tensor("F4", "[4]", "[0,2]", 2)).ok());
  EXPECT_TRUE(open_bytes(one_tensor("F8_E4M3FN", "[4]", "[0,4]", 4)).ok());
}

TEST(Hostile, C10_each_dtype_opens) {
  TestFile file;
  for (int i = 0; i < dtype_count; ++i)
    file.codes("t" + std::to_string(i), static_cast<DType>(i), {16});
  auto index = open_bytes(file.bytes());
  ASSERT_TRUE(index.ok()) << index.error().message;
  for (const TensorInfo& tensor : (*index)->tensors())
    EXPECT_EQ(tensor.bytes, 16 * dtype_bits(tensor.dtype) / 8);
}

TEST(Hostile, names_of_any_kind_are_kept_and_printed_safely) {
  auto index = open_bytes(raw_file(R"({"a\u0000b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},
      "\u001b[31m":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"));
  ASSERT_TRUE(index.ok()) << index.error().message;
  EXPECT_NE((*index)->find(std::string_view("a\0b", 3)), nullptr);
  auto bad =
      open_bytes(raw_file(R"({"\u001b[31m\n":{"dtype":"U9","shape":[0],"data_offsets":[0,0]}})"));
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().message.find('\x1b'), std::string::npos);
  expect_sentence(bad.error(), "x.safetensors");
}

TEST(Hostile, K6_a_million_tensors) {
  std::string header = "{";
  constexpr int count = 1'000'000;
  for (int i = 0; i < count; ++i)
    header += fmt::format("{}\"l{}.w\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[{},{}]}}",
                          i ? "," : "", i, i, i + 1);
  header += "}";
  std::vector<std::byte> bytes = raw_file(header, count);
  auto index = open_single(io::memory_reader("x.safetensors", std::move(bytes)), {});
  ASSERT_TRUE(index.ok()) << index.error().message;
  EXPECT_EQ((*index)->tensors().size(), static_cast<std::size_t>(count));
  EXPECT_NE((*index)->find("l999999.w"), nullptr);
}

TEST(Hostile, K12_the_error_tells_invalid_from_unreadable) {
  EXPECT_EQ(open_bytes(raw_file("{")).error().code, ErrorCode::header_json);
  EXPECT_EQ(open_index("/nonexistent/x.safetensors", {}).error().code, ErrorCode::file_not_found);
}

// --- Q: alignment ---

TEST(Hostile, Q1_Q2_Q4_data_of_any_alignment_is_read_as_it_lies) {
  TestFile file;
  file.raw("odd.comfy_quant", DType::u8, {37}, std::vector<std::byte>(37));
  file.floats("scale", DType::f32, {3}, 1.5f);
  for (std::size_t shift : {0u, 1u, 2u, 3u, 5u, 7u}) {
    auto index = open_bytes(file.bytes(shift));
    ASSERT_TRUE(index.ok()) << index.error().message;
    const TensorInfo* scale = (*index)->find("scale");
    std::vector<std::byte> scratch;
    const ByteSpan bytes = *(*index)->read(*scale, scratch);
    EXPECT_TRUE(scratch.empty()) << "no copy was made to align it";
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(load_at<float>(bytes.data(), i), 1.5f);
  }
}

// --- Readers ---

TEST(Hostile, both_readers_read_the_same) {
  TemporaryFolder folder;
  TestFile file;
  file.codes("a", DType::i8, {100, 33});
  file.floats("b", DType::f32, {7}, 2.5f);
  const auto path = folder.write("x.safetensors", file.bytes(3));
  auto mapped = open_index(path, {.io = Io::mapped}), pread = open_index(path, {.io = Io::pread});
  ASSERT_TRUE(mapped.ok() && pread.ok());
  for (const TensorInfo& tensor : (*mapped)->tensors()) {
    std::vector<std::byte> scratch_a, scratch_b;
    const ByteSpan a = *(*mapped)->read(tensor, scratch_a);
    const ByteSpan b = *(*pread)->read(*(*pread)->find(tensor.name), scratch_b);
    EXPECT_TRUE(std::ranges::equal(a, b));
    (*mapped)->drop(tensor);
    EXPECT_TRUE(std::ranges::equal(*(*mapped)->read(tensor, scratch_a), b))
        << "dropped pages come back";
  }
}

TEST(Hostile, R1_a_file_that_shrinks_while_in_use_gives_an_error) {
  TemporaryFolder folder;
  TestFile file;
  file.codes("a", DType::u8, {100'000});
  const auto path = folder.write("x.safetensors", file.bytes());
  for (Io io : {Io::mapped, Io::pread}) {
    folder.write("x.safetensors", file.bytes());
    auto index = open_index(path, {.io = io});
    ASSERT_TRUE(index.ok());
    std::filesystem::resize_file(path, 5000);
    std::vector<std::byte> scratch;
    auto bytes = (*index)->read(*(*index)->find("a"), scratch);
    ASSERT_FALSE(bytes.ok());
    EXPECT_EQ(bytes.error().code, ErrorCode::file_read);
    expect_sentence(bytes.error(), path.string());
  }
}

}  // namespace
}  // namespace parfait::container
