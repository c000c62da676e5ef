#include "models/qwen3/qwen3.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/result.h"
#include "models/embeddings.h"

namespace parfait::models::qwen3 {
namespace {

constexpr std::uint64_t most_layers = 1024;
constexpr std::size_t first_layer_block = 1;  // block 0 is empty

// Depths of published models, by width, for files that were cut and have no config.json.
struct Published {
  std::uint64_t width, mlp, depth;
};
constexpr Published published[] = {
    {1024, 3072, 28}, {2048, 6144, 28}, {2560, 9728, 36}, {4096, 12288, 36}, {5120, 17408, 40},
};

std::optional<std::string> find_prefix(const formats::Checkpoint& checkpoint) {
  for (const char* prefix : {"model.", "", "language_model.model.", "model.language_model.",
                             "text_encoder.model.", "qwen3.model."})
    if (checkpoint.find(std::string(prefix) + "layers.0.self_attn.q_proj") &&
        checkpoint.find(std::string(prefix) + "layers.0.mlp.gate_proj"))
      return prefix;
  return {};
}

Result<DecoderLayer> find_layer(const Finder& finder, const Config& c, std::uint64_t n) {
  const std::string a = fmt::format("layers.{}.self_attn.", n),
                    m = fmt::format("layers.{}.mlp.", n);
  const std::uint64_t q = c.heads * c.head_size, kv = c.kv_heads * c.head_size;
  DecoderLayer l;
  PARFAIT_TRY(l.q, finder.linear({{a + "q_proj"}}, q, c.width));
  PARFAIT_TRY(l.k, finder.linear({{a + "k_proj"}}, kv, c.width));
  PARFAIT_TRY(l.v, finder.linear({{a + "v_proj"}}, kv, c.width));
  PARFAIT_TRY(l.o, finder.linear({{a + "o_proj"}}, c.width, q));
  PARFAIT_TRY(l.gate, finder.linear({{m + "gate_proj"}}, c.mlp, c.width));
  PARFAIT_TRY(l.up, finder.linear({{m + "up_proj"}}, c.mlp, c.width));
  PARFAIT_TRY(l.down, finder.linear({{m + "down_proj"}}, c.width, c.mlp));
  PARFAIT_TRY(l.input_norm,
              finder.vector({fmt::format("layers.{}.input_layernorm.weight", n)}, c.width));
  PARFAIT_TRY(
      l.post_norm,
      finder.vector({fmt::format("layers.{}.post_attention_layernorm.weight", n)}, c.width));
  PARFAIT_TRY(l.query_norm, finder.vector({a + "q_norm.weight"}, c.head_size));
  PARFAIT_TRY(l.key_norm, finder.vector({a + "k_norm.weight"}, c.head_size));
  return l;
}

}  // namespace

Result<std::unique_ptr<Qwen3>> Qwen3::find(const formats::Checkpoint& checkpoint,
                                           const ConfigFile& file, std::string_view path) {
  const auto prefix = find_prefix(checkpoint);
  if (!prefix)
    return make_error(
        ErrorCode::model_unknown,
        "{}: this is no text encoder that can be run: Qwen3 (layers.0.self_attn.q_proj "
        "and its like) is",
        printable(path, 1000));
  if (const auto type = file.text("model_type"); type && *type != "qwen3")
    return make_error(ErrorCode::model_unknown,
                      "{}: its config.json says model_type {}, where qwen3 can be run",
                      printable(path, 1000), printable(*type));
  const Finder finder(checkpoint, "a Qwen3 text encoder", *prefix);
  auto model = std::unique_ptr<Qwen3>(new Qwen3);
  Config& c = model->config_;
  PARFAIT_TRY(model->embedding_, finder.linear({{"embed_tokens"}}, any, any));
  PARFAIT_TRY(const Linear q,
              finder.linear({{"layers.0.self_attn.q_proj"}}, any, model->embedding_.columns));
  PARFAIT_TRY(const Linear k, finder.linear({{"layers.0.self_attn.k_proj"}}, any, q.columns));
  PARFAIT_TRY(const Linear gate, finder.linear({{"layers.0.mlp.gate_proj"}}, any, q.columns));
  PARFAIT_TRY(const std::vector<float> norm,
              finder.vector({"layers.0.self_attn.q_norm.weight"}, any));
  c.width = model->embedding_.columns;
  c.vocabulary = model->embedding_.rows;
  c.head_size = norm.size();
  c.mlp = gate.rows;
  if (c.head_size == 0 || c.head_size % 8 != 0 || c.head_size > 256 || q.rows % c.head_size != 0 ||
      k.rows % c.head_size != 0 || k.rows == 0 || q.rows % k.rows != 0)
    return make_error(
        ErrorCode::model_tensor,
        "{}: heads of {} columns (from the query norm) do not fit {} query and {} key "
        "columns",
        printable(path, 1000), c.head_size, q.rows, k.rows);
  c.heads = q.rows / c.head_size;
  c.kv_heads = k.rows / c.head_size;
  // Newer files have it in an object, or in both places.
  PARFAIT_TRY(c.rope_theta, file.number("rope_parameters.rope_theta", 1, 1e12, c.rope_theta));
  PARFAIT_TRY(c.rope_theta, file.number("rope_theta", 1, 1e12, c.rope_theta));
  PARFAIT_TRY(const double epsilon, file.number("rms_norm_eps", 0, 1, 1e-6));
  c.epsilon = static_cast<float>(epsilon);
  while (c.layers < most_layers &&
         finder.has_layer(fmt::format("layers.{}.self_attn.q_proj", c.layers))) {
    PARFAIT_TRY(DecoderLayer layer, find_layer(finder, c, c.layers));
    model->layers_.push_back(std::move(layer));
    ++c.layers;
  }
  c.depth = c.layers;
  for (const Published& p : published)
    if (p.width == c.width && p.mlp == c.mlp && c.layers < p.depth) c.depth = p.depth;
  PARFAIT_TRY(const double depth,
              file.number("num_hidden_layers", 1, most_layers, static_cast<double>(c.depth)));
  c.depth = static_cast<std::uint64_t>(depth);
  return model;
}

std::string Qwen3::name() const {
  return fmt::format("Qwen3, {} layers, width {}", config_.layers, config_.width);
}

std::vector<Block> Qwen3::blocks(std::uint64_t layers) const {
  std::vector<Block> blocks(first_layer_block);
  for (std::uint64_t n = 0; n < std::min<std::uint64_t>(layers, layers_.size()); ++n) {
    const DecoderLayer& l = layers_[n];
    Block& block = blocks.emplace_back();
    block.name = fmt::format("layer {}", n);
    add_layers(block, {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down});
  }
  return blocks;
}

std::uint64_t Qwen3::working_bytes(const Workplace& place, std::uint64_t ids) const {
  const Config& c = config_;
  const DType dtype = place.activation_dtype();
  const std::uint64_t Q = c.heads * c.head_size, KV = c.kv_heads * c.head_size,
                      element = dtype_bits(dtype) / 8;
  runtime::ScratchBytes scratch = place.scratch();
  for (const DecoderLayer& l : layers_)
    place.count(scratch, {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}, ids, dtype);
  return ids *
             (4 * (2 * c.width + c.head_size) + element * (c.width + Q + 2 * KV + Q + 2 * c.mlp)) +
         place.lookup(embedding_, ids) + scratch.bytes() +
         place.attention({.queries = ids,
                          .keys = ids,
                          .heads = c.heads,
                          .kv_heads = c.kv_heads,
                          .head_size = c.head_size,
                          .dtype = dtype});
}

Result<Done> Qwen3::encode(Run& run, std::span<const std::int64_t> ids,
                           std::span<const std::uint8_t> mask, std::span<const std::uint64_t> taps,
                           Buffer& states) const {
  const Config& c = config_;
  const std::uint64_t T = ids.size(), D = c.width, Q = c.heads * c.head_size,
                      KV = c.kv_heads * c.head_size;
  const DType dtype = run.activation_dtype();
  states = Buffer(T, taps.size() * D, DType::f32);
  Buffer stream(T, D, DType::f32), normed(T, D, dtype), qkv(T, Q + 2 * KV, dtype),
      mixed(T, Q, dtype), mlp(T, 2 * c.mlp, dtype), branch(T, D, DType::f32);
  std::vector<Position> positions;
  for (std::uint64_t t = 0; t < T; ++t) positions.push_back({static_cast<double>(t)});
  const RopeTable rope =
      rope_table(positions, std::array{c.head_size}, c.rope_theta, AngleRounding::all_float);
  const RopeOptions halves{.head_size = c.head_size, .pairs = RopePairs::halves};
  const Matrix q = columns_of(qkv.view(), 0, Q), k = columns_of(qkv.view(), Q, KV),
               v = columns_of(qkv.view(), Q + KV, KV);
  const Matrix gate = columns_of(mlp.view(), 0, c.mlp), up = columns_of(mlp.view(), c.mlp, c.mlp);
  AttentionOptions attention;
  attention.heads = c.heads;
  attention.kv_heads = c.kv_heads;
  attention.mask = AttentionMask::causal;
  attention.keys = mask;

  const auto heads = [&](const Matrix& x, std::span<const float> weight) -> Result<Done> {
    PARFAIT_CHECK_OK(
        run.rms_norm(x, {.epsilon = c.epsilon, .segment = c.head_size, .weight = weight}, x));
    return run.rope(x, rope.cos, rope.sin, halves, x);
  };
  PARFAIT_CHECK_OK(run.lookup(embedding_, ids, stream));
  std::size_t tap = 0;
  for (std::uint64_t n = 0; tap < taps.size(); ++n) {
    for (; tap < taps.size() && taps[tap] == n; ++tap)
      for (std::uint64_t t = 0; t < T; ++t)
        std::copy_n(stream.floats() + t * D, D, states.floats() + (t * taps.size() + tap) * D);
    if (tap == taps.size()) break;
    if (n == layers_.size())
      return make_error(ErrorCode::model_tensor,
                        "the text encoder has {} layers, but the state after layer {} is wanted",
                        layers_.size(), taps[tap]);
    const DecoderLayer& l = layers_[n];
    PARFAIT_CHECK_OK(run.enter(first_layer_block + n));
    PARFAIT_CHECK_OK(run.rms_norm(stream, {.epsilon = c.epsilon, .weight = l.input_norm}, normed));
    PARFAIT_CHECK_OK(run.linear({{&l.q, q}, {&l.k, k}, {&l.v, v}}, normed));
    PARFAIT_CHECK_OK(heads(q, l.query_norm));
    PARFAIT_CHECK_OK(heads(k, l.key_norm));
    PARFAIT_CHECK_OK(run.attention(q, k, v, attention, mixed));
    PARFAIT_CHECK_OK(run.linear(l.o, mixed, branch));
    PARFAIT_CHECK_OK(run.add_gated(stream, {}, branch, stream));
    PARFAIT_CHECK_OK(run.rms_norm(stream, {.epsilon = c.epsilon, .weight = l.post_norm}, normed));
    PARFAIT_CHECK_OK(run.linear({{&l.gate, gate}, {&l.up, up}}, normed));
    PARFAIT_CHECK_OK(run.silu_gate(gate, up, gate));
    PARFAIT_CHECK_OK(run.linear(l.down, gate, branch));
    PARFAIT_CHECK_OK(run.add_gated(stream, {}, branch, stream));
  }
  return Done{};
}

}  // namespace parfait::models::qwen3
