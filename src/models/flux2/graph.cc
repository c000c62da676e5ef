#include "models/flux2/graph.h"

#include <algorithm>
#include <cmath>

#include "base/result.h"

namespace parfait::models::flux2 {
namespace {

// Part i of a row of parts that are D long.
std::span<const float> part(const Buffer& row, std::uint64_t i, std::uint64_t D) {
  return {row.floats() + i * D, D};
}

// q and k of some rows, normalised by head.
Result<Done> norm_heads(Run& run, const Config& c, std::span<const float> query_norm,
                        std::span<const float> key_norm, const Matrix& qkv) {
  const auto one = [&](std::uint64_t column, std::span<const float> weight) {
    const Matrix heads = columns_of(qkv, column, c.width);
    return run.rms_norm(heads, {.epsilon = c.epsilon, .segment = c.head_size, .weight = weight},
                        heads);
  };
  PARFAIT_CHECK_OK(one(0, query_norm));
  return one(c.width, key_norm);
}

}  // namespace

Flux2::Flux2(Found found)
    : config_(found.config),
      layers_(std::move(found.layers)),
      name_(fmt::format("FLUX.2, {} + {} blocks, width {}", layers_.double_blocks.size(),
                        layers_.single_blocks.size(), config_.width)) {}

TextNeeds Flux2::text_needs() const {
  return {.chat_template = TextNeeds::Template::klein,
          .states = TextNeeds::States::quarters,
          .padded = true,
          .max_tokens = 512,
          .width = config_.text_width};
}

// What is small stays. The modulations, as large as blocks in bf16, are read where they are needed.
std::vector<Block> Flux2::blocks() const {
  const Layers& l = layers_;
  std::vector<Block> blocks;
  const auto add = [&](std::string name, std::initializer_list<const Linear*> linears,
                       Block::Use use = Block::Use::pass) {
    add_layers(blocks.emplace_back(Block{std::move(name), {}, use}), linears);
  };
  add("the image's and the time's embedders and the final layer",
      {&l.image_in, &l.time_in, &l.guidance_in, &l.final_out});
  add("the text's embedder", {&l.text_in}, Block::Use::preparation);
  add("the time's embedding", {&l.time_out, &l.guidance_out});
  add("the image's modulation", {&l.image_modulation});
  add("the text's modulation", {&l.text_modulation});
  for (std::size_t n = 0; n < l.double_blocks.size(); ++n) {
    const auto& [image, text] = l.double_blocks[n];
    add(fmt::format("double block {}", n), {&image.qkv, &image.proj, &image.mlp_in, &image.mlp_out,
                                            &text.qkv, &text.proj, &text.mlp_in, &text.mlp_out});
  }
  add("the single blocks' modulation", {&l.single_modulation});
  for (std::size_t n = 0; n < l.single_blocks.size(); ++n)
    add(fmt::format("single block {}", n), {&l.single_blocks[n].in, &l.single_blocks[n].out});
  add("the final modulation", {&l.final_modulation});
  return blocks;
}

// torch's noise is [4C, height / 2, width / 2]: a row is a pixel of it.
Buffer Flux2::rows_from_noise(std::span<const float> noise, ImageSize size) const {
  const std::uint64_t rows = size.height / 2 * (size.width / 2), channels = config_.in_channels;
  Buffer out(rows, channels, DType::f32);
  for (std::uint64_t row = 0; row < rows; ++row)
    for (std::uint64_t c = 0; c < channels; ++c)
      out.floats()[row * channels + c] = noise[c * rows + row];
  return out;
}

// Channel c · 4 + ph · 2 + pw of a row is channel c of pixel (2h + ph, 2w + pw).
Buffer Flux2::latent_image(const Buffer& rows, ImageSize size) const {
  const std::uint64_t channels = latent_channels(), width = size.width / 2;
  Buffer out(size.height * size.width, channels, DType::f32);
  for (std::uint64_t row = 0; row < rows.rows(); ++row)
    for (std::uint64_t c = 0; c < channels; ++c)
      for (std::uint64_t p = 0; p < 4; ++p) {
        const std::uint64_t y = row / width * 2 + p / 2, x = row % width * 2 + p % 2;
        out.floats()[(y * size.width + x) * channels + c] =
            rows.floats()[row * 4 * channels + c * 4 + p];
      }
  return out;
}

// The schedule is shifted by the number of image tokens and of steps: two lines fitted at 10 and at
// 200 steps.
std::vector<float> Flux2::sigmas(std::uint64_t steps, ImageSize size) const {
  const double tokens = static_cast<double>(size.height / 2 * (size.width / 2)),
               count = static_cast<double>(steps);
  const double at_200 = 0.00016927 * tokens + 0.45666666;
  double mu = at_200;
  if (tokens <= 4300) {
    const double at_10 = 8.73809524e-05 * tokens + 1.89833333;
    const double slope = (at_200 - at_10) / 190.0;
    mu = slope * count + (at_200 - 200.0 * slope);
  }
  // Each operation rounds to float32, as diffusers' do.
  std::vector<float> sigmas;
  const auto e = static_cast<float>(std::exp(mu));
  for (std::uint64_t i = 0; i < steps; ++i) {
    const auto s = static_cast<float>(1.0 - static_cast<double>(i) / count);
    sigmas.push_back(e / (e + (1.0f / s - 1.0f)));
  }
  sigmas.push_back(0);
  return sigmas;
}

Flux2::Working Flux2::working(const Workplace& place, std::uint64_t text_rows,
                              ImageSize size) const {
  const Layers& l = layers_;
  const DType dtype = place.activation_dtype();
  const std::uint64_t image_rows = size.height / 2 * (size.width / 2),
                      rows = text_rows + image_rows, D = config_.width, F = config_.mlp,
                      element = dtype_bits(dtype) / 8;
  Working working;
  working.conditioning = 4 * (text_rows * D + rows * config_.head_size);
  runtime::ScratchBytes preparing = place.scratch(), pass = place.scratch();
  working.preparing = place.count(preparing, {&l.text_in}, text_rows, DType::f32);
  place.count(pass,
              {&l.time_in, &l.time_out, &l.guidance_in, &l.guidance_out, &l.image_modulation,
               &l.text_modulation, &l.single_modulation, &l.final_modulation},
              1, DType::f32);
  place.count(pass, {&l.image_in}, image_rows, DType::f32);
  place.count(pass, {&l.final_out}, image_rows, dtype);
  const std::uint64_t stream_rows = std::max(text_rows, image_rows);
  for (const DoubleBlock& block : l.double_blocks)
    for (const Stream* s : {&block.image, &block.text})
      place.count(pass, {&s->qkv, &s->proj, &s->mlp_in, &s->mlp_out}, stream_rows, dtype);
  for (const SingleBlock& block : l.single_blocks)
    place.count(pass, {&block.in, &block.out}, rows, dtype);
  working.pass = rows * (4 * 2 * D + element * (D + 3 * D + 2 * F + D + F)) + pass.bytes() +
                 place.attention({.queries = rows,
                                  .keys = rows,
                                  .heads = config_.heads,
                                  .kv_heads = config_.heads,
                                  .head_size = config_.head_size,
                                  .dtype = dtype});
  return working;
}

Result<std::unique_ptr<Conditioning>> Flux2::prepare(Run& run, const ConstMatrix& text,
                                                     ImageSize size) {
  std::vector<Position> text_ids, image_ids;
  for (std::uint64_t l = 0; l < text.rows; ++l)
    text_ids.push_back({0, 0, 0, static_cast<double>(l)});
  for (std::uint64_t h = 0; h < size.height / 2; ++h)
    for (std::uint64_t w = 0; w < size.width / 2; ++w)
      image_ids.push_back({0, static_cast<double>(h), static_cast<double>(w), 0});
  PARFAIT_TRY(std::unique_ptr<Prepared> prepared, prepare_at(run, text, text_ids, image_ids));
  return std::unique_ptr<Conditioning>(std::move(prepared));
}

Result<std::unique_ptr<Prepared>> Flux2::prepare_at(Run& run, const ConstMatrix& text,
                                                    std::span<const Position> text_ids,
                                                    std::span<const Position> image_ids) {
  auto p = std::make_unique<Prepared>();
  p->text_rows = text_ids.size();
  p->image_rows = image_ids.size();
  std::vector<Position> ids(text_ids.begin(), text_ids.end());
  ids.insert(ids.end(), image_ids.begin(), image_ids.end());
  p->rope = rope_table(ids, config_.axes(), config_.rope_theta);
  p->text = Buffer(text.rows, config_.width, DType::f32);
  PARFAIT_CHECK_OK(run.enter(text_block));
  PARFAIT_CHECK_OK(run.linear(layers_.text_in, text, p->text));
  return p;
}

void Flux2::reserve(Run& run, std::uint64_t rows) {
  if (work_.stream.rows() == rows) return;
  const DType dtype = run.activation_dtype();
  const std::uint64_t D = config_.width, F = config_.mlp;
  work_ = {};
  work_ = {.stream = Buffer(rows, D, DType::f32),
           .normed = Buffer(rows, D, dtype),
           .wide = Buffer(rows, 3 * D + 2 * F, dtype),
           .joined = Buffer(rows, D + F, dtype),
           .branch = Buffer(rows, D, DType::f32)};
}

// silu of the embedded time, and of the guidance where the model takes it; F32 [1, D].
Result<Buffer> Flux2::embed_time(Run& run, float sigma, float guidance) {
  const Layers& l = layers_;
  const std::uint64_t D = config_.width;
  const auto hidden = [&](float value, const Linear& in) -> Result<Buffer> {
    Buffer h(1, D, DType::f32);
    PARFAIT_CHECK_OK(run.linear(in, time_embedding(1000.0f * value, config_.sinusoid), h));
    PARFAIT_CHECK_OK(run.silu(h, h));
    return h;
  };
  Buffer vec(1, D, DType::f32), of_guidance;
  PARFAIT_CHECK_OK(run.enter(always_block));
  PARFAIT_TRY(const Buffer of_time, hidden(sigma, l.time_in));
  if (!l.guidance_in.empty()) {
    PARFAIT_TRY(of_guidance, hidden(guidance, l.guidance_in));
  }
  PARFAIT_CHECK_OK(run.enter(time_block));
  PARFAIT_CHECK_OK(run.linear(l.time_out, of_time, vec));
  if (!l.guidance_in.empty()) {
    Buffer more(1, D, DType::f32);
    PARFAIT_CHECK_OK(run.linear(l.guidance_out, of_guidance, more));
    PARFAIT_CHECK_OK(run.add_gated(vec, {}, more, vec));
  }
  PARFAIT_CHECK_OK(run.silu(vec, vec));
  return vec;
}

Result<Buffer> Flux2::modulate(Run& run, std::size_t block, const Linear& linear,
                               const Buffer& time) {
  Buffer modulation(1, linear.rows, DType::f32);
  PARFAIT_CHECK_OK(run.enter(block));
  PARFAIT_CHECK_OK(run.linear(linear, time, modulation));
  return modulation;
}

// Attention over all rows of work_.wide, into the first D columns of work_.joined.
Result<Done> Flux2::attend(Run& run, const Prepared& p) {
  const std::uint64_t D = config_.width;
  for (std::uint64_t column : {std::uint64_t{0}, D}) {
    const Matrix heads = columns_of(work_.wide.view(), column, D);
    PARFAIT_CHECK_OK(run.rope(heads, p.rope.cos, p.rope.sin,
                              {.head_size = config_.head_size, .pairs = RopePairs::adjacent},
                              heads));
  }
  const ConstMatrix q = columns_of(work_.wide.view(), 0, D),
                    k = columns_of(work_.wide.view(), D, D),
                    v = columns_of(work_.wide.view(), 2 * D, D);
  return run.attention(q, k, v, {.heads = config_.heads}, columns_of(work_.joined.view(), 0, D));
}

Result<Done> Flux2::double_block(Run& run, const DoubleBlock& block, const DoubleModulation& m,
                                 const Prepared& p) {
  const std::uint64_t D = config_.width, F = config_.mlp;
  struct Side {
    const Stream& stream;
    const Buffer& modulation;  // shift, scale, gate; shift, scale, gate
    std::uint64_t first, count;
  };
  const Side sides[] = {{block.text, m.text, 0, p.text_rows},
                        {block.image, m.image, p.text_rows, p.image_rows}};
  const auto modulated_norm = [&](const Side& s, std::uint64_t i) {
    return run.layer_norm(rows_of(work_.stream.view(), s.first, s.count),
                          {.epsilon = config_.epsilon,
                           .scale = part(s.modulation, i + 1, D),
                           .shift = part(s.modulation, i, D)},
                          rows_of(work_.normed.view(), s.first, s.count));
  };
  const auto add_branch = [&](const Side& s, const Linear& linear, const ConstMatrix& x,
                              std::uint64_t gate) -> Result<Done> {
    const Matrix branch = rows_of(work_.branch.view(), s.first, s.count),
                 stream = rows_of(work_.stream.view(), s.first, s.count);
    PARFAIT_CHECK_OK(run.linear(linear, x, branch));
    return run.add_gated(stream, part(s.modulation, gate, D), branch, stream);
  };
  for (const Side& s : sides) {
    const Matrix qkv = part_of(work_.wide.view(), s.first, s.count, 0, 3 * D);
    PARFAIT_CHECK_OK(modulated_norm(s, 0));
    PARFAIT_CHECK_OK(run.linear(s.stream.qkv, rows_of(work_.normed.view(), s.first, s.count), qkv));
    PARFAIT_CHECK_OK(norm_heads(run, config_, s.stream.query_norm, s.stream.key_norm, qkv));
  }
  PARFAIT_CHECK_OK(attend(run, p));
  for (const Side& s : sides) {
    PARFAIT_CHECK_OK(
        add_branch(s, s.stream.proj, part_of(work_.joined.view(), s.first, s.count, 0, D), 2));
    PARFAIT_CHECK_OK(modulated_norm(s, 3));
    const Matrix gate = part_of(work_.wide.view(), s.first, s.count, 3 * D, F),
                 up = part_of(work_.wide.view(), s.first, s.count, 3 * D + F, F),
                 both = part_of(work_.wide.view(), s.first, s.count, 3 * D, 2 * F),
                 mlp = part_of(work_.joined.view(), s.first, s.count, D, F);
    PARFAIT_CHECK_OK(
        run.linear(s.stream.mlp_in, rows_of(work_.normed.view(), s.first, s.count), both));
    PARFAIT_CHECK_OK(run.silu_gate(gate, up, mlp));
    PARFAIT_CHECK_OK(add_branch(s, s.stream.mlp_out, mlp, 5));
  }
  return Done{};
}

Result<Done> Flux2::single_block(Run& run, const SingleBlock& block, const Buffer& modulation,
                                 const Prepared& p) {
  const std::uint64_t D = config_.width, F = config_.mlp;
  PARFAIT_CHECK_OK(run.layer_norm(work_.stream,
                                  {.epsilon = config_.epsilon,
                                   .scale = part(modulation, 1, D),
                                   .shift = part(modulation, 0, D)},
                                  work_.normed));
  PARFAIT_CHECK_OK(run.linear(block.in, work_.normed, work_.wide));
  PARFAIT_CHECK_OK(norm_heads(run, config_, block.query_norm, block.key_norm,
                              columns_of(work_.wide.view(), 0, 3 * D)));
  PARFAIT_CHECK_OK(attend(run, p));
  PARFAIT_CHECK_OK(run.silu_gate(columns_of(work_.wide.view(), 3 * D, F),
                                 columns_of(work_.wide.view(), 3 * D + F, F),
                                 columns_of(work_.joined.view(), D, F)));
  PARFAIT_CHECK_OK(run.linear(block.out, work_.joined, work_.branch));
  return run.add_gated(work_.stream, part(modulation, 2, D), work_.branch, work_.stream);
}

Result<Done> Flux2::velocity(Run& run, const Conditioning& conditioning, float sigma,
                             float guidance, const ConstMatrix& x, const Matrix& velocity) {
  const auto& p = static_cast<const Prepared&>(conditioning);
  const std::uint64_t D = config_.width;
  const Layers& l = layers_;
  reserve(run, p.text_rows + p.image_rows);
  PARFAIT_TRY(const Buffer time, embed_time(run, sigma, guidance));
  PARFAIT_CHECK_OK(run.enter(always_block));
  std::copy_n(p.text.floats(), p.text_rows * D, work_.stream.floats());
  PARFAIT_CHECK_OK(
      run.linear(l.image_in, x, rows_of(work_.stream.view(), p.text_rows, p.image_rows)));
  DoubleModulation both;
  PARFAIT_TRY(both.image, modulate(run, image_modulation_block, l.image_modulation, time));
  PARFAIT_TRY(both.text, modulate(run, text_modulation_block, l.text_modulation, time));
  std::size_t entered = first_double_block;
  for (const DoubleBlock& block : l.double_blocks) {
    PARFAIT_CHECK_OK(run.enter(entered++));
    PARFAIT_CHECK_OK(double_block(run, block, both, p));
  }
  PARFAIT_TRY(const Buffer single, modulate(run, entered++, l.single_modulation, time));
  for (const SingleBlock& block : l.single_blocks) {
    PARFAIT_CHECK_OK(run.enter(entered++));
    PARFAIT_CHECK_OK(single_block(run, block, single, p));
  }
  PARFAIT_TRY(const Buffer last, modulate(run, entered, l.final_modulation, time));
  PARFAIT_CHECK_OK(run.enter(always_block));
  const bool shift_first = l.final_order == Layers::FinalOrder::shift_scale;
  const Matrix normed = rows_of(work_.normed.view(), p.text_rows, p.image_rows);
  PARFAIT_CHECK_OK(run.layer_norm(rows_of(work_.stream.view(), p.text_rows, p.image_rows),
                                  {.epsilon = config_.epsilon,
                                   .scale = part(last, shift_first ? 1 : 0, D),
                                   .shift = part(last, shift_first ? 0 : 1, D)},
                                  normed));
  return run.linear(l.final_out, normed, velocity);
}

}  // namespace parfait::models::flux2
