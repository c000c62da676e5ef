#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "cli/program.h"
#include "parfait/parfait.h"

namespace parfait::test {
namespace {

class QuantizeTest : public CliTest {
 protected:
  // Three linears of a block, an embedder, a norm, a bias, an embedding, a convolution.
  static TestFile model(std::uint64_t columns = 256, std::uint64_t rows = 64) {
    TestFile file;
    file.metadata("title", "a model");
    weight(file, "blocks.0.attn.qkv", rows, columns);
    file.floats("blocks.0.attn.qkv.bias", DType::f32, {rows}, 0.5f);
    weight(file, "blocks.0.mlp.fc1", rows, columns);
    weight(file, "blocks.0.mlp.fc2", rows, columns);
    weight(file, "img_in", rows, 128);
    weight(file, "embed_tokens", rows, columns);
    weight(file, "narrow", rows, 100);
    file.floats("norm.weight", DType::bf16, {columns}, 1);
    file.floats("conv.weight", DType::bf16, {8, 8, 3, 3}, 1);
    return file;
  }
  static void weight(TestFile& file, const std::string& name, std::uint64_t rows,
                     std::uint64_t columns) {
    std::vector<float> values(rows * columns);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = std::sin(static_cast<float>(i * 7 + name.size()) * 0.37f) *
                  (i % columns == 3 ? 0.4f : 0.05f);
    file.values(name + ".weight", DType::bf16, {rows, columns}, values);
  }
  std::string source_ = folder_.write("source.safetensors", model().bytes()).string();
  std::string out_ = path("out.safetensors");

  Ended quantize(std::vector<std::string> more, const std::string& out = {}) {
    std::vector<std::string> arguments = {"quantize", source_, "-o", out.empty() ? out_ : out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return parfait(arguments);
  }
  static CheckedCheckpoint check_or_fail(const Result<Checkpoint>& checkpoint) {
    EXPECT_TRUE(checkpoint.ok());
    auto report = check(*checkpoint);
    EXPECT_TRUE(report.ok() && report->checked);
    return *std::move(report->checked);
  }
  std::string recipe(const std::string& text) {
    return folder_.write("recipe.txt", std::string_view(text)).string();
  }
};

TEST_F(QuantizeTest, A_recipes_first_rule_that_matches_counts) {
  const Ended ended = quantize({"--recipe",
                                recipe("# a comment\n"
                                       "*.fc1   convrot_w4a4 group=64 activation=int8\n"
                                       "*.fc2   keep\n"
                                       "embed*  int8_tensorwise kind=embedding group=none\n"
                                       "*       int8_tensorwise   # the rest\n"),
                                "--json"});
  ASSERT_EQ(ended.status, 0) << ended.err;
  const auto made = open(out_);
  ASSERT_TRUE(made.ok()) << made.error().message;
  const auto report = check(*made, {.depth = CheckDepth::data, .progress = {}});
  ASSERT_TRUE(report.ok() && report->sound());
  EXPECT_EQ(made->find("blocks.0.mlp.fc1")->format(), "convrot_w4a4");
  EXPECT_EQ(made->find("blocks.0.mlp.fc1")->rotate_group(), 64u);
  EXPECT_EQ(made->find("blocks.0.mlp.fc2")->format(), "bf16");
  EXPECT_EQ(made->find("embed_tokens")->format(), "int8_tensorwise");
  EXPECT_EQ(made->find("blocks.0.attn.qkv")->rotate_group(), 256u);
  // What is kept is kept byte for byte, and nothing is lost.
  const auto source = open(source_);
  for (const TensorInfo& tensor : source->tensors()) {
    bool found = false;
    for (const TensorInfo& other : made->tensors()) {
      if (other.name != tensor.name) continue;
      found = true;
      if (other.dtype != tensor.dtype) continue;
      EXPECT_EQ(*read_tensor(*made, other), *read_tensor(*source, tensor)) << tensor.name;
    }
    EXPECT_TRUE(found) << tensor.name;
  }
  EXPECT_EQ(made->shards()[0].metadata[0].second, "a model");
  // The report's errors are those of the decoded file.
  const nlohmann::json layers1 = ended.json()["report"]["layers"];
  for (const auto& layer : layers1) {
    const std::string name = layer["layer"];
    const Layer a = *source->find(name), b = *made->find(name);
    std::vector<float> x(a.rows() * a.columns()), y(x.size());
    ASSERT_TRUE(decode(*source, a, 0, a.rows(), x).ok());
    ASSERT_TRUE(decode(*made, b, 0, b.rows(), y).ok());
    double error = 0, energy = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      error += std::pow(double{y[i]} - double{x[i]}, 2);
      energy += std::pow(double{x[i]}, 2);
    }
    EXPECT_NEAR(layer["relative_l2"].get<double>(), std::sqrt(error / energy), 1e-5) << name;
    EXPECT_LT(layer["relative_l2"].get<double>(), 0.3) << name;
  }
  // A layer that the format cannot hold is kept, and named with the reason.
  EXPECT_EQ(made->find("narrow")->format(), "bf16");
  bool told = false;
  const nlohmann::json layers2 = ended.json()["plan"]["layers"];
  for (const auto& layer : layers2)
    if (layer["layer"] == "narrow")
      told = layer["kept"].get<bool>() && contains(layer["reason"], "100");
  EXPECT_TRUE(told) << ended.out;
}

TEST_F(QuantizeTest, Every_format_is_written_and_read) {
  for (const char* format : {"int8_tensorwise", "convrot_w4a4", "asym_w4a8_int8", "w6a8_int8",
                             "nvfp4", "mxfp8", "float8_e4m3fn", "float8_e5m2", "f32", "f16"}) {
    const Ended ended =
        quantize({"--recipe", recipe("*qkv default\n*fc1 default"), "--format", format});
    ASSERT_EQ(ended.status, 0) << format << ended.err;
    const auto made = open(out_);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(made->find("blocks.0.attn.qkv")->format(), format);
    const auto report = check(*made, {.depth = CheckDepth::data, .progress = {}});
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(report->sound()) << format;
  }
}

TEST_F(QuantizeTest, Threads_memory_reader_and_instruction_set_change_no_byte) {
  const std::string rules = recipe("*fc1 convrot_w4a4\n*fc2 asym_w4a8_int8\n* int8_tensorwise\n");
  ASSERT_EQ(quantize({"--recipe", rules}).status, 0);
  const std::string expected = contents(out_);
  std::vector<std::vector<std::string>> ways = {
      {"--threads", "1"}, {"--threads", "3"}, {"--max-memory", "1M"}, {"--io", "pread"}};
  for (const Isa isa : machine_isas()) ways.push_back({"--isa", std::string(isa_name(isa))});
  for (std::vector<std::string> way : ways) {
    way.insert(way.end(), {"--recipe", rules});
    ASSERT_EQ(quantize(way).status, 0);
    EXPECT_TRUE(contents(out_) == expected) << way[0] << " " << way[1];
  }
}

// The goldens of comfy-kitchen's own encoders on bf16 and f16 weights
// (tools/make_encoder_goldens.py).
TEST_F(QuantizeTest, Like_kitchen_bf16_gives_what_comfy_kitchen_gives) {
  const std::string goldens = std::string(PARFAIT_SOURCE_DIR) + "/tests/golden/encoders/";
  const auto sources = open(goldens + "sources.safetensors");
  ASSERT_TRUE(sources.ok());
  const auto read = [](const Checkpoint& file, const std::string& name) -> std::vector<std::byte> {
    for (const TensorInfo& tensor : file.tensors())
      if (tensor.name == name) return *read_tensor(file, tensor);
    ADD_FAILURE() << "there is no " << name;
    return {};
  };
  struct Case {
    const char *format, *options, *golden;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {"int8_tensorwise", "group=none", "r0_g0_row", {"weight", "weight_scale"}},
      {"int8_tensorwise", "group=256", "r256_g0_row", {"weight", "weight_scale"}},
      {"convrot_w4a4", "group=64", "r64_g0_row", {"weight", "weight_scale"}},
      {"float8_e4m3fn", "", "r0_g0_row", {"weight", "weight_scale"}},
      {"nvfp4", "", "r0_g0_row", {"weight", "weight_scale", "weight_scale_2"}},
  };
  for (const std::string dtype : {"bf16", "f16"}) {
    TestFile file;
    file.raw("a.weight", dtype == "bf16" ? DType::bf16 : DType::f16, {32, 512},
             read(*sources, dtype));
    source_ = folder_.write("kitchen.safetensors", file.bytes()).string();
    for (const Case& one : cases) {
      const auto golden = open(goldens + one.format + ".safetensors");
      ASSERT_TRUE(golden.ok());
      const std::string rules = recipe(std::string("a ") + one.format + " " + one.options);
      ASSERT_EQ(quantize({"--recipe", rules, "--like", "kitchen-bf16"}).status, 0);
      const auto made = open(out_);
      ASSERT_TRUE(made.ok());
      const std::string name = dtype + "_" + dtype + "_" + one.golden + ".";
      for (const std::string& part : one.parts) {
        const auto got = read(*made, "a." + part), want = read(*golden, name + part);
        ASSERT_EQ(got.size(), want.size()) << one.format << " " << part;
        std::size_t other = 0;
        for (std::size_t i = 0; i < got.size(); ++i) other += got[i] != want[i];
        // Rotations are sums, whose order is the matrix library's: their last bits differ, and so
        // does what a processor makes of subnormals (row 15).
        const bool rotated = std::string(one.golden)[1] != '0';
        EXPECT_LE(other, rotated ? got.size() / 25 : 0)
            << dtype << " " << one.format << " " << one.options << " " << part;
      }
      // The default is another.
      const std::string like = contents(out_);
      ASSERT_EQ(quantize({"--recipe", rules}).status, 0);
      if (std::string(one.format) == "int8_tensorwise") {
        EXPECT_FALSE(contents(out_) == like) << one.options;
      }
    }
  }
}

TEST_F(QuantizeTest, Targets_are_met_from_below) {
  const std::string rules = recipe("blocks.* default\n");
  double before = 0;
  for (const double bits : {4.7, 5.0, 6.0, 7.0, 8.3}) {
    const Ended ended =
        quantize({"--recipe", rules, "--target-bits", std::to_string(bits), "--json"});
    ASSERT_EQ(ended.status, 0) << ended.err;
    const double made = ended.json()["plan"]["bits_per_weight"];
    EXPECT_LE(made, bits);
    EXPECT_GE(made, before);
    before = made;
  }
  const Ended size = quantize({"--recipe", rules, "--target-size", "105000"});
  ASSERT_EQ(size.status, 0) << size.err;
  EXPECT_LE(contents(out_).size(), 105000u);
  EXPECT_GE(contents(out_).size(), 95000u);
  const Ended never = quantize({"--recipe", rules, "--target-bits", "2"});
  EXPECT_EQ(never.status, 2);
  EXPECT_TRUE(contains(never.err, "cannot be had")) << never.err;
}

TEST_F(QuantizeTest, Recipes_that_cannot_be_read_are_refused_before_any_work) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"* nvfp5\n", {"line 1", "nvfp5", "nvfp4"}},
           {"\n* int8_tensorwise grup=64\n", {"line 2", "grup", "group"}},
           {"* int8_tensorwise group=100\n", {"line 1", "group", "100"}},
           {"* nvfp4 group=64\n", {"group", "nvfp4"}},
           {"* w6a8_int8 scale=tensor\n", {"scale", "int8_tensorwise"}},
           {"* keep now\n", {"keep", "now"}},
           {"*\n", {"line 1", "no format"}},
           {"# nothing\n", {"no rule"}},
           {"blocks.0.mlp.fc3 nvfp4\n", {"line 1", "blocks.0.mlp.fc3", "blocks.0.mlp.fc"}},
           {"* awq_w4a16\n", {"awq_w4a16", "not written"}}}) {
    const Ended ended = quantize({"--recipe", recipe(text)});
    EXPECT_EQ(ended.status, 2) << text;
    for (const std::string& word : words)
      EXPECT_TRUE(contains(ended.err, word)) << word << " in " << ended.err;
    EXPECT_FALSE(std::filesystem::exists(out_));
    // The code tells a recipe that cannot be read from one that does not fit the file.
    const auto checked = check_or_fail(open(source_));
    QuantizeOptions options;
    options.recipe.clear();
    options.recipe_text = text;
    const auto plan = plan_quantize(checked, options);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(error_code_name(plan.error().code),
              contains(text, "fc3") ? "recipe.layer" : "recipe.syntax")
        << text;
  }
  const Ended unknown = quantize({"--recipe", "flux3"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_TRUE(contains(unknown.err, "flux2")) << unknown.err;
}

TEST_F(QuantizeTest, A_rule_that_matches_nothing_is_a_warning) {
  const Ended ended =
      quantize({"--recipe", recipe("*nothing* keep\n*fc1 nvfp4\n*mlp.fc1 mxfp8\n")});
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_TRUE(contains(ended.err, "line 1: *nothing* matches no layer")) << ended.err;
  EXPECT_TRUE(contains(ended.err, "line 3")) << ended.err;
}

TEST_F(QuantizeTest, B14_quantised_layers_are_not_quantised_again_unasked) {
  ASSERT_EQ(quantize({"--recipe", recipe("*fc1 int8_tensorwise\n")}).status, 0);
  source_ = out_;
  const std::string again = path("again.safetensors");
  const Ended refused = quantize({"--recipe", recipe("blocks.* convrot_w4a4\n")}, again);
  EXPECT_EQ(refused.status, 2);
  EXPECT_TRUE(contains(refused.err, "blocks.0.mlp.fc1") && contains(refused.err, "--requantize"))
      << refused.err;
  EXPECT_FALSE(std::filesystem::exists(again));
  ASSERT_EQ(quantize({"--recipe", recipe("blocks.* convrot_w4a4\n"), "--requantize"}, again).status,
            0);
  const auto made = open(again);
  EXPECT_EQ(made->find("blocks.0.mlp.fc1")->format(), "convrot_w4a4");
  // C4: kept, it is the same bytes, marker and all.
  ASSERT_EQ(quantize({"--recipe", recipe("*fc1 keep\nblocks.* convrot_w4a4\n")}, again).status, 0);
  const auto source = open(source_), kept = open(again);
  const auto differences = diff(*source, *kept);
  for (const LayerDifference& difference : *differences)
    EXPECT_NE(difference.layer, "blocks.0.mlp.fc1") << difference.what;
}

TEST_F(QuantizeTest, A_header_table_does_not_contradict_markers) {
  TestFile file;
  file.metadata("_quantization_metadata",
                R"({"format_version": "1.0", "layers": {"a": {"format": "int8_tensorwise"}, )"
                R"("b": {"format": "int8_tensorwise"}}})");
  for (const char* name : {"a", "b"}) {
    file.codes(std::string(name) + ".weight", DType::i8, {64, 256});
    file.floats(std::string(name) + ".weight_scale", DType::f32, {64, 1}, 0.01f);
  }
  source_ = folder_.write("table.safetensors", file.bytes()).string();
  ASSERT_EQ(quantize({"--recipe", recipe("a convrot_w4a4\n"), "--requantize"}).status, 0);
  const auto made = open(out_);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->find("a")->format(), "convrot_w4a4");
  EXPECT_EQ(made->find("b")->format(), "int8_tensorwise");
  EXPECT_TRUE(check(*made)->sound());
  EXPECT_FALSE(contains(made->shards()[0].metadata[0].second, "\"a\""));
}

TEST_F(QuantizeTest, C14_outputs_that_cannot_be) {
  const std::string before = contents(source_);
  std::filesystem::create_hard_link(source_, path("link.safetensors"));
  for (const std::string& target : {source_, path("link.safetensors")}) {
    const Ended ended = quantize({}, target);
    EXPECT_EQ(ended.status, 2) << target;
    EXPECT_TRUE(contains(ended.err, "is the input file")) << ended.err;
  }
  EXPECT_EQ(quantize({}, path("no/such/folder.safetensors")).status, 2);
  EXPECT_EQ(quantize({"--html", path("no/such/page.html")}).status, 2);
  EXPECT_TRUE(contents(source_) == before);
  EXPECT_EQ(parfait({"quantize", path("absent.safetensors"), "-o", out_}).status, 2);
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(QuantizeTest, A_killed_run_is_resumed_to_the_same_bytes) {
  TestFile big;
  for (int i = 0; i < 24; ++i) weight(big, "blocks." + std::to_string(i) + ".fc", 1024, 1024);
  source_ = folder_.write("big.safetensors", big.bytes()).string();
  const std::vector<std::string> rules = {"--recipe", recipe("* w6a8_int8\n"), "--threads", "1"};
  ASSERT_EQ(quantize(rules).status, 0);
  const std::string expected = contents(out_);
  std::filesystem::remove(out_);
  const std::string before = contents(source_);
  std::vector<std::string> arguments = {"quantize", source_, "-o", out_, "--resume", "--json"};
  arguments.insert(arguments.end(), rules.begin(), rules.end());
  {
    Running running(arguments);
    const std::string journal = out_ + ".partial.journal";
    for (int i = 0; i < 20000 && lines(contents(journal)) < 4; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    running.send(SIGKILL);
    EXPECT_EQ(running.wait().status, 128 + SIGKILL);
  }
  EXPECT_FALSE(std::filesystem::exists(out_));
  EXPECT_TRUE(contents(source_) == before);
  const Ended resumed = parfait(arguments);
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_TRUE(contents(out_) == expected);
  EXPECT_EQ(resumed.json()["report"]["layers"][0]["resumed"], true);
  EXPECT_EQ(resumed.json()["report"]["layers"][23]["resumed"], false);
  EXPECT_GT(resumed.json()["report"]["layers"][0]["relative_l2"].get<double>(), 0);
  EXPECT_FALSE(std::filesystem::exists(out_ + ".partial"));
  EXPECT_FALSE(std::filesystem::exists(out_ + ".partial.journal"));
}

TEST_F(QuantizeTest, An_interrupted_run_leaves_nothing) {
  TestFile big;
  for (int i = 0; i < 24; ++i) weight(big, "blocks." + std::to_string(i) + ".fc", 1024, 1024);
  source_ = folder_.write("big.safetensors", big.bytes()).string();
  const auto before = names();
  Running running({"quantize", source_, "-o", out_, "--format", "w6a8_int8", "--threads", "1"});
  for (int i = 0; i < 20000 && !std::filesystem::exists(out_ + ".partial"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  running.send(SIGINT);
  EXPECT_EQ(running.wait().status, 128 + SIGINT);
  EXPECT_EQ(names(), before);
}

TEST_F(QuantizeTest, A_dry_run_writes_nothing_and_a_page_is_a_page) {
  const auto before = names();
  const Ended dry = quantize({"--dry-run"});
  ASSERT_EQ(dry.status, 0) << dry.err;
  for (const char* word : {"img_in", "kept", "int8_tensorwise, group 256", "would become"})
    EXPECT_TRUE(contains(dry.out, word)) << word << " in " << dry.out;
  EXPECT_EQ(names(), before);
  ASSERT_EQ(quantize({"--html", path("page.html")}).status, 0);
  const std::string page = contents(path("page.html"));
  for (const char* word : {"<svg", "blocks.0.attn.qkv", "relative L2", "</html>"})
    EXPECT_TRUE(contains(page, word)) << word;
}

TEST_F(QuantizeTest, Presets_fit_their_families_and_can_be_read) {
  for (const RecipePreset& preset : recipe_presets()) {
    const Ended shown = parfait({"quantize", "--show-recipe", std::string(preset.name)});
    EXPECT_EQ(shown.status, 0);
    EXPECT_EQ(shown.out, preset.text);
    // As a file it does the same.
    const Ended ended = quantize({"--recipe", recipe(std::string(preset.text)), "--dry-run"});
    EXPECT_EQ(ended.status, 0) << ended.err;
  }
  const std::string goldens = std::string(PARFAIT_SOURCE_DIR) + "/tests/golden/models/";
  for (const auto& [file, name, quantised, kept] :
       {std::tuple("klein_tiny", "flux2", "single_blocks", "img_in"),
        {"z_image_tiny", "z_image", "layers.0.attention", "x_embedder"}}) {
    const Ended ended =
        parfait({"quantize", goldens + file + ".safetensors", "--dry-run", "--json"});
    ASSERT_EQ(ended.status, 0) << ended.err;
    EXPECT_EQ(ended.json()["recipe"], name);
    const nlohmann::json layers3 = ended.json()["layers"];
    for (const auto& layer : layers3) {
      const std::string layer_name = layer["layer"];
      EXPECT_TRUE(layer["kept"].get<bool>() || !contains(layer_name, kept)) << layer_name;
      EXPECT_TRUE(layer["rule"].get<int>() != 0 || !contains(layer_name, quantised)) << layer_name;
    }
  }
}

TEST_F(QuantizeTest, Best_is_better_and_inputs_are_used) {
  const std::vector<std::string> rules = {"--recipe", recipe("blocks.* convrot_w4a4\n"), "--json"};
  const Ended kitchen = quantize(rules);
  ASSERT_EQ(kitchen.status, 0) << kitchen.err;
  std::vector<std::string> best = rules;
  best.insert(best.end(), {"--quality", "best"});
  const Ended better = quantize(best);
  ASSERT_EQ(better.status, 0) << better.err;
  EXPECT_LT(better.json()["report"]["relative_l2"].get<double>(),
            kitchen.json()["report"]["relative_l2"].get<double>());
  std::vector<float> rows(300 * 256);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = std::sin(static_cast<float>(i * i % 977));
  TestFile inputs;
  inputs.values("blocks.0.mlp.fc1", DType::f32, {300, 256}, rows);
  inputs.values("nobody", DType::f32, {300, 256}, rows);
  best = rules;
  best.insert(best.end(),
              {"--calibration", folder_.write("inputs.safetensors", inputs.bytes()).string()});
  const Ended calibrated = quantize(best);
  ASSERT_EQ(calibrated.status, 0) << calibrated.err;
  EXPECT_TRUE(contains(calibrated.err, "nobody")) << calibrated.err;
  const nlohmann::json layers4 = calibrated.json()["report"]["layers"];
  for (const auto& layer : layers4)
    EXPECT_EQ(layer["calibrated"].get<bool>(), layer["layer"] == "blocks.0.mlp.fc1");
  EXPECT_EQ(quantize({"--quality", "best", "--like", "kitchen-bf16"}).status, 2);

  const std::string rows_file = path("inputs.safetensors"), rows_before = contents(rows_file);
  const Ended over = parfait({"quantize", source_, "--recipe", "generic", "--format",
                              "convrot_w4a4", "--calibration", rows_file, "-o", rows_file});
  EXPECT_EQ(over.status, 2);
  EXPECT_TRUE(contains(over.err, "is the input file")) << over.err;
  EXPECT_EQ(contents(rows_file), rows_before);
}

TEST_F(QuantizeTest, Values_that_are_not_finite_are_named_and_nothing_is_left) {
  TestFile file;
  std::vector<float> values(64 * 256, 0.1f);
  values[5 * 256 + 7] = std::nanf("");
  file.values("bad.weight", DType::bf16, {64, 256}, values);
  source_ = folder_.write("bad.safetensors", file.bytes()).string();
  const auto before = names();
  const Ended ended = quantize({});
  EXPECT_EQ(ended.status, 2);
  EXPECT_TRUE(contains(ended.err, "layer bad") && contains(ended.err, "row 5, column 7"))
      << ended.err;
  EXPECT_EQ(names(), before);
}

}  // namespace
}  // namespace parfait::test
