#include "models/kl_decoder/names.h"

#include <array>
#include <deque>

#include "base/result.h"

namespace parfait::models {
namespace {

constexpr std::uint64_t most_stages = 8, most_resnets = 8;

// BFL's stages of the decoder count down, so the table depends on their number.
struct Tables {
  NameTable table{.model = "FLUX's auto-encoders", .architecture = "", .layers = {}, .tensors = {}};
  std::deque<std::string> texts;

  std::string_view text(std::string text) { return texts.emplace_back(std::move(text)); }
  void add(std::string bfl, std::string diffusers, NamePair::Rows rows = NamePair::Rows::same) {
    table.layers.push_back({text(std::move(bfl)), {text(std::move(diffusers))}, rows});
  }
  void add_resnet(const std::string& bfl, const std::string& diffusers) {
    for (const char* part : {".norm1", ".conv1", ".norm2", ".conv2"})
      add(bfl + part, diffusers + part);
    add(bfl + ".nin_shortcut", diffusers + ".conv_shortcut");
  }
  void add_middle(const std::string& half) {
    const std::string bfl = half + ".mid.", diffusers = half + ".mid_block.";
    add_resnet(bfl + "block_1", diffusers + "resnets.0");
    add_resnet(bfl + "block_2", diffusers + "resnets.1");
    add(bfl + "attn_1.norm", diffusers + "attentions.0.group_norm");
    for (const auto& [one, other] :
         {std::pair("q", "to_q"), {"k", "to_k"}, {"v", "to_v"}, {"proj_out", "to_out.0"}})
      add(bfl + "attn_1." + one, diffusers + "attentions.0." + other, NamePair::Rows::pointwise);
    add(half + ".conv_in", half + ".conv_in");
    add(half + ".norm_out", half + ".conv_norm_out");
    add(half + ".conv_out", half + ".conv_out");
  }

  // packed: FLUX.2, whose latents have statistics by channel.
  Tables(std::uint64_t stages, bool packed) {
    add_middle("encoder");
    add_middle("decoder");
    for (std::uint64_t i = 0; i < stages; ++i) {
      const std::string down = fmt::format("encoder.down.{}.", i);
      const std::string down_block = fmt::format("encoder.down_blocks.{}.", i);
      const std::string up = fmt::format("decoder.up.{}.", stages - 1 - i);
      const std::string up_block = fmt::format("decoder.up_blocks.{}.", i);
      for (std::uint64_t m = 0; m < most_resnets; ++m) {
        add_resnet(fmt::format("{}block.{}", down, m), fmt::format("{}resnets.{}", down_block, m));
        add_resnet(fmt::format("{}block.{}", up, m), fmt::format("{}resnets.{}", up_block, m));
      }
      add(down + "downsample.conv", down_block + "downsamplers.0.conv");
      add(up + "upsample.conv", up_block + "upsamplers.0.conv");
    }
    add(packed ? "encoder.quant_conv" : "quant_conv", "quant_conv");
    add(packed ? "decoder.post_quant_conv" : "post_quant_conv", "post_quant_conv");
    for (const char* same : {"bn.running_mean", "bn.running_var", "bn.num_batches_tracked"})
      table.tensors.push_back({same, {same}});
  }
};

}  // namespace

std::optional<NamesFound> find_kl_names(const formats::Checkpoint& checkpoint) {
  const auto has = [&](const std::string& name) { return checkpoint.index->find(name) != nullptr; };
  for (const std::string prefix : {"", "first_stage_model.", "vae."}) {
    const bool bfl = has(prefix + "decoder.mid.block_1.conv1.weight");
    if (!bfl && !has(prefix + "decoder.mid_block.resnets.0.conv1.weight")) continue;
    std::uint64_t stages = 0;
    while (stages < most_stages &&
           has(prefix + (bfl ? fmt::format("decoder.up.{}.block.0.conv1.weight", stages)
                             : fmt::format("decoder.up_blocks.{}.resnets.0.conv1.weight", stages))))
      ++stages;
    // Made when one is first asked for, and kept.
    static const auto& tables = *[] {
      auto* all = new std::array<std::array<Tables*, 2>, most_stages + 1>;
      for (std::uint64_t s = 0; s <= most_stages; ++s)
        (*all)[s] = {new Tables(s, false), new Tables(s, true)};
      return all;
    }();
    return NamesFound{&tables[stages][has(prefix + "bn.running_mean")]->table, prefix,
                      bfl ? NameStyle::comfy : NameStyle::diffusers};
  }
  return {};
}

}  // namespace parfait::models
