// Finds what an architecture needs among the tensors of a checkpoint, under whichever of its names
// a file has them, and says in one sentence what is missing or of another shape.
#ifndef PARFAIT_MODELS_FINDER_H_
#define PARFAIT_MODELS_FINDER_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"
#include "parfait/error.h"

namespace parfait::models {

// A product y = x · Wᵀ (+ bias) whose W stands in one layer of the file or, cut by rows, in
// several.
struct Linear {
  std::vector<std::string> layers;        // full names, in the order of the rows
  std::vector<std::uint64_t> layer_rows;  // of each
  std::uint64_t rows = 0, columns = 0;
  bool empty() const { return layers.empty(); }
};

// The ways in which a linear may be spelt: each is a list of layers whose rows follow each other.
using Spellings = std::initializer_list<std::vector<std::string>>;
using Names = std::initializer_list<std::string>;

// Shapes that are not known yet: any.
inline constexpr std::uint64_t any = 0;

class Finder {
 public:
  // what: the architecture, for messages. prefix: what stands before every name in this file.
  Finder(const formats::Checkpoint& checkpoint, std::string what, std::string prefix)
      : checkpoint_(checkpoint), what_(std::move(what)), prefix_(std::move(prefix)) {}

  const formats::Checkpoint& checkpoint() const { return checkpoint_; }
  const std::string& prefix() const { return prefix_; }

  bool has_layer(std::string_view name) const;
  const TensorInfo* tensor(std::string_view name) const;
  // How many of the layers <name>0<rest>, <name>1<rest>, ... follow each other from 0.
  std::uint64_t count(std::string_view name, std::string_view rest) const;

  Result<Linear> linear(Spellings spellings, std::uint64_t rows, std::uint64_t columns) const;
  // The values of a tensor that is no layer (a norm's weight, a pad token), whatever its shape.
  Result<std::vector<float>> vector(Names names, std::uint64_t size) const;
  // Convolution or other weight tensors, as they are: the first name that is there.
  Result<const TensorInfo*> any_tensor(Names names) const;

 private:
  Error missing(std::string_view name) const;

  const formats::Checkpoint& checkpoint_;
  std::string what_, prefix_;
};

// The first of the prefixes with which a layer or tensor of this name is in the checkpoint.
const std::string* find_prefix(const formats::Checkpoint& checkpoint, std::string_view name,
                               std::initializer_list<std::string_view> prefixes,
                               std::string& storage);

}  // namespace parfait::models

#endif  // PARFAIT_MODELS_FINDER_H_
