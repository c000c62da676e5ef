// From a prompt to a picture.
//
// A pipeline is four parts: a transformer, a text encoder with its tokenizer, and an image
// auto-encoder, each a checkpoint with its own mixture of formats. open() reads headers only, finds
// out what each part is from its tensors, and says in one sentence if they do not fit together.
// generate() loads a part when it is needed and lets it go after.
//
// A Pipeline is a cheap handle on immutable state; generate() may run on any thread, several at
// once at the price of their memory. For the same plan on the same machine the same options give
// the same bits, whatever the number of threads and whatever stays in memory.
#ifndef PARFAIT_GENERATE_H_
#define PARFAIT_GENERATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parfait/checkpoint.h"
#include "parfait/error.h"
#include "parfait/model.h"
#include "parfait/plan.h"

namespace parfait {

namespace pipeline {
struct Pipeline;
}

// Where time goes.
enum class OpKind { loading, linear, attention, norm, rope, pointwise, convolution };
inline constexpr std::size_t op_kinds = 7;
std::string_view op_kind_name(OpKind kind);

struct Profile {
  struct Entry {
    double seconds = 0;
    std::uint64_t calls = 0;
  };
  std::array<Entry, op_kinds> entries;

  void add(OpKind kind, double seconds) {
    entries[static_cast<std::size_t>(kind)].seconds += seconds;
    ++entries[static_cast<std::size_t>(kind)].calls;
  }
};

// The parts of a pipeline. What is not given is looked for in model_dir, which is laid out as
// ComfyUI's models folder (diffusion_models/, text_encoders/, vae/, tokenizer/) or as a Hugging
// Face repository (transformer/, text_encoder/, vae/, tokenizer/).
struct PipelineFiles {
  std::filesystem::path model_dir = {}, transformer = {}, text_encoder = {}, vae = {},
                        tokenizer = {};
};

struct PipelineOptions {
  OpenOptions open;
  PlanOptions plan;
  unsigned threads = 0;                     // 0: as many as the machine has
  std::optional<std::uint64_t> max_memory;  // of the process, about; unset: no bound
};

struct PartInfo {
  std::string role;  // "transformer", "text encoder", "auto-encoder"
  std::string path;
  std::string what;  // "FLUX.2, 5 + 20 blocks, width 3072"
  std::vector<FormatTotal> formats;
  std::uint64_t stored_bytes = 0;
  std::uint64_t weight_bytes = 0;  // of the packed weights that are used
  std::uint64_t resident_bytes =
      0;  // of them, at once: less than weight_bytes if they are streamed
  bool streamed = false;
};

// Whether callbacks will be given a preview after each step: under max_memory, room for decoding
// it beside the transformer is set aside.
enum class Previews { none, each_step };

struct GenerateOptions {
  std::vector<std::string> prompts = {};  // each gives `count` pictures
  std::string negative = {};
  std::uint64_t width = 512, height = 512;  // multiples of 16
  std::uint64_t steps = 0;                  // 0: the model's own
  std::uint64_t seed = 0;                   // of a prompt's first picture; the next has seed + 1
  std::uint64_t count = 1;
  // velocity = n + guidance · (p − n) of prompt and negative prompt: twice the work where it is not
  // 1. A model that takes guidance as an input is given it as it is.
  double guidance = 1;
  Previews previews = Previews::none;  // generate() knows it by its callbacks
};

struct GenerateProgress {
  enum class Stage { text, load, denoise, decode } stage = Stage::text;
  std::uint64_t step = 0, steps = 0;        // denoise: those done; load: bytes
  std::uint64_t picture = 0, pictures = 0;  // which, and of how many
  double step_seconds = 0;                  // of the last step
};

// 8-bit RGB, row by row from the top.
struct Picture {
  std::uint64_t width = 0, height = 0;
  std::vector<std::uint8_t> rgb;
};

struct GenerateCallbacks {
  // Returns false to cancel. Called often, from the calling thread.
  std::function<bool(const GenerateProgress&)> progress;
  // The picture so far, after each step but the last.
  std::function<void(const Picture&)> preview;
  // What each linear layer of the transformer is given, before it runs: capture.h keeps some of it.
  std::function<void(std::string_view layer, const ConstMatrix& x)> linear;
  // Each picture as soon as it is done; returns false to stop there.
  std::function<bool(const struct Generated&)> finished;
};

// What the first picture's run computed on its way, for comparisons with other programs.
struct GenerateTrace {
  std::vector<std::int64_t> token_ids;
  std::vector<float> text_states, noise, sigmas, final_latents, pixels;
  std::vector<std::vector<float>> velocities;  // rows of the transformer
};

struct Generated {
  Picture picture;
  std::string prompt;
  std::uint64_t seed = 0, steps = 0, tokens = 0;  // tokens of the prompt, as the encoder saw them
  std::vector<std::string> notes;                 // a prompt that was cut, and the like
  std::vector<double> step_seconds;
  double text_seconds = 0, load_seconds = 0, decode_seconds = 0;
  Profile profile;         // of the steps
  std::string parameters;  // for the picture's file: what other tools write as "parameters"
};

class Pipeline {
 public:
  explicit Pipeline(std::shared_ptr<const pipeline::Pipeline> state) : state_(std::move(state)) {}

  // What each part is and will hold in memory for these options, or what of them cannot be done.
  // Nothing heavy is read.
  Result<std::vector<PartInfo>> parts(const GenerateOptions& options) const;
  // Checks the options first, as parts() does. Pictures are handed to callbacks.finished where that
  // is set, and returned otherwise.
  Result<std::vector<Generated>> generate(const GenerateOptions& options,
                                          const GenerateCallbacks& callbacks = {},
                                          GenerateTrace* trace = nullptr) const;
  // The files that weights are read from.
  std::vector<std::filesystem::path> files() const;

 private:
  std::shared_ptr<const pipeline::Pipeline> state_;
};

Result<Pipeline> open_pipeline(const PipelineFiles& files, const PipelineOptions& options = {});

// A PNG with texts (keyword, text): through a temporary beside the target, synced, then renamed.
// Replaces a PNG or an empty file, and nothing else.
Result<Done> write_png(const std::filesystem::path& path, const Picture& picture,
                       std::span<const std::pair<std::string, std::string>> texts = {});

}  // namespace parfait

#endif  // PARFAIT_GENERATE_H_
