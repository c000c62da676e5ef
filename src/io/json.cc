#include "io/json.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "base/result.h"

namespace parfait::io {
namespace {

constexpr ErrorCode code = ErrorCode::marker_json;  // callers put their own in its place

Result<Json> convert(simdjson::dom::element element, unsigned depth, unsigned max_depth);

Result<Json> convert_object(const simdjson::dom::object& object, unsigned depth,
                            unsigned max_depth) {
  Json::Object out;
  std::unordered_set<std::string_view> keys;
  out.reserve(object.size());
  keys.reserve(object.size());
  for (const auto& [key, value] : object) {
    if (!keys.insert(key).second)
      return make_error(code, "key \"{}\" stands twice", printable(key));
    PARFAIT_TRY(Json converted, convert(value, depth + 1, max_depth));
    out.emplace_back(std::string(key), std::move(converted));
  }
  return Json(std::move(out));
}

Result<Json> convert_array(const simdjson::dom::array& array, unsigned depth, unsigned max_depth) {
  Json::Array out;
  for (const simdjson::dom::element element : array) {
    PARFAIT_TRY(Json converted, convert(element, depth + 1, max_depth));
    out.push_back(std::move(converted));
  }
  return Json(std::move(out));
}

Result<Json> convert(simdjson::dom::element element, unsigned depth, unsigned max_depth) {
  if (depth > max_depth) return make_error(code, "nested deeper than {} levels", max_depth);
  using Type = simdjson::dom::element_type;
  switch (element.type()) {
    case Type::OBJECT:
      return convert_object(element.get_object().value_unsafe(), depth, max_depth);
    case Type::ARRAY:
      return convert_array(element.get_array().value_unsafe(), depth, max_depth);
    case Type::STRING:
      return Json(std::string(element.get_string().value_unsafe()));
    case Type::BOOL:
      return Json(element.get_bool().value_unsafe());
    case Type::INT64:
      return Json(element.get_int64().value_unsafe());
    case Type::UINT64:
      return Json(static_cast<double>(element.get_uint64().value_unsafe()));
    case Type::DOUBLE:
      return Json(element.get_double().value_unsafe());
    case Type::NULL_VALUE:
      break;
  }
  return Json();
}

void append(std::string& out, const Json& json) {
  if (const auto* object = json.object()) {
    out += '{';
    for (const auto& [key, value] : *object) {
      if (&key != &object->front().first) out += ", ";
      append_json_string(out, key);
      out += ": ";
      append(out, value);
    }
    out += '}';
  } else if (const auto* array = json.array()) {
    out += '[';
    for (const Json& value : *array) {
      if (&value != &array->front()) out += ", ";
      append(out, value);
    }
    out += ']';
  } else if (const auto* string = json.string()) {
    append_json_string(out, *string);
  } else if (const auto* boolean = json.boolean()) {
    out += *boolean ? "true" : "false";
  } else if (const auto* integer = json.integer()) {
    out += fmt::format("{}", *integer);
  } else if (const auto* number = json.number()) {
    const std::string digits = fmt::format("{}", *number);
    out += digits;
    if (digits.find_first_of(".e") == std::string::npos) out += ".0";  // else it reads as whole
  } else {
    out += "null";
  }
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

const Json* Json::find(std::string_view key) const {
  const Object* members = object();
  if (!members) return nullptr;
  for (const auto& [name, value] : *members)
    if (name == key) return &value;
  return nullptr;
}

std::string Json::text() const {
  std::string out;
  append(out, *this);
  return out;
}

bool Json::operator==(const Json& other) const {
  const Object* mine = object();
  const Object* theirs = other.object();
  if (!mine || !theirs) return value_ == other.value_;
  if (mine->size() != theirs->size()) return false;
  const auto by_key = [](const Object& object) {
    std::vector<const Object::value_type*> members;
    for (const auto& member : object) members.push_back(&member);
    std::ranges::sort(members, {},
                      [](const auto* member) { return std::string_view(member->first); });
    return members;
  };
  return std::ranges::equal(by_key(*mine), by_key(*theirs), [](const auto* a, const auto* b) {
    return a->first == b->first && a->second == b->second;
  });
}

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    return make_error(code, "{} bytes long, where at most {} are taken", text.size(),
                      limits.max_bytes);
  simdjson::dom::parser parser;
  if (parser.allocate(std::max<std::size_t>(text.size(), 1), limits.max_depth + 2) !=
      simdjson::SUCCESS)
    return make_error(ErrorCode::out_of_memory, "no memory to parse {} bytes", text.size());
  simdjson::dom::element root;
  const simdjson::padded_string padded(text);
  if (const auto error = parser.parse(padded).get(root))
    return make_error(code, "{}", simdjson::error_message(error));
  return convert(root, 0, limits.max_depth);
}

}  // namespace parfait::io
