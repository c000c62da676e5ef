// Repair: each dialect becomes what a good writer writes, and a kill at any moment damages nothing.

#include "convert/repair.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <map>
#include <random>

#include "base/floats.h"
#include "base/hadamard.h"
#include "container/tensor_index.h"
#include "container/writer.h"
#include "formats/encode.h"
#include "formats/format.h"
#include "io/patch.h"
#include "support/file_text.h"
#include "support/test_file.h"

namespace parfait::convert {
namespace {

using test::TestFile;

constexpr std::string_view rotated =
    R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 256})";
constexpr std::string_view prefix = "model.diffusion_model.";

std::vector<std::byte> read_all(const std::filesystem::path& path) {
  return test::to_bytes(test::file_text(path));
}

// Names, dtypes, shapes, bytes and metadata, in no order.
std::map<std::string, std::string> contents(const std::filesystem::path& path) {
  std::map<std::string, std::string> out;
  const auto index = container::open_index(path, {});
  EXPECT_TRUE(index.ok());
  if (!index.ok()) return out;
  for (const TensorInfo& tensor : (*index)->tensors()) {
    std::vector<std::byte> scratch;
    const auto bytes = (*index)->read(tensor, scratch);
    EXPECT_TRUE(bytes.ok());
    EXPECT_EQ(tensor.offset % std::max(dtype_bits(tensor.dtype) / 8, 1u), 0u) << tensor.name;
    out[std::string(tensor.name)] =
        fmt::format("{} {} ", dtype_name(tensor.dtype), shape_text(tensor.shape)) +
        std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  }
  for (const auto& [key, value] : (*index)->shards()[0].metadata) out["metadata." + key] = value;
  return out;
}

// A layer and a norm, weights first and markers last, as ComfyUI's writers leave them. Breaks as
// told.
struct Layout {
  std::string marker{rotated};
  std::string marker_name = "blocks.0.fc1";
  std::string table = {};
  std::vector<std::uint64_t> scale_shape = {64, 1};
  DType scale = DType::f32;
  std::string trailing = {};
};

std::vector<std::byte> file_of(const Layout& layout) {
  TestFile file;
  if (!layout.table.empty()) file.metadata("_quantization_metadata", layout.table);
  file.floats("norm.weight", DType::f32, {64}, 1.0f);
  file.codes("blocks.0.fc1.weight", DType::i8, {64, 256});
  file.floats("blocks.0.fc1.weight_scale", layout.scale, layout.scale_shape, 0.5f);
  if (!layout.marker.empty()) file.marker(layout.marker_name, layout.marker);
  std::vector<std::byte> bytes = file.bytes();
  for (char c : layout.trailing) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

class RepairTest : public ::testing::Test {
 protected:
  std::filesystem::path write(const Layout& layout, const std::string& name = "x.safetensors") {
    return folder_.write(name, file_of(layout));
  }

  RepairPlan plan(const std::filesystem::path& path, const RepairOptions& options = {}) {
    auto result = make_repair_plan(path, options);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    return std::move(result).value();
  }

  // Mends a copy in place and one into a new file, and compares both with the good file.
  void expect_mended(const Layout& broken, const RepairOptions& options = {},
                     const Layout& good = {}) {
    const auto fixed = folder_.path() / "new.safetensors";
    const auto reference = folder_.path() / "reference.safetensors";
    const auto path = write(broken);
    const RepairPlan first = plan(path, options);
    EXPECT_FALSE(first.changes().empty());
    EXPECT_TRUE(first.remaining().empty());
    ASSERT_TRUE(carry_out_repair(first, {fixed, {}}).ok());
    // The good file through the same writer.
    const auto good_path = write(good, "good.safetensors");
    const RepairPlan nothing = plan(good_path);
    EXPECT_TRUE(nothing.changes().empty())
        << nothing.changes()[0].tensor << ": " << nothing.changes()[0].why;
    ASSERT_TRUE(carry_out_repair(nothing, {reference, {}}).ok());
    EXPECT_EQ(read_all(fixed), read_all(reference));

    const auto written = carry_out_repair(first, {});
    ASSERT_TRUE(written.ok()) << written.error().message;
    EXPECT_FALSE(std::filesystem::exists(path.string() + ".repair"));
    EXPECT_TRUE(plan(path, options).changes().empty()) << "not idempotent";
    // In place, tensors may stand in another order.
    EXPECT_EQ(contents(path), contents(reference));
  }

  test::TemporaryFolder folder_;
};

TEST_F(RepairTest, MarkerDialects) {
  expect_mended({.marker = std::string(rotated) + std::string(5, '\0')});
  expect_mended({.marker = std::string(rotated) + "   "});
  expect_mended(
      {.marker =
           R"({"format": "int8_tensorwise", "params": {"convrot": true, "convrot_groupsize": 256}})"});
  expect_mended({.marker = R"({"convrot": true, "convrot_groupsize": 256})"});
  expect_mended({.marker = R"({"format": "int8_tensorwise", "convrot": true})"});
}

TEST_F(RepairTest, ScalesAndTrailingBytes) {
  expect_mended({.scale_shape = {64}});
  expect_mended({.scale = DType::bf16});
  expect_mended({.scale_shape = {64}, .scale = DType::f16});
  expect_mended({.trailing = "L2P_bypass_x"});
}

TEST_F(RepairTest, MarkersAndTableThereAndBack) {
  const std::string table =
      R"({"format_version": "1.0", "layers": {"blocks.0.fc1": )" + std::string(rotated) + "}}";
  expect_mended({.marker = "", .table = table}, {.declarations = Declarations::markers});
  expect_mended({}, {.declarations = Declarations::table}, {.marker = "", .table = table});
  const std::string prefixed = R"({"format_version": "1.0", "layers": {")" + std::string(prefix) +
                               R"(blocks.0.fc1": )" + std::string(rotated) + "}}";
  expect_mended({.marker = "", .table = prefixed}, {}, {.marker = "", .table = table});
}

TEST_F(RepairTest, PrefixOfAMarker) {
  expect_mended({.marker_name = std::string(prefix) + "blocks.0.fc1"});
}

TEST_F(RepairTest, WeightsAreNotRewrittenInPlace) {
  const auto path = write({.marker = std::string(rotated) + std::string(9, '\0')});
  const RepairPlan before = plan(path);
  ASSERT_EQ(before.files()[0].way, RepairWay::in_place);
  const auto written = carry_out_repair(before, {});
  ASSERT_TRUE(written.ok());
  EXPECT_LT(written->bytes_written, 64u * 256);
}

TEST_F(RepairTest, WhatIsNotProvenStays) {
  TestFile file;
  file.codes("a.weight", DType::i8, {64, 256});
  file.floats("a.weight_scale", DType::f32, {64, 1}, 1.0f);
  const auto path = folder_.write("bare.safetensors", file.bytes());
  const RepairPlan bare = plan(path);
  EXPECT_TRUE(bare.changes().empty());
  ASSERT_EQ(bare.remaining().size(), 1u);
  EXPECT_EQ(bare.remaining()[0].code, ErrorCode::dialect_undeclared_rotation);
  // White noise proves nothing to a deep look either.
  const RepairPlan deep = plan(path, {.depth = CheckDepth::data});
  EXPECT_TRUE(deep.changes().empty());
  EXPECT_FALSE(deep.remaining().empty());
}

// Unlike columns, as trained weights have them; rotated where asked.
TEST_F(RepairTest, UnlikeColumnsProveTheRotation) {
  for (const std::uint32_t group : {0u, 64u, 256u}) {
    std::mt19937 random(3);
    std::normal_distribution<float> bell(0, 1);
    constexpr std::size_t rows = 256, columns = 256;
    std::vector<std::byte> codes(rows * columns);
    std::vector<float> scales(rows), row(columns);
    for (std::size_t r = 0; r < rows; ++r) {
      float largest = 0;
      for (std::size_t k = 0; k < columns; ++k) row[k] = bell(random) * (k % 37 == 5 ? 6.0f : 1.0f);
      if (group != 0) rotate_groups(row, group);
      for (float value : row) largest = std::max(largest, std::abs(value));
      scales[r] = largest / 127;
      for (std::size_t k = 0; k < columns; ++k)
        codes[r * columns + k] =
            static_cast<std::byte>(static_cast<std::int8_t>(std::nearbyint(row[k] / scales[r])));
    }
    TestFile file;
    file.raw("a.weight", DType::i8, {rows, columns}, codes);
    file.values("a.weight_scale", DType::f32, {rows, 1}, scales);
    const auto path = folder_.write("deep.safetensors", file.bytes());
    const RepairPlan deep = plan(path, {.depth = CheckDepth::data});
    EXPECT_TRUE(deep.remaining().empty()) << group << deep.remaining()[0].line();
    ASSERT_EQ(deep.changes().size(), 1u) << group;
    const std::string expected =
        group == 0 ? R"({"format": "int8_tensorwise"})"
                   : fmt::format(R"({{"format": "int8_tensorwise", "convrot": true, )"
                                 R"("convrot_groupsize": {}}})",
                                 group);
    EXPECT_EQ(deep.changes()[0].after, expected);
  }
}

// Rows with unlike columns, as trained weights have them, rotated where asked.
std::vector<float> unlike_columns(std::size_t rows, std::size_t columns, std::uint32_t group) {
  std::mt19937 random(11);
  std::normal_distribution<float> bell(0, 0.05f);
  std::vector<float> values(rows * columns);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::span row(values.data() + r * columns, columns);
    for (std::size_t k = 0; k < columns; ++k) row[k] = bell(random) * (k % 37 == 5 ? 6.0f : 1.0f);
    if (group != 0) rotate_groups(row, group);
  }
  return values;
}

// A layer as the format's own encoder makes it, of values that are rotated already; without a
// marker if there is none.
std::vector<std::byte> encoded(std::string_view name, const std::vector<float>& values,
                               std::size_t rows, std::size_t columns, std::string_view marker) {
  const formats::Format& format = *formats::find_format(name);
  formats::WeightShape shape;
  shape.shape = {rows, columns};
  shape.rows = rows;
  shape.columns = columns;
  formats::EncodeSettings settings;  // not rotated: the values are
  settings.scale_group = format.name == "w6a8_int8" ? 32 : 64;
  const formats::RowReader reader = [&](std::uint64_t first, std::uint64_t count,
                                        float* out) -> Result<Done> {
    std::copy_n(values.data() + first * columns, count * columns, out);
    return Done{};
  };
  formats::Survey survey;
  if (format.encoder->survey) survey = *format.encoder->survey(shape, settings, reader);
  std::vector<std::vector<std::byte>> data;
  formats::EncodeBuffers buffers;
  const auto tensors = format.encoder->tensors(shape, settings);
  for (const formats::EncodedTensor& tensor : tensors) {
    data.emplace_back(*container::tensor_bytes({"", tensor.dtype, tensor.shape}));
    buffers.tensors.push_back(data.back().data());
  }
  std::vector<float> work = values;
  format.encoder->encode(shape, settings, survey, 0, rows, work.data(), buffers);
  TestFile file;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    file.raw("a." + std::string(tensors[i].suffix), tensors[i].dtype, tensors[i].shape, data[i]);
  if (!marker.empty()) file.marker("a", marker);
  return file.bytes();
}

TEST_F(RepairTest, WeightsProveTheGroupOfFormatsThatAreRotated) {
  constexpr std::size_t rows = 256, columns = 512;
  struct Case {
    std::string_view format, marker, group_size;
  };
  for (const Case& one :
       {Case{"asym_w4a8_int8", "", R"("group_size": 64, )"},
        Case{"w6a8_int8", R"({"format": "w6a8_int8", "group_size": 32})", R"("group_size": 32, )"},
        Case{"convrot_w4a4", R"({"format": "convrot_w4a4"})", ""}}) {
    for (const std::uint32_t group : {16u, 64u, 256u}) {
      const auto path = folder_.write(
          "open.safetensors",
          encoded(one.format, unlike_columns(rows, columns, group), rows, columns, one.marker));
      const RepairPlan deep = plan(path, {.depth = CheckDepth::data});
      EXPECT_TRUE(deep.remaining().empty()) << deep.remaining()[0].line();
      ASSERT_EQ(deep.changes().size(), 1u) << one.format << group;
      EXPECT_EQ(deep.changes()[0].after,
                fmt::format(R"({{"format": "{}", {}"convrot_groupsize": {}}})", one.format,
                            one.group_size, group));
      ASSERT_TRUE(carry_out_repair(deep, {}).ok());
      EXPECT_TRUE(plan(path, {.depth = CheckDepth::data}).changes().empty());
    }
    // What is alike proves nothing: a marker gets ComfyUI's default, and none is made up.
    std::vector<float> noise = unlike_columns(rows, columns, 0);
    std::mt19937 random(5);
    std::normal_distribution<float> bell(0, 0.05f);
    for (float& value : noise) value = bell(random);
    const auto path =
        folder_.write("noise.safetensors", encoded(one.format, noise, rows, columns, one.marker));
    const RepairPlan deep = plan(path, {.depth = CheckDepth::data});
    if (one.marker.empty()) {
      EXPECT_TRUE(deep.changes().empty());
      ASSERT_EQ(deep.remaining().size(), 1u);
    } else {
      ASSERT_EQ(deep.changes().size(), 1u);
      EXPECT_NE(deep.changes()[0].after.find(R"("convrot_groupsize": 256)"), std::string::npos);
    }
  }
}

// Without a marker its shapes are also those of asym_w4a8_int8 in groups of 48.
TEST_F(RepairTest, AW6A8LayerThatMayBeAnotherFormatStays) {
  const auto path = folder_.write("six.safetensors",
                                  encoded("w6a8_int8", unlike_columns(256, 512, 64), 256, 512, ""));
  const RepairPlan deep = plan(path, {.depth = CheckDepth::data});
  EXPECT_TRUE(deep.changes().empty());
  ASSERT_EQ(deep.remaining().size(), 1u);
  EXPECT_EQ(deep.remaining()[0].code, ErrorCode::format_undeclared);
}

TEST_F(RepairTest, ADeclaredRotationThatTheWeightDeniesIsTold) {
  const auto path = folder_.write("denied.safetensors",
                                  encoded("w6a8_int8", unlike_columns(256, 512, 0), 256, 512,
                                          R"({"format": "w6a8_int8", "group_size": 32})"));
  const RepairPlan deep = plan(path, {.depth = CheckDepth::data});
  ASSERT_EQ(deep.remaining().size(), 1u);
  EXPECT_EQ(deep.remaining()[0].code, ErrorCode::dialect_rotation);
}

TEST_F(RepairTest, BytesProveThatAWeightIsFp8) {
  constexpr std::size_t rows = 64, columns = 256;
  for (const auto& [name, dtype] :
       {std::pair{"float8_e4m3fn", DType::f8_e4m3}, std::pair{"float8_e5m2", DType::f8_e5m2}}) {
    std::mt19937 random(7);
    std::normal_distribution<float> bell(0, 60);
    std::vector<std::byte> codes(rows * columns), numbers(codes.size()), noise(codes.size()),
        signed_codes(codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const float value = std::clamp(bell(random), -440.0f, 440.0f);
      codes[i] = static_cast<std::byte>(dtype == DType::f8_e5m2 ? float_to_e5m2(value)
                                                                : float_to_e4m3(value));
      numbers[i] = static_cast<std::byte>(static_cast<int>(128 + value / 4));
      signed_codes[i] = static_cast<std::byte>(static_cast<std::int8_t>(value / 4));
      noise[i] = static_cast<std::byte>(random());
    }
    const auto file = [&](const std::vector<std::byte>& bytes, DType as) {
      TestFile made;
      made.raw("a.weight", as, {rows, columns}, bytes);
      made.floats("a.weight_scale", DType::f32, {}, 0.001f);
      made.marker("a", fmt::format(R"({{"format": "{}"}})", name));
      return made.bytes();
    };
    const auto path = folder_.write("u8.safetensors", file(codes, DType::u8));
    EXPECT_FALSE(plan(path).remaining().empty()) << "no header proves it";
    EXPECT_TRUE(plan(path).changes().empty());
    const RepairPlan deep = plan(path, {.depth = CheckDepth::data});
    EXPECT_TRUE(deep.remaining().empty()) << deep.remaining()[0].line();
    ASSERT_EQ(deep.changes().size(), 1u);
    ASSERT_TRUE(carry_out_repair(deep, {}).ok());
    EXPECT_EQ(contents(path), contents(folder_.write("good.safetensors", file(codes, dtype))));
    for (const auto& other : {numbers, signed_codes, noise}) {
      const auto wrong = folder_.write("wrong.safetensors", file(other, DType::u8));
      const RepairPlan none = plan(wrong, {.depth = CheckDepth::data});
      EXPECT_TRUE(none.changes().empty()) << name;
      EXPECT_FALSE(none.remaining().empty()) << name;
    }
  }
}

TEST_F(RepairTest, QuantFormatOfTheWholeFile) {
  TestFile file;
  file.metadata("quant_format", "MXFP8");
  file.codes("a.weight", DType::f8_e4m3, {128, 128});
  file.codes("a.weight_scale", DType::u8, {128, 4});
  file.floats("norm.weight", DType::f32, {64}, 1.0f);
  const auto path = folder_.write("whole.safetensors", file.bytes());
  ASSERT_TRUE(carry_out_repair(plan(path), {}).ok());
  TestFile good;
  good.codes("a.weight", DType::f8_e4m3, {128, 128});
  good.codes("a.weight_scale", DType::u8, {128, 4});
  good.floats("norm.weight", DType::f32, {64}, 1.0f);
  good.marker("a", R"({"format": "mxfp8"})");
  EXPECT_EQ(contents(path), contents(folder_.write("good.safetensors", good.bytes())));
  const RepairPlan again = plan(path);
  EXPECT_TRUE(again.changes().empty() && again.remaining().empty());
}

TEST_F(RepairTest, ABareStringInATable) {
  TestFile file, good;
  file.metadata("_quantization_metadata",
                R"({"format_version": "1.0", "layers": {"a": "float8_e4m3fn"}})");
  good.metadata("_quantization_metadata",
                R"({"format_version": "1.0", "layers": {"a": {"format": "float8_e4m3fn"}}})");
  for (TestFile* one : {&file, &good}) {
    one->codes("a.weight", DType::f8_e4m3, {64, 64});
    one->floats("a.weight_scale", DType::f32, {}, 0.5f);
  }
  const auto path = folder_.write("string.safetensors", file.bytes());
  ASSERT_TRUE(carry_out_repair(plan(path), {}).ok());
  EXPECT_EQ(contents(path), contents(folder_.write("good.safetensors", good.bytes())));
  EXPECT_TRUE(plan(path).changes().empty());
}

// A table and a marker that contradict one another: nothing proves which holds, unless one asks for
// ComfyUI's reading, where the table does.
TEST_F(RepairTest, CompatSettlesAContradiction) {
  const Layout layout{
      .table = R"({"format_version": "1.0", "layers": {"blocks.0.fc1": )"
               R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 64}}})"};
  const auto path = write(layout);
  const RepairPlan strict = plan(path);
  EXPECT_TRUE(strict.changes().empty());
  EXPECT_FALSE(strict.remaining().empty());
  RepairOptions comfy;
  comfy.open.compat = Compat::comfyui;
  const RepairPlan first = plan(path, comfy);
  ASSERT_EQ(first.changes().size(), 1u);
  EXPECT_NE(first.changes()[0].after.find(R"("convrot_groupsize": 64)"), std::string::npos)
      << first.changes()[0].after;
  EXPECT_TRUE(first.remaining().empty());
  ASSERT_TRUE(carry_out_repair(first, {}).ok());
  // Now all readings agree.
  const RepairPlan again = plan(path);
  EXPECT_TRUE(again.changes().empty() && again.remaining().empty());
}

TEST_F(RepairTest, LegacyScaledFp8) {
  TestFile file;
  file.codes("a.weight", DType::f8_e4m3, {64, 64});
  file.floats("a.scale_weight", DType::f32, {1}, 0.5f);
  file.raw("scaled_fp8", DType::f8_e4m3, {2}, std::vector<std::byte>(2));
  const auto path = folder_.write("legacy.safetensors", file.bytes());
  ASSERT_TRUE(carry_out_repair(plan(path), {}).ok());
  TestFile good;
  good.codes("a.weight", DType::f8_e4m3, {64, 64});
  good.floats("a.weight_scale", DType::f32, {}, 0.5f);
  good.marker("a", R"({"format": "float8_e4m3fn", "full_precision_matrix_mult": true})");
  EXPECT_EQ(contents(path), contents(folder_.write("good.safetensors", good.bytes())));
  EXPECT_TRUE(plan(path).changes().empty());
}

TEST_F(RepairTest, AShardSetAndItsIndex) {
  TestFile a, b;
  a.codes("x.weight", DType::u8, {64, 32});
  a.codes("x.weight_scale", DType::f8_e4m3, {128, 4});
  a.floats("x.weight_scale_2", DType::f32, {}, 1.0f);
  b.codes("y.weight", DType::i8, {64, 256});
  b.floats("y.weight_scale", DType::f32, {64, 1}, 1.0f);
  b.marker("model.y", R"({"format": "int8_tensorwise"})");
  folder_.write("set/m-00001-of-00002.safetensors", a.bytes());
  folder_.write("set/m-00002-of-00002.safetensors", b.bytes());
  const auto index =
      folder_.write("set/m.safetensors.index.json",
                    std::string_view(R"({"metadata": {"total_size": 1}, "weight_map": {
        "x.weight": "m-00001-of-00002.safetensors", "x.weight_scale": "m-00001-of-00002.safetensors",
        "x.weight_scale_2": "m-00001-of-00002.safetensors", "y.weight": "m-00002-of-00002.safetensors",
        "y.weight_scale": "m-00002-of-00002.safetensors",
        "model.y.comfy_quant": "m-00002-of-00002.safetensors"}})"));
  const RepairPlan first = plan(index);
  EXPECT_TRUE(first.remaining().empty());
  ASSERT_TRUE(carry_out_repair(first, {folder_.path() / "out", {}}).ok());
  ASSERT_TRUE(carry_out_repair(first, {}).ok());
  for (const auto& path : {index, folder_.path() / "out" / "m.safetensors.index.json"}) {
    const RepairPlan again = plan(path);
    EXPECT_TRUE(again.changes().empty() && again.remaining().empty());
    const auto opened = container::open_index(path, {});
    ASSERT_TRUE(opened.ok());
    EXPECT_TRUE((*opened)->findings().empty());
    EXPECT_NE((*opened)->find("x.comfy_quant"), nullptr);
    EXPECT_NE((*opened)->find("y.comfy_quant"), nullptr);
  }
}

TEST_F(RepairTest, AKillAtAnyStepIsFinishedLater) {
  const Layout broken{.marker = R"({"convrot": true, "convrot_groupsize": 256})",
                      .scale_shape = {64}};
  const auto good = write(broken, "good.safetensors");
  ASSERT_TRUE(carry_out_repair(plan(good), {}).ok());
  for (int stop = 0; stop < 200; ++stop) {
    const auto path = write(broken);
    const std::vector<std::byte> before = read_all(path);
    const RepairPlan first = plan(path);
    const InPlace& in_place = first.state().in_place[0];
    ASSERT_TRUE(in_place.patch);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int steps = 0;
      const auto hook = [&](io::PatchStep) {
        if (steps++ == stop) ::_exit(9);
      };
      const bool good_end =
          io::apply_patch(path, *in_place.patch, in_place.old_start, {.piece = 64, .hook = hook})
              .ok();
      ::_exit(good_end ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    if (WEXITSTATUS(status) == 0) {
      EXPECT_GT(stop, 4);
      EXPECT_EQ(read_all(path), read_all(good));
      return;
    }
    ASSERT_EQ(WEXITSTATUS(status), 9);
    const RepairPlan second = plan(path);
    ASSERT_EQ(second.interrupted().size(), 1u) << stop;
    ASSERT_TRUE(carry_out_repair(second, {}).ok());
    if (stop == 0) {
      EXPECT_EQ(read_all(path), before) << "the journal was not whole";
    }
    const RepairPlan third = plan(path);
    ASSERT_TRUE(carry_out_repair(third, {}).ok());
    EXPECT_EQ(read_all(path), read_all(good)) << stop;
  }
  ADD_FAILURE() << "the repair never ended";
}

// The file may not grow: what was begun is taken back.
TEST_F(RepairTest, ADiskThatIsFullLeavesTheFileAsItWas) {
  TestFile file;
  file.codes("a.weight", DType::i8, {1024, 1024});
  file.floats("a.weight_scale", DType::f32, {1024, 1}, 0.5f);
  file.marker("a", R"({"convrot": true, "convrot_groupsize": 256})");
  const auto bytes = file.bytes();
  const auto path = folder_.write("full.safetensors", bytes);
  const RepairPlan first = plan(path);
  ASSERT_EQ(first.files()[0].way, RepairWay::in_place);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes.size(), bytes.size()};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::_exit(carry_out_repair(first, {}).ok() ? 0 : 7);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(read_all(path), bytes);
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".repair"));
}

// What comfy-kitchen wrote is as it should be, but for two that have rarer shapes on purpose.
TEST_F(RepairTest, GoldenFilesNeedNothing) {
  const std::filesystem::path folder = std::string(PARFAIT_SOURCE_DIR) + "/tests/golden/formats";
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".safetensors") || name.find(".expected.") != std::string::npos) continue;
    ++files;
    const RepairPlan golden = plan(entry.path());
    const bool rare =
        name == "fp8_e4m3_full_precision.safetensors" || name == "int8_row_n.safetensors";
    EXPECT_EQ(golden.changes().size(), rare ? 1u : 0u) << name;
    EXPECT_TRUE(golden.remaining().empty()) << name;
  }
  EXPECT_GT(files, 20u);
}

TEST_F(RepairTest, AJournalOfAnotherFileIsRefused) {
  const auto path = write({.marker = std::string(rotated) + "  "});
  const RepairPlan first = plan(path);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    (void)io::apply_patch(path, *first.state().in_place[0].patch,
                          first.state().in_place[0].old_start, {.hook = [](io::PatchStep step) {
                            if (step == io::PatchStep::journal_done) ::_exit(9);
                          }});
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  TestFile other;
  other.codes("other.weight", DType::i8, {128, 128});
  const auto bytes = other.bytes();
  folder_.write("x.safetensors", bytes);
  EXPECT_FALSE(carry_out_repair(plan(path), {}).ok());
  EXPECT_EQ(read_all(path), bytes);
}

TEST_F(RepairTest, AFileThatChangedSinceIsLeftAlone) {
  const auto path = write({.scale_shape = {64}});
  const RepairPlan first = plan(path);
  const auto bytes = file_of({});
  folder_.write("x.safetensors", bytes);
  const auto written = carry_out_repair(first, {});
  EXPECT_FALSE(written.ok());
  EXPECT_EQ(read_all(path), bytes);
}

}  // namespace
}  // namespace parfait::convert
