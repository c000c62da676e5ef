#include "models/names.h"

#include "models/flux2/names.h"
#include "models/kl_decoder/names.h"
#include "models/minimax_h3/names.h"
#include "models/qwen3/names.h"
#include "models/z_image/names.h"

namespace parfait::models {

std::string_view name_style_name(NameStyle style) {
  switch (style) {
    case NameStyle::comfy:
      return "Comfy's";
    case NameStyle::diffusers:
      return "diffusers'";
    case NameStyle::transformers:
      return "transformers'";
    case NameStyle::llama_cpp:
      return "llama.cpp's";
  }
  return "";
}

std::optional<NamesFound> find_names(const formats::Checkpoint& checkpoint) {
  // first_layer: one that only files of the first style have.
  const auto found = [&](const NameTable& table, std::string prefix, std::string_view first_layer) {
    const bool first = checkpoint.find(prefix + std::string(first_layer)) != nullptr;
    return NamesFound{&table, std::move(prefix), first ? table.first : table.second};
  };
  if (auto prefix = flux2::recognise(checkpoint))
    return found(flux2::names(), *std::move(prefix), "double_stream_modulation_img.lin");
  if (auto prefix = z_image::recognise(checkpoint))
    return found(z_image::names(), *std::move(prefix), "x_embedder");
  if (auto prefix = minimax_h3::recognise(checkpoint))
    return found(minimax_h3::names(), *std::move(prefix), "audio_patch_proj");
  if (auto kl = find_kl_names(checkpoint)) return kl;
  if (auto prefix = qwen3::recognise_names(checkpoint))
    return found(qwen3::llama_names(), *std::move(prefix), "layers.0.self_attn.q_proj");
  return {};
}

}  // namespace parfait::models
