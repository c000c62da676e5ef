// Bounded JSON for small documents (markers, quantization tables, shard indexes): parsed by
// simdjson into a plain tree. Refuses documents over a byte limit, nested deeper than max_depth,
// with a key twice in one object, or with anything after the value. Whole numbers from 2^63 to
// 2^64 - 1 become doubles; numbers beyond those, or beyond what a double holds, are refused.
#ifndef PARFAIT_IO_JSON_H_
#define PARFAIT_IO_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "parfait/error.h"

namespace parfait::io {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;  // in document order
  // null, true/false, a whole number, any other number, string, array, object
  using Value =
      std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object>;

  Json() = default;
  explicit Json(Value value) : value_(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  const std::int64_t* integer() const { return std::get_if<std::int64_t>(&value_); }
  const double* number() const { return std::get_if<double>(&value_); }  // not whole, or past int64
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const Array* array() const { return std::get_if<Array>(&value_); }
  const Object* object() const { return std::get_if<Object>(&value_); }
  const Json* find(std::string_view key) const;  // in an object; null where there is none
  std::string text() const;                      // compact, for messages
  bool operator==(const Json& other) const;      // objects compare without regard to order

 private:
  Value value_ = nullptr;
};

// Appends text as a JSON string, quotes included.
void append_json_string(std::string& out, std::string_view text);

struct JsonLimits {
  std::uint64_t max_bytes = 1 << 20;
  unsigned max_depth = 32;
};

// The error's message is a clause without a subject ("key \"format\" stands twice"): callers put
// the place before it.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

}  // namespace parfait::io

#endif  // PARFAIT_IO_JSON_H_
