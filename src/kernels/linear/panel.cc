// Packing, in 128-bit vectors that every machine here has. A line of a row is read whole before
// the next row's, since rows a power of two apart fall on the same cache sets.

#include "kernels/linear/panel.h"

#include <algorithm>
#include <cstring>

#include "kernels/linear/widen.h"

namespace parfait::kernels {
namespace {

using Words = std::uint32_t __attribute__((vector_size(16)));
using Halves = std::uint16_t __attribute__((vector_size(16)));
using Bytes = std::uint8_t __attribute__((vector_size(16)));

constexpr std::uint64_t line = 64;
constexpr std::uint64_t chunk = 16;

Words load(const std::byte* from) {
  Words words;
  std::memcpy(&words, from, sizeof(words));
  return words;
}

// As many bytes as there are, then zeros.
Words load(const std::byte* from, std::uint64_t count) {
  Words words = {};
  std::memcpy(&words, from, std::min<std::uint64_t>(count, chunk));
  return words;
}

void store(std::byte* to, Words words) { std::memcpy(to, &words, sizeof(words)); }

struct Four {
  Words at[4];
};

Four transpose(const Four& a) {
  const Words u0 = __builtin_shufflevector(a.at[0], a.at[1], 0, 4, 1, 5),
              u1 = __builtin_shufflevector(a.at[0], a.at[1], 2, 6, 3, 7),
              u2 = __builtin_shufflevector(a.at[2], a.at[3], 0, 4, 1, 5),
              u3 = __builtin_shufflevector(a.at[2], a.at[3], 2, 6, 3, 7);
  return {{__builtin_shufflevector(u0, u2, 0, 1, 4, 5), __builtin_shufflevector(u0, u2, 2, 3, 6, 7),
           __builtin_shufflevector(u1, u3, 0, 1, 4, 5),
           __builtin_shufflevector(u1, u3, 2, 3, 6, 7)}};
}

// Rows as units of 4 bytes; change is applied to four units of a row. `whole` units of a row lie in
// the source, and rest bytes of one more.
template <unsigned lanes, class Change>
void pack_steps(const WeightView& w, std::uint64_t n0, std::uint64_t n1, std::uint64_t row_bytes,
                std::uint64_t panel_size, std::byte* out, Change change) {
  using P = Panel<lanes>;
  const Words zero = change(Words{});
  for (std::uint64_t first = n0; first < n1; first += P::rows) {
    std::byte* panel = out + first / P::rows * panel_size;
    for (std::uint64_t at = 0; at < row_bytes; at += line) {
      for (std::uint64_t j = 0; j < P::rows; j += 4) {
        for (std::uint64_t c = at; c < std::min(at + line, row_bytes); c += chunk) {
          Four rows = {{zero, zero, zero, zero}};
          for (std::uint64_t i = 0; i < 4; ++i) {
            const std::uint64_t n = first + j + i;
            if (n >= n1) break;
            const std::byte* from = w.codes + n * row_bytes + c;
            rows.at[i] = change(c + chunk <= row_bytes ? load(from) : load(from, row_bytes - c));
          }
          rows = transpose(rows);
          // A unit of 4 source bytes becomes a step of the panel.
          std::byte* to = panel + c * P::rows + j * 4;
          for (std::uint64_t unit = 0; unit < 4; ++unit) {
            if ((c + unit * 4) * P::rows >= panel_size) break;
            store(to + unit * P::step, rows.at[unit]);
          }
        }
      }
    }
  }
}

// The even bits of 16 in the low byte, ...: four nibbles of each word to its four bytes.
Words spread(Words nibbles) {
  nibbles = (nibbles | nibbles << 8) & 0x00ff00ffu;
  return (nibbles | nibbles << 4) & 0x0f0f0f0fu;
}

// Sixteen nibbles, low first, to a byte each.
Bytes widen_nibbles(const std::byte* from) {
  Bytes both = {};
  std::memcpy(&both, from, 8);
  const Bytes low = both & 15,
              high = reinterpret_cast<Bytes>(reinterpret_cast<Halves>(both) >> 4) & 15;
  return __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

// Sixteen pairs of bits, low first, to a byte each.
Bytes widen_pairs(const std::byte* from) {
  Bytes four = {};
  std::memcpy(&four, from, 4);
  four = __builtin_shufflevector(four, four, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const Words every = reinterpret_cast<Words>(four);
  return reinterpret_cast<Bytes>((every & 3u) | (every >> 2 & 0x300u) | (every >> 4 & 0x30000u) |
                                 (every >> 6 & 0x3000000u));
}

// The relative scales of a panel, behind its blocks.
template <unsigned lanes>
void pack_scales(const WeightView& w, std::uint64_t first, std::uint64_t n1, std::byte* out) {
  using P = Panel<lanes>;
  const std::uint64_t groups = w.columns / w.scale_group;
  for (std::uint64_t i = 0; i < P::rows; ++i) {
    // The row that stands at place i.
    const std::uint64_t v = i / lanes, t = i % lanes / (lanes / 4), L = i % (lanes / 4);
    const std::uint64_t n = first + v * lanes + 4 * L + t;
    if (n >= n1) continue;
    for (std::uint64_t g = 0; g < groups; ++g)
      out[g * P::rows + i] = w.relative_scales[n * groups + g];
  }
}

template <unsigned lanes, WeightCode code>
void pack_widened(const WeightView& w, std::uint64_t n0, std::uint64_t n1, std::byte* out) {
  using P = Panel<lanes>;
  constexpr std::uint64_t block_bytes = code == WeightCode::w4a8 ? P::w4a8_block : P::w6a8_block;
  const std::uint64_t size = P::bytes(code, w.columns, w.scale_group);
  const std::uint64_t row_bytes = kernels::row_bytes(code, w.columns);
  constexpr std::uint64_t blocks_at_once = 8;  // 64 bytes of nibbles
  const std::uint64_t blocks = P::blocks(w.columns);
  for (std::uint64_t first = n0; first < n1; first += P::rows) {
    std::byte* panel = out + first / P::rows * size;
    const auto row = [&](std::uint64_t i) {
      return first + i < n1 ? w.codes + (first + i) * row_bytes : nullptr;
    };
    for (std::uint64_t b0 = 0; b0 < blocks; b0 += blocks_at_once) {
      const std::uint64_t b1 = std::min(b0 + blocks_at_once, blocks);
      for (std::uint64_t q = 0; q < lanes; ++q) {
        const std::uint64_t t = q / (lanes / 4), L = q % (lanes / 4);
        const std::byte *low = row(4 * L + t), *high = row(lanes + 4 * L + t);
        for (std::uint64_t b = b0; b < b1; ++b) {
          Bytes codes = {};
          if (low) codes = widen_nibbles(low + b * 8);
          if (high)
            codes |=
                reinterpret_cast<Bytes>(reinterpret_cast<Halves>(widen_nibbles(high + b * 8)) << 4);
          std::memcpy(panel + b * block_bytes + q * chunk, &codes, chunk);
        }
      }
      if constexpr (code == WeightCode::w6a8) {
        for (std::uint64_t q = 0; q < lanes / 2; ++q) {
          for (std::uint64_t b = b0; b < b1; ++b) {
            Words bits = {};
            for (std::uint64_t i = 0; i < 4; ++i)
              if (const std::byte* from = row(q / (lanes / 4) * lanes + q % (lanes / 4) * 4 + i))
                bits |= reinterpret_cast<Words>(widen_pairs(from + w.columns / 2 + b * 4))
                        << static_cast<int>(2 * i);
            store(panel + b * block_bytes + (lanes + q) * chunk, bits);
          }
        }
      }
    }
    pack_scales<lanes>(w, first, n1, panel + blocks * block_bytes);
  }
}

}  // namespace

template <unsigned lanes, WeightCode code>
std::uint64_t panel_bytes(std::uint64_t rows, std::uint64_t columns, std::uint64_t scale_group) {
  using P = Panel<lanes>;
  return (rows + P::rows - 1) / P::rows * P::bytes(code, columns, scale_group);
}

template <unsigned lanes, WeightCode code>
std::uint64_t panel_scratch(std::uint64_t columns) {
  if (code == WeightCode::int8 || code == WeightCode::int4) return 0;
  return Panel<lanes>::bytes(WeightCode::int8, columns, 0);
}

template <unsigned lanes, std::uint8_t flip>
void pack_int8_panels(const WeightView& w, std::uint64_t n0, std::uint64_t n1, std::byte* out) {
  const std::uint64_t size = Panel<lanes>::bytes(WeightCode::int8, w.columns, 0);
  pack_steps<lanes>(w, n0, n1, row_bytes(WeightCode::int8, w.columns), size, out,
                    [](Words four) { return four ^ 0x01010101u * flip; });
}

template <unsigned lanes>
void pack_int4_panels(const WeightView& w, std::uint64_t n0, std::uint64_t n1, std::byte* out) {
  const std::uint64_t size = Panel<lanes>::bytes(WeightCode::int4, w.columns, 0);
  // Bytes hold columns (0,1) (2,3) (4,5) (6,7); wanted are (0,4) (1,5) (2,6) (3,7).
  pack_steps<lanes>(w, n0, n1, row_bytes(WeightCode::int4, w.columns), size, out, [](Words eight) {
    return (spread(eight & 0xffffu) | spread(eight >> 16) << 4) ^ 0x88888888u;
  });
}

template <unsigned lanes>
void pack_w4a8_panels(const WeightView& w, std::uint64_t n0, std::uint64_t n1, std::byte* out) {
  pack_widened<lanes, WeightCode::w4a8>(w, n0, n1, out);
}

template <unsigned lanes>
void pack_w6a8_panels(const WeightView& w, std::uint64_t n0, std::uint64_t n1, std::byte* out) {
  pack_widened<lanes, WeightCode::w6a8>(w, n0, n1, out);
}

#define PARFAIT_PANEL_CODE(lanes, code)                                                     \
  template std::uint64_t panel_bytes<lanes, WeightCode::code>(std::uint64_t, std::uint64_t, \
                                                              std::uint64_t);               \
  template std::uint64_t panel_scratch<lanes, WeightCode::code>(std::uint64_t);
#define PARFAIT_PANEL(lanes)                                                                   \
  PARFAIT_PANEL_CODE(lanes, int8)                                                              \
  PARFAIT_PANEL_CODE(lanes, int4)                                                              \
  PARFAIT_PANEL_CODE(lanes, w4a8)                                                              \
  PARFAIT_PANEL_CODE(lanes, w6a8)                                                              \
  template void pack_int8_panels<lanes, 0>(const WeightView&, std::uint64_t, std::uint64_t,    \
                                           std::byte*);                                        \
  template void pack_int8_panels<lanes, 0x80>(const WeightView&, std::uint64_t, std::uint64_t, \
                                              std::byte*);                                     \
  template void pack_int4_panels<lanes>(const WeightView&, std::uint64_t, std::uint64_t,       \
                                        std::byte*);                                           \
  template void pack_w4a8_panels<lanes>(const WeightView&, std::uint64_t, std::uint64_t,       \
                                        std::byte*);                                           \
  template void pack_w6a8_panels<lanes>(const WeightView&, std::uint64_t, std::uint64_t,       \
                                        std::byte*);
PARFAIT_PANEL(4)
PARFAIT_PANEL(8)
PARFAIT_PANEL(16)

}  // namespace parfait::kernels
