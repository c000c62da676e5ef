// Comfy's names to diffusers' and back, in formats whose scales move with rows in different ways.

#include <algorithm>
#include <map>
#include <set>

#include "convert/convert_testing.h"

namespace parfait::convert {
namespace {

constexpr auto to_comfy = ConvertOptions::Names::comfy;
constexpr auto to_diffusers = ConvertOptions::Names::diffusers;

class Names : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  test::TemporaryFolder folder_;
};

// Name and shape of every tensor.
std::set<std::string> tensors_of(const std::string& path) {
  std::set<std::string> all;
  const Checkpoint file = *open(path);
  for (const TensorInfo& tensor : file.tensors())
    all.insert(fmt::format("{} {}", tensor.name, shape_text(tensor.shape)));
  return all;
}

TEST_F(Names, are_those_of_diffusers_own_files) {
  for (const std::string model : {"klein", "z_image"}) {
    const std::string folder = "pipelines/" + model;
    const std::string comfy = golden_path(folder + "/comfy/diffusion_model.safetensors");
    const std::string diffusers =
        golden_path(folder + "/transformer/diffusion_pytorch_model.safetensors");
    const ConvertReport report = converted(comfy, path("d.safetensors"), {.names = to_diffusers});
    EXPECT_TRUE(report.notes.empty()) << report.notes.front();
    EXPECT_EQ(tensors_of(path("d.safetensors")), tensors_of(diffusers)) << model;
    // The golden's values are those of Comfy's file, in F32: renamed to Comfy's and rounded to BF16
    // they are its bytes.
    converted(diffusers, path("c.safetensors"),
              {.to = "bf16", .plain = DType::bf16, .names = to_comfy});
    converted(path("d.safetensors"), path("back.safetensors"), {.names = to_comfy});
    EXPECT_EQ(decoded(path("c.safetensors")), decoded(path("back.safetensors"))) << model;
  }
}

TEST_F(Names, there_and_back_is_the_same_file_in_every_format) {
  for (const std::string model : {"klein_tiny", "z_image_tiny", "minimax_h3_tiny"}) {
    std::string golden = golden_path("models/" + model + ".safetensors");
    if (model == "minimax_h3_tiny") {  // with the frequencies that this golden lacks
      golden = path("whole.safetensors");
      converted(golden_path("models/" + model + "_diffusers.safetensors"), golden,
                {.names = to_comfy});
    }
    for (const std::string to :
         {"f32", "bf16", "int8_tensorwise", "int8_tensorwise scale=tensor", "convrot_w4a4",
          "asym_w4a8_int8", "w6a8_int8", "nvfp4", "mxfp8", "float8_e4m3fn"}) {
      SCOPED_TRACE(model + " as " + to);
      converted(golden, path("own.safetensors"), {.to = to});
      converted(path("own.safetensors"), path("d.safetensors"),
                {.names = to_diffusers, .loss = ConvertOptions::Loss::refused});
      converted(path("d.safetensors"), path("back.safetensors"), {.names = to_comfy});
      EXPECT_TRUE(file_bytes(path("own.safetensors")) == file_bytes(path("back.safetensors")));
    }
  }
}

// Rows of q, k and v are thirds of qkv's, in every format.
TEST_F(Names, rows_keep_their_values) {
  const std::string golden = golden_path("models/klein_tiny.safetensors");
  for (const std::string to : {"convrot_w4a4", "asym_w4a8_int8", "nvfp4", "mxfp8"}) {
    converted(golden, path("own.safetensors"), {.to = to});
    converted(path("own.safetensors"), path("d.safetensors"), {.names = to_diffusers});
    const auto comfy = decoded(path("own.safetensors")), diffusers = decoded(path("d.safetensors"));
    const std::vector<float>& qkv = comfy.at("double_blocks.0.img_attn.qkv");
    std::vector<float> joined;
    for (const char* part : {"to_q", "to_k", "to_v"}) {
      const auto& rows = diffusers.at(std::string("transformer_blocks.0.attn.") + part);
      joined.insert(joined.end(), rows.begin(), rows.end());
    }
    EXPECT_EQ(qkv, joined) << to;
    std::vector<float> halves = comfy.at("final_layer.adaLN_modulation.1");
    std::rotate(halves.begin(), halves.begin() + static_cast<std::ptrdiff_t>(halves.size() / 2),
                halves.end());
    EXPECT_EQ(halves, diffusers.at("norm_out.linear")) << to;
  }
}

TEST_F(Names, layers_that_cannot_become_one_are_refused_in_a_sentence) {
  const std::string golden = golden_path("models/klein_tiny.safetensors");
  converted(golden, path("d.safetensors"), {.names = to_diffusers});
  // A scale for all of q, another for all of k.
  converted(path("d.safetensors"), path("scalar.safetensors"), {.to = "nvfp4"});
  const auto scalar = convert_checkpoint(checked(path("scalar.safetensors")),
                                         path("out.safetensors"), {.names = to_comfy});
  ASSERT_FALSE(scalar.ok());
  EXPECT_EQ(scalar.error().code, ErrorCode::convert_option);
  EXPECT_NE(scalar.error().message.find("unlike values of weight_scale_2"), std::string::npos)
      << scalar.error().message;
  // One of the three in another format.
  converted(path("d.safetensors"), path("mixed.safetensors"),
            {.to = "int8_tensorwise", .layers = {"*to_q"}});
  const auto mixed = convert_checkpoint(checked(path("mixed.safetensors")), path("out.safetensors"),
                                        {.names = to_comfy});
  ASSERT_FALSE(mixed.ok());
  EXPECT_NE(mixed.error().message.find("int8_tensorwise"), std::string::npos)
      << mixed.error().message;
  EXPECT_FALSE(std::filesystem::exists(path("out.safetensors")));
  // Encoded anew, both can be.
  for (const char* source : {"scalar.safetensors", "mixed.safetensors"}) {
    const ConvertReport report =
        converted(path(source), path("out.safetensors"), {.to = "bf16", .names = to_comfy});
    const auto qkv =
        std::ranges::find(report.layers, "double_blocks.0.img_attn.qkv", &ConvertedLayer::name);
    ASSERT_NE(qkv, report.layers.end());
    EXPECT_EQ(qkv->to, "bf16");
    EXPECT_EQ(qkv->rows, 192u);
  }
}

// An auto-encoder's stages count down in one style and up in the other, and its attention is made
// of 1 × 1 convolutions in one and of matrices in the other.
TEST_F(Names, of_auto_encoders_are_those_of_diffusers_own_files) {
  for (const std::string model : {"klein", "z_image"}) {
    const std::string folder = "pipelines/" + model;
    const std::string comfy = golden_path(folder + "/comfy/vae.safetensors");
    const std::string diffusers = golden_path(folder + "/vae/diffusion_pytorch_model.safetensors");
    const auto bytes_of = [](const std::string& path) {
      std::map<std::string, std::vector<std::byte>> all;
      const Checkpoint file = *open(path);
      for (const TensorInfo& tensor : file.tensors())
        all[fmt::format("{} {} {}", tensor.name, dtype_name(tensor.dtype),
                        shape_text(tensor.shape))] = *read_tensor(file, tensor);
      return all;
    };
    const ConvertReport report =
        converted(comfy, path("d.safetensors"),
                  {.names = to_diffusers, .loss = ConvertOptions::Loss::refused});
    EXPECT_TRUE(report.notes.empty()) << report.notes.front();
    EXPECT_EQ(bytes_of(path("d.safetensors")), bytes_of(diffusers)) << model;
    converted(diffusers, path("c.safetensors"), {.names = to_comfy});
    EXPECT_EQ(bytes_of(path("c.safetensors")), bytes_of(comfy)) << model;
  }
  // A matrix in low bits cannot become a convolution as it is.
  const std::string klein = golden_path("pipelines/klein/vae/diffusion_pytorch_model.safetensors");
  converted(klein, path("q.safetensors"), {.to = "int8_tensorwise", .layers = {"*to_q"}});
  const auto refused = convert_checkpoint(checked(path("q.safetensors")), path("out.safetensors"),
                                          {.names = to_comfy});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("to_q: is int8_tensorwise, but must be plain"),
            std::string::npos)
      << refused.error().message;
}

TEST_F(Names, a_missing_part_or_an_unknown_model_is_an_error) {
  const std::string golden = golden_path("models/z_image_tiny.safetensors");
  converted(golden, path("d.safetensors"), {.names = to_diffusers});
  test::TestFile file;
  const Checkpoint source = *open(path("d.safetensors"));
  for (const TensorInfo& tensor : source.tensors()) {
    if (tensor.name.ends_with("layers.0.attention.to_k.weight")) continue;
    file.raw(tensor.name, tensor.dtype, {tensor.shape.begin(), tensor.shape.end()},
             *read_tensor(source, tensor));
  }
  const std::string partial = folder_.write("partial.safetensors", file.bytes()).string();
  const auto missing =
      convert_checkpoint(checked(partial), path("out.safetensors"), {.names = to_comfy});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::model_tensor);
  EXPECT_NE(missing.error().message.find("layers.0.attention.to_k is missing"), std::string::npos)
      << missing.error().message;

  const std::string other = folder_.write("other.safetensors", two_layers(DType::bf16)).string();
  const auto unknown =
      convert_checkpoint(checked(other), path("out.safetensors"), {.names = to_comfy});
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::model_unknown);
}

TEST_F(Names, what_has_them_already_says_so) {
  const std::string golden = golden_path("models/klein_tiny.safetensors");
  converted(golden, path("own.safetensors"));
  const ConvertReport report = converted(golden, path("same.safetensors"), {.names = to_comfy});
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("already"), std::string::npos);
  EXPECT_EQ(file_bytes(path("own.safetensors")), file_bytes(path("same.safetensors")));
}

}  // namespace
}  // namespace parfait::convert
