// Between formats, and between one file and shards.

#include <bit>
#include <cmath>
#include <filesystem>

#include "convert/convert_target.h"
#include "convert/convert_testing.h"

namespace parfait::convert {
namespace {

namespace fs = std::filesystem;

class Convert : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string source(DType dtype) const {
    return folder_.write(fmt::format("source_{}.safetensors", dtype_name(dtype)), two_layers(dtype))
        .string();
  }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()));
  }
  test::TemporaryFolder folder_;
};

std::vector<std::string> formats_written() {
  std::vector<std::string> names;
  for (const formats::Format* format : formats::all_formats())
    if (format->encoder) names.emplace_back(format->name);
  return names;
}

double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, energy = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    energy += std::pow(static_cast<double>(a[i]), 2);
  }
  return std::sqrt(difference / energy);
}

TEST_F(Convert, every_format_to_every_other) {
  const std::vector<std::string> names = formats_written();
  ASSERT_GE(names.size(), 11u);
  const std::string base = source(DType::f32);
  for (const std::string& from : names) converted(base, path(from + ".safetensors"), {.to = from});
  for (const std::string& from : names) {
    const std::string source = path(from + ".safetensors");
    const auto before = decoded(source);
    for (const std::string& to : names) {
      SCOPED_TRACE(from + " to " + to);
      const std::string target = path("out.safetensors");
      const ConvertReport report = converted(source, target, {.to = to, .threads = 2});
      const CheckedCheckpoint file = checked(target);
      for (const Layer layer : file.checkpoint()) EXPECT_EQ(layer.format(), to);
      const auto after = decoded(target);
      ASSERT_EQ(after.size(), 2u);
      for (const auto& [name, values] : before) {
        const double error = relative_l2(values, after.at(name));
        if (from == to || to == "f32") {
          EXPECT_EQ(error, 0);
        } else {
          EXPECT_LT(error, 0.25);
        }
      }
      ASSERT_EQ(report.layers.size(), 2u);
      for (const ConvertedLayer& layer : report.layers) EXPECT_EQ(layer.kept, "");
      // What is no layer, and the bias, are as they were.
      EXPECT_TRUE(file.checkpoint().find("blocks.0.fc1")->parts().size() >= 2);
      EXPECT_EQ(file.checkpoint().plain_tensors().size(), 1u);
    }
  }
}

TEST_F(Convert, lossless_changes_nothing_or_refuses) {
  const std::string base = source(DType::f32);
  std::size_t held = 0, refused = 0;
  for (const std::string& from : formats_written()) {
    const std::string source = path(from + ".safetensors");
    converted(base, source, {.to = from});
    const auto before = decoded(source);
    for (const std::string& to : formats_written()) {
      SCOPED_TRACE(from + " to " + to);
      const std::string target = path("lossless.safetensors");
      const auto report = convert_checkpoint(checked(source), target,
                                             {.to = to, .loss = ConvertOptions::Loss::refused});
      if (report.ok()) {
        ++held;
        const auto after = decoded(target);
        for (const auto& [name, values] : before)
          for (std::size_t i = 0; i < values.size(); ++i)
            ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]),
                      std::bit_cast<std::uint32_t>(after.at(name)[i]));
        fs::remove(target);
      } else {
        ++refused;
        EXPECT_EQ(report.error().code, ErrorCode::convert_loss);
        EXPECT_NE(report.error().message.find("row "), std::string::npos) << report.error().message;
        EXPECT_FALSE(fs::exists(target));
        EXPECT_FALSE(fs::exists(target + ".partial"));
      }
      if (from == to || to == "f32") {
        EXPECT_TRUE(report.ok());
      }
    }
  }
  EXPECT_GT(held, 20u);
  EXPECT_GT(refused, 24u);
}

TEST_F(Convert, there_and_back_is_the_same_file_where_both_hold_the_values) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const std::string name = dtype == DType::bf16 ? "bf16" : "f16";
    const std::string own = path("own.safetensors");
    converted(source(dtype), own);
    converted(own, path("wide.safetensors"), {.to = "f32"});
    converted(path("wide.safetensors"), path("back.safetensors"),
              {.to = name, .loss = ConvertOptions::Loss::refused});
    EXPECT_EQ(file_bytes(own), file_bytes(path("back.safetensors")));
  }
  // Codes of 127 steps to the largest value in each row come back as they were.
  const std::string int8 = path("int8.safetensors");
  converted(source(DType::f32), int8, {.to = "int8_tensorwise group=0"});
  converted(int8, path("wide.safetensors"), {.to = "f32"});
  converted(path("wide.safetensors"), path("back.safetensors"), {.to = "int8_tensorwise group=0"});
  const auto before = decoded(int8), after = decoded(path("back.safetensors"));
  for (const auto& [name, values] : before)
    EXPECT_LT(relative_l2(values, after.at(name)), 1e-6) << name;
}

TEST_F(Convert, bytes_depend_on_neither_threads_nor_memory_nor_reading) {
  const std::string base = source(DType::bf16);
  for (const std::string to : {"convrot_w4a4", "nvfp4", "asym_w4a8_int8", "float8_e4m3fn"}) {
    converted(base, path("one.safetensors"), {.to = to, .threads = 1});
    converted(base, path("four.safetensors"),
              {.to = to, .max_memory = std::uint64_t{64} << 20, .threads = 4});
    EXPECT_EQ(file_bytes(path("one.safetensors")), file_bytes(path("four.safetensors"))) << to;
  }
}

TEST_F(Convert, what_a_format_cannot_hold_is_kept_and_listed) {
  test::TestFile file;
  file.floats("odd.weight", DType::bf16, {4, 40}, 0.5f);
  file.floats("even.weight", DType::bf16, {4, 256}, 0.5f);
  file.floats("model.embed_tokens.weight", DType::bf16, {16, 256}, 0.5f);
  const std::string base = folder_.write("odd.safetensors", file.bytes()).string();
  const ConvertReport report = converted(base, path("out.safetensors"), {.to = "convrot_w4a4"});
  ASSERT_EQ(report.layers.size(), 3u);
  EXPECT_NE(report.layers[0].kept.find("K = 40"), std::string::npos) << report.layers[0].kept;
  EXPECT_EQ(report.layers[0].to, "bf16");
  EXPECT_EQ(report.layers[1].to, "convrot_w4a4");
  EXPECT_EQ(report.layers[2].to, "bf16");  // an embedding, which nobody named
  const ConvertReport named = converted(base, path("named.safetensors"),
                                        {.to = "int8_tensorwise", .layers = {"*embed_tokens"}});
  EXPECT_EQ(named.layers[1].to, "bf16");
  EXPECT_EQ(named.layers[2].to, "int8_tensorwise");
}

TEST_F(Convert, in_a_mixed_file_plain_layers_stay_unless_named) {
  const std::string base = source(DType::bf16), mixed = path("mixed.safetensors");
  converted(base, mixed, {.to = "int8_tensorwise", .layers = {"*fc1"}});
  const ConvertReport report = converted(mixed, path("out.safetensors"), {.to = "nvfp4"});
  EXPECT_EQ(report.layers[0].to, "nvfp4");
  EXPECT_EQ(report.layers[1].to, "bf16");
  const ConvertReport plain =
      converted(mixed, path("plain.safetensors"), {.to = "f32", .plain = DType::f32});
  EXPECT_EQ(plain.layers[0].to, "f32");
  EXPECT_EQ(plain.layers[1].to, "f32");
  const CheckedCheckpoint file = checked(path("plain.safetensors"));
  for (const TensorInfo& tensor : file.checkpoint().tensors()) EXPECT_EQ(tensor.dtype, DType::f32);
}

TEST_F(Convert, shards_and_back) {
  const std::string base = source(DType::bf16), own = path("own.safetensors");
  converted(base, own, {.to = "convrot_w4a4"});
  const ConvertReport report = converted(own, path("shards"), {.max_shard = 5000});
  EXPECT_EQ(report.files.size(), 4u);  // a layer, the other layer, the norm; and their index
  const CheckedCheckpoint shards = checked(path("shards"));
  EXPECT_EQ(shards.checkpoint().shards().size(), 3u);
  for (const ShardInfo& shard : shards.checkpoint().shards()) {
    ASSERT_EQ(shard.metadata.size(), 1u);
    EXPECT_EQ(shard.metadata[0].first, "made_by");
  }
  for (const Layer layer : shards.checkpoint()) {  // companions stay together
    const auto parts = layer.parts();
    for (const Layer::Part& part : parts) EXPECT_EQ(part.tensor.shard, parts[0].tensor.shard);
  }
  converted(path("shards"), path("joined.safetensors"));
  EXPECT_EQ(decoded(path("joined.safetensors")), decoded(own));
  EXPECT_EQ(fs::file_size(path("joined.safetensors")), fs::file_size(own));
  // Into a folder that holds files: refused, and nothing is left.
  const auto again = convert_checkpoint(checked(own), path("shards"), {.max_shard = 5000});
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::file_write);
  EXPECT_FALSE(fs::exists(path("shards.partial")));
}

// Whatever the order in which names sort, and the index lists them.
TEST_F(Convert, joined_shards_are_the_file_that_was_never_cut) {
  test::TestFile file;
  for (const char* name : {"z.fc1", "b.fc1", "y.fc1", "a.fc1"}) {
    file.codes(std::string(name) + ".weight", DType::bf16, {8, 256});
  }
  file.codes("c.weight", DType::f32, {5});
  const std::string source = folder_.write("names.safetensors", file.bytes()).string();
  for (const std::string to : {"bf16", "w6a8_int8", "float8_e5m2"}) {
    converted(source, path(to), {.to = to});
    converted(path(to), path(to + "_set"), {.max_shard = 2500});
    converted(path(to + "_set"), path(to + "_joined"));
    EXPECT_TRUE(file_bytes(path(to)) == file_bytes(path(to + "_joined"))) << to;
  }
}

TEST_F(Convert, a_header_table_becomes_markers) {
  test::TestFile file;
  file.codes("a.weight", DType::i8, {4, 256});
  file.floats("a.weight_scale", DType::f32, {4, 1}, 0.01f);
  file.metadata("_quantization_metadata",
                R"({"format_version": "1.0", "layers": {"a": {"format": "int8_tensorwise"}}})");
  file.metadata("note", "kept");
  const std::string base = folder_.write("table.safetensors", file.bytes()).string();
  converted(base, path("out.safetensors"));
  const CheckedCheckpoint out = checked(path("out.safetensors"));
  EXPECT_EQ(out.checkpoint().find("a")->source(), "marker");
  ASSERT_EQ(out.checkpoint().shards()[0].metadata.size(), 1u);
  EXPECT_EQ(out.checkpoint().shards()[0].metadata[0].first, "note");
  EXPECT_EQ(decoded(base), decoded(path("out.safetensors")));
}

TEST_F(Convert, a_legacy_file_gets_comfys_names_and_markers) {
  test::TestFile file;
  file.codes("a.weight", DType::f8_e4m3, {4, 64});
  file.floats("a.scale_weight", DType::f32, {}, 0.5f);
  file.floats("scaled_fp8", DType::f32, {0}, 0);
  const std::string base = folder_.write("legacy.safetensors", file.bytes()).string();
  converted(base, path("out.safetensors"));
  const CheckedCheckpoint out = checked(path("out.safetensors"));
  EXPECT_EQ(out.checkpoint().find("a")->source(), "marker");
  EXPECT_EQ(out.checkpoint().tensors().size(), 3u);
  EXPECT_EQ(decoded(base), decoded(path("out.safetensors")));
}

TEST_F(Convert, the_activation_is_a_matter_of_the_marker) {
  const std::string base = source(DType::bf16), int4 = path("int4.safetensors");
  converted(base, int4, {.to = "convrot_w4a4"});
  converted(int4, path("int8.safetensors"), {.to = "convrot_w4a4 activation=int8"});
  EXPECT_EQ(decoded(int4), decoded(path("int8.safetensors")));
  const auto file = checked(path("int8.safetensors"));
  for (const formats::Layer& layer : file.checkpoint().state()->layers)
    EXPECT_EQ(layer.activation, Activation::int8);
}

TEST_F(Convert, cancelled_leaves_nothing_or_what_can_be_resumed) {
  const std::string base = source(DType::bf16), target = path("out.safetensors");
  converted(base, path("whole.safetensors"), {.to = "w6a8_int8"});
  for (const auto start : {ConvertOptions::Start::afresh, ConvertOptions::Start::resume}) {
    ConvertOptions options{.to = "w6a8_int8", .threads = 1, .start = start};
    options.progress = [](const Progress& progress) { return progress.what != "norm.weight"; };
    const auto report = convert_checkpoint(checked(base), target, options);
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.error().code, ErrorCode::cancelled);
    EXPECT_FALSE(fs::exists(target));
    EXPECT_EQ(fs::exists(target + ".partial"), start == ConvertOptions::Start::resume);
  }
  const ConvertReport report =
      converted(base, target, {.to = "w6a8_int8", .start = ConvertOptions::Start::resume});
  EXPECT_EQ(report.resumed, 2u);
  EXPECT_EQ(file_bytes(target), file_bytes(path("whole.safetensors")));
  EXPECT_FALSE(fs::exists(target + ".partial"));
}

TEST_F(Convert, other_options_do_not_resume) {
  const std::string base = source(DType::bf16), target = path("out.safetensors");
  ConvertOptions options{.to = "w6a8_int8", .start = ConvertOptions::Start::resume};
  options.progress = [](const Progress& progress) { return progress.what != "norm.weight"; };
  ASSERT_FALSE(convert_checkpoint(checked(base), target, options).ok());
  const ConvertReport report = converted(
      base, target, {.to = "w6a8_int8 scale_group=32", .start = ConvertOptions::Start::resume});
  EXPECT_EQ(report.resumed, 0u);
  checked(target);
}

TEST(ConvertTarget, reads_formats_and_settings) {
  const auto target =
      parse_target("int8_tensorwise group=64 scale=tensor", TargetKind::safetensors);
  ASSERT_TRUE(target.ok()) << target.error().message;
  EXPECT_EQ(target->name, "int8_tensorwise");
  EXPECT_EQ(target->rotate_group, 64u);
  EXPECT_EQ(target->scale_of, formats::ScaleOf::tensor);
  for (const auto& [text, part] : {std::pair("nvfp5", "nvfp4 is near"),
                                   {"", "is no format"},
                                   {"q8_0", ".gguf"},
                                   {"nvfp4 group", "is no setting"},
                                   {"nvfp4 scale=row2", "is no setting"},
                                   {"nvfp4 group=-1", "is no setting"}}) {
    const auto wrong = parse_target(text, TargetKind::safetensors);
    ASSERT_FALSE(wrong.ok()) << text;
    EXPECT_EQ(wrong.error().code, ErrorCode::convert_option);
    EXPECT_NE(wrong.error().message.find(part), std::string::npos) << wrong.error().message;
  }
  const auto wrong = parse_target("nvfp4", TargetKind::gguf);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("GGUF"), std::string::npos);
}

TEST(ConvertTarget, takes_the_largest_group_that_fits) {
  const auto group = [](const std::string& format, std::uint64_t columns) {
    const auto target = parse_target(format, TargetKind::safetensors);
    return settings_for(*target, {LayerKind::linear, {64, columns}, 64, columns}).rotate_group;
  };
  EXPECT_EQ(group("int8_tensorwise", 3072), 256u);
  EXPECT_EQ(group("int8_tensorwise", 320), 64u);
  EXPECT_EQ(group("int8_tensorwise", 100), 0u);
  EXPECT_EQ(group("convrot_w4a4", 320), 64u);
  EXPECT_EQ(group("nvfp4", 256), 0u);
  EXPECT_EQ(group("bf16", 256), 0u);
  EXPECT_EQ(group("int8_tensorwise group=0", 256), 0u);
}

}  // namespace
}  // namespace parfait::convert
