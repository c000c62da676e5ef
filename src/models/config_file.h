// config.json, where a repository of Hugging Face's kind has one beside the weights: numbers that
// tensors do not show.
#ifndef PARFAIT_MODELS_CONFIG_FILE_H_
#define PARFAIT_MODELS_CONFIG_FILE_H_

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "io/json.h"
#include "parfait/error.h"

namespace parfait::models {

class ConfigFile {
 public:
  // weights: the file, index or folder that a part was opened from. No config.json: an empty one.
  static Result<ConfigFile> beside(const std::filesystem::path& weights);

  // The number of a key ("rope_parameters.rope_theta": of an object in it), or `otherwise` where
  // there is no such key. Another type, or a number out of [least, most], is an error.
  Result<double> number(std::string_view key, double least, double most, double otherwise) const;
  std::optional<std::string_view> text(std::string_view key) const;

 private:
  std::string path_;
  io::Json json_;
};

}  // namespace parfait::models

#endif  // PARFAIT_MODELS_CONFIG_FILE_H_
