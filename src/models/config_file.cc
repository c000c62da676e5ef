#include "models/config_file.h"

#include <algorithm>
#include <cmath>

#include "base/result.h"
#include "io/reader.h"

namespace parfait::models {

Result<ConfigFile> ConfigFile::beside(const std::filesystem::path& weights) {
  ConfigFile config;
  std::error_code ignored;
  const std::filesystem::path folder =
      std::filesystem::is_directory(weights, ignored) ? weights : weights.parent_path();
  const std::filesystem::path path = folder / "config.json";
  if (!std::filesystem::exists(path, ignored)) return config;
  PARFAIT_TRY(const io::ReaderPtr reader, io::open_file(path, Io::pread));
  constexpr std::uint64_t most = 1 << 20;
  if (reader->size() > most)
    return make_error(ErrorCode::model_tensor, "{}: {}, where a configuration has at most {}",
                      printable(path.string(), 1000), bytes_text(reader->size()), bytes_text(most));
  std::vector<std::byte> scratch;
  PARFAIT_TRY(const ByteSpan bytes, reader->read(0, reader->size(), scratch));
  auto json = io::parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                             {.max_bytes = most});
  if (!json.ok())
    return make_error(ErrorCode::model_tensor, "{}: this is no JSON: {}",
                      printable(path.string(), 1000), json.error().message);
  config.json_ = std::move(json).value();
  if (!config.json_.object())
    return make_error(ErrorCode::model_tensor, "{}: this is no object of settings",
                      printable(path.string(), 1000));
  config.path_ = path.string();
  return config;
}

Result<double> ConfigFile::number(std::string_view key, double least, double most,
                                  double otherwise) const {
  const io::Json* value = &json_;
  for (std::string_view rest = key; value && !rest.empty();) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    value = value->find(rest.substr(0, dot));
    rest.remove_prefix(std::min(dot + 1, rest.size()));
  }
  if (!value || value->is_null()) return otherwise;
  const std::int64_t* whole = value->integer();
  const double* real = value->number();
  const double number = whole ? static_cast<double>(*whole) : real ? *real : std::nan("");
  if (!(number >= least && number <= most))
    return make_error(ErrorCode::model_tensor, "{}: {} is {}, expected a number from {} to {}",
                      printable(path_, 1000), key, printable(value->text()), least, most);
  return number;
}

std::optional<std::string_view> ConfigFile::text(std::string_view key) const {
  const io::Json* value = json_.find(key);
  if (!value || !value->string()) return {};
  return *value->string();
}

}  // namespace parfait::models
