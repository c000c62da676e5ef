#include "pipeline/files.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <system_error>

#include "base/result.h"

namespace parfait::pipeline {
namespace {

namespace fs = std::filesystem;

struct Role {
  std::string_view what, option;
  std::initializer_list<const char*> folders;  // ComfyUI's and Hugging Face's
};
const Role transformer{"transformer", "--transformer", {"transformer", "diffusion_models", "unet"}};
const Role text_encoder{
    "text encoder", "--text-encoder", {"text_encoder", "text_encoders", "clip"}};
const Role vae{"auto-encoder", "--vae", {"vae"}};

bool is_weights(const fs::path& path) { return path.extension() == ".safetensors"; }

// The weights in a folder: the folder itself where they are shards, else the only file of it or of
// the folders in it.
Result<fs::path> only_weights(const fs::path& folder, const Role& role) {
  std::error_code error;
  std::vector<fs::path> files;
  std::set<fs::path> seen_files;  // by where they lie: links may lead to one file twice, or around
  constexpr std::size_t most = 10'000;
  std::size_t seen = 0;
  for (fs::recursive_directory_iterator it(folder,
                                           fs::directory_options::skip_permission_denied |
                                               fs::directory_options::follow_directory_symlink,
                                           error);
       !error && it != fs::recursive_directory_iterator() && ++seen < most; it.increment(error)) {
    const fs::path& path = it->path();
    if (path.filename().string().ends_with(".safetensors.index.json")) return path;
    if (it.depth() > 3) it.disable_recursion_pending();
    std::error_code ignored;
    if (is_weights(path) && seen_files.insert(fs::weakly_canonical(path, ignored)).second)
      files.push_back(path);
  }
  if (files.empty())
    return make_error(ErrorCode::folder_empty,
                      "{}: there is no .safetensors file for the {} in it; {} names one",
                      printable(folder.string(), 1000), role.what, role.option);
  if (files.size() == 1) return files[0];
  std::ranges::sort(files);
  std::string names;
  for (std::size_t i = 0; i < std::min<std::size_t>(files.size(), 5); ++i)
    names += fmt::format("{}{}", i ? ", " : "", printable(files[i].filename().string()));
  return make_error(ErrorCode::folder_ambiguous,
                    "{}: {} files could be the {} ({}{}); {} names one",
                    printable(folder.string(), 1000), files.size(), role.what, names,
                    files.size() > 5 ? ", ..." : "", role.option);
}

Result<fs::path> find(const fs::path& given, const fs::path& model_dir, const Role& role) {
  std::error_code ignored;
  if (!given.empty()) {
    if (fs::is_directory(given, ignored)) return only_weights(given, role);
    return given;  // opening says what is wrong with it
  }
  if (model_dir.empty())
    return make_error(
        ErrorCode::file_not_found,
        "the {} is not given: {} FILE names it, or --model-dir a folder with all parts", role.what,
        role.option);
  std::string places;
  for (const char* folder : role.folders) {
    const fs::path path = model_dir / folder;
    if (fs::is_directory(path, ignored)) return only_weights(path, role);
    places += fmt::format("{}{}/", places.empty() ? "" : ", ", folder);
  }
  return make_error(ErrorCode::file_not_found,
                    "{}: has no folder for the {} (one of {}); {} FILE names it",
                    printable(model_dir.string(), 1000), role.what, places, role.option);
}

bool is_tokenizer(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / "tokenizer.json", ignored) || fs::exists(path / "vocab.json", ignored);
}

Result<fs::path> find_tokenizer(const PipelineFiles& files) {
  std::error_code ignored;
  if (!files.tokenizer.empty()) return files.tokenizer;
  std::vector<fs::path> folders;
  if (!files.model_dir.empty())
    for (const char* folder : {"tokenizer", "text_encoder", "text_encoders", ""})
      folders.push_back(files.model_dir / folder);
  // Beside the encoder too, as downloads of one repository have it.
  if (!files.text_encoder.empty()) {
    folders.push_back(files.text_encoder.parent_path());
    folders.push_back(files.text_encoder.parent_path() / ".." / "tokenizer");
  }
  for (const fs::path& folder : folders)
    if (is_tokenizer(folder.empty() ? "." : folder)) return folder.empty() ? "." : folder;
  return make_error(
      ErrorCode::file_not_found,
      "there is no tokenizer: a tokenizer.json (or vocab.json with merges.txt) is looked for in "
      "tokenizer/ and beside the text encoder; --tokenizer FILE names one");
}

}  // namespace

Result<PipelineFiles> find_files(const PipelineFiles& given) {
  PipelineFiles found = given;
  std::error_code ignored;
  if (!given.model_dir.empty() && !fs::is_directory(given.model_dir, ignored))
    return make_error(ErrorCode::file_not_found, "{}: is not a folder",
                      printable(given.model_dir.string(), 1000));
  PARFAIT_TRY(found.transformer, find(given.transformer, given.model_dir, transformer));
  PARFAIT_TRY(found.text_encoder, find(given.text_encoder, given.model_dir, text_encoder));
  PARFAIT_TRY(found.vae, find(given.vae, given.model_dir, vae));
  PARFAIT_TRY(found.tokenizer, find_tokenizer(found));
  return found;
}

}  // namespace parfait::pipeline
