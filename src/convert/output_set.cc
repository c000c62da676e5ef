#include "convert/output_set.h"

#include <algorithm>
#include <charconv>
#include <map>
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
  target_ = target;
  PARFAIT_TRY(io::NewFolder folder,
              io::NewFolder::create(target, {}, options.fingerprint, options.start));
  folder_.emplace(std::move(folder));
  const auto groups = group_units(plan, options.max_shard);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    files_.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", g + 1, groups.size()));
    PARFAIT_CHECK_OK(
        add_safetensors(folder_->path() / files_.back(), plan, groups[g], inputs, options));
  }
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
  PARFAIT_CHECK_OK(io::refuse_other_kind(target, io::gguf_file));
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
  if (gguf_) gguf_->keep();
  for (Output& shard : shards_) shard.file().keep();
  if (folder_) folder_->keep();
}

Result<Done> OutputSet::finish() {
  if (gguf_) return gguf_->finish();
  for (Output& shard : shards_) PARFAIT_CHECK_OK(shard.file().finish());
  if (!folder_) return Done{};
  PARFAIT_TRY(io::FolderFile index, folder_->open(files_.back()));
  PARFAIT_CHECK_OK(index.write_at(0, std::as_bytes(std::span(index_))));
  PARFAIT_CHECK_OK(index.finish(index_.size()));
  PARFAIT_CHECK_OK(folder_->finish());
  for (std::string& file : files_) file = (target_ / file).string();
  return Done{};
}

}  // namespace parfait::convert
