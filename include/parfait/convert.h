// Converts a checkpoint: between formats, containers and names, and between one file and shards.
//
// Weights stream through a bounded amount of memory; the output appears under its name when it is
// whole, and the same input and options give the same bytes, whatever the threads or the machine.
// What a format cannot hold is kept as it is, and listed with the reason.
#ifndef PARFAIT_CONVERT_H_
#define PARFAIT_CONVERT_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "parfait/checkpoint.h"

namespace parfait {

struct ConvertOptions {
  // A format and its settings: "bf16", "int8_tensorwise group=64", "convrot_w4a4
  // activation=int8"; for GGUF f32, f16, bf16, q8_0 or q4_0. Empty: layers keep their formats
  // (GGUF: low-bit layers become q8_0).
  std::string to = {};
  // Patterns of the layers to convert (* and ?). Empty: the low-bit layers, or in a file that has
  // none all linear ones (all layers where `to` is a plain type).
  std::vector<std::string> layers = {};
  // The type of all floats that no conversion of layers changes: biases, norms, plain layers that
  // are kept. Empty: as they are.
  std::optional<DType> plain = {};
  // keep: but in a GGUF file a Qwen3 encoder has llama.cpp's.
  enum class Names { keep, comfy, diffusers } names = Names::keep;
  // How the rows of a MiniMax-H3 source's fused q, k and v lie. by_head: as in MiniMaxAI's own
  // files; with names chosen they are put in thirds, as ComfyUI and diffusers expect them.
  enum class Qkv { in_thirds, by_head } qkv = Qkv::in_thirds;
  // by_name: GGUF where the target ends in ".gguf".
  enum class Container { by_name, safetensors, gguf } container = Container::by_name;
  // refused: a value that would differ, bit by bit, after decoding is an error.
  enum class Loss { allowed, refused } loss = Loss::allowed;
  // The largest shard in bytes; the target is then a folder. 0: one file.
  std::uint64_t max_shard = 0;
  std::uint64_t max_memory = std::uint64_t{2} << 30;
  unsigned threads = 0;  // 0: as many as the machine has
  // resume: goes on from what a killed run of the same work left, and leaves it when cancelled.
  enum class Start { afresh, resume } start = Start::afresh;
  ProgressCallback progress = {};
};

struct ConvertedLayer {
  std::string name;  // in the output
  std::string from;  // the format, or formats where rows come from several layers
  std::string to;
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t bytes_before = 0, bytes_after = 0;
  std::string kept;  // why it was not converted; empty where it was, or was never asked to be
};

struct ConvertReport {
  std::vector<ConvertedLayer> layers;
  std::vector<std::string> files;  // written, in order
  std::vector<std::string> notes;  // what is worth knowing besides
  std::uint64_t tensors = 0, bytes = 0;
  std::uint64_t resumed = 0;  // tensors and layers that an earlier run had written
};

// The words that `to` may begin with, for help texts: "int8_tensorwise, convrot_w4a4, ...".
std::string convert_targets();

Result<ConvertReport> convert_checkpoint(const CheckedCheckpoint& source,
                                         const std::filesystem::path& target,
                                         const ConvertOptions& options = {});

}  // namespace parfait

#endif  // PARFAIT_CONVERT_H_
