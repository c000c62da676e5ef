// The text of a shard index, and of any JSON.

#include "container/shard_index.h"
#include "io/json.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)parfait::container::parse_shard_index(text, "fuzz");
  auto json = parfait::io::parse_json(text);
  if (!json) return 0;
  // What was parsed prints as JSON that parses to the same.
  auto again = parfait::io::parse_json(json->text(), {.max_bytes = 64u << 20, .max_depth = 32});
  if (!again || !(*again == *json)) __builtin_trap();
  return 0;
}
