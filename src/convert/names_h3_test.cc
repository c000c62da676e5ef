// MiniMax-H3's names. tests/golden/models/minimax_h3_tiny_diffusers.safetensors is what diffusers'
// own class holds after it was given the weights of minimax_h3_tiny.safetensors and gave the
// reference's velocities with them.

#include <cstring>
#include <functional>
#include <set>

#include "convert/convert_testing.h"

namespace parfait::convert {
namespace {

constexpr auto to_comfy = ConvertOptions::Names::comfy;
constexpr auto to_diffusers = ConvertOptions::Names::diffusers;
constexpr auto by_head = ConvertOptions::Qkv::by_head;
constexpr std::uint64_t head = 32, heads = 4;

class NamesOfH3 : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string comfy() const { return golden_path("models/minimax_h3_tiny.safetensors"); }
  std::string diffusers() const {
    return golden_path("models/minimax_h3_tiny_diffusers.safetensors");
  }

  // A copy of a file whose tensors pass through `change`, which returns false to leave one out.
  using Tensor = std::pair<std::string, std::vector<std::byte>>;
  using Change = std::function<bool(std::string& name, std::vector<std::byte>& bytes)>;
  std::string changed(const std::string& from, const std::string& to, const Change& change,
                      const std::function<void(test::TestFile&)>& more = {}) const {
    test::TestFile file;
    const Checkpoint source = *open(from);
    for (const TensorInfo& tensor : source.tensors()) {
      std::string name(tensor.name);
      std::vector<std::byte> bytes = *read_tensor(source, tensor);
      if (change(name, bytes))
        file.raw(name, tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}, bytes);
    }
    if (more) more(file);
    return folder_.write(to, file.bytes()).string();
  }

  // As MiniMaxAI's own files have it: q, k and v of head 0, then of head 1.
  std::string with_rows_by_head(const std::string& from, const std::string& to) const {
    return changed(from, to, [](std::string& name, std::vector<std::byte>& bytes) {
      if (!name.ends_with("qkv_proj.weight")) return true;
      const std::vector<std::byte> thirds = bytes;
      const std::size_t piece = bytes.size() / (3 * heads);
      for (std::size_t part = 0; part < 3; ++part)
        for (std::size_t h = 0; h < heads; ++h)
          std::memcpy(bytes.data() + (3 * h + part) * piece,
                      thirds.data() + (part * heads + h) * piece, piece);
      return true;
    });
  }

  static std::string refusal(const std::string& from, const std::string& to,
                             const ConvertOptions& options) {
    const auto report = convert_checkpoint(checked(from), to, options);
    if (report.ok()) return "was accepted";
    EXPECT_FALSE(std::filesystem::exists(to));
    return report.error().message;
  }

  // Tensors of a file, and their bytes.
  static std::map<std::string, std::vector<std::byte>> tensors_of(const std::string& file) {
    std::map<std::string, std::vector<std::byte>> all;
    const Checkpoint source = *open(file);
    for (const TensorInfo& tensor : source.tensors())
      all[fmt::format("{} {}", tensor.name, shape_text(tensor.shape))] =
          *read_tensor(source, tensor);
    return all;
  }

  test::TemporaryFolder folder_;
};

TEST_F(NamesOfH3, are_those_that_diffusers_holds_with_every_value) {
  const ConvertReport report = converted(comfy(), path("d.safetensors"), {.names = to_diffusers});
  EXPECT_TRUE(report.notes.empty()) << report.notes.front();
  EXPECT_EQ(tensors_of(path("d.safetensors")), tensors_of(diffusers()));
}

TEST_F(NamesOfH3, go_back_with_the_frequencies_that_comfy_reads_from_the_file) {
  const ConvertReport report = converted(diffusers(), path("c.safetensors"), {.names = to_comfy});
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("rope.inv_freq is made"), std::string::npos) << report.notes[0];
  auto tensors = tensors_of(path("c.safetensors"));
  const auto made = tensors.find("rope.inv_freq [4]");
  ASSERT_NE(made, tensors.end());
  // Those of diffusers' MiniMaxH3RotaryPosEmbed(4, 10000).
  const float expected[] = {1.0f, 0x1.99999ap-4f, 0x1.47ae14p-7f, 0x1.0624dep-10f};
  EXPECT_EQ(std::memcmp(made->second.data(), expected, sizeof expected), 0);
  tensors.erase(made);
  EXPECT_EQ(tensors, tensors_of(comfy()));
  // What was made is what may be lost.
  converted(path("c.safetensors"), path("d.safetensors"),
            {.names = to_diffusers, .loss = ConvertOptions::Loss::refused});
  EXPECT_EQ(tensors_of(path("d.safetensors")), tensors_of(diffusers()));
}

// Heads of 128, as the published models have: 16 frequencies, of MiniMaxH3RotaryPosEmbed(16,
// 10000).
TEST_F(NamesOfH3, the_published_shape_has_the_published_frequencies) {
  const float expected[] = {
      1.0f,           0x1.1feb34p-1f,  0x1.43d136p-2f,  0x1.6c310ep-3f,  0x1.99999ap-4f,
      0x1.ccab84p-5f, 0x1.030dc6p-5f,  0x1.235a72p-6f,  0x1.47ae14p-7f,  0x1.7089380p-8f,
      0x1.9e7c70p-9f, 0x1.d22a50p-10f, 0x1.0624dep-10f, 0x1.26d42cp-11f, 0x1.4b96c0p-12f,
      0x1.74eea6p-13f};
  const std::string wide = changed(
      diffusers(), "wide.safetensors",
      [](const std::string& name, const std::vector<std::byte>&) {
        return name.find("attn.norm_k") == std::string::npos;
      },
      [](test::TestFile& file) {
        file.floats("transformer_blocks.0.attn.norm_k.weight", DType::f32, {128}, 1.0f);
      });
  converted(wide, path("c.safetensors"), {.names = to_comfy});
  const auto tensors = tensors_of(path("c.safetensors"));
  ASSERT_TRUE(tensors.contains("rope.inv_freq [16]"));
  EXPECT_EQ(std::memcmp(tensors.at("rope.inv_freq [16]").data(), expected, sizeof expected), 0);
}

TEST_F(NamesOfH3, frequencies_of_another_kind_are_not_lost_in_silence) {
  const std::string other = changed(
      comfy(), "other.safetensors", [](const std::string&, const auto&) { return true; },
      [](test::TestFile& file) {
        file.values("rope.inv_freq", DType::f32, {4}, {1.0f, 0.5f, 0.25f, 0.125f});
      });
  const ConvertReport report = converted(other, path("d.safetensors"), {.names = to_diffusers});
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("value 1 is 0.5, expected 0.1"), std::string::npos)
      << report.notes[0];
  const std::string text = refusal(other, path("no.safetensors"),
                                   {.names = to_diffusers, .loss = ConvertOptions::Loss::refused});
  EXPECT_NE(text.find("rope.inv_freq: value 1 is 0.5"), std::string::npos) << text;
}

TEST_F(NamesOfH3, rows_by_head_are_put_in_thirds) {
  const std::string own = with_rows_by_head(comfy(), "own.safetensors");
  converted(own, path("d.safetensors"), {.names = to_diffusers, .qkv = by_head});
  EXPECT_EQ(tensors_of(path("d.safetensors")), tensors_of(diffusers()));
  const ConvertReport report =
      converted(own, path("c.safetensors"), {.names = to_comfy, .qkv = by_head});
  EXPECT_TRUE(report.notes.empty());
  EXPECT_EQ(tensors_of(path("c.safetensors")), tensors_of(comfy()));
  // Without the word the rows are taken as they lie.
  converted(own, path("w.safetensors"), {.names = to_diffusers});
  EXPECT_NE(tensors_of(path("w.safetensors")), tensors_of(diffusers()));
}

TEST_F(NamesOfH3, rows_by_head_move_in_every_format) {
  const std::string own = with_rows_by_head(comfy(), "own.safetensors");
  for (const std::string to : {"int8_tensorwise", "convrot_w4a4", "asym_w4a8_int8", "w6a8_int8",
                               "mxfp8", "nvfp4", "float8_e4m3fn"}) {
    SCOPED_TRACE(to);
    converted(own, path("own_q.safetensors"), {.to = to});
    converted(comfy(), path("thirds_q.safetensors"), {.to = to});
    converted(path("own_q.safetensors"), path("out.safetensors"),
              {.names = to_comfy, .qkv = by_head, .loss = ConvertOptions::Loss::refused});
    const auto moved = decoded(path("out.safetensors"));
    const auto thirds = decoded(path("thirds_q.safetensors"));
    // Codebooks and tensor-wide scales are made of all rows in their order.
    if (to == "asym_w4a8_int8") {
      const auto& a = moved.at("blocks.0.attn.qkv_proj");
      const auto& b = thirds.at("blocks.0.attn.qkv_proj");
      ASSERT_EQ(a.size(), b.size());
      double difference = 0, size = 0;
      for (std::size_t i = 0; i < a.size(); ++i) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
      }
      EXPECT_LT(difference, 0.01 * size);
      continue;
    }
    EXPECT_EQ(moved, thirds);
    // And on, to three layers.
    converted(path("own_q.safetensors"), path("d.safetensors"),
              {.names = to_diffusers, .qkv = by_head});
    std::vector<float> joined;
    const auto parts = decoded(path("d.safetensors"));
    for (const char* part : {"to_q", "to_k", "to_v"}) {
      const auto& rows = parts.at(std::string("transformer_blocks.1.attn.") + part);
      joined.insert(joined.end(), rows.begin(), rows.end());
    }
    EXPECT_EQ(joined, thirds.at("blocks.1.attn.qkv_proj"));
  }
}

TEST_F(NamesOfH3, shards_that_may_be_the_publishers_own_are_spoken_of) {
  converted(comfy(), path("shards"), {.max_shard = 400'000});
  const ConvertReport report =
      converted(path("shards"), path("d.safetensors"), {.names = to_diffusers});
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("--qkv by-head"), std::string::npos) << report.notes[0];
}

TEST_F(NamesOfH3, where_no_row_can_lie_by_head_the_word_is_refused) {
  const std::string out = path("out.safetensors");
  std::string text = refusal(comfy(), out, {.qkv = by_head});
  EXPECT_NE(text.find("with names chosen"), std::string::npos) << text;
  text = refusal(diffusers(), out, {.names = to_comfy, .qkv = by_head});
  EXPECT_NE(text.find("MiniMax-H3 with diffusers' names"), std::string::npos) << text;
  text = refusal(golden_path("models/klein_tiny.safetensors"), out,
                 {.names = to_diffusers, .qkv = by_head});
  EXPECT_NE(text.find("FLUX.2"), std::string::npos) << text;
  const std::string headless = changed(
      comfy(), "headless.safetensors",
      [](const std::string& name, const auto&) { return name != "blocks.1.attn.q_norm.weight"; });
  text = refusal(headless, out, {.names = to_comfy, .qkv = by_head});
  EXPECT_NE(text.find("blocks.1.attn.q_norm.weight: is missing"), std::string::npos) << text;
}

// As a file may claim with no bytes behind it but a hole's.
TEST_F(NamesOfH3, a_head_of_no_size_that_can_be_is_an_error) {
  for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{100'000}}) {
    const std::string odd = changed(
        diffusers(), "odd.safetensors",
        [](const std::string& name, const auto&) {
          return name != "transformer_blocks.0.attn.norm_k.weight";
        },
        [&](test::TestFile& file) {
          file.floats("transformer_blocks.0.attn.norm_k.weight", DType::bf16, {size}, 1.0f);
        });
    const std::string text = refusal(odd, path("out.safetensors"), {.names = to_comfy});
    EXPECT_NE(text.find("norm_k.weight: is [" + std::to_string(size)), std::string::npos) << text;
  }
}

// The names of pruned models in other tools, and the two tensors that only their training read.
TEST_F(NamesOfH3, pruned_models_become_comfys_and_have_no_form_in_diffusers) {
  const std::string comfys = changed(
      comfy(), "pruned.safetensors",
      [](const std::string& name, const auto&) { return !name.starts_with("time_embedder"); },
      [](test::TestFile& file) {
        file.floats("adaln_t_table", DType::f32, {17, 64}, 0.5f);
      });
  const std::string text = refusal(comfys, path("d.safetensors"), {.names = to_diffusers});
  EXPECT_NE(text.find("adaln_t_table: is of a pruned model"), std::string::npos) << text;

  const std::string theirs = changed(
      diffusers(), "theirs.safetensors",
      [](std::string& name, const auto&) {
        if (name.starts_with("time_embedder")) return false;
        if (name == "norm_out.linear.bias") name = "norm_out.folded_bias";
        if (name.ends_with("adaln_proj.linear.bias"))
          name.replace(name.size() - 11, 11, "folded_bias");
        return true;
      },
      [](test::TestFile& file) {
        file.floats("time_embedder.table", DType::f32, {17, 64}, 0.5f);
        file.floats("adaln_basis", DType::f32, {8, 64}, 0.5f);
        file.floats("adaln_mean", DType::f32, {64}, 0.5f);
      });
  const ConvertReport report = converted(theirs, path("c.safetensors"), {.names = to_comfy});
  EXPECT_EQ(report.notes.size(), 3u);  // the two, and the frequencies
  auto tensors = tensors_of(path("c.safetensors"));
  EXPECT_EQ(tensors.erase("rope.inv_freq [4]"), 1u);
  EXPECT_EQ(tensors, tensors_of(comfys));
}

}  // namespace
}  // namespace parfait::convert
