#include "base/checked.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/bytes.h"

namespace parfait {
namespace {

constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();

TEST(Checked, multiplication) {
  EXPECT_EQ(checked_mul(6, 7), 42u);
  EXPECT_EQ(checked_mul(0, most), 0u);
  EXPECT_EQ(checked_mul(1, most), most);
  EXPECT_EQ(checked_mul(std::uint64_t{1} << 32, (std::uint64_t{1} << 32) - 1), most - 0xffffffffu);
  EXPECT_EQ(checked_mul(std::uint64_t{1} << 32, std::uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(checked_mul(most, 2), std::nullopt);
}

TEST(Checked, addition) {
  EXPECT_EQ(checked_add(most - 1, 1), most);
  EXPECT_EQ(checked_add(most, 0), most);
  EXPECT_EQ(checked_add(most, 1), std::nullopt);
  EXPECT_EQ(checked_add(most, most), std::nullopt);
}

std::optional<std::uint64_t> product(std::vector<std::uint64_t> shape) {
  return checked_product(shape);
}

TEST(Checked, products_of_shapes) {
  EXPECT_EQ(product({}), 1u);
  EXPECT_EQ(product({7}), 7u);
  EXPECT_EQ(product({3, 4, 5}), 60u);
  EXPECT_EQ(product({0}), 0u);
  EXPECT_EQ(product({most, most, 0}), 0u) << "a zero makes it zero, wherever it stands";
  EXPECT_EQ(product({0, most, most}), 0u);
  EXPECT_EQ(product({most, 1, 1}), most);
  EXPECT_EQ(product({most, 2}), std::nullopt);
  EXPECT_EQ(product({std::uint64_t{1} << 21, std::uint64_t{1} << 21, std::uint64_t{1} << 22}),
            std::nullopt);
}

TEST(Checked, rounding_up) {
  EXPECT_EQ(ceil_div(0, 128), 0u);
  EXPECT_EQ(ceil_div(1, 128), 1u);
  EXPECT_EQ(ceil_div(128, 128), 1u);
  EXPECT_EQ(ceil_div(129, 128), 2u);
  EXPECT_EQ(ceil_div(most, 1), most);
  EXPECT_EQ(ceil_div(most, 2), (most >> 1) + 1) << "no overflow on the way";
  EXPECT_EQ(round_up(300, 128), 384u);
  EXPECT_EQ(round_up(17, 4), 20u);
  EXPECT_EQ(round_up(0, 4), 0u);
}

TEST(Bytes, values_are_loaded_and_stored_at_any_address) {
  std::vector<std::byte> data(32);
  for (std::size_t shift = 0; shift < 8; ++shift) {
    std::byte* at = data.data() + shift;
    store_at(at, 1, std::uint64_t{0x0102030405060708});
    EXPECT_EQ(load_at<std::uint64_t>(at, 1), 0x0102030405060708u);
    EXPECT_EQ(at[8], std::byte{8}) << "little-endian, as safetensors is";
    store_at(at, 1, 1.5f);
    EXPECT_EQ(load_at<float>(at, 1), 1.5f);
    EXPECT_EQ(load_at<float>(at + 4), 1.5f);
  }
}

}  // namespace
}  // namespace parfait
