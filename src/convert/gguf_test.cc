// GGUF against ggml's own Python package (tools/make_gguf_goldens.py).

#include "convert/gguf.h"

#include <set>

#include "container/tensor_index.h"
#include "convert/convert_testing.h"

namespace parfait::convert::gguf {
namespace {

struct Golden {
  std::vector<std::byte> bytes;
  std::span<const std::uint64_t> shape;
};

class Goldens {
 public:
  Goldens() : index_(*container::open_index(golden_path("gguf/blocks.safetensors"), {})) {}
  Golden operator[](const std::string& name) const {
    const TensorInfo* info = index_->find(name);
    if (!info) throw std::runtime_error("no golden " + name);
    std::vector<std::byte> scratch;
    const ByteSpan bytes = *index_->read(*info, scratch);
    return {{bytes.begin(), bytes.end()}, info->shape};
  }

 private:
  container::TensorIndexPtr index_;
};

TEST(Gguf, blocks_are_ggmls_bit_for_bit) {
  const Goldens goldens;
  const Golden x = goldens["x"];
  const formats::WeightShape shape{LayerKind::linear, {24, 64}, 24, 64};
  for (const BlockType& type : block_types()) {
    const std::string name(type.name);
    std::vector<float> values(24 * 64);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = load_at<float>(x.bytes.data(), i);
    const auto tensors = type.encoder.tensors(shape, {});
    ASSERT_EQ(tensors.size(), 1u);
    std::vector<std::byte> out(tensors[0].shape[0] * tensors[0].shape[1]);
    type.encoder.encode(shape, {}, {}, 0, 10, values.data(), {0, {out.data()}});
    type.encoder.encode(shape, {}, {}, 10, 14, values.data() + 640, {0, {out.data()}});
    const Golden expected = goldens[name];
    EXPECT_TRUE(out == expected.bytes) << name;
    type.decode(out.data(), 24, 64, values.data());
    const Golden decoded = goldens[name + ".decoded"];
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], load_at<float>(decoded.bytes.data(), i)) << name << " " << i;
  }
}

TEST(Gguf, files_are_those_of_ggmls_writer) {
  const test::TemporaryFolder folder;
  for (const std::string type : {"q8_0", "q4_0"}) {
    const std::string out = (folder.path() / (type + ".gguf")).string();
    const ConvertReport report =
        converted(golden_path("gguf/source.safetensors"), out, {.to = type});
    EXPECT_EQ(file_bytes(out), file_bytes(golden_path("gguf/" + type + ".gguf"))) << type;
    for (const ConvertedLayer& layer : report.layers) {
      const bool narrow = layer.name == "blocks.0.narrow";
      EXPECT_EQ(layer.to, narrow ? "f16" : type);
      EXPECT_EQ(layer.kept.find("K = 40") != std::string::npos, narrow) << layer.kept;
    }
  }
}

TEST(Gguf, low_bit_layers_become_blocks_and_models_are_named) {
  const test::TemporaryFolder folder;
  const std::string mixed = (folder.path() / "mixed.safetensors").string();
  const std::string out = (folder.path() / "out.gguf").string();
  converted(golden_path("models/klein_tiny.safetensors"), mixed,
            {.to = "int8_tensorwise", .layers = {"*_blocks.*"}});
  const ConvertReport report = converted(mixed, out);
  for (const ConvertedLayer& layer : report.layers)
    EXPECT_EQ(layer.to, layer.from == "int8_tensorwise" ? "q8_0" : "f32") << layer.name;
  const std::string bytes = file_bytes(out);
  EXPECT_EQ(bytes.substr(0, 4), "GGUF");
  EXPECT_NE(bytes.find("general.architecture"), std::string::npos);
  EXPECT_NE(bytes.find(std::string("\4\0\0\0\0\0\0\0flux", 12)), std::string::npos);
  EXPECT_NE(bytes.find("double_blocks.0.img_attn.norm.query_norm.scale"), std::string::npos);
  EXPECT_EQ(bytes.find("weight_scale"), std::string::npos);
  EXPECT_EQ(bytes.find("comfy_quant"), std::string::npos);
  // An int8 row's F32 scale is not one F16 scale for each 32 values.
  const auto lossless =
      convert_checkpoint(checked(mixed), out, {.loss = ConvertOptions::Loss::refused});
  ASSERT_FALSE(lossless.ok());
  EXPECT_EQ(lossless.error().code, ErrorCode::convert_loss);
}

// What ggml's own Python package calls these tensors: get_tensor_name_map(MODEL_ARCH.QWEN3, n).
TEST(Gguf, text_encoders_have_the_names_and_keys_that_llama_cpp_reads) {
  const test::TemporaryFolder folder;
  const std::string out = (folder.path() / "encoder.gguf").string();
  const ConvertReport report =
      converted(golden_path("pipelines/klein/text_encoder/model.safetensors"), out);
  std::set<std::string> names;
  for (const ConvertedLayer& layer : report.layers) names.insert(layer.name);
  for (const char* layer :
       {"token_embd", "blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v", "blk.0.attn_output",
        "blk.0.ffn_gate", "blk.0.ffn_up", "blk.0.ffn_down"})
    EXPECT_TRUE(names.contains(layer)) << layer;
  for (const std::string& name : names)
    EXPECT_TRUE(name.starts_with("blk.") || name == "token_embd" || name == "output") << name;
  const std::string bytes = file_bytes(out);
  for (const char* text : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight",
                           "blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight"})
    EXPECT_NE(bytes.find(text), std::string::npos) << text;
  EXPECT_EQ(bytes.find("self_attn"), std::string::npos);
  // Key, type, value.
  const auto key = [&](const std::string& name, std::uint32_t type, auto value) {
    std::string text = name;
    text.append(reinterpret_cast<const char*>(&type), 4);
    text.append(reinterpret_cast<const char*>(&value), 4);
    EXPECT_NE(bytes.find(text), std::string::npos) << name;
  };
  const Checkpoint source = *open(golden_path("pipelines/klein/text_encoder/model.safetensors"));
  const auto rows = [&](const char* layer) {
    return static_cast<std::uint32_t>(source.find(std::string("model.layers.0.") + layer)->rows());
  };
  std::uint32_t blocks = 0, head = 0;
  for (const TensorInfo& tensor : source.tensors()) {
    blocks += tensor.name.ends_with("input_layernorm.weight");
    if (tensor.name.ends_with("q_norm.weight")) head = static_cast<std::uint32_t>(tensor.shape[0]);
  }
  key("qwen3.block_count", 4, blocks);
  key("qwen3.embedding_length", 4, rows("mlp.down_proj"));
  key("qwen3.feed_forward_length", 4, rows("mlp.gate_proj"));
  key("qwen3.attention.head_count", 4, rows("self_attn.q_proj") / head);
  key("qwen3.attention.head_count_kv", 4, rows("self_attn.k_proj") / head);
  key("qwen3.attention.key_length", 4, head);
  key("qwen3.attention.value_length", 4, head);
  key("qwen3.attention.layer_norm_rms_epsilon", 6, 1e-6f);
}

TEST(Gguf, what_it_cannot_hold_is_an_error) {
  const test::TemporaryFolder folder;
  test::TestFile file;
  file.floats("a.weight", DType::bf16, {4, 64}, 0.5f);
  file.raw("table", DType::u64, {1}, std::vector<std::byte>(8));
  const std::string source = folder.write("in.safetensors", file.bytes()).string();
  const std::string out = (folder.path() / "out.gguf").string();
  const auto report = convert_checkpoint(checked(source), out, {.to = "q8_0"});
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.error().message.find("table: is U64"), std::string::npos)
      << report.error().message;
  const auto shards = convert_checkpoint(checked(golden_path("gguf/source.safetensors")), out,
                                         {.to = "q8_0", .max_shard = 100});
  ASSERT_FALSE(shards.ok());
  EXPECT_EQ(shards.error().code, ErrorCode::convert_option);
  EXPECT_FALSE(std::filesystem::exists(out));
}

}  // namespace
}  // namespace parfait::convert::gguf
