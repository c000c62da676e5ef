#include "convert/manifest.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "base/result.h"
#include "container/shard_index.h"
#include "io/json.h"
#include "io/reader.h"

namespace parfait::convert {
namespace {

constexpr std::uint32_t max_ranks = 1024;

// --- Writing ---

std::string json_text(std::string_view text) {
  std::string out;
  io::append_json_string(out, text);
  return out;
}

std::string file_text(const FileEntry& file) {
  std::string text = fmt::format("{{\"name\": {}, \"bytes\": {}", json_text(file.name), file.bytes);
  if (!file.header_digest.empty())
    text += fmt::format(", \"header_bytes\": {}, \"header_digest\": \"{}\"", file.header_bytes,
                        file.header_digest);
  return text + fmt::format(", \"digest\": \"{}\"}}", file.digest);
}

std::string files_text(const std::vector<FileEntry>& files) {
  std::string text = "[";
  for (std::size_t i = 0; i < files.size(); ++i)
    text += (i ? ",\n    " : "\n    ") + file_text(files[i]);
  return text + (files.empty() ? "]" : "\n  ]");
}

std::string shares_text(const Shares& shares) {
  std::string text = "[";
  for (std::size_t rank = 0; rank < shares.ranges.size(); ++rank) {
    text += rank ? ", [" : "[";
    for (std::size_t i = 0; i < shares.ranges[rank].size(); ++i)
      text += fmt::format("{}[{}, {}]", i ? ", " : "", shares.ranges[rank][i].begin,
                          shares.ranges[rank][i].end);
    text += ']';
  }
  return text + ']';
}

std::string cut_text(const std::string& tensor, const CutTensor& cut) {
  const plan::PartCut& how = cut.slices.cut;
  std::string text =
      fmt::format("{{\"tensor\": {}, \"cut\": \"{}\"", json_text(tensor), plan::cut_name(how.cut));
  if (how.cut != plan::Cut::first_rank)
    text += fmt::format(", \"rows\": {}, \"used\": {}, \"pad\": {}, \"planes\": [{}], \"kept\": {}",
                        how.rows, how.used, how.pad, fmt::join(how.planes, ", "), cut.kept);
  return text + '}';
}

// --- Reading ---

// Fields of one object, with what is wrong with the first that is.
class Fields {
 public:
  Fields(const io::Json& json, std::string place, std::string& problem)
      : json_(json), place_(std::move(place)), problem_(problem) {
    if (!json.object()) complain("is no object");
  }

  std::string text(std::string_view key) {
    const io::Json* value = json_.find(key);
    if (!value || !value->string()) return complain(fmt::format("has no string \"{}\"", key)), "";
    return *value->string();
  }
  std::uint64_t number(std::string_view key,
                       std::uint64_t most = std::numeric_limits<std::int64_t>::max()) {
    const io::Json* value = json_.find(key);
    return value ? number(*value, key, most) : (complain(fmt::format("has no \"{}\"", key)), 0);
  }
  std::uint64_t number(const io::Json& value, std::string_view key,
                       std::uint64_t most = std::numeric_limits<std::int64_t>::max()) {
    const std::int64_t* integer = value.integer();
    if (integer && *integer >= 0 && static_cast<std::uint64_t>(*integer) <= most)
      return static_cast<std::uint64_t>(*integer);
    complain(fmt::format("has a number in \"{}\" that cannot be", key));
    return 0;
  }
  const io::Json::Array& array(std::string_view key) {
    static const io::Json::Array none;
    const io::Json* value = json_.find(key);
    if (value && value->array()) return *value->array();
    complain(fmt::format("has no list \"{}\"", key));
    return none;
  }
  const io::Json* find(std::string_view key) const { return json_.find(key); }
  void complain(const std::string& what) {
    if (problem_.empty()) problem_ = fmt::format("{} {}", place_, what);
  }
  bool ok() const { return problem_.empty(); }

 private:
  const io::Json& json_;
  const std::string place_;
  std::string& problem_;
};

bool is_digest(const std::string& text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

enum class Holds { tensors, anything };

FileEntry parse_file(const io::Json& json, std::string_view place, Holds holds,
                     std::string& problem) {
  Fields fields(json, fmt::format("an entry of \"{}\"", place), problem);
  FileEntry file;
  file.name = fields.text("name");
  file.bytes = fields.number("bytes");
  file.digest = fields.text("digest");
  if (!is_digest(file.digest)) fields.complain("has no digest of 16 hexadecimal digits");
  if (const std::string_view why = container::shard_name_objection(file.name); !why.empty())
    fields.complain(fmt::format("has a file name that {}", why));
  if (holds == Holds::anything) return file;
  file.header_bytes = fields.number("header_bytes", file.bytes);
  file.header_digest = fields.text("header_digest");
  if (!is_digest(file.header_digest))
    fields.complain("has no header digest of 16 hexadecimal digits");
  return file;
}

std::vector<FileEntry> parse_files(Fields& fields, std::string_view key, Holds holds,
                                   std::string& problem) {
  std::vector<FileEntry> files;
  std::unordered_set<std::string> names;
  for (const io::Json& json : fields.array(key)) {
    files.push_back(parse_file(json, key, holds, problem));
    if (!names.insert(files.back().name).second)
      fields.complain(fmt::format("has the file {} twice", printable(files.back().name)));
    if (!fields.ok()) break;
  }
  return files;
}

// Each rank's ranges, which must be in order and together cover the axis once.
std::shared_ptr<const Shares> parse_shares(Fields& fields, std::uint32_t ranks) {
  auto shares = std::make_shared<Shares>();
  shares->length = fields.number("length");
  std::vector<Range> all;
  for (const io::Json& rank : fields.array("shares")) {
    std::vector<Range>& mine = shares->ranges.emplace_back();
    if (!rank.array()) {
      fields.complain("has shares that are no lists");
      return shares;
    }
    for (const io::Json& json : *rank.array()) {
      if (!json.array() || json.array()->size() != 2) {
        fields.complain("has a share that is no list of [begin, end]");
        return shares;
      }
      const Range range{fields.number((*json.array())[0], "shares"),
                        fields.number((*json.array())[1], "shares")};
      if (range.begin >= range.end || (!mine.empty() && range.begin < mine.back().end))
        fields.complain("has shares that run backwards");
      mine.push_back(range);
      all.push_back(range);
    }
  }
  if (shares->ranges.size() != ranks)
    fields.complain(fmt::format("has shares of {} ranks, not of {}", shares->ranges.size(), ranks));
  std::ranges::sort(all, {}, &Range::begin);
  std::uint64_t at = 0;
  for (const Range& range : all) {
    if (range.begin != at) fields.complain("has shares that overlap or leave a gap");
    at = range.end;
  }
  if (at != shares->length || at == 0) fields.complain("has shares that do not cover its axis");
  return shares;
}

CutTensor parse_cut(const io::Json& json, const std::string& layer,
                    const std::shared_ptr<const Shares>& shares, std::string& problem) {
  Fields fields(json, fmt::format("a tensor of layer {}", printable(layer)), problem);
  CutTensor tensor;
  plan::PartCut& cut = tensor.slices.cut;
  const std::string how = fields.text("cut");
  tensor.slices.shares = shares;
  for (plan::Cut known :
       {plan::Cut::rows, plan::Cut::columns, plan::Cut::tiles, plan::Cut::first_rank})
    if (how == plan::cut_name(known)) cut.cut = known;
  if (cut.cut == plan::Cut::none) fields.complain("is cut in a way that is not known here");
  if (cut.cut == plan::Cut::none || cut.cut == plan::Cut::first_rank) return tensor;
  cut.rows = fields.number("rows");
  cut.used = fields.number("used");
  cut.pad = fields.number("pad");
  const io::Json::Array& planes = fields.array("planes");
  if (planes.size() > 8) return fields.complain("has more planes than a format has"), tensor;
  for (const io::Json& plane : planes) cut.planes.push_back(fields.number(plane, "planes"));
  tensor.kept = fields.number("kept");
  return tensor;
}

void parse_layer(const io::Json& json, Manifest& manifest, std::string& problem) {
  Fields fields(json, "a layer", problem);
  ManifestLayer layer;
  layer.name = fields.text("name");
  const io::Json* shares = fields.find("shares");
  if (!shares || !fields.ok()) return;  // replicated
  layer.shares = parse_shares(fields, manifest.ranks);
  for (const io::Json& part : fields.array("tensors")) {
    if (!fields.ok()) return;
    const io::Json* tensor = part.find("tensor");
    if (!tensor || !tensor->string()) return fields.complain("has a tensor without a name");
    if (!manifest.cut.emplace(*tensor->string(), parse_cut(part, layer.name, layer.shares, problem))
             .second)
      fields.complain(fmt::format("cuts tensor {} twice", printable(*tensor->string())));
  }
  manifest.layers.push_back(std::move(layer));
}

}  // namespace

std::string rank_name(std::uint32_t rank, std::uint32_t ranks) {
  const std::size_t width = std::max<std::size_t>(2, fmt::format("{}", ranks).size());
  return fmt::format("rank_{:0{}}_of_{:0{}}.safetensors", rank, width, ranks, width);
}

std::string Manifest::text() const {
  std::string text =
      fmt::format("{{\n  \"parfait_shard\": {},\n  \"ranks\": {},\n", manifest_version, ranks);
  text += fmt::format("  \"rank_files\": {},\n", files_text(rank_files));
  text += fmt::format("  \"source_files\": {},\n", files_text(files));
  text += fmt::format("  \"source_index\": {},\n", files_text(index));
  text += fmt::format("  \"rest\": {},\n  \"layers\": [", file_text(rest));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const ManifestLayer& layer = layers[i];
    text += fmt::format("{}\n    {{\"name\": {}, \"format\": {}, \"axis\": \"{}\", \"reason\": {}",
                        i ? "," : "", json_text(layer.name), json_text(layer.format),
                        split_axis_name(layer.axis), json_text(layer.reason));
    if (layer.shares) {
      text += fmt::format(",\n     \"length\": {}, \"shares\": {},\n     \"tensors\": [",
                          layer.shares->length, shares_text(*layer.shares));
      for (std::size_t t = 0; t < layer.tensors.size(); ++t)
        text +=
            (t ? ",\n       " : "\n       ") + cut_text(layer.tensors[t], cut.at(layer.tensors[t]));
      text += ']';
    }
    text += '}';
  }
  return text + "\n  ]\n}\n";
}

Result<Manifest> read_manifest(const std::filesystem::path& folder) {
  const std::string name = printable((folder / manifest_name).string(), 1000);
  PARFAIT_TRY(const io::ReaderPtr reader, io::open_file(folder / manifest_name, Io::pread));
  if (reader->size() > max_manifest_bytes)
    return make_error(ErrorCode::shard_manifest,
                      "{}: is {} bytes long, more than the {} that a manifest may have", name,
                      reader->size(), max_manifest_bytes);
  std::vector<std::byte> scratch;
  PARFAIT_TRY(const ByteSpan text, reader->read(0, reader->size(), scratch));
  return parse_manifest({reinterpret_cast<const char*>(text.data()), text.size()}, name);
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& name) {
  auto json = io::parse_json(text, {.max_bytes = max_manifest_bytes, .max_depth = 8});
  if (!json)
    return make_error(ErrorCode::shard_manifest, "{}: is not valid JSON: {}", name,
                      json.error().message);
  std::string problem;
  Fields fields(*json, "it", problem);
  Manifest manifest;
  if (fields.ok() && !json->find(rank_key))
    return make_error(ErrorCode::shard_manifest,
                      "{}: is no manifest of `parfait shard`: it has no key \"{}\"", name,
                      rank_key);
  const std::uint64_t version = fields.number(rank_key);
  if (fields.ok() && version != manifest_version)
    return make_error(ErrorCode::shard_manifest,
                      "{}: is of version {}, where this program reads version {}", name, version,
                      manifest_version);
  manifest.ranks = static_cast<std::uint32_t>(fields.number("ranks", max_ranks));
  if (manifest.ranks == 0) fields.complain("counts no ranks");
  manifest.rank_files = parse_files(fields, "rank_files", Holds::tensors, problem);
  manifest.files = parse_files(fields, "source_files", Holds::tensors, problem);
  manifest.index = parse_files(fields, "source_index", Holds::anything, problem);
  if (const io::Json* rest = json->find("rest"))
    manifest.rest = parse_file(*rest, "rest", Holds::anything, problem);
  else
    fields.complain("has no \"rest\"");
  if (fields.ok() && manifest.rank_files.size() != manifest.ranks)
    fields.complain(fmt::format("lists {} rank files for {} ranks", manifest.rank_files.size(),
                                manifest.ranks));
  if (fields.ok() && (manifest.files.empty() || manifest.index.size() > 1))
    fields.complain("lists no source file, or several indexes");
  if (fields.ok())
    for (const io::Json& layer : fields.array("layers")) {
      parse_layer(layer, manifest, problem);
      if (!fields.ok()) break;
    }
  if (!fields.ok())
    return make_error(ErrorCode::shard_manifest, "{}: contradicts itself: {}", name, problem);
  return manifest;
}

}  // namespace parfait::convert
