#include "models/names.h"

#include "models/flux2/names.h"
#include "models/z_image/names.h"

namespace parfait::models {

std::string_view name_style_name(NameStyle style) {
  return style == NameStyle::comfy ? "Comfy's" : "diffusers'";
}

std::optional<NamesFound> find_names(const formats::Checkpoint& checkpoint) {
  const auto found = [&](const NameTable& table, std::string prefix, std::string_view comfy_layer) {
    const bool comfy = checkpoint.find(prefix + std::string(comfy_layer)) != nullptr;
    return NamesFound{&table, std::move(prefix), comfy ? NameStyle::comfy : NameStyle::diffusers};
  };
  if (auto prefix = flux2::recognise(checkpoint))
    return found(flux2::names(), *std::move(prefix), "double_stream_modulation_img.lin");
  if (auto prefix = z_image::recognise(checkpoint))
    return found(z_image::names(), *std::move(prefix), "x_embedder");
  return {};
}

}  // namespace parfait::models
