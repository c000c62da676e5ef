#include "convert/output_set.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <system_error>
#include <utility>

#include "base/result.h"
#include "io/json.h"
#include "io/replacement.h"

namespace parfait::convert {
namespace {

namespace fs = std::filesystem;

std::string path_text(const fs::path& path) { return printable(path.string(), 1000); }

// As many units in each shard as it holds, in order; one that no shard holds has its own.
std::vector<std::vector<std::size_t>> group_units(const Conversion& plan, std::uint64_t limit) {
  std::vector<std::vector<std::size_t>> groups;
  std::uint64_t bytes = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    if (groups.empty() || (bytes > 0 && plan.units[u].bytes > limit - std::min(limit, bytes))) {
      groups.emplace_back();
      bytes = 0;
    }
    groups.back().push_back(u);
    bytes += plan.units[u].bytes;
  }
  if (groups.empty()) groups.emplace_back();
  return groups;
}

std::string index_text(const Conversion& plan, const std::vector<std::size_t>& unit_shards,
                       const std::vector<std::string>& names) {
  std::map<std::string_view, std::size_t> shard_of;  // by name, as Python's sort_keys has it
  std::uint64_t total = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const Unit& unit = plan.units[u];
    for (std::size_t i = unit.first; i < unit.first + unit.count; ++i)
      shard_of.emplace(plan.tensors[i].declaration.name, unit_shards[u]);
    total += unit.bytes;
  }
  std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n"
      "  \"weight_map\": {{",
      total);
  bool first = true;
  for (const auto& [name, shard] : shard_of) {
    text += first ? "\n    " : ",\n    ";
    first = false;
    io::append_json_string(text, name);
    text += ": ";
    io::append_json_string(text, names[shard]);
  }
  return text + "\n  }\n}\n";
}

}  // namespace

OutputSet::OutputSet(OutputSet&& other) noexcept
    : shards_(std::move(other.shards_)),
      gguf_(std::move(other.gguf_)),
      places_(std::move(other.places_)),
      unit_shards_(std::move(other.unit_shards_)),
      done_(std::move(other.done_)),
      folder_(std::move(other.folder_)),
      partial_folder_(std::exchange(other.partial_folder_, {})),
      index_(std::move(other.index_)),
      files_(std::move(other.files_)),
      total_bytes_(other.total_bytes_),
      left_(other.left_) {}

OutputSet::~OutputSet() {
  if (partial_folder_.empty() || left_ == Left::kept) return;
  shards_.clear();  // removes what they had begun
  std::error_code ignored;
  for (const std::string& file : files_) fs::remove(partial_folder_ / file, ignored);
  fs::remove(partial_folder_, ignored);
}

Result<OutputSet> OutputSet::create(const fs::path& target, const Conversion& plan,
                                    std::span<const Checkpoint> inputs,
                                    const OutputSetOptions& options) {
  OutputSet set;
  set.places_.resize(plan.tensors.size());
  set.unit_shards_.resize(plan.units.size());
  if (plan.container == TargetKind::gguf) {
    PARFAIT_CHECK_OK(set.create_gguf(target, plan, inputs, options));
  } else if (options.max_shard > 0) {
    PARFAIT_CHECK_OK(set.create_shards(target, plan, inputs, options));
  } else {
    std::vector<std::size_t> all(plan.units.size());
    for (std::size_t u = 0; u < all.size(); ++u) all[u] = u;
    PARFAIT_CHECK_OK(set.add_safetensors(target, plan, all, inputs, options));
    set.files_.push_back(target.string());
  }
  return set;
}

Result<Done> OutputSet::add_safetensors(const fs::path& target, const Conversion& plan,
                                        std::span<const std::size_t> units,
                                        std::span<const Checkpoint> inputs,
                                        const OutputSetOptions& options) {
  std::vector<container::TensorDeclaration> declarations;
  for (const std::size_t u : units) {
    const Unit& unit = plan.units[u];
    unit_shards_[u] = shards_.size();
    for (std::size_t i = unit.first; i < unit.first + unit.count; ++i) {
      places_[i] = {shards_.size(), declarations.size(), 0};
      declarations.push_back(plan.tensors[i].declaration);
      total_bytes_ += plan.tensors[i].bytes;
    }
  }
  PARFAIT_TRY(Output output, Output::create(target, declarations, inputs,
                                            {plan.metadata, options.fingerprint, options.start}));
  read_journal(output.file(), plan);
  shards_.push_back(std::move(output));
  return Done{};
}

Result<Done> OutputSet::create_shards(const fs::path& target, const Conversion& plan,
                                      std::span<const Checkpoint> inputs,
                                      const OutputSetOptions& options) {
  std::error_code error;
  fs::path folder = target;
  if (!folder.has_filename()) folder = folder.parent_path();  // "out/"
  if (fs::exists(folder, error) &&
      !(fs::is_directory(folder, error) && fs::is_empty(folder, error)))
    return make_error(ErrorCode::file_write,
                      "{}: shards need a new or an empty folder, and this is {}", path_text(target),
                      fs::is_directory(folder, error) ? "one that holds files" : "a file");
  folder_ = folder;
  fs::path partial = folder;
  partial += ".partial";
  if (!fs::create_directory(partial, error) && error)
    return make_error(ErrorCode::file_write, "{}: cannot be created: {}", path_text(target),
                      error.message());
  if (!fs::is_directory(partial, error))
    return make_error(ErrorCode::file_write, "{}: {} is in the way and is no folder",
                      path_text(target), path_text(partial));
  const auto groups = group_units(plan, options.max_shard);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    files_.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", g + 1, groups.size()));
    Result<Done> added = add_safetensors(partial / files_.back(), plan, groups[g], inputs, options);
    if (added.ok()) continue;
    // Perhaps another process is at work here: only what was begun goes, and the folder if it is
    // empty then.
    shards_.clear();
    fs::remove(partial, error);
    return std::move(added).error();
  }
  partial_folder_ = partial;
  index_ = index_text(plan, unit_shards_, files_);
  files_.push_back("model.safetensors.index.json");
  return Done{};
}

Result<Done> OutputSet::create_gguf(const fs::path& target, const Conversion& plan,
                                    std::span<const Checkpoint> inputs,
                                    const OutputSetOptions& options) {
  if (options.max_shard > 0)
    return make_error(ErrorCode::convert_option,
                      "{}: a GGUF file is written as one file; --max-shard is for safetensors",
                      path_text(target));
  PARFAIT_CHECK_OK(refuse_inputs(target, inputs));
  std::vector<gguf::Tensor> tensors;
  for (const PlannedTensor& tensor : plan.tensors) {
    tensors.push_back({tensor.declaration.name, tensor.type, tensor.logical_shape, tensor.bytes});
    total_bytes_ += tensor.bytes;
  }
  const gguf::Header header = gguf::make_header(tensors, plan.keys);
  for (std::size_t i = 0; i < places_.size(); ++i) places_[i].offset = header.offsets[i];
  PARFAIT_TRY(gguf_,
              io::PartFile::create(target, header.file_bytes, options.fingerprint, options.start));
  PARFAIT_CHECK_OK(gguf_->write_at(0, header.bytes));
  read_journal(*gguf_, plan);
  files_.push_back(target.string());
  return Done{};
}

void OutputSet::read_journal(const io::PartFile& file, const Conversion& plan) {
  for (const std::string& line : file.journal()) {
    std::size_t unit = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), unit);
    if (error == std::errc() && end == line.data() + line.size() && unit < plan.units.size())
      done_.insert(unit);
  }
}

Result<Done> OutputSet::put(std::size_t tensor, std::uint64_t at, ByteSpan bytes) {
  const Place& place = places_[tensor];
  if (gguf_) return gguf_->write_at(place.offset + at, bytes);
  return shards_[place.shard].put(place.tensor, at, bytes);
}

io::PartFile& OutputSet::file_of(std::size_t shard) {
  return gguf_ ? *gguf_ : shards_[shard].file();
}

Result<Done> OutputSet::record(std::size_t unit) {
  return file_of(unit_shards_[unit]).record(fmt::format("{}", unit));
}

void OutputSet::keep() {
  left_ = Left::kept;
  if (gguf_) gguf_->keep();
  for (Output& shard : shards_) shard.file().keep();
}

// Shards of a run that was killed and had others.
void OutputSet::remove_strays() const {
  std::error_code error;
  std::vector<fs::path> strays;
  for (const auto& entry : fs::directory_iterator(partial_folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model-") && std::ranges::find(files_, name) == files_.end())
      strays.push_back(entry.path());
  }
  for (const fs::path& stray : strays) fs::remove(stray, error);
}

Result<Done> OutputSet::finish() {
  if (gguf_) return gguf_->finish();
  for (Output& shard : shards_) PARFAIT_CHECK_OK(shard.file().finish());
  if (folder_.empty()) return Done{};
  PARFAIT_TRY(io::Replacement index, io::Replacement::create(partial_folder_ / files_.back()));
  PARFAIT_CHECK_OK(index.append(std::as_bytes(std::span(index_))));
  PARFAIT_CHECK_OK(index.finish());
  remove_strays();
  if (::rename(partial_folder_.c_str(), folder_.c_str()) != 0)
    return make_error(ErrorCode::file_write, "{}: cannot be put in place: {}", path_text(folder_),
                      std::generic_category().message(errno));
  io::sync_folder(folder_);
  partial_folder_.clear();
  for (std::string& file : files_) file = (folder_ / file).string();
  return Done{};
}

}  // namespace parfait::convert
