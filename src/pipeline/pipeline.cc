#include "pipeline/pipeline.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/result.h"
#include "formats/format.h"
#include "pipeline/files.h"
#include "plan/state.h"

namespace parfait::pipeline {
namespace {

using models::KlDecoder;
using models::Transformer;
using models::qwen3::Qwen3;

// Of the process itself, its libraries, headers and threads (20 MiB were measured with two
// threads), and of each token that the tokenizer knows (of a large one 340 bytes, while it is
// parsed).
constexpr std::uint64_t own_bytes = 48 << 20, token_bytes = 400;

Result<Part> open_part(const std::filesystem::path& path, const PipelineOptions& options) {
  OpenOptions open = options.open;
  // A mapping's pages count as the process's own: under a budget, what is read is held or freed.
  if (options.max_memory) open.io = Io::pread;
  PARFAIT_TRY(Plan plan, models::plan_file(path, open, options.plan));
  std::shared_ptr<const formats::Checkpoint> checkpoint =
      plan.state()->checked.checkpoint().state();
  PARFAIT_TRY(models::ConfigFile config, models::ConfigFile::beside(path));
  return Part{path, std::move(plan), std::move(checkpoint), std::move(config)};
}

std::string text_of(const std::filesystem::path& path) { return printable(path.string(), 1000); }

PartInfo info_of(std::string role, const Part& part, std::string what) {
  PartInfo info;
  info.role = std::move(role);
  info.path = part.path.string();
  info.what = std::move(what);
  const plan::State& state = *part.plan.state();
  for (const formats::Format* format : formats::all_formats()) {
    FormatTotal total{format->name};
    for (const LayerPlan& layer : state.layers) {
      if (layer.format != format->name) continue;
      ++total.layers;
      total.weights += layer.rows * layer.columns;
      total.stored_bytes += layer.stored_bytes;
      total.resident_bytes += layer.resident_bytes;
    }
    if (total.layers) info.formats.push_back(total);
  }
  for (const container::Shard& shard : part.checkpoint->index->shards())
    info.stored_bytes += shard.reader->size();
  return info;
}

Result<Done> set_residency(PartInfo& info, const Part& part,
                           const std::vector<models::Block>& blocks,
                           const models::WeightsOptions& allowed) {
  auto residency = models::decide_residency(part.plan, blocks, allowed);
  if (!residency.ok())
    return make_error(residency.error().code, "{}: the {}'s {}", text_of(part.path), info.role,
                      residency.error().message);
  info.weight_bytes = residency->total_bytes;
  info.resident_bytes = residency->bytes();
  info.streamed = !residency->all();
  return Done{};
}

ImageSize latent_size(const GenerateOptions& options, std::uint64_t factor) {
  return {options.height / factor, options.width / factor};
}

}  // namespace

std::vector<Isa> Pipeline::isas() const {
  return setup.plan.isa ? isas_within(*setup.plan.isa) : machine_isas();
}
Result<std::unique_ptr<Transformer>> Pipeline::make_transformer() const {
  return models::find_transformer(*transformer.checkpoint, transformer.path.string());
}
Result<std::unique_ptr<Qwen3>> Pipeline::make_encoder() const {
  return Qwen3::find(*text_encoder.checkpoint, text_encoder.config, text_encoder.path.string());
}
Result<std::unique_ptr<KlDecoder>> Pipeline::make_decoder() const {
  return KlDecoder::find(vae.checkpoint, vae.config, vae.path.string());
}

Result<std::vector<std::uint64_t>> Pipeline::taps(const Qwen3& encoder) const {
  const models::qwen3::Config& c = encoder.config();
  std::vector<std::uint64_t> taps;
  if (needs.states == models::TextNeeds::States::before_last) {
    taps = {c.depth - 1};
  } else {
    if (c.depth % 4 != 0)
      return make_error(ErrorCode::model_tensor,
                        "{}: has {} layers, of which the states after a quarter, a half and three "
                        "quarters are wanted",
                        text_of(text_encoder.path), c.depth);
    taps = {c.depth / 4, c.depth / 2, c.depth / 4 * 3};
  }
  if (taps.back() > c.layers)
    return make_error(ErrorCode::model_tensor,
                      "{}: has {} layers, where the transformer takes states after layer {}",
                      text_of(text_encoder.path), c.layers, taps.back());
  return taps;
}

Result<std::shared_ptr<const Pipeline>> Pipeline::open(const PipelineFiles& given,
                                                       const PipelineOptions& options) {
  PARFAIT_TRY(PipelineFiles files, find_files(given));
  PARFAIT_TRY(Part transformer, open_part(files.transformer, options));
  PARFAIT_TRY(Part text_encoder, open_part(files.text_encoder, options));
  PARFAIT_TRY(Part vae, open_part(files.vae, options));
  // What each is, before the tokenizer's millions of bytes are read.
  PARFAIT_TRY(const std::unique_ptr<Transformer> model,
              models::find_transformer(*transformer.checkpoint, files.transformer.string()));
  PARFAIT_TRY(
      const std::unique_ptr<Qwen3> encoder,
      Qwen3::find(*text_encoder.checkpoint, text_encoder.config, files.text_encoder.string()));
  PARFAIT_TRY(const std::unique_ptr<KlDecoder> decoder,
              KlDecoder::find(vae.checkpoint, vae.config, files.vae.string()));
  const models::TextNeeds needs = model->text_needs();
  const std::uint64_t states = needs.states == models::TextNeeds::States::quarters ? 3 : 1;
  const std::uint64_t width = encoder->config().width;
  if (states * width != needs.width)
    return make_error(
        ErrorCode::model_tensor,
        "{}: this text encoder ({}) does not fit the transformer {} ({}), which takes {} numbers a "
        "token: a Qwen3 of width {} is needed",
        text_of(files.text_encoder), encoder->name(), text_of(files.transformer), model->name(),
        needs.width, needs.width / states);
  if (decoder->latent_channels() != model->latent_channels())
    return make_error(ErrorCode::model_tensor,
                      "{}: this auto-encoder ({}) does not fit the transformer {} ({}), which "
                      "makes latents of {} "
                      "channels",
                      text_of(files.vae), decoder->name(), text_of(files.transformer),
                      model->name(), model->latent_channels());
  PARFAIT_TRY(Tokenizer tokenizer, Tokenizer::open(files.tokenizer.string()));
  for (const char* token : {"<|im_start|>", "<|im_end|>", "<|endoftext|>"})
    if (!tokenizer.id(token))
      return make_error(ErrorCode::tokenizer,
                        "{}: has no token {}, which the prompt template of {} needs: the tokenizer "
                        "of Qwen3 is needed",
                        text_of(files.tokenizer), token, model->name());
  if (tokenizer.size() > encoder->config().vocabulary)
    return make_error(
        ErrorCode::tokenizer,
        "{}: has {} tokens, where the text encoder {} knows {}: it belongs to another "
        "encoder",
        text_of(files.tokenizer), tokenizer.size(), text_of(files.text_encoder),
        encoder->config().vocabulary);
  auto pipeline = std::make_shared<Pipeline>(
      Pipeline{std::move(files), options, std::move(transformer), std::move(text_encoder),
               std::move(vae), std::move(tokenizer), needs, decoder->factor()});
  PARFAIT_CHECK_OK(pipeline->taps(*encoder));
  return std::shared_ptr<const Pipeline>(std::move(pipeline));
}

Result<Done> Pipeline::check(const GenerateOptions& options) const {
  constexpr std::uint64_t largest = 8192, most_steps = 1000, most_pictures = 100'000;
  const std::uint64_t multiple = 2 * latent_factor;
  for (const auto& [side, name] : {std::pair(options.width, "width"), {options.height, "height"}})
    if (side == 0 || side > largest || side % multiple != 0)
      return make_error(ErrorCode::run_shape,
                        "a {} of {}: pictures have sides of {}, {}, ... or {} pixels{}", name, side,
                        multiple, 2 * multiple, largest,
                        side > multiple && side < largest
                            ? fmt::format("; the nearest are {} and {}", side / multiple * multiple,
                                          side / multiple * multiple + multiple)
                            : "");
  if (options.steps > most_steps)
    return make_error(ErrorCode::plan_option, "{} steps: at most {} are run", options.steps,
                      most_steps);
  if (options.prompts.empty()) return make_error(ErrorCode::plan_option, "there is no prompt");
  if (options.count == 0 || options.count > most_pictures ||
      options.prompts.size() > most_pictures / options.count)
    return make_error(ErrorCode::plan_option, "{} pictures of {} prompts: 1 to {} are made",
                      options.count, options.prompts.size(), most_pictures);
  if (options.seed > UINT64_MAX - (options.count - 1))
    return make_error(ErrorCode::plan_option,
                      "{} pictures from seed {} on: the last seed would be beyond {}",
                      options.count, options.seed, UINT64_MAX);
  // Found here, and not after gigabytes of the text encoder were read.
  for (const std::string& prompt : options.prompts) PARFAIT_CHECK_OK(tokenizer.encode(prompt));
  if (auto negative = tokenizer.encode(options.negative); !negative.ok())
    return make_error(negative.error().code, "the negative prompt: {}", negative.error().message);
  if (!std::isfinite(options.guidance) || options.guidance < 0 || options.guidance > 1000)
    return make_error(ErrorCode::plan_option, "a guidance of {}: 0 to 1000 is taken",
                      options.guidance);
  return Done{};
}

Result<Budget> Pipeline::budget(const GenerateOptions& options) const {
  Budget budget;
  budget.text.threads = budget.transformer.threads = setup.threads;
  if (!setup.max_memory) return budget;
  PARFAIT_TRY(const std::unique_ptr<Transformer> model, make_transformer());
  PARFAIT_TRY(const std::unique_ptr<Qwen3> encoder, make_encoder());
  PARFAIT_TRY(const std::unique_ptr<KlDecoder> decoder, make_decoder());
  PARFAIT_TRY(const std::vector<std::uint64_t> taps, this->taps(*encoder));
  const unsigned threads = runtime::thread_count(setup.threads);
  const std::vector<Isa> isas = this->isas();
  const ImageSize size = latent_size(options, latent_factor);
  const std::uint64_t tokens = needs.max_tokens, states = 4 * tokens * needs.width,
                      latent = 4 * model->latent_channels() * size.height * size.width,
                      texts = options.prompts.size() +
                              (options.guidance != 1 && !model->takes_guidance() ? 1 : 0),
                      waiting = latent * options.prompts.size() * options.count;

  // Beside the weights: all states of the text, then what is made of them, then a pass's matrices.
  const std::uint64_t encoding =
      texts * states + encoder->working_bytes({text_encoder.plan, threads, isas}, tokens);
  const Transformer::Working w = model->working({transformer.plan, threads, isas}, tokens, size);
  const std::uint64_t preparing =
      std::max(texts * states + w.conditioning, states + texts * w.conditioning) + w.preparing;
  const std::uint64_t decoding = decoder->stored_bytes() + decoder->working_bytes(size, threads) +
                                 2 * latent + 3 * options.width * options.height;
  constexpr std::uint64_t matrices = 5;  // noise, x, velocity, the other velocity, a preview
  const std::uint64_t pass = texts * w.conditioning + w.pass + matrices * latent + waiting +
                             (options.previews == Previews::each_step ? decoding : 0);
  const std::uint64_t denoising = std::max(preparing, pass);

  budget.text.before_pass = encoding;
  budget.transformer.before_pass = denoising - std::min(denoising, texts * states);
  const std::uint64_t own = own_bytes + tokenizer.size() * token_bytes;
  struct Need {
    std::string_view what;
    std::uint64_t beside, weights;
    std::uint64_t all() const { return beside + weights; }
  };
  const Need needed[] = {
      {"the text encoder", own + encoding,
       models::least_bytes(text_encoder.plan, encoder->blocks(taps.back()), budget.text)},
      {"the transformer", own + denoising,
       models::least_bytes(transformer.plan, model->blocks(), budget.transformer)},
      {"decoding a picture", own + decoding + waiting, 0}};
  const Need& most = *std::ranges::max_element(needed, {}, &Need::all);
  const std::uint64_t max = *setup.max_memory;
  if (most.all() > max)
    return make_error(
        ErrorCode::model_memory,
        "{} is too little memory: {} at {} × {} takes {} beside {} of weights (what is used "
        "throughout, and one block at a time): {} is the least that works, {} more; --max-memory "
        "{}M would do",
        bytes_text(max), most.what, options.width, options.height, bytes_text(most.beside),
        bytes_text(most.weights), bytes_text(most.all()), bytes_text(most.all() - max),
        ceil_div(most.all(), std::uint64_t{1} << 20));
  budget.text.max_bytes = max - needed[0].beside;
  budget.transformer.max_bytes = max - needed[1].beside;
  return budget;
}

Result<std::vector<PartInfo>> Pipeline::parts(const GenerateOptions& options) const {
  PARFAIT_CHECK_OK(check(options));
  PARFAIT_TRY(const Budget budget, this->budget(options));
  PARFAIT_TRY(const std::unique_ptr<Transformer> model, make_transformer());
  PARFAIT_TRY(const std::unique_ptr<Qwen3> encoder, make_encoder());
  PARFAIT_TRY(const std::unique_ptr<KlDecoder> decoder, make_decoder());
  PARFAIT_TRY(const std::vector<std::uint64_t> taps, this->taps(*encoder));
  std::vector<PartInfo> parts;
  parts.push_back(info_of("text encoder", text_encoder, encoder->name()));
  PARFAIT_CHECK_OK(
      set_residency(parts.back(), text_encoder, encoder->blocks(taps.back()), budget.text));
  parts.push_back(info_of("transformer", transformer, std::string(model->name())));
  PARFAIT_CHECK_OK(set_residency(parts.back(), transformer, model->blocks(), budget.transformer));
  parts.push_back(info_of("auto-encoder", vae, decoder->name()));
  parts.back().weight_bytes = parts.back().resident_bytes = decoder->stored_bytes();
  return parts;
}

}  // namespace parfait::pipeline
