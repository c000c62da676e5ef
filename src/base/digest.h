// XXH64, a 64-bit digest that is faster than memory: it finds damage, edits and mix-ups, and is no
// protection against somebody who forges files on purpose. `xxhsum -H64` computes the same numbers.
//
// A Digest belongs to one thread at a time.
#ifndef PARFAIT_BASE_DIGEST_H_
#define PARFAIT_BASE_DIGEST_H_

#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"

namespace parfait {

class Digest {
 public:
  // The next bytes, in pieces of any size.
  void add(ByteSpan bytes);
  std::uint64_t value() const;  // of all bytes so far
  std::string text() const;     // 16 hexadecimal digits

 private:
  static constexpr std::size_t block = 32;
  std::array<std::uint64_t, 4> lanes_ = {0x60EA27EEADC0B5D6u, 0xC2B2AE3D27D4EB4Fu, 0,
                                         0x61C8864E7A143579u};
  std::uint64_t bytes_ = 0;
  std::array<std::byte, block> rest_ = {};  // the bytes_ % block that fill no block yet
};

}  // namespace parfait

#endif  // PARFAIT_BASE_DIGEST_H_
