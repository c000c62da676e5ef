// A recipe: which layers become what. A text of lines
//
//   pattern  format [option=value ...]     # comment
//   pattern  keep
//
// Patterns are globs (* and ?) for the whole name of a layer; a leading "*." also matches a name
// without anything in front. The first rule that matches counts; a layer that none matches is kept.
// format `default` stands for one that the caller names. Options:
//
//   group=256|64|16|auto|none   the ConvRot group; auto (the default): the largest that divides K
//   scale-group=N               columns that share a scale, of formats with a choice of it
//   scale=row|tensor            int8_tensorwise: a scale for each row, or one
//   activation=int4|int8        convrot_w4a4: what is declared as linear_dtype
//   full-precision=yes|no       declares full_precision_matrix_mult
//   kind=linear|embedding|any   which layers the rule is about; linear is the default
//   min=N                       keeps layers of fewer weights; 4096 is the default
#ifndef PARFAIT_CONVERT_RECIPE_H_
#define PARFAIT_CONVERT_RECIPE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"
#include "parfait/error.h"

namespace parfait::convert {

// What a layer is to become, before its width is known.
struct FormatChoice {
  const formats::Format* format = nullptr;
  std::optional<std::uint32_t> group;  // empty: the largest that divides K
  formats::EncodeSettings settings;    // but for the group
};

struct RecipeRule {
  std::string pattern, text;
  unsigned line = 0;
  std::optional<FormatChoice> choice;                 // empty: keep
  std::optional<LayerKind> kind = LayerKind::linear;  // empty: any
  std::uint64_t least_weights = 4096;

  bool matches(std::string_view name) const;
  bool literal() const;  // no wildcards: it names one layer
};

Result<std::vector<RecipeRule>> parse_recipe(std::string_view text,
                                             std::string_view default_format);
// The ConvRot group and the rest, for a layer of so many columns.
formats::EncodeSettings settings_for(const FormatChoice& choice, std::uint64_t columns);
std::string settings_text(const formats::Format& format, const formats::EncodeSettings& settings);

// The formats that are always rotated, or may be.
bool rotates(std::string_view format);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_RECIPE_H_
