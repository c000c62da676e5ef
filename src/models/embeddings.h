// Sinusoids: of the time, and of positions for RoPE.
#ifndef PARFAIT_MODELS_EMBEDDINGS_H_
#define PARFAIT_MODELS_EMBEDDINGS_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "models/matrix.h"

namespace parfait::models {

// [cos a, sin a] with a_i = t · 10000^(−i / half), half = width / 2. Float32 throughout, as the
// models were trained: the angle reaches 1000 rad, so float64 would differ by 1e-4 of the output.
Buffer time_embedding(float t, std::uint64_t width);

// Cosines and sines of a token's angles, [tokens, Σ axes / 2]: axis a of d columns has d / 2 angles
// position_a · theta^(−2i / d). Float64 until the end; or with the angle rounded to float32, or all
// of it in float32, as the models' own code has it.
enum class AngleRounding { none, to_float, all_float };
struct RopeTable {
  Buffer cos, sin;
};
using Position = std::array<double, 4>;
RopeTable rope_table(std::span<const Position> positions, std::span<const std::uint64_t> axes,
                     double theta, AngleRounding rounding = AngleRounding::none);

}  // namespace parfait::models

#endif  // PARFAIT_MODELS_EMBEDDINGS_H_
