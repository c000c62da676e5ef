#include "models/z_image/graph.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/result.h"

namespace parfait::models::z_image {
namespace {

std::span<const float> part(const Buffer& row, std::uint64_t i, std::uint64_t D) {
  return {row.floats() + i * D, D};
}

void fill_rows(Buffer& out, std::uint64_t first, std::uint64_t last, std::span<const float> row) {
  for (std::uint64_t r = first; r < last; ++r)
    std::ranges::copy(row, out.floats() + r * out.columns());
}

}  // namespace

ZImage::ZImage(Found found)
    : config_(found.config),
      layers_(std::move(found.layers)),
      name_(fmt::format("Z-Image, {} + {} + {} blocks, width {}", layers_.noise_refiner.size(),
                        layers_.context_refiner.size(), layers_.blocks.size(), config_.width)) {}

TextNeeds ZImage::text_needs() const {
  return {.chat_template = TextNeeds::Template::z_image,
          .states = TextNeeds::States::before_last,
          .padded = false,
          .max_tokens = 512,
          .width = config_.text_width};
}

std::vector<Block> ZImage::blocks() const {
  const Layers& l = layers_;
  std::vector<Block> blocks(2);
  blocks[always_block].name = "the image's and the time's embedders and the final layer";
  add_layers(blocks[always_block],
             {&l.image_in, &l.time_in, &l.time_out, &l.final_modulation, &l.final_out});
  blocks[text_block].name = "the text's embedder";
  blocks[text_block].use = Block::Use::preparation;
  add_layers(blocks[text_block], {&l.text_in});
  const auto add = [&](const std::vector<TransformerBlock>& from, std::string_view name,
                       Block::Use use) {
    for (std::size_t n = 0; n < from.size(); ++n) {
      const TransformerBlock& b = from[n];
      Block& block = blocks.emplace_back(Block{fmt::format("{} {}", name, n), {}, use});
      add_layers(block, {&b.qkv, &b.out, &b.gate, &b.down, &b.up, &b.modulation});
    }
  };
  add(l.context_refiner, "context refiner block", Block::Use::preparation);
  add(l.noise_refiner, "noise refiner block", Block::Use::pass);
  add(l.blocks, "block", Block::Use::pass);
  return blocks;
}

// torch's noise is [C, height, width]; a row is a patch of 2 × 2 pixels in the order (ph, pw, c).
Buffer ZImage::rows_from_noise(std::span<const float> noise, ImageSize size) const {
  const std::uint64_t C = latent_channels(), width = size.width / 2, rows = size.height / 2 * width;
  Buffer out(rows, 4 * C, DType::f32);
  for (std::uint64_t row = 0; row < rows; ++row)
    for (std::uint64_t p = 0; p < 4; ++p)
      for (std::uint64_t c = 0; c < C; ++c) {
        const std::uint64_t y = row / width * 2 + p / 2, x = row % width * 2 + p % 2;
        out.floats()[row * 4 * C + p * C + c] = noise[(c * size.height + y) * size.width + x];
      }
  return out;
}

Buffer ZImage::latent_image(const Buffer& rows, ImageSize size) const {
  const std::uint64_t C = latent_channels(), width = size.width / 2;
  Buffer out(size.height * size.width, C, DType::f32);
  for (std::uint64_t row = 0; row < rows.rows(); ++row)
    for (std::uint64_t p = 0; p < 4; ++p) {
      const std::uint64_t y = row / width * 2 + p / 2, x = row % width * 2 + p % 2;
      std::copy_n(rows.floats() + row * 4 * C + p * C, C, out.floats() + (y * size.width + x) * C);
    }
  return out;
}

std::vector<float> ZImage::sigmas(std::uint64_t steps, ImageSize) const {
  constexpr float shift = 3;
  std::vector<float> sigmas;
  for (std::uint64_t i = 0; i < steps; ++i) {
    const auto s = static_cast<float>(1.0 - static_cast<double>(i) / static_cast<double>(steps));
    sigmas.push_back(shift * s / (1.0f + (shift - 1.0f) * s));
  }
  sigmas.push_back(0);
  return sigmas;
}

ZImage::Working ZImage::working(const Workplace& place, std::uint64_t text_rows,
                                ImageSize size) const {
  const Layers& l = layers_;
  const DType dtype = place.activation_dtype();
  const std::uint64_t caption = round_up(std::max<std::uint64_t>(text_rows, 1), row_multiple),
                      image_rows = size.height / 2 * (size.width / 2),
                      image = round_up(image_rows, row_multiple), rows = image + caption,
                      D = config_.width, F = config_.mlp, element = dtype_bits(dtype) / 8;
  Working working;
  working.conditioning = 4 * (caption * D + rows * config_.head_size);
  const auto count = [&](runtime::ScratchBytes& scratch, const std::vector<TransformerBlock>& from,
                         std::uint64_t among) {
    for (const TransformerBlock& b : from) {
      place.count(scratch, {&b.modulation}, 1, DType::f32);
      place.count(scratch, {&b.qkv, &b.out, &b.gate, &b.down, &b.up}, among, dtype);
    }
    return place.attention({.queries = among,
                            .keys = among,
                            .heads = config_.heads,
                            .kv_heads = config_.heads,
                            .head_size = config_.head_size,
                            .dtype = dtype});
  };
  const std::uint64_t work = rows * (4 * 2 * D + element * (D + 3 * D + D + 2 * F));
  runtime::ScratchBytes preparing = place.scratch(), pass = place.scratch();
  place.count(preparing, {&l.text_in}, text_rows, DType::f32);
  const std::uint64_t of_caption = count(preparing, l.context_refiner, caption),
                      of_noise = count(pass, l.noise_refiner, image),
                      of_all = count(pass, l.blocks, rows);
  place.count(pass, {&l.time_in, &l.time_out, &l.final_modulation}, 1, DType::f32);
  place.count(pass, {&l.image_in}, image_rows, DType::f32);
  place.count(pass, {&l.final_out}, image_rows, dtype);
  working.preparing = work + 4 * text_rows * config_.text_width + preparing.bytes() + of_caption;
  working.pass = work + pass.bytes() + std::max({of_caption, of_noise, of_all});
  return working;
}

void ZImage::reserve(Run& run, std::uint64_t rows) {
  if (work_.stream.rows() == rows) return;
  const DType dtype = run.activation_dtype();
  const std::uint64_t D = config_.width, F = config_.mlp;
  work_ = {};
  work_ = {.stream = Buffer(rows, D, DType::f32),
           .normed = Buffer(rows, D, dtype),
           .qkv = Buffer(rows, 3 * D, dtype),
           .mixed = Buffer(rows, D, dtype),
           .mlp = Buffer(rows, 2 * F, dtype),
           .branch = Buffer(rows, D, DType::f32)};
}

Result<Done> ZImage::block(Run& run, const TransformerBlock& block, const Buffer* time,
                           const RopeTable& rope, Rows rows) {
  const std::uint64_t D = config_.width, F = config_.mlp;
  const auto of = [&](Buffer& buffer) { return rows_of(buffer.view(), rows.first, rows.count); };
  const Matrix stream = of(work_.stream), normed = of(work_.normed), qkv = of(work_.qkv),
               mixed = of(work_.mixed), mlp = of(work_.mlp), branch = of(work_.branch);
  Buffer modulation;  // scale, gate; scale, gate
  if (time) {
    modulation = Buffer(1, 4 * D, DType::f32);
    PARFAIT_CHECK_OK(run.linear(block.modulation, *time, modulation));
    for (std::uint64_t gate : {std::uint64_t{1}, std::uint64_t{3}})
      for (std::uint64_t d = 0; d < D; ++d) {
        float& g = modulation.floats()[gate * D + d];
        g = std::tanh(g);
      }
  }
  const auto modulated = [&](std::uint64_t i) {
    return time ? part(modulation, i, D) : std::span<const float>();
  };
  const auto norm = [&](const Matrix& x, const std::vector<float>& weight,
                        std::span<const float> scale, const Matrix& y) {
    return run.rms_norm(x, {.epsilon = config_.norm_epsilon, .weight = weight, .scale = scale}, y);
  };

  PARFAIT_CHECK_OK(norm(stream, block.attention_norm1, modulated(0), normed));
  PARFAIT_CHECK_OK(run.linear(block.qkv, normed, qkv));
  const Matrix q = columns_of(qkv, 0, D), k = columns_of(qkv, D, D), v = columns_of(qkv, 2 * D, D);
  const RopeOptions pairs{.head_size = config_.head_size, .pairs = RopePairs::adjacent};
  const ConstMatrix cos = rope.cos, sin = rope.sin;
  for (const auto& [heads, weight] : {std::pair(q, &block.query_norm), {k, &block.key_norm}}) {
    PARFAIT_CHECK_OK(run.rms_norm(
        heads, {.epsilon = config_.norm_epsilon, .segment = config_.head_size, .weight = *weight},
        heads));
    PARFAIT_CHECK_OK(run.rope(heads, rows_of(cos, rows.first, rows.count),
                              rows_of(sin, rows.first, rows.count), pairs, heads));
  }
  PARFAIT_CHECK_OK(run.attention(q, k, v, {.heads = config_.heads}, mixed));
  PARFAIT_CHECK_OK(run.linear(block.out, mixed, branch));
  PARFAIT_CHECK_OK(norm(branch, block.attention_norm2, {}, branch));
  PARFAIT_CHECK_OK(run.add_gated(stream, modulated(1), branch, stream));

  const Matrix gate = columns_of(mlp, 0, F), up = columns_of(mlp, F, F);
  PARFAIT_CHECK_OK(norm(stream, block.ffn_norm1, modulated(2), normed));
  PARFAIT_CHECK_OK(run.linear({{&block.gate, gate}, {&block.up, up}}, normed));
  PARFAIT_CHECK_OK(run.silu_gate(gate, up, gate));
  PARFAIT_CHECK_OK(run.linear(block.down, gate, branch));
  PARFAIT_CHECK_OK(norm(branch, block.ffn_norm2, {}, branch));
  return run.add_gated(stream, modulated(3), branch, stream);
}

Result<std::unique_ptr<Conditioning>> ZImage::prepare(Run& run, const ConstMatrix& text,
                                                      ImageSize size) {
  auto p = std::make_unique<Prepared>();
  p->text_rows = round_up(std::max<std::uint64_t>(text.rows, 1), row_multiple);
  p->real_image_rows = size.height / 2 * (size.width / 2);
  p->image_rows = round_up(p->real_image_rows, row_multiple);
  std::vector<Position> ids;
  for (std::uint64_t i = 0; i < p->image_rows; ++i) {
    const bool real = i < p->real_image_rows;
    ids.push_back(real ? Position{static_cast<double>(p->text_rows + 1),
                                  static_cast<double>(i / (size.width / 2)),
                                  static_cast<double>(i % (size.width / 2)), 0}
                       : Position{});
  }
  for (std::uint64_t i = 0; i < p->text_rows; ++i) ids.push_back({static_cast<double>(1 + i)});
  p->rope = rope_table(ids, config_.axes(), config_.rope_theta, AngleRounding::to_float);

  // The caption does not depend on the time: it is refined once.
  const Rows rows{p->image_rows, p->text_rows};
  reserve(run, p->image_rows + p->text_rows);
  Buffer normed(text.rows, config_.text_width, DType::f32);
  PARFAIT_CHECK_OK(run.enter(text_block));
  PARFAIT_CHECK_OK(
      run.rms_norm(text, {.epsilon = config_.norm_epsilon, .weight = layers_.text_norm}, normed));
  PARFAIT_CHECK_OK(
      run.linear(layers_.text_in, normed, rows_of(work_.stream.view(), rows.first, text.rows)));
  fill_rows(work_.stream, rows.first + text.rows, rows.first + rows.count, layers_.text_pad);
  normed = {};
  std::size_t entered = first_refiner_block;
  for (const TransformerBlock& one : layers_.context_refiner) {
    PARFAIT_CHECK_OK(run.enter(entered++));
    PARFAIT_CHECK_OK(block(run, one, nullptr, p->rope, rows));
  }
  p->text = Buffer(rows.count, config_.width, DType::f32);
  std::copy_n(work_.stream.floats() + rows.first * config_.width, rows.count * config_.width,
              p->text.floats());
  return std::unique_ptr<Conditioning>(std::move(p));
}

Result<Done> ZImage::velocity(Run& run, const Conditioning& conditioning, float sigma, float,
                              const ConstMatrix& x, const Matrix& velocity) {
  const auto& p = static_cast<const Prepared&>(conditioning);
  const std::uint64_t D = config_.width;
  reserve(run, p.image_rows + p.text_rows);
  PARFAIT_CHECK_OK(run.enter(always_block));
  // The model's time runs from noise to image; the roundings on the way are diffusers'.
  const float time_in = (1000.0f - 1000.0f * sigma) / 1000.0f * 1000.0f;
  const Buffer angles = time_embedding(time_in, config_.sinusoid);
  Buffer hidden(1, layers_.time_in.rows, DType::f32), time(1, config_.time_width, DType::f32),
      silu(1, config_.time_width, DType::f32), scale(1, D, DType::f32);
  PARFAIT_CHECK_OK(run.linear(layers_.time_in, angles, hidden));
  PARFAIT_CHECK_OK(run.silu(hidden, hidden));
  PARFAIT_CHECK_OK(run.linear(layers_.time_out, hidden, time));
  PARFAIT_CHECK_OK(run.silu(time, silu));
  PARFAIT_CHECK_OK(run.linear(layers_.final_modulation, silu, scale));
  PARFAIT_CHECK_OK(
      run.linear(layers_.image_in, x, rows_of(work_.stream.view(), 0, p.real_image_rows)));
  fill_rows(work_.stream, p.real_image_rows, p.image_rows, layers_.image_pad);
  std::size_t entered = first_refiner_block + layers_.context_refiner.size();
  for (const TransformerBlock& one : layers_.noise_refiner) {
    PARFAIT_CHECK_OK(run.enter(entered++));
    PARFAIT_CHECK_OK(block(run, one, &time, p.rope, {0, p.image_rows}));
  }
  std::copy_n(p.text.floats(), p.text_rows * D, work_.stream.floats() + p.image_rows * D);
  for (const TransformerBlock& one : layers_.blocks) {
    PARFAIT_CHECK_OK(run.enter(entered++));
    PARFAIT_CHECK_OK(block(run, one, &time, p.rope, {0, p.image_rows + p.text_rows}));
  }
  PARFAIT_CHECK_OK(run.enter(always_block));
  const Matrix normed = rows_of(work_.normed.view(), 0, p.real_image_rows);
  PARFAIT_CHECK_OK(run.layer_norm(rows_of(work_.stream.view(), 0, p.real_image_rows),
                                  {.epsilon = config_.final_epsilon, .scale = part(scale, 0, D)},
                                  normed));
  PARFAIT_CHECK_OK(run.linear(layers_.final_out, normed, velocity));
  for (std::uint64_t row = 0; row < velocity.rows; ++row)
    for (std::uint64_t c = 0; c < velocity.columns; ++c) {
      float& v = static_cast<float*>(velocity.data)[row * velocity.stride + c];
      v = -v;
    }
  return Done{};
}

}  // namespace parfait::models::z_image
