// Tensors grouped by the module that owns them: "a.b.weight" and "a.b.weight_scale" belong to
// "a.b".
#ifndef PARFAIT_FORMATS_OWNERS_H_
#define PARFAIT_FORMATS_OWNERS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/format.h"

namespace parfait::formats {

struct Owner {
  std::string_view name;
  std::vector<Part> tensors;  // role = suffix
  const TensorInfo* weight = nullptr;
};

// All owners, in file order of their first tensor, and the tensors that no suffix claims.
class Owners {
 public:
  explicit Owners(const container::TensorIndex& index);

  std::span<const Owner> all() const { return owners_; }
  std::span<const TensorInfo* const> unowned() const { return unowned_; }

  // The owner of that name that has a weight; -1 where there is none.
  std::int64_t find_with_weight(std::string_view name) const;

  // The owners with a weight that a declared name can mean under another prefix: the owner's name
  // ends in "." + name, or name ends in "." + the owner's name; wrappers that training tools leave
  // in names ("_checkpoint_wrapped_module", "_orig_mod") do not count. At most max_prefix leading
  // components are added or dropped.
  struct Match {
    enum class Kind { none, one, several } kind = Kind::none;
    std::uint32_t owner = 0;
    std::uint32_t other = 0;  // a second candidate, where there are several
  };
  Match match(std::string_view name);

 private:
  static constexpr int max_prefix = 6;
  void index_suffixes();
  std::string_view without_wrappers(std::string_view name);

  std::vector<Owner> owners_;
  std::vector<const TensorInfo*> unowned_;
  std::unordered_map<std::string_view, std::uint32_t> by_name_;
  std::unordered_map<std::string_view, Match> by_suffix_;  // made when first needed
  std::vector<std::unique_ptr<std::string>> unwrapped_;    // names that lost a wrapper
  bool suffixes_indexed_ = false;
};

// Whether a suffix is one that some format, or a foreign tool's layout, gives to a weight's
// companion.
bool is_known_suffix(std::string_view suffix);

// The other tool whose layout these tensors are, with what to do about it; empty if none.
struct ForeignTool {
  std::string_view tool, advice;
};
ForeignTool foreign_tool(const Owner& owner);

}  // namespace parfait::formats

#endif  // PARFAIT_FORMATS_OWNERS_H_
