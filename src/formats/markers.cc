// The bytes of a marker, and the objects of a header table, as Markers.

#include "formats/markers.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/result.h"

namespace parfait::formats {
namespace {

constexpr std::uint64_t max_marker_bytes = 64 << 10;  // real ones have 19 to 150

// One pass over an object's keys, flat or under "params".
class KeyReader {
 public:
  KeyReader(Marker& marker, FindingSink& sink, std::string_view place)
      : marker_(marker), sink_(sink), place_(place) {}

  void read(const io::Json::Object& object, std::string_view where) {
    for (const auto& [key, value] : object) {
      if (key == "params" && where.empty() && value.object()) {
        continue;  // read second, so that flat keys are there to compare with
      } else if (key == "format") {
        text(key, value, format_);
      } else if (key == "linear_dtype") {
        text(key, value, marker_.linear_dtype);
      } else if (key == "convrot") {
        flag(key, value, marker_.convrot);
      } else if (key == "full_precision_matrix_mult") {
        flag(key, value, marker_.full_precision);
      } else if (key == "per_row") {
        flag(key, value, marker_.per_row);
      } else if (key == "convrot_groupsize") {
        count(key, value, marker_.convrot_groupsize);
      } else if (key == "group_size") {
        count(key, value, marker_.group_size);
      } else if (key == "quant_group_size") {
        count(key, value, marker_.quant_group_size);
      } else if (key == "num_experts") {
        count(key, value, marker_.num_experts);
      } else if (where.empty()) {
        marker_.other_keys.push_back(key);
      } else {
        marker_.other_keys.push_back(fmt::format("{}.{}", where, key));
      }
    }
    if (!where.empty()) return;
    for (const auto& [key, value] : object)
      if (key == "params" && value.object()) read(*value.object(), "params");
  }

  void finish() { marker_.format = format_.value_or(""); }

 private:
  template <class T>
  void set(std::string_view key, const io::Json& value, const T* typed, std::optional<T>& slot,
           std::string_view expected) {
    if (!typed) {
      sink_.add(Severity::error, ErrorCode::marker_key, place_, value.text(), std::string(expected),
                fmt::format("the marker's key \"{}\" has a value of the wrong type or range", key));
    } else if (slot && *slot != *typed) {
      sink_.add(Severity::error, ErrorCode::marker_key_conflict, place_, value.text(), "",
                fmt::format("the marker's key \"{}\" stands at the top and under \"params\" with "
                            "unlike values, so no reader can know which is meant",
                            key));
    } else {
      slot = *typed;
    }
  }

  void text(std::string_view key, const io::Json& value, std::optional<std::string>& slot) {
    set(key, value, value.string(), slot, "a string");
  }
  void flag(std::string_view key, const io::Json& value, std::optional<bool>& slot) {
    set(key, value, value.boolean(), slot, "true or false");
  }
  void count(std::string_view key, const io::Json& value, std::optional<std::int64_t>& slot) {
    const std::int64_t* number = value.integer();
    if (number && (*number < 1 || *number > std::numeric_limits<std::int32_t>::max()))
      number = nullptr;
    set(key, value, number, slot, "a whole number from 1 to 2147483647");
  }

  Marker& marker_;
  FindingSink& sink_;
  std::string_view place_;
  std::optional<std::string> format_;
};

}  // namespace

std::optional<Marker> marker_from_json(io::Json json, FindingSink& sink, std::string_view place) {
  Marker marker;
  if (const std::string* name = json.string()) {
    sink.add(Severity::warning, ErrorCode::marker_dialect, place, json.text(),
             fmt::format("{{\"format\": {}}}", json.text()),
             "the declaration is a bare string where ComfyUI wants an object; it was read as the "
             "format's name");
    marker.format = *name;
    marker.object = io::Json(io::Json::Object{{"format", io::Json(*name)}});
    return marker;
  }
  if (!json.object()) {
    sink.add(Severity::error, ErrorCode::marker_json, place, json.text(), "a JSON object",
             "the declaration is not a JSON object");
    return std::nullopt;
  }
  KeyReader reader(marker, sink, place);
  reader.read(*json.object(), "");
  reader.finish();
  marker.object = std::move(json);
  return sink.has_error() ? std::nullopt : std::optional<Marker>(std::move(marker));
}

std::optional<Marker> parse_marker(std::string_view bytes, FindingSink& sink,
                                   std::string_view tensor_name) {
  if (bytes.size() > max_marker_bytes) {
    sink.add(Severity::error, ErrorCode::marker_json, tensor_name,
             fmt::format("{} bytes", bytes.size()),
             fmt::format("at most {} bytes", max_marker_bytes), "the marker is too long to be one");
    return std::nullopt;
  }
  constexpr std::string_view padding(" \0\t\r\n", 5);
  const std::size_t end = bytes.find_last_not_of(padding);
  if (end == std::string_view::npos) {
    sink.add(Severity::warning, ErrorCode::marker_empty, tensor_name,
             fmt::format("{} bytes of nothing", bytes.size()), "a JSON object",
             "the marker is empty, so it declares nothing and counts as absent");
    Marker marker;
    marker.object = io::Json(io::Json::Object{});
    return marker;
  }
  if (end + 1 != bytes.size()) {
    sink.add(Severity::warning, ErrorCode::marker_padding, tensor_name,
             fmt::format("{} bytes of padding", bytes.size() - end - 1), "none",
             "the marker is padded behind its JSON, which ComfyUI's strict parser refuses");
    bytes = bytes.substr(0, end + 1);
  }
  auto json = io::parse_json(bytes, {.max_bytes = max_marker_bytes, .max_depth = 8});
  if (!json) {
    sink.add(Severity::error, ErrorCode::marker_json, tensor_name, std::string(bytes),
             "a JSON object",
             fmt::format("the marker is not valid JSON ({})", json.error().message));
    return std::nullopt;
  }
  if (!json->object()) {
    sink.add(Severity::error, ErrorCode::marker_json, tensor_name, json->text(), "a JSON object",
             "the marker is not a JSON object");
    return std::nullopt;
  }
  return marker_from_json(std::move(json).value(), sink, tensor_name);
}

}  // namespace parfait::formats
