// From prompts to pictures: encode all prompts, then denoise and decode picture by picture. A part
// is loaded when it is needed; under a memory budget it is let go before the next is loaded.

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/result.h"
#include "pipeline/pipeline.h"
#include "pipeline/tokenizer/chat_template.h"
#include "pipeline/torch_random.h"

namespace parfait::pipeline {
namespace {

using models::Buffer;
using models::Conditioning;
using models::Run;
using models::Weights;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A picture to be made.
struct Job {
  std::size_t prompt = 0;
  std::uint64_t seed = 0;
};

struct EncodedText {
  Buffer states;  // [rows, text width]
  std::uint64_t tokens = 0;
  std::string note;
};

class Generator {
 public:
  Generator(const Pipeline& pipeline, const GenerateOptions& options,
            const GenerateCallbacks& callbacks, GenerateTrace* trace)
      : p_(pipeline),
        o_(options),
        callbacks_(callbacks),
        trace_(trace),
        ops_(pipeline.setup.threads, pipeline.isas()),
        size_{options.height / pipeline.latent_factor, options.width / pipeline.latent_factor} {
    if (callbacks.preview) o_.previews = Previews::each_step;
  }

  Result<std::vector<Generated>> run();

 private:
  using Stage = GenerateProgress::Stage;

  bool report() { return !callbacks_.progress || callbacks_.progress(progress_); }
  std::function<bool()> stop() {
    return [this] { return !report(); };
  }
  ProgressCallback loading() {
    return [this](const Progress& p) {
      progress_.stage = Stage::load;
      progress_.step = p.done;
      progress_.steps = p.total;
      return report();
    };
  }

  models::WeightsOptions with_progress(models::WeightsOptions options) {
    options.progress = loading();
    return options;
  }

  Result<Done> encode_texts();
  Result<EncodedText> encode(Run& run, const models::qwen3::Qwen3& encoder,
                             std::span<const std::uint64_t> taps, const std::string& prompt);
  Result<Done> load_transformer();
  Result<Done> load_decoder();
  Result<Buffer> denoise(const Job& job, Generated& out);
  Result<Done> step(const Conditioning& positive, const Conditioning* negative, float sigma,
                    const Buffer& x, Buffer& velocity);
  Result<Picture> decode(const Buffer& rows, bool traced);
  Result<Done> finish(const Job& job, Buffer rows, Generated out);
  std::string parameters(const Job& job) const;

  bool guided() const { return o_.guidance != 1 && !transformer_->takes_guidance(); }

  const Pipeline& p_;
  GenerateOptions o_;
  const GenerateCallbacks& callbacks_;
  GenerateTrace* trace_;
  runtime::Ops ops_;
  ImageSize size_;  // of the latent image
  GenerateProgress progress_;
  Budget budget_;
  std::uint64_t steps_ = 0;
  double text_seconds_ = 0, load_seconds_ = 0;
  std::vector<EncodedText> texts_;  // of the prompts, then the negative one if it is used
  std::unique_ptr<models::Transformer> transformer_;
  std::unique_ptr<Weights> weights_;
  std::vector<std::unique_ptr<Conditioning>> conditionings_;  // as texts_
  std::unique_ptr<models::KlDecoder> decoder_;
  std::vector<Generated> results_;
  bool stopped_ = false;
};

Result<std::vector<Generated>> Generator::run() {
  PARFAIT_CHECK_OK(p_.parts(o_));
  PARFAIT_TRY(budget_, p_.budget(o_));
  PARFAIT_TRY(transformer_, p_.make_transformer());
  steps_ = o_.steps ? o_.steps : transformer_->default_steps();
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < o_.prompts.size(); ++i)
    for (std::uint64_t n = 0; n < o_.count; ++n) jobs.push_back({i, o_.seed + n});
  progress_.pictures = jobs.size();

  PARFAIT_CHECK_OK(encode_texts());
  PARFAIT_CHECK_OK(load_transformer());
  const bool one_at_a_time = p_.setup.max_memory.has_value();
  if (!one_at_a_time || callbacks_.preview) PARFAIT_CHECK_OK(load_decoder());
  std::vector<std::pair<Buffer, Generated>> waiting;
  for (std::size_t i = 0; i < jobs.size() && !stopped_; ++i) {
    progress_.picture = i;
    Generated out;
    PARFAIT_TRY(Buffer rows, denoise(jobs[i], out));
    if (decoder_)
      PARFAIT_CHECK_OK(finish(jobs[i], std::move(rows), std::move(out)));
    else
      waiting.emplace_back(std::move(rows), std::move(out));
  }
  if (!decoder_) {
    conditionings_.clear();
    weights_.reset();
    PARFAIT_TRY(transformer_, p_.make_transformer());  // without the activations of a pass
    PARFAIT_CHECK_OK(load_decoder());
    for (std::size_t i = 0; i < waiting.size() && !stopped_; ++i) {
      progress_.picture = i;
      PARFAIT_CHECK_OK(finish(jobs[i], std::move(waiting[i].first), std::move(waiting[i].second)));
    }
  }
  return std::move(results_);
}

Result<Done> Generator::encode_texts() {
  const auto start = Clock::now();
  progress_.stage = Stage::text;
  PARFAIT_TRY(const std::unique_ptr<models::qwen3::Qwen3> encoder, p_.make_encoder());
  PARFAIT_TRY(const std::vector<std::uint64_t> taps, p_.taps(*encoder));
  PARFAIT_TRY(const std::unique_ptr<Weights> weights,
              Weights::load(p_.text_encoder.plan, encoder->blocks(taps.back()),
                            with_progress(budget_.text)));
  progress_.stage = Stage::text;
  progress_.step = progress_.steps = 0;
  Run run(ops_, weights.get(), nullptr, stop());
  for (const std::string& prompt : o_.prompts) {
    PARFAIT_TRY(EncodedText text, encode(run, *encoder, taps, prompt));
    texts_.push_back(std::move(text));
  }
  if (guided()) {
    PARFAIT_TRY(EncodedText text, encode(run, *encoder, taps, o_.negative));
    texts_.push_back(std::move(text));
  }
  text_seconds_ = seconds_since(start);
  return Done{};
}

Result<EncodedText> Generator::encode(Run& run, const models::qwen3::Qwen3& encoder,
                                      std::span<const std::uint64_t> taps,
                                      const std::string& prompt) {
  const models::TextNeeds& needs = p_.needs;
  const std::string text = needs.chat_template == models::TextNeeds::Template::klein
                               ? klein_prompt(prompt)
                               : z_image_prompt(prompt);
  PARFAIT_TRY(std::vector<std::int64_t> ids, p_.tokenizer.encode(text));
  EncodedText out;
  out.tokens = ids.size();
  if (ids.size() > needs.max_tokens) {
    out.note = fmt::format(
        "the prompt is {} tokens with its template; the model takes {}, and the "
        "rest was cut",
        ids.size(), needs.max_tokens);
    ids.resize(needs.max_tokens);
  }
  std::vector<std::uint8_t> mask(ids.size(), 1);
  if (needs.padded) {
    ids.resize(needs.max_tokens, *p_.tokenizer.id("<|endoftext|>"));
    mask.resize(needs.max_tokens, 0);
  }
  for (std::int64_t id : ids)
    if (id < 0 || static_cast<std::uint64_t>(id) >= encoder.config().vocabulary)
      return make_error(ErrorCode::tokenizer,
                        "the prompt has the token {}, where the text encoder knows {}", id,
                        encoder.config().vocabulary);
  PARFAIT_CHECK_OK(encoder.encode(run, ids, mask, taps, out.states));
  if (trace_ && texts_.empty()) {
    trace_->token_ids = ids;
    trace_->text_states.assign(out.states.floats(),
                               out.states.floats() + out.states.rows() * out.states.columns());
  }
  return out;
}

Result<Done> Generator::load_transformer() {
  const auto start = Clock::now();
  PARFAIT_TRY(weights_, Weights::load(p_.transformer.plan, transformer_->blocks(),
                                      with_progress(budget_.transformer)));
  weights_->observe(callbacks_.linear);
  Run run(ops_, weights_.get(), nullptr, stop());
  for (EncodedText& text : texts_) {
    PARFAIT_TRY(std::unique_ptr<Conditioning> conditioning,
                transformer_->prepare(run, text.states, size_));
    conditionings_.push_back(std::move(conditioning));
    text.states = {};
  }
  weights_->drop_scratch();  // that only the preparation needed
  load_seconds_ = seconds_since(start);
  return Done{};
}

Result<Done> Generator::load_decoder() {
  PARFAIT_TRY(decoder_, p_.make_decoder());
  return decoder_->load(ops_);
}

Result<Done> Generator::step(const Conditioning& positive, const Conditioning* negative,
                             float sigma, const Buffer& x, Buffer& velocity) {
  Run run(ops_, weights_.get(), &results_.back().profile, stop());
  const auto guidance = static_cast<float>(o_.guidance);
  PARFAIT_CHECK_OK(transformer_->velocity(run, positive, sigma, guidance, x, velocity));
  if (!negative) return Done{};
  Buffer other(x.rows(), x.columns(), DType::f32);
  PARFAIT_CHECK_OK(transformer_->velocity(run, *negative, sigma, guidance, x, other));
  for (std::uint64_t i = 0; i < x.rows() * x.columns(); ++i) {
    const float n = other.floats()[i];
    velocity.floats()[i] = n + guidance * (velocity.floats()[i] - n);
  }
  return Done{};
}

Result<Buffer> Generator::denoise(const Job& job, Generated& out) {
  const bool traced = trace_ && progress_.picture == 0;
  const std::uint64_t count = transformer_->latent_channels() * size_.height * size_.width;
  const std::vector<float> noise = torch_randn(count, job.seed);
  const std::vector<float> sigmas = transformer_->sigmas(steps_, size_);
  if (traced) {
    trace_->noise = noise;
    trace_->sigmas = sigmas;
  }
  Buffer x = transformer_->rows_from_noise(noise, size_);
  Buffer velocity(x.rows(), x.columns(), DType::f32);
  const std::uint64_t values = x.rows() * x.columns();
  const Conditioning* negative = guided() ? conditionings_.back().get() : nullptr;
  results_.push_back(std::move(out));  // its profile is filled while it lies there
  progress_.stage = Stage::denoise;
  progress_.steps = steps_;
  for (std::uint64_t i = 0; i < steps_; ++i) {
    progress_.stage = Stage::denoise;
    progress_.step = i;
    progress_.steps = steps_;
    const auto start = Clock::now();
    PARFAIT_CHECK_OK(step(*conditionings_[job.prompt], negative, sigmas[i], x, velocity));
    if (traced) trace_->velocities.emplace_back(velocity.floats(), velocity.floats() + values);
    const float delta = sigmas[i + 1] - sigmas[i];
    for (std::uint64_t n = 0; n < values; ++n) x.floats()[n] += delta * velocity.floats()[n];
    results_.back().step_seconds.push_back(seconds_since(start));
    progress_.step_seconds = results_.back().step_seconds.back();
    progress_.step = i + 1;
    if (!report()) return make_error(ErrorCode::cancelled, "the work was cancelled");
    if (callbacks_.preview && i + 1 < steps_) {
      // The picture that this velocity leads to.
      Buffer guess(x.rows(), x.columns(), DType::f32);
      for (std::uint64_t n = 0; n < values; ++n)
        guess.floats()[n] = x.floats()[n] - sigmas[i + 1] * velocity.floats()[n];
      PARFAIT_TRY(const Picture picture, decode(guess, false));
      callbacks_.preview(picture);
    }
  }
  out = std::move(results_.back());
  results_.pop_back();
  out.prompt = o_.prompts[job.prompt];
  out.seed = job.seed;
  out.steps = steps_;
  out.tokens = texts_[job.prompt].tokens;
  if (!texts_[job.prompt].note.empty()) out.notes.push_back(texts_[job.prompt].note);
  out.text_seconds = text_seconds_;
  out.load_seconds = load_seconds_;
  return x;
}

Result<Picture> Generator::decode(const Buffer& rows, bool traced) {
  const Buffer latent = transformer_->latent_image(rows, size_);
  Run run(ops_, nullptr, nullptr, stop());
  PARFAIT_TRY(const Buffer pixels, decoder_->decode(run, latent, size_));
  Picture picture{o_.width, o_.height, {}};
  const std::uint64_t values = o_.width * o_.height * 3;
  picture.rgb.resize(values);
  if (traced) trace_->pixels.resize(values);
  for (std::uint64_t i = 0; i < values; ++i) {
    const float value = pixels.floats()[i] * 0.5f + 0.5f;
    const float clamped = value > 0 ? std::min(value, 1.0f) : 0.0f;  // NaN is black
    if (traced) trace_->pixels[i] = clamped;
    picture.rgb[i] = static_cast<std::uint8_t>(std::nearbyint(clamped * 255.0f));
  }
  return picture;
}

Result<Done> Generator::finish(const Job& job, Buffer rows, Generated out) {
  const bool traced = trace_ && progress_.picture == 0;
  const auto start = Clock::now();
  progress_.stage = Stage::decode;
  progress_.step = progress_.steps = 0;
  if (!report()) return make_error(ErrorCode::cancelled, "the work was cancelled");
  if (traced)
    trace_->final_latents.assign(rows.floats(), rows.floats() + rows.rows() * rows.columns());
  PARFAIT_TRY(out.picture, decode(rows, traced));
  out.decode_seconds = seconds_since(start);
  out.parameters = parameters(job);
  if (!callbacks_.finished)
    results_.push_back(std::move(out));
  else if (!callbacks_.finished(out))
    stopped_ = true;
  return Done{};
}

std::string Generator::parameters(const Job& job) const {
  std::string text = o_.prompts[job.prompt];
  if (guided()) text += "\nNegative prompt: " + o_.negative;
  text += fmt::format(
      "\nSteps: {}, Sampler: Euler, CFG scale: {}, Seed: {}, Size: {}x{}, Model: {}", steps_,
      o_.guidance, job.seed, o_.width, o_.height, printable(p_.transformer.path.stem().string()));
  return text;
}

}  // namespace

Result<std::vector<Generated>> generate(const Pipeline& pipeline, const GenerateOptions& options,
                                        const GenerateCallbacks& callbacks, GenerateTrace* trace) {
  return Generator(pipeline, options, callbacks, trace).run();
}

}  // namespace parfait::pipeline
