#include "base/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace parfait {
namespace {

constexpr std::uint64_t p1 = 0x9E3779B185EBCA87u, p2 = 0xC2B2AE3D27D4EB4Fu,
                        p3 = 0x165667B19E3779F9u, p4 = 0x85EBCA77C2B2AE63u,
                        p5 = 0x27D4EB2F165667C5u;

std::uint64_t mix(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * p2, 31) * p1;
}

std::uint64_t word_at(const std::byte* bytes, std::size_t i) {
  return load_at<std::uint64_t>(bytes, i);
}

}  // namespace

void Digest::add(ByteSpan bytes) {
  if (bytes.empty()) return;
  const std::size_t held = bytes_ % block;
  bytes_ += bytes.size();
  const auto take = [this](const std::byte* at) {
    for (std::size_t i = 0; i < lanes_.size(); ++i) lanes_[i] = mix(lanes_[i], word_at(at, i));
  };
  if (held) {
    const std::size_t more = std::min(block - held, bytes.size());
    std::memcpy(rest_.data() + held, bytes.data(), more);
    bytes = bytes.subspan(more);
    if (held + more < block) return;
    take(rest_.data());
  }
  for (; bytes.size() >= block; bytes = bytes.subspan(block)) take(bytes.data());
  if (!bytes.empty()) std::memcpy(rest_.data(), bytes.data(), bytes.size());
}

std::uint64_t Digest::value() const {
  std::uint64_t hash = p5;
  if (bytes_ >= block) {
    constexpr int turns[] = {1, 7, 12, 18};
    hash = 0;
    for (std::size_t i = 0; i < lanes_.size(); ++i) hash += std::rotl(lanes_[i], turns[i]);
    for (const std::uint64_t lane : lanes_) hash = (hash ^ mix(0, lane)) * p1 + p4;
  }
  hash += bytes_;
  const std::size_t held = bytes_ % block;
  std::size_t at = 0;
  for (; at + 8 <= held; at += 8)
    hash = std::rotl(hash ^ mix(0, word_at(rest_.data() + at, 0)), 27) * p1 + p4;
  if (at + 4 <= held) {
    const auto word = load_at<std::uint32_t>(rest_.data() + at, 0);
    hash = std::rotl(hash ^ word * p1, 23) * p2 + p3;
    at += 4;
  }
  for (; at < held; ++at)
    hash = std::rotl(hash ^ std::to_integer<std::uint64_t>(rest_[at]) * p5, 11) * p1;
  hash = (hash ^ hash >> 33) * p2;
  hash = (hash ^ hash >> 29) * p3;
  return hash ^ hash >> 32;
}

std::string Digest::text() const { return fmt::format("{:016x}", value()); }

}  // namespace parfait
