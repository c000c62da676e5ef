// Byte spans and loads from them. Data of a safetensors file has no alignment, so nothing here or
// elsewhere turns a byte pointer into a pointer of a wider type: values are copied out.
#ifndef PARFAIT_BASE_BYTES_H_
#define PARFAIT_BASE_BYTES_H_

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace parfait {

using ByteSpan = std::span<const std::byte>;

// The i-th T of packed, possibly unaligned data.
template <class T>
T load_at(const std::byte* data, std::size_t i = 0) {
  T value;
  std::memcpy(&value, data + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store_at(std::byte* data, std::size_t i, T value) {
  std::memcpy(data + i * sizeof(T), &value, sizeof(T));
}

}  // namespace parfait

#endif  // PARFAIT_BASE_BYTES_H_
