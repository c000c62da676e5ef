// The public view of pipelines.

#include "parfait/generate.h"

#include <new>

#include "base/result.h"
#include "io/replacement.h"
#include "pipeline/pipeline.h"
#include "pipeline/png.h"

namespace parfait {

std::string_view op_kind_name(OpKind kind) {
  constexpr std::array<std::string_view, op_kinds> names = {
      "loading", "linear", "attention", "norm", "rope", "pointwise", "convolution"};
  return names[static_cast<std::size_t>(kind)];
}

Result<Pipeline> open_pipeline(const PipelineFiles& files, const PipelineOptions& options) try {
  PARFAIT_TRY(std::shared_ptr<const pipeline::Pipeline> state,
              pipeline::Pipeline::open(files, options));
  return Pipeline(std::move(state));
} catch (const std::bad_alloc&) {
  return make_error(ErrorCode::out_of_memory, "there is not enough memory to open the pipeline");
}

Result<std::vector<PartInfo>> Pipeline::parts(const GenerateOptions& options) const try {
  return state_->parts(options);
} catch (const std::bad_alloc&) {
  return make_error(ErrorCode::out_of_memory, "there is not enough memory to plan the pipeline");
}

Result<std::vector<Generated>> Pipeline::generate(const GenerateOptions& options,
                                                  const GenerateCallbacks& callbacks,
                                                  GenerateTrace* trace) const try {
  return pipeline::generate(*state_, options, callbacks, trace);
} catch (const std::bad_alloc&) {
  return make_error(ErrorCode::out_of_memory,
                    "there is not enough memory for a picture of {} × {}: --max-memory streams the "
                    "weights",
                    options.width, options.height);
}

std::vector<std::filesystem::path> Pipeline::files() const {
  std::vector<std::filesystem::path> files;
  for (const pipeline::Part* part : {&state_->transformer, &state_->text_encoder, &state_->vae})
    for (const container::Shard& shard : part->checkpoint->index->shards())
      files.emplace_back(shard.reader->name());
  return files;
}

Result<Done> write_png(const std::filesystem::path& path, const Picture& picture,
                       std::span<const std::pair<std::string, std::string>> texts) try {
  PARFAIT_TRY(const std::vector<std::byte> bytes, pipeline::encode_png(picture, texts));
  PARFAIT_TRY(io::Replacement file, io::Replacement::create(path, io::png_file));
  PARFAIT_CHECK_OK(file.append(bytes));
  return file.finish();
} catch (const std::bad_alloc&) {
  return make_error(ErrorCode::out_of_memory, "there is not enough memory to write {}",
                    printable(path.string(), 1000));
}

}  // namespace parfait
