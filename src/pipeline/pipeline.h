// A pipeline's parts, and the way from prompts to pictures.
#ifndef PARFAIT_PIPELINE_PIPELINE_H_
#define PARFAIT_PIPELINE_PIPELINE_H_

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "models/kl_decoder/kl_decoder.h"
#include "models/qwen3/qwen3.h"
#include "models/transformer.h"
#include "parfait/generate.h"
#include "pipeline/tokenizer/tokenizer.h"

namespace parfait::pipeline {

struct Part {
  std::filesystem::path path;
  Plan plan;
  std::shared_ptr<const formats::Checkpoint> checkpoint;
  models::ConfigFile config;
};

// What a budget leaves for the weights of each part.
struct Budget {
  models::WeightsOptions text, transformer;
};

struct Pipeline {
  PipelineFiles files;
  PipelineOptions setup;
  Part transformer, text_encoder, vae;
  Tokenizer tokenizer;
  models::TextNeeds needs;
  std::uint64_t latent_factor = 8;

  static Result<std::shared_ptr<const Pipeline>> open(const PipelineFiles& files,
                                                      const PipelineOptions& options);

  // The instruction sets that may run it.
  std::vector<Isa> isas() const;
  // Graphs hold scratch, so each run makes its own.
  Result<std::unique_ptr<models::Transformer>> make_transformer() const;
  Result<std::unique_ptr<models::qwen3::Qwen3>> make_encoder() const;
  Result<std::unique_ptr<models::KlDecoder>> make_decoder() const;

  // After how many layers of the encoder hidden states are taken.
  Result<std::vector<std::uint64_t>> taps(const models::qwen3::Qwen3& encoder) const;
  Result<Done> check(const GenerateOptions& options) const;
  Result<Budget> budget(const GenerateOptions& options) const;
  Result<std::vector<PartInfo>> parts(const GenerateOptions& options) const;
};

Result<std::vector<Generated>> generate(const Pipeline& pipeline, const GenerateOptions& options,
                                        const GenerateCallbacks& callbacks, GenerateTrace* trace);

}  // namespace parfait::pipeline

#endif  // PARFAIT_PIPELINE_PIPELINE_H_
