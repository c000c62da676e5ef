// Quantising a checkpoint: a recipe says what becomes of each layer, a plan is made from headers
// alone, and carrying it out streams the file, layer by layer, within a given memory.
//
// A QuantizePlan is an immutable value that keeps its checkpoint alive; any thread may use it. The
// same plan gives the same bytes whatever the threads, memory and machine.
#ifndef PARFAIT_QUANTIZE_H_
#define PARFAIT_QUANTIZE_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parfait/checkpoint.h"
#include "parfait/error.h"
#include "parfait/plan.h"

namespace parfait {

namespace convert {
struct QuantizeState;
}

// A recipe that comes with the program; docs/quantize.md has the syntax.
struct RecipePreset {
  std::string_view name, summary, text;
};
std::vector<RecipePreset> recipe_presets();

// Whose roundings the codes follow: of the weight widened to float, or of its own dtype, as
// comfy-kitchen's eager encoders make them of a bf16 file.
enum class EncodeLike { f32, source };
enum class Requantize { refuse, allow };
// best: scales by search and codes by error, never worse than absmax's (docs/quality.md).
enum class Quality { kitchen, best };

struct QuantizeOptions {
  std::string recipe = "auto";  // a preset's name, "auto" (by the tensors' names), or empty
  std::string recipe_text;      // a recipe's text; used where recipe is empty
  // What `default` stands for in a recipe: a format and its options, "convrot_w4a4 group=64".
  std::string default_format = "int8_tensorwise";
  EncodeLike like = EncodeLike::f32;
  Requantize requantize = Requantize::refuse;
  Quality quality = Quality::kitchen;
  // A safetensors file with rows of real inputs by layer: the error made small is then the
  // outputs'. Only with Quality::best.
  std::filesystem::path calibration;
  // Choose among convrot_w4a4, asym_w4a8_int8, w6a8_int8 and int8_tensorwise for each layer that
  // the recipe quantises, by measured error: at most so many bits a weight, or a file of at most so
  // many bytes. Reads samples of the weights.
  std::optional<double> target_bits;
  std::optional<std::uint64_t> target_bytes;
  unsigned threads = 0;       // for those samples; 0: as many as the machine has
  ProgressCallback progress;  // of those samples
};

// One layer, or another tensor of several dimensions, and what becomes of it.
struct QuantizeLayer {
  std::string name;
  LayerKind kind = LayerKind::linear;
  std::uint64_t rows = 0, columns = 0;
  std::string from;      // its format, or its dtype
  std::string to;        // the same where it is kept
  std::string settings;  // "group 256"
  bool kept = false;     // copied byte for byte
  std::string reason;    // of being kept, or the choice's
  unsigned rule = 0;     // the recipe's line; 0: none
  std::uint64_t source_bytes = 0, bytes = 0;
};

struct QuantizeRule {
  unsigned line = 0;
  std::string text;
  std::uint64_t layers = 0, weights = 0, source_bytes = 0, bytes = 0;
};

class QuantizePlan {
 public:
  std::span<const QuantizeLayer> layers() const;
  std::span<const QuantizeRule> rules() const;
  std::span<const std::string> warnings() const;  // sentences
  const std::string& recipe() const;              // its name: a preset's, or "recipe"
  std::uint64_t quantized() const;                // layers that are encoded
  std::uint64_t source_bytes() const;
  std::uint64_t bytes() const;     // of the file to be written, header included
  double bits_per_weight() const;  // of the layers that are encoded
  const Checkpoint& checkpoint() const;

  explicit QuantizePlan(std::shared_ptr<const convert::QuantizeState> state)
      : state_(std::move(state)) {}
  const std::shared_ptr<const convert::QuantizeState>& state() const { return state_; }

 private:
  std::shared_ptr<const convert::QuantizeState> state_;
};

// Every problem is found here, before any work: an error's message lists them all.
Result<QuantizePlan> plan_quantize(const CheckedCheckpoint& checkpoint,
                                   const QuantizeOptions& options = {});

enum class Resume { no, yes };
struct QuantizeRun {
  unsigned threads = 0;  // 0: as many as the machine has
  std::uint64_t max_memory = std::uint64_t{2} << 30;
  std::optional<Isa> isa;      // unset: the machine's best
  Resume resume = Resume::no;  // go on from a partial file, and leave one behind if interrupted
  ProgressCallback progress;   // bytes of the source, and the layer
};

struct LayerReport {
  std::string name, format, settings;
  std::uint64_t weights = 0, source_bytes = 0, bytes = 0;
  double relative_l2 = 0, sqnr_db = 0, energy = 0;  // sqnr_db: infinite where nothing differs
  float max_error = 0;
  double seconds = 0;
  bool calibrated = false;
  bool resumed = false;  // done by an earlier run
};
struct QuantizeReport {
  std::vector<LayerReport> layers;  // those that were encoded
  std::uint64_t source_bytes = 0, bytes = 0;
  double relative_l2 = 0;  // of all encoded weights together
  double seconds = 0;
};

// Writes the file. Each encoded layer is read back and decoded before the file gets its name.
Result<QuantizeReport> quantize(const QuantizePlan& plan, const std::filesystem::path& target,
                                const QuantizeRun& run = {});

}  // namespace parfait

#endif  // PARFAIT_QUANTIZE_H_
