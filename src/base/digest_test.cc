#include "base/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <vector>

namespace parfait {
namespace {

// The first two of the algorithm's published values, and one that is longer than a block.
TEST(Digest, IsXxh64) {
  const auto of = [](std::string_view text) {
    Digest digest;
    for (char c : text) digest.add(std::as_bytes(std::span(&c, 1)));
    Digest whole;
    whole.add(std::as_bytes(std::span(text.data(), text.size())));
    EXPECT_EQ(digest.value(), whole.value());
    return whole.text();
  };
  EXPECT_EQ(of(""), "ef46db3751d8e999");
  EXPECT_EQ(of("abc"), "44bc2cf5ad770999");
  EXPECT_EQ(of("Nobody inspects the spammish repetition"), "fbcea83c8a378bf1");
}

TEST(Digest, PiecesOfAnySizeGiveTheSame) {
  std::mt19937 random(4);
  std::vector<std::byte> bytes(1000);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  Digest whole;
  whole.add(bytes);
  for (int run = 0; run < 50; ++run) {
    Digest pieces;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t size = std::min<std::size_t>(random() % 100, bytes.size() - at);
      pieces.add(ByteSpan(bytes).subspan(at, size));
      at += size;
    }
    EXPECT_EQ(pieces.value(), whole.value());
  }
  bytes[500] ^= std::byte{1};
  Digest changed;
  changed.add(bytes);
  EXPECT_NE(changed.value(), whole.value());
}

}  // namespace
}  // namespace parfait
