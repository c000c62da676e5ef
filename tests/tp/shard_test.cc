// Checkpoints cut for ranks and put together again: every format over several numbers of ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <random>

#include "parfait/parfait.h"
#include "support/file_text.h"
#include "support/test_file.h"

namespace parfait {
namespace {

using test::TestFile;
namespace fs = std::filesystem;

std::string bytes_of(const fs::path& path) { return test::file_text(path); }

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

Checkpoint opened(const fs::path& path) {
  auto checkpoint = open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  return *checkpoint;
}

Plan planned(const Checkpoint& checkpoint, PlanOptions options) {
  auto report = check(checkpoint);
  for (const Finding& finding : report->findings)
    if (finding.severity == Severity::error) ADD_FAILURE() << finding.line();
  auto plan = make_plan(*report->checked, options);
  EXPECT_TRUE(plan.ok()) << plan.error().message;
  return *plan;
}

std::vector<float> decoded(const Checkpoint& checkpoint, const std::string& name) {
  const auto layer = checkpoint.find(name);
  if (!layer) return ADD_FAILURE() << name << " is absent", std::vector<float>();
  std::vector<float> values(layer->rows() * layer->columns());
  const auto done = decode(checkpoint, *layer, 0, layer->rows(), values);
  EXPECT_TRUE(done.ok()) << done.error().message;
  return values;
}

std::vector<float> bias_of(const Checkpoint& checkpoint, const std::string& name) {
  const auto layer = checkpoint.find(name);
  for (const Layer::Part& part : layer->parts()) {
    if (part.role != "bias") continue;
    const auto bytes = read_tensor(checkpoint, part.tensor);
    std::vector<float> values;
    for (std::uint64_t i = 0; i < bytes->size() * 8 / dtype_bits(part.tensor.dtype); ++i)
      values.push_back(load_float(part.tensor.dtype, bytes->data(), i));
    return values;
  }
  return {};
}

ShardOptions from(const fs::path& source) {
  ShardOptions options;
  options.source = source;
  return options;
}

MergeOptions through(Io io) {
  MergeOptions options;
  options.io = io;
  return options;
}

std::string rank_name(std::uint32_t rank, std::uint32_t ranks) {
  return fmt::format("rank_{:02}_of_{:02}.safetensors", rank, ranks);
}

// Each rank's weight is the slice of the whole that the plan gives it, and its outputs, joined or
// summed, are the whole's: x · Wᵀ + bias in double, on a few rows of W.
void expect_slices(const Checkpoint& whole, const Plan& plan, const fs::path& folder) {
  const std::uint32_t ranks = plan.options().ranks;
  std::vector<Checkpoint> parts;
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    parts.push_back(opened(folder / rank_name(rank, ranks)));
  for (const LayerPlan& layer : plan.layers()) {
    const std::vector<float> w = decoded(whole, layer.name);
    const std::vector<float> bias = bias_of(whole, layer.name);
    std::mt19937 random(3);
    std::normal_distribution<double> bell(0, 1);
    std::vector<double> x(layer.columns), sums(layer.rows, 0), expected(layer.rows, 0);
    for (double& v : x) v = bell(random);
    for (std::uint64_t n = 0; n < layer.rows; ++n) {
      for (std::uint64_t k = 0; k < layer.columns; ++k)
        expected[n] += x[k] * static_cast<double>(w[n * layer.columns + k]);
      if (!bias.empty()) expected[n] += static_cast<double>(bias[n]);
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const std::vector<float> mine = decoded(parts[rank], layer.name);
      const std::vector<float> my_bias = bias_of(parts[rank], layer.name);
      const std::vector<Range> all_rows = {{0, layer.rows}}, all_columns = {{0, layer.columns}};
      const bool outputs = layer.split == SplitAxis::outputs;
      const bool inputs = layer.split == SplitAxis::inputs;
      const auto& rows = outputs ? layer.shares[rank] : all_rows;
      const auto& columns = inputs ? layer.shares[rank] : all_columns;
      std::size_t i = 0, row_number = 0, wrong = 0;
      for (const Range& r : rows) {
        for (std::uint64_t n = r.begin; n < r.end; ++n, ++row_number) {
          double sum = 0;
          for (const Range& c : columns)
            for (std::uint64_t k = c.begin; k < c.end; ++k, ++i) {
              wrong += i >= mine.size() || mine[i] != w[n * layer.columns + k];
              sum += x[k] * static_cast<double>(w[n * layer.columns + k]);
            }
          if (!my_bias.empty()) sum += static_cast<double>(my_bias[row_number]);
          if (inputs || outputs || rank == 0) sums[n] += sum;
        }
      }
      EXPECT_EQ(wrong, 0u) << layer.name << " on rank " << rank << ", " << layer.split_reason;
      EXPECT_EQ(i, mine.size()) << layer.name;
    }
    for (std::uint64_t n = 0; n < layer.rows; ++n)
      EXPECT_NEAR(sums[n], expected[n], 1e-9 * (1 + std::fabs(expected[n]))) << layer.name;
  }
}

// Shards, looks at the ranks, merges, and compares.
void expect_identity(const fs::path& source, std::uint32_t ranks,
                     Unevenness unevenness = Unevenness::forbidden, const std::string& rules = {}) {
  test::TemporaryFolder folder;
  const Checkpoint whole = opened(source);
  PlanOptions options;
  options.ranks = ranks;
  options.unevenness = unevenness;
  options.tp_rules = rules;
  const Plan plan = planned(whole, options);
  const auto report = shard(plan, folder.path() / "ranks", from(source));
  ASSERT_TRUE(report.ok()) << source << ": " << report.error().message;
  EXPECT_EQ(report->ranks.size(), ranks);
  for (const WrittenFile& file : report->ranks)
    EXPECT_EQ(file.bytes, fs::file_size(file.path)) << file.path;
  expect_slices(whole, plan, folder.path() / "ranks");
  const fs::path merged = folder.path() / "merged.safetensors";
  for (Io io : {Io::mapped, Io::pread}) {
    const auto done = merge(folder.path() / "ranks", merged, through(io));
    ASSERT_TRUE(done.ok()) << source << ": " << done.error().message;
    EXPECT_TRUE(bytes_of(merged) == bytes_of(source)) << source;
  }
}

// Layers of a format under names that are cut by outputs and by inputs.
void add_layer(TestFile& file, std::string_view format, const std::string& name, std::uint64_t N,
               std::uint64_t K) {
  const auto marker = [&](std::string_view json) { file.marker(name, json); };
  const auto ramp = [](std::uint64_t count, float first) {
    std::vector<float> values(count);
    for (std::uint64_t i = 0; i < count; ++i)
      values[i] = first * (1 + static_cast<float>(i) / static_cast<float>(count));
    return values;
  };
  if (format == "int8_tensorwise") {
    file.codes(name + ".weight", DType::i8, {N, K});
    file.values(name + ".weight_scale", DType::f32, {N, 1}, ramp(N, 0.002f));
    marker(R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 64})");
  } else if (format == "convrot_w4a4") {
    file.codes(name + ".weight", DType::i8, {N, K / 2});
    file.values(name + ".weight_scale", DType::f32, {N}, ramp(N, 0.02f));
    marker(R"({"format": "convrot_w4a4", "convrot_groupsize": 64, "linear_dtype": "int8"})");
  } else if (format == "asym_w4a8_int8" || format == "w6a8_int8") {
    const bool six = format == "w6a8_int8";
    file.codes(name + ".weight", DType::i8, {N, six ? K * 3 / 4 : K / 2});
    file.codes(name + ".weight_s_rel", DType::f8_e4m3, {N, K / 16});
    file.values(name + ".weight_s_channel", DType::f32, {N}, ramp(N, 0.001f));
    if (!six) {
      file.values(name + ".weight_codebook", DType::f32, {16}, ramp(16, -2.0f));
      file.values(name + ".weight_correction", DType::bf16, {K / 16, N}, ramp(K / 16 * N, 0.01f));
    }
    marker(std::string("{\"format\": \"") + std::string(format) +
           "\", \"group_size\": 16, \"convrot_groupsize\": 64}");
  } else if (format == "nvfp4") {
    file.codes(name + ".weight", DType::u8, {N, K / 2});
    file.codes(name + ".weight_scale", DType::f8_e4m3,
               {(N + 127) / 128 * 128, (K / 16 + 3) / 4 * 4});
    file.floats(name + ".weight_scale_2", DType::f32, {}, 0.05f);
    file.values(name + ".pre_quant_scale", DType::bf16, {K}, ramp(K, 0.5f));
    marker(R"({"format": "nvfp4"})");
  } else if (format == "mxfp8") {
    file.codes(name + ".weight", DType::f8_e4m3, {N, K});
    std::vector<std::byte> scales((N + 127) / 128 * 128 * ((K / 32 + 3) / 4 * 4));
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = std::byte(115 + i % 9);
    file.raw(name + ".weight_scale", DType::u8, {(N + 127) / 128 * 128, (K / 32 + 3) / 4 * 4},
             scales);
    marker(R"({"format": "mxfp8"})");
  } else if (format.starts_with("float8")) {
    file.codes(name + ".weight", format == "float8_e5m2" ? DType::f8_e5m2 : DType::f8_e4m3, {N, K});
    file.floats(name + ".weight_scale", DType::f32, {}, 0.03f);
    file.floats(name + ".input_scale", DType::f32, {1}, 0.5f);
    marker("{\"format\": \"" + std::string(format) + "\"}");
  } else if (format == "awq_w4a16") {
    file.codes(name + ".weight", DType::i8, {N, K / 2});
    file.values(name + ".weight_scale", DType::bf16, {K / 64, N}, ramp(K / 64 * N, 0.01f));
    file.values(name + ".weight_zeros", DType::bf16, {K / 64, N}, ramp(K / 64 * N, 0.005f));
    marker(R"({"format": "awq_w4a16", "group_size": 64})");
  } else {
    file.values(name + ".weight",
                *parse_dtype(format == "bf16"  ? "BF16"
                             : format == "f16" ? "F16"
                                               : "F32"),
                {N, K}, ramp(N * K, 0.0625f));
  }
  file.values(name + ".bias", DType::bf16, {N}, ramp(N, 0.25f));
}

class ShardOfFormat : public ::testing::TestWithParam<std::string_view> {};

TEST_P(ShardOfFormat, MergesToTheSameBytesAndDecodesToSlices) {
  TestFile file;
  file.metadata("format", "pt");
  file.metadata("note", "kept as it is");
  file.floats("norm.weight", DType::bf16, {64}, 1);
  add_layer(file, GetParam(), "blocks.0.attn.qkv_proj", 24, 512);
  add_layer(file, GetParam(), "blocks.0.attn.out_proj", 16, 512);
  add_layer(file, GetParam(), "blocks.0.mlp.fc1", 272, 512);  // more rows than a tile has
  add_layer(file, GetParam(), "blocks.0.mlp.fc2", 136, 512);
  add_layer(file, GetParam(), "final_layer.linear", 8, 512);
  file.floats("logit_scale", DType::f32, {}, 1);
  test::TemporaryFolder folder;
  const fs::path source = folder.write("source.safetensors", file.bytes(8));
  for (std::uint32_t ranks : {1u, 2u, 4u}) {
    SCOPED_TRACE(ranks);
    expect_identity(source, ranks);
  }
  SCOPED_TRACE("unevenly");
  expect_identity(source, 3, Unevenness::allowed,
                  "*.attn.qkv_proj outputs parts=1,2\n*.attn.out_proj inputs\n"
                  "*.mlp.fc1 outputs parts=1,1\n*.mlp.fc2 inputs\n");
}

std::vector<std::string_view> formats() {
  std::vector<std::string_view> names;
  for (const FormatInfo& format : formats_table()) names.push_back(format.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, ShardOfFormat, ::testing::ValuesIn(formats()),
                         [](const auto& of) { return std::string(of.param); });

TEST(Shard, GoldenFilesComeBackToTheByte) {
  std::size_t files = 0;
  const fs::path folder = fs::path(PARFAIT_SOURCE_DIR) / "tests/golden/formats";
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().string().find(".expected.") != std::string::npos) continue;
    ++files;
    expect_identity(entry.path(), 2, Unevenness::allowed, "* outputs\n");
    expect_identity(entry.path(), 2, Unevenness::allowed, "* inputs\n");
  }
  EXPECT_GT(files, 20u);
}

TEST(Shard, RowsThatWritersPaddedKeepTheirPadding) {
  for (const char dirt : {'\0', '\x55'}) {
    TestFile file;  // 40 outputs stored as 48 rows, and block scales of 128
    file.codes("blocks.0.mlp.up.weight", DType::u8, {48, 128});
    std::vector<std::byte> scales(128 * 16, static_cast<std::byte>(dirt));
    for (std::size_t i = 0; i < scales.size(); ++i)
      if (i / 16 % 32 < 32) scales[i] = std::byte(0x30 + i % 7);
    file.raw("blocks.0.mlp.up.weight_scale", DType::f8_e4m3, {128, 16}, scales);
    file.floats("blocks.0.mlp.up.weight_scale_2", DType::f32, {}, 0.05f);
    file.floats("blocks.0.mlp.up.bias", DType::bf16, {40}, 0.25f);
    file.marker("blocks.0.mlp.up", R"({"format": "nvfp4"})");
    test::TemporaryFolder folder;
    const fs::path source = folder.write("source.safetensors", file.bytes());
    expect_identity(source, 2);
    expect_identity(source, 4);
    expect_identity(source, 3, Unevenness::allowed);
    expect_identity(source, 2, Unevenness::forbidden, "* inputs\n");
  }
}

TEST(Shard, EachExpertIsCut) {
  TestFile file;
  file.codes("blocks.0.experts.gate_up.weight", DType::i8, {3, 8, 64});
  std::vector<float> scales(24);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01f * static_cast<float>(i + 1);
  file.values("blocks.0.experts.gate_up.weight_scale", DType::f32, {3, 8, 1}, scales);
  file.values("blocks.0.experts.gate_up.bias", DType::f32, {3, 8}, scales);
  file.marker("blocks.0.experts.gate_up", R"({"format": "int8_tensorwise", "num_experts": 3})");
  test::TemporaryFolder folder;
  const fs::path source = folder.write("source.safetensors", file.bytes());
  expect_identity(source, 2, Unevenness::forbidden, "*.gate_up outputs parts=1,1\n");
  PlanOptions options;
  options.ranks = 2;
  options.tp_rules = "*.gate_up outputs parts=1,1\n";
  const Plan plan = planned(opened(source), options);
  EXPECT_EQ(plan.layers()[0].shares[1],
            (std::vector<Range>{{2, 4}, {6, 8}, {10, 12}, {14, 16}, {18, 20}, {22, 24}}));
  ASSERT_TRUE(shard(plan, folder.path() / "ranks").ok());
  const Checkpoint rank = opened(folder.path() / "ranks" / rank_name(1, 2));
  EXPECT_EQ(shape_text(rank.tensors()[0].shape), "[3, 4, 64]");
  EXPECT_EQ(shape_text(rank.tensors()[1].shape), "[3, 4, 1]");
  EXPECT_EQ(rank[0].kind(), LayerKind::experts);
}

TEST(Shard, TheBiasOfASumIsOnTheFirstRankOnly) {
  TestFile file;
  add_layer(file, "int8_tensorwise", "blocks.0.attn.out_proj", 8, 256);
  test::TemporaryFolder folder;
  const Checkpoint whole = opened(folder.write("source.safetensors", file.bytes()));
  PlanOptions options;
  options.ranks = 2;
  ASSERT_TRUE(shard(planned(whole, options), folder.path() / "ranks").ok());
  const auto first =
      bias_of(opened(folder.path() / "ranks" / rank_name(0, 2)), "blocks.0.attn.out_proj");
  const auto second =
      bias_of(opened(folder.path() / "ranks" / rank_name(1, 2)), "blocks.0.attn.out_proj");
  EXPECT_EQ(first, bias_of(whole, "blocks.0.attn.out_proj"));
  EXPECT_EQ(second, std::vector<float>(8, 0.0f));
  EXPECT_NE(bytes_of(folder.path() / "ranks/manifest.json").find("\"first rank\""),
            std::string::npos);
}

TEST(Shard, SixBitColumnsAreCutInBothPlanes) {
  TestFile file;
  add_layer(file, "w6a8_int8", "blocks.0.attn.out_proj", 2, 256);
  test::TemporaryFolder folder;
  const Checkpoint whole = opened(folder.write("source.safetensors", file.bytes()));
  PlanOptions options;
  options.ranks = 2;
  const Plan plan = planned(whole, options);
  const auto ranges = rank_byte_ranges(plan, "blocks.0.attn.out_proj", 1);
  ASSERT_TRUE(ranges.ok());
  const std::uint64_t at = whole.tensors()[0].offset;
  EXPECT_EQ(ranges->at(0).bytes, (Range{at + 64, at + 128}));       // nibbles of columns 128 to 256
  EXPECT_EQ(ranges->at(1).bytes, (Range{at + 160, at + 192 + 0}));  // and their upper bits
}

TEST(Shard, ASetOfFilesComesBackAsASet) {
  TestFile a, b;
  add_layer(a, "convrot_w4a4", "blocks.0.attn.qkv_proj", 12, 256);
  add_layer(b, "nvfp4", "blocks.0.mlp.fc2", 16, 256);
  a.metadata(
      "_quantization_metadata",
      R"({"layers": {"blocks.0.attn.qkv_proj": {"format": "convrot_w4a4", "convrot_groupsize": 64, "linear_dtype": "int8"}}})");
  b.metadata("_quantization_metadata", R"({"layers": {"blocks.0.mlp.fc2": {"format": "nvfp4"}}})");
  b.floats("norm.weight", DType::bf16, {8}, 1);
  test::TemporaryFolder folder;
  folder.write("set/model-00001-of-00002.safetensors", a.bytes());
  folder.write("set/model-00002-of-00002.safetensors", b.bytes());
  std::string map;
  for (const char* part : {"weight", "weight_scale", "bias", "comfy_quant"})
    map +=
        fmt::format("\"blocks.0.attn.qkv_proj.{}\": \"model-00001-of-00002.safetensors\", ", part);
  folder.write("set/model.safetensors.index.json",
               std::string_view("{\"weight_map\": {" + map +
                                "\"norm.weight\": \"model-00002-of-00002.safetensors\"}}\n"));
  for (const char* name :
       {"set", "set/model.safetensors.index.json", "set/model-00001-of-00002.safetensors"}) {
    const fs::path source = folder.path() / name;
    PlanOptions options;
    options.ranks = 2;
    const Checkpoint whole = opened(source);
    const Plan plan = planned(whole, options);
    const auto cut = shard(plan, folder.path() / "ranks", from(source));
    ASSERT_TRUE(cut.ok()) << cut.error().message;
    expect_slices(whole, plan, folder.path() / "ranks");
    fs::remove_all(folder.path() / "merged");
    const auto done = merge(folder.path() / "ranks", folder.path() / "merged");
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(done->files.size(), 3u);
    for (const auto& entry : fs::directory_iterator(folder.path() / "set"))
      EXPECT_TRUE(bytes_of(entry.path()) ==
                  bytes_of(folder.path() / "merged" / entry.path().filename()))
          << entry.path();
  }
}

TEST(Shard, TheSameInputGivesTheSameBytes) {
  TestFile file;
  add_layer(file, "mxfp8", "blocks.0.mlp.fc1", 24, 256);
  test::TemporaryFolder folder;
  const Checkpoint whole = opened(folder.write("source.safetensors", file.bytes()));
  PlanOptions options;
  options.ranks = 2;
  const Plan plan = planned(whole, options);
  ASSERT_TRUE(shard(plan, folder.path() / "one").ok());
  ASSERT_TRUE(shard(plan, folder.path() / "two").ok());
  ASSERT_TRUE(shard(plan, folder.path() / "two").ok()) << "over an earlier one";
  for (const auto& entry : fs::directory_iterator(folder.path() / "one"))
    EXPECT_TRUE(bytes_of(entry.path()) ==
                bytes_of(folder.path() / "two" / entry.path().filename()));
}

TEST(Shard, AnInterruptedRunLeavesNothing) {
  TestFile file;
  add_layer(file, "mxfp8", "blocks.0.mlp.fc1", 24, 256);
  test::TemporaryFolder folder;
  const Checkpoint whole = opened(folder.write("source.safetensors", file.bytes()));
  PlanOptions options;
  options.ranks = 2;
  const Plan plan = planned(whole, options);
  int calls = 0;
  ShardOptions counting;
  counting.progress = [&](const Progress&) { return ++calls > 0; };
  ASSERT_TRUE(shard(plan, folder.path() / "counted", counting).ok());
  for (int stop = 1; stop <= calls; ++stop) {
    int call = 0;
    ShardOptions stopping;
    stopping.progress = [&](const Progress&) { return ++call < stop; };
    const auto cut = shard(plan, folder.path() / "ranks", stopping);
    ASSERT_FALSE(cut.ok());
    EXPECT_EQ(cut.error().code, ErrorCode::cancelled);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 2);
  }
}

TEST(Shard, RefusesFoldersThatAreNotItsOwn) {
  TestFile file;
  add_layer(file, "bf16", "blocks.0.mlp.fc1", 24, 256);
  test::TemporaryFolder folder;
  const fs::path source = folder.write("in/source.safetensors", file.bytes());
  folder.write("full/notes.txt", std::string_view("mine"));
  folder.write("file", std::string_view("a file"));
  PlanOptions options;
  options.ranks = 2;
  const Plan plan = planned(opened(source), options);
  for (const char* name : {"in", "full", "file", "no/such/folder"}) {
    const auto cut = shard(plan, folder.path() / name);
    ASSERT_FALSE(cut.ok()) << name;
    EXPECT_EQ(cut.error().code, ErrorCode::file_write);
    EXPECT_NE(cut.error().message.find(name), std::string::npos) << cut.error().message;
  }
  EXPECT_EQ(bytes_of(folder.path() / "full/notes.txt"), "mine");
  // The ranks of an earlier run may be replaced, but not with themselves as the source.
  ASSERT_TRUE(shard(plan, folder.path() / "ranks").ok());
  const Plan again = planned(opened(folder.path() / "ranks" / rank_name(0, 2)), options);
  EXPECT_FALSE(shard(again, folder.path() / "ranks").ok());
  // A rank may be cut once more, and comes back.
  ASSERT_TRUE(shard(again, folder.path() / "nested").ok());
  ASSERT_TRUE(merge(folder.path() / "nested", folder.path() / "back").ok());
  EXPECT_TRUE(bytes_of(folder.path() / "back") ==
              bytes_of(folder.path() / "ranks" / rank_name(0, 2)));
}

// Work that is cancelled after some steps and may be resumed, from a source of one file or of two.
class ResumeTest : public ::testing::TestWithParam<int> {
 protected:
  ResumeTest() {
    for (int i = 0; i < GetParam(); ++i) {
      TestFile file;
      for (int n = 0; n < 3; ++n)
        add_layer(file, "bf16", fmt::format("blocks.{}.mlp.fc{}", i, n), 128, 512);
      folder_.write("source/" + name_of(i), file.bytes());
    }
    PlanOptions options;
    options.ranks = 2;
    plan_.emplace(planned(opened(from_), options));
  }

  static std::string name_of(int file) {
    return fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, GetParam());
  }
  ShardReport sharded(ShardStart start) {
    ShardOptions options = from(from_);
    options.start = start;
    auto cut = shard(*plan_, ranks_, options);
    EXPECT_TRUE(cut.ok()) << cut.error().message;
    return cut.ok() ? *cut : ShardReport{};
  }
  MergeReport merged(ShardStart start) {
    MergeOptions options;
    options.start = start;
    auto done = merge(ranks_, target_, options);
    EXPECT_TRUE(done.ok()) << done.error().message;
    return done.ok() ? *done : MergeReport{};
  }
  // Calls work(progress), which must be cancelled at the first call after `stop` bytes.
  template <class Work>
  void cancel(std::uint64_t stop, const Work& work) {
    const auto cut = work([stop](const Progress& p) { return p.done < stop; });
    ASSERT_FALSE(cut.ok());
    EXPECT_EQ(cut.error().code, ErrorCode::cancelled);
  }
  static fs::path partial(fs::path path) { return path += ".partial"; }
  void expect_clean() {
    for (const auto& entry : fs::directory_iterator(folder_.path()))
      EXPECT_EQ(entry.path().string().find("partial"), std::string::npos) << entry.path();
  }

  test::TemporaryFolder folder_;
  fs::path source_ = folder_.path() / "source", ranks_ = folder_.path() / "ranks",
           target_ = folder_.path() / "merged",
           from_ = GetParam() == 1 ? source_ / name_of(0) : source_;
  std::optional<Plan> plan_;
};

TEST_P(ResumeTest, AShardThatWasCancelledGoesOn) {
  sharded(ShardStart::afresh);
  std::map<std::string, std::string> expected;
  for (const auto& entry : fs::directory_iterator(ranks_))
    expected[entry.path().filename()] = bytes_of(entry.path());
  const std::uint64_t all = 3 * 128 * 512 * 2;
  for (const std::uint64_t stop : {std::uint64_t{1}, all / 2, all - 1, all}) {
    for (const bool damaged : {false, true}) {
      fs::remove_all(ranks_);
      cancel(stop, [&](const ProgressCallback& progress) {
        ShardOptions options = from(from_);
        options.start = ShardStart::resume;
        options.progress = progress;
        return shard(*plan_, ranks_, options);
      });
      EXPECT_FALSE(fs::exists(ranks_));
      ASSERT_TRUE(fs::exists(partial(ranks_)));
      const fs::path file = partial(ranks_) / rank_name(1, 2);
      std::string written = bytes_of(file);
      if (damaged && !written.empty()) {
        written[written.size() / 2] ^= 1;
        write_bytes(file, written);
      }
      const std::uint64_t kept = sharded(ShardStart::resume).resumed_bytes;
      if (stop >= all / 2) {
        EXPECT_GT(kept, all / 8);
      }
      if (damaged && !written.empty()) {
        EXPECT_LT(kept, all * GetParam());
      }
      for (const auto& [name, bytes] : expected)
        EXPECT_TRUE(bytes_of(ranks_ / name) == bytes) << name << " after " << stop;
      expect_clean();
    }
  }
}

TEST_P(ResumeTest, AMergeThatWasCancelledGoesOn) {
  sharded(ShardStart::afresh);
  const std::uint64_t all = 3 * 128 * 512 * 2;
  for (const std::uint64_t stop : {std::uint64_t{1}, all / 2, all - 1}) {
    for (const bool damaged : {false, true}) {
      fs::remove_all(target_);
      cancel(stop, [&](const ProgressCallback& progress) {
        MergeOptions options;
        options.start = ShardStart::resume;
        options.progress = progress;
        return merge(ranks_, target_, options);
      });
      EXPECT_FALSE(fs::exists(target_));
      ASSERT_TRUE(fs::exists(partial(target_)));
      if (damaged) {
        const fs::path file = GetParam() == 1 ? partial(target_) : partial(target_) / name_of(0);
        std::string written = bytes_of(file);
        if (!written.empty()) written[written.size() / 3] ^= 1;
        write_bytes(file, written);
      }
      const std::uint64_t kept = merged(ShardStart::resume).resumed_bytes;
      if (stop >= all / 2) {
        EXPECT_GT(kept, 0u);
      }
      for (const auto& entry : fs::directory_iterator(source_))
        EXPECT_TRUE(bytes_of(entry.path()) ==
                    bytes_of(GetParam() == 1 ? target_ : target_ / entry.path().filename()));
      expect_clean();
    }
  }
}

TEST_P(ResumeTest, WhatWasLeftIsOfNoUseToOtherWorkAndNotInItsWay) {
  const auto leave = [&] {
    fs::remove_all(ranks_);
    cancel(1000, [&](const ProgressCallback& progress) {
      ShardOptions options = from(from_);
      options.start = ShardStart::resume;
      options.progress = progress;
      return shard(*plan_, ranks_, options);
    });
  };
  leave();
  EXPECT_EQ(sharded(ShardStart::afresh).resumed_bytes, 0u);
  leave();
  PlanOptions other;
  other.ranks = 4;
  plan_.emplace(planned(opened(from_), other));
  EXPECT_EQ(sharded(ShardStart::resume).resumed_bytes, 0u);
  EXPECT_FALSE(fs::exists(ranks_ / rank_name(0, 2)));
  expect_clean();
  // A folder of that name that no run left stays as it is.
  fs::remove_all(ranks_);
  fs::create_directories(partial(ranks_));
  write_bytes(partial(ranks_) / "notes.txt", "mine");
  for (const ShardStart start : {ShardStart::afresh, ShardStart::resume}) {
    ShardOptions options = from(from_);
    options.start = start;
    const auto refused = shard(*plan_, ranks_, options);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("in the way"), std::string::npos)
        << refused.error().message;
  }
  EXPECT_EQ(bytes_of(partial(ranks_) / "notes.txt"), "mine");
}

INSTANTIATE_TEST_SUITE_P(Files, ResumeTest, ::testing::Values(1, 2));

class MergeTest : public ::testing::Test {
 protected:
  MergeTest() {
    TestFile file;
    add_layer(file, "nvfp4", "blocks.0.mlp.fc1", 24, 256);
    add_layer(file, "int8_tensorwise", "blocks.0.mlp.fc2", 8, 256);
    file.floats("norm.weight", DType::bf16, {64}, 1);
    source_ = folder_.write("source.safetensors", file.bytes());
    PlanOptions options;
    options.ranks = 2;
    const auto cut = shard(planned(opened(source_), options), ranks_);
    EXPECT_TRUE(cut.ok()) << cut.error().message;
  }
  // Refused with that code, in one sentence that has the word; and nothing is written.
  void expect_refused(ErrorCode code, const std::string& word) {
    const auto done = merge(ranks_, folder_.path() / "out.safetensors");
    ASSERT_FALSE(done.ok()) << word;
    EXPECT_EQ(done.error().code, code) << done.error().message;
    EXPECT_NE(done.error().message.find(word), std::string::npos) << done.error().message;
    EXPECT_EQ(done.error().message.find('\n'), std::string::npos);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 2);
  }
  void replace(const std::string& what, const std::string& with) {
    std::string text = bytes_of(ranks_ / "manifest.json");
    const std::size_t at = text.find(what);
    ASSERT_NE(at, std::string::npos) << what;
    write_bytes(ranks_ / "manifest.json", text.replace(at, what.size(), with));
  }
  test::TemporaryFolder folder_;
  fs::path source_, ranks_ = folder_.path() / "ranks";
};

TEST_F(MergeTest, RefusesRanksThatAreMissing) {
  fs::remove(ranks_ / rank_name(1, 2));
  expect_refused(ErrorCode::shard_rank, rank_name(1, 2));
}

TEST_F(MergeTest, RefusesRanksOfAnotherSet) {
  fs::copy_file(ranks_ / rank_name(0, 2), ranks_ / rank_name(1, 2),
                fs::copy_options::overwrite_existing);
  expect_refused(ErrorCode::shard_rank, rank_name(1, 2));
}

TEST_F(MergeTest, FindsEveryByteThatWasEdited) {
  for (const std::string& name : {rank_name(0, 2), rank_name(1, 2), std::string("source.rest")}) {
    const std::string sound = bytes_of(ranks_ / name);
    for (std::size_t at = 0; at < sound.size(); at += 1 + sound.size() / 61) {
      std::string edited = sound;
      edited[at] = static_cast<char>(edited[at] ^ 0x10);
      write_bytes(ranks_ / name, edited);
      const auto done = merge(ranks_, folder_.path() / "out.safetensors");
      EXPECT_FALSE(done.ok()) << name << " at " << at;
      EXPECT_FALSE(fs::exists(folder_.path() / "out.safetensors"));
    }
    write_bytes(ranks_ / name, sound.substr(0, sound.size() - 1));
    expect_refused(ErrorCode::shard_rank, name);
    write_bytes(ranks_ / name, sound);
  }
}

TEST_F(MergeTest, RefusesAManifestThatLies) {
  const std::string sound = bytes_of(ranks_ / "manifest.json");
  const std::pair<const char*, const char*> lies[] = {
      {"\"ranks\": 2", "\"ranks\": 3"},
      {"\"ranks\": 2", "\"ranks\": 0"},
      {"\"ranks\": 2", "\"ranks\": -1"},
      {"\"ranks\": 2", "\"ranks\": 1e300"},
      {"\"parfait_shard\": 1", "\"parfait_shard\": 2"},
      {"\"parfait_shard\": 1", "\"other\": 1"},
      {"\"source.safetensors\"", "\"../source.safetensors\""},
      {"[0, 6]", "[0, 5]"},
      {"[[0, 128]]", "[[0, 127]]"},
      {"[[0, 128]]", "[[128, 0]]"},
      {"[[0, 128]]", "[[0, 128], [0, 128]]"},
      {"[[0, 128]]", "[0, 128]"},
      {"\"length\": 256", "\"length\": 512"},
      {"\"length\": 256", "\"length\": 9223372036854775807"},
      {"\"cut\": \"rows\"", "\"cut\": \"columns\""},
      {"\"cut\": \"rows\"", "\"cut\": \"tiles\""},
      {"\"cut\": \"tiles\"", "\"cut\": \"rows\""},
      {"\"cut\": \"columns\"", "\"cut\": \"first rank\""},
      {"\"cut\": \"columns\"", "\"cut\": \"diagonal\""},
      {"\"planes\": [128]", "\"planes\": [64, 64, 64]"},
      {"\"planes\": [128]", "\"planes\": [9223372036854775807, 2]"},
      {"\"planes\": [128]", "\"planes\": []"},
      {"\"planes\": [128]", "\"planes\": [0]"},
      {"\"rows\": 24", "\"rows\": 9223372036854775807"},
      {"\"used\": 24", "\"used\": 1"},
      {"\"pad\": 1", "\"pad\": 0"},
      {"\"pad\": 1", "\"pad\": 128"},
      {"\"kept\": 0", "\"kept\": 7"},
      {"blocks.0.mlp.fc1.weight\"", "blocks.9.mlp.fc1.weight\""},
      {"\"header_bytes\": ", "\"header_bytes\": 9"},
      {"\"bytes\": ", "\"bytes\": 9"},
      {"{\n", "[\n"},
      {"\"layers\"", "\"lagers\""},
  };
  for (const auto& [what, with] : lies) {
    SCOPED_TRACE(with);
    write_bytes(ranks_ / "manifest.json", sound);
    replace(what, with);
    const auto done = merge(ranks_, folder_.path() / "out.safetensors");
    EXPECT_FALSE(done.ok());
    if (!done.ok()) {
      EXPECT_TRUE(done.error().code == ErrorCode::shard_manifest ||
                  done.error().code == ErrorCode::shard_rank ||
                  done.error().code == ErrorCode::file_truncated)
          << done.error().message;
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 2);
  }
  // Cut short anywhere.
  for (std::size_t size = 0; size < sound.size(); size += 1 + sound.size() / 97) {
    write_bytes(ranks_ / "manifest.json", sound.substr(0, size));
    EXPECT_FALSE(merge(ranks_, folder_.path() / "out.safetensors").ok()) << size;
  }
  write_bytes(ranks_ / "manifest.json", sound);
  EXPECT_TRUE(merge(ranks_, folder_.path() / "out.safetensors").ok());
}

TEST_F(MergeTest, DoesNotWriteOverItsInputs) {
  for (const std::string& name : {rank_name(0, 2), std::string("manifest.json"), std::string()}) {
    const auto done = merge(ranks_, name.empty() ? ranks_ : ranks_ / name);
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.error().code, ErrorCode::file_write) << done.error().message;
  }
  EXPECT_FALSE(merge(folder_.path(), folder_.path() / "out").ok()) << "no manifest there";
  EXPECT_TRUE(merge(ranks_, folder_.path() / "out").ok());
}

}  // namespace
}  // namespace parfait
