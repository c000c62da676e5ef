// Detection and checking: which layers a file has, and what is wrong with it. The rows of public
// failure reports that speak of declarations, names and kinds of layers each have their test here.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "formats/format.h"
#include "support/test_file.h"

namespace parfait::formats {
namespace {

using test::TestFile;

std::shared_ptr<const Checkpoint> detect_file(const TestFile& file, Compat compat = Compat::none) {
  auto index = container::open_single(io::memory_reader("test.safetensors", file.bytes()), {});
  EXPECT_TRUE(index.ok()) << (index.ok() ? "" : index.error().message);
  auto checkpoint = detect(*index, {.compat = compat});
  EXPECT_TRUE(checkpoint.ok()) << (checkpoint.ok() ? "" : checkpoint.error().message);
  return *checkpoint;
}

std::vector<Finding> check_file(const TestFile& file, Compat compat = Compat::none,
                                CheckDepth depth = CheckDepth::headers) {
  auto findings = check_layers(*detect_file(file, compat), {.depth = depth, .progress = {}});
  EXPECT_TRUE(findings.ok()) << (findings.ok() ? "" : findings.error().message);
  return *findings;
}

std::string text_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) text += finding.line() + "\n";
  return text;
}

const Finding* find_code(const std::vector<Finding>& findings, ErrorCode code) {
  const auto it = std::ranges::find(findings, code, &Finding::code);
  return it == findings.end() ? nullptr : &*it;
}

bool has_errors(const std::vector<Finding>& findings) {
  return std::ranges::any_of(findings,
                             [](const Finding& f) { return f.severity == Severity::error; });
}

// One finding of that code and severity is there.
void expect_finding(const std::vector<Finding>& findings, ErrorCode code, Severity severity) {
  const Finding* finding = find_code(findings, code);
  ASSERT_NE(finding, nullptr) << "no " << error_code_name(code) << " in:\n" << text_of(findings);
  EXPECT_EQ(finding->severity, severity) << finding->line();
}

void expect_sound(const std::vector<Finding>& findings) {
  EXPECT_FALSE(has_errors(findings)) << text_of(findings);
}

// Every tensor of the index is in a layer, in the plain list, or named by a finding.
void expect_accounted(const Checkpoint& checkpoint) {
  std::vector<std::string_view> seen;
  for (const Layer& layer : checkpoint.layers)
    for (const Part& part : layer.parts) seen.push_back(part.tensor->name);
  for (const TensorInfo* tensor : checkpoint.plain_tensors) seen.push_back(tensor->name);
  std::ranges::sort(seen);
  EXPECT_EQ(std::ranges::adjacent_find(seen), seen.end()) << "a tensor stands in two places";
  for (const TensorInfo& tensor : checkpoint.index->tensors()) {
    if (std::ranges::binary_search(seen, tensor.name)) continue;
    const bool reported = std::ranges::any_of(checkpoint.findings, [&](const Finding& finding) {
      return finding.tensor == tensor.name ||
             (!finding.layer.empty() && tensor.name.starts_with(finding.layer + "."));
    });
    EXPECT_TRUE(reported) << tensor.name << " is lost; findings:\n" << text_of(checkpoint.findings);
  }
}

// A layer of each integer format that the tests need, at K = 256, N = 3.
void add_int8(TestFile& file, const std::string& name, std::string_view marker,
              std::uint64_t rows = 3, std::uint64_t columns = 256) {
  file.codes(name + ".weight", DType::i8, {rows, columns});
  file.floats(name + ".weight_scale", DType::f32, {rows, 1}, 0.01f);
  if (!marker.empty()) file.marker(name, marker);
}
void add_w4a4(TestFile& file, const std::string& name, std::string_view marker,
              std::uint64_t rows = 3, std::uint64_t columns = 256) {
  file.codes(name + ".weight", DType::i8, {rows, columns / 2});
  file.floats(name + ".weight_scale", DType::f32, {rows}, 0.01f);
  if (!marker.empty()) file.marker(name, marker);
}
void add_nvfp4(TestFile& file, const std::string& name, std::string_view marker,
               std::uint64_t rows = 3, std::uint64_t columns = 256) {
  file.codes(name + ".weight", DType::u8, {rows, columns / 2});
  file.codes(name + ".weight_scale", DType::f8_e4m3,
             {(rows + 127) / 128 * 128, (columns / 16 + 3) / 4 * 4});
  file.floats(name + ".weight_scale_2", DType::f32, {}, 0.001f);
  if (!marker.empty()) file.marker(name, marker);
}
constexpr std::string_view int8_rotated =
    R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 256})";
constexpr std::string_view w4a4_marker = R"({"format": "convrot_w4a4", "convrot_groupsize": 256})";
constexpr std::string_view nvfp4_marker = R"({"format": "nvfp4"})";

TEST(Detect, a_mixed_file_needs_no_flag) {
  TestFile file;
  add_w4a4(file, "blocks.0.attn.qkv_proj", w4a4_marker);
  add_int8(file, "blocks.0.mlp.fc1", int8_rotated);
  file.floats("blocks.0.norm1.weight", DType::bf16, {256}, 1);
  const auto checkpoint = detect_file(file);
  ASSERT_EQ(checkpoint->layers.size(), 2u);
  const Layer* w4a4 = checkpoint->find("blocks.0.attn.qkv_proj");
  ASSERT_NE(w4a4, nullptr);
  EXPECT_EQ(w4a4->format->name, "convrot_w4a4");
  EXPECT_EQ(w4a4->rows, 3u);
  EXPECT_EQ(w4a4->columns, 256u);
  EXPECT_EQ(w4a4->rotate_group, 256u);
  const Layer* int8 = checkpoint->find("blocks.0.mlp.fc1");
  ASSERT_NE(int8, nullptr);
  EXPECT_EQ(int8->format->name, "int8_tensorwise");
  EXPECT_EQ(int8->columns, 256u);
  EXPECT_EQ(int8->rotate_group, 256u);
  ASSERT_EQ(checkpoint->plain_tensors.size(), 1u);
  EXPECT_EQ(checkpoint->plain_tensors[0]->name, "blocks.0.norm1.weight");
  expect_accounted(*checkpoint);
  expect_sound(check_file(file));
}

TEST(Detect, each_layer_keeps_its_own_group) {
  TestFile file;
  add_int8(file, "a", int8_rotated);
  add_int8(file, "b", R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 64})");
  add_int8(file, "c", R"({"format": "int8_tensorwise"})");
  const auto checkpoint = detect_file(file);
  EXPECT_EQ(checkpoint->find("a")->rotate_group, 256u);
  EXPECT_EQ(checkpoint->find("b")->rotate_group, 64u);
  EXPECT_EQ(checkpoint->find("c")->rotate_group, 0u);
}

// --- Declarations ---

TEST(Detect, header_table_declares_layers) {
  TestFile file;
  add_int8(file, "a", "");
  file.metadata("_quantization_metadata",
                R"({"format_version": "1.0", "layers": {"a": {"format": "int8_tensorwise"}}})");
  const auto checkpoint = detect_file(file);
  ASSERT_EQ(checkpoint->layers.size(), 1u);
  EXPECT_EQ(checkpoint->layers[0].source, Source::header_table);
  expect_sound(check_file(file));
}

TEST(Detect, equal_declarations_merge_and_unequal_ones_name_both_places) {
  TestFile same;
  add_int8(same, "a", R"({"convrot": false, "format": "int8_tensorwise"})");
  same.metadata("_quantization_metadata",
                R"({"layers": {"a": {"format": "int8_tensorwise", "convrot": false}}})");
  expect_sound(check_file(same));

  TestFile differ;
  add_int8(differ, "a", int8_rotated);
  differ.metadata("_quantization_metadata", R"({"layers": {"a": {"format": "int8_tensorwise"}}})");
  const auto findings = check_file(differ);
  expect_finding(findings, ErrorCode::marker_conflict, Severity::error);
  const std::string line = find_code(findings, ErrorCode::marker_conflict)->line();
  EXPECT_NE(line.find("the marker says"), std::string::npos) << line;
  EXPECT_NE(line.find("the header table says"), std::string::npos) << line;
  expect_accounted(*detect_file(differ));

  const auto comfy = detect_file(differ, Compat::comfyui);
  ASSERT_EQ(comfy->layers.size(), 1u);
  EXPECT_EQ(comfy->layers[0].rotate_group, 0u) << "the header table wins, as in ComfyUI";
  expect_sound(check_file(differ, Compat::comfyui));
}

TEST(Detect, a_table_that_says_more_than_the_marker_is_taken_with_a_warning) {
  TestFile file;
  add_nvfp4(file, "a", nvfp4_marker);
  file.metadata("_quantization_metadata",
                R"({"layers": {"a": {"format": "nvfp4", "full_precision_matrix_mult": true}}})");
  const auto findings = check_file(file);
  expect_finding(findings, ErrorCode::marker_conflict, Severity::warning);
  EXPECT_TRUE(detect_file(file)->layers[0].full_precision);
}

TEST(Detect, a_table_entry_that_is_a_bare_string) {
  TestFile file;
  add_nvfp4(file, "a", "");
  file.metadata("_quantization_metadata", R"({"layers": {"a": "nvfp4"}})");
  const auto findings = check_file(file);
  expect_finding(findings, ErrorCode::marker_dialect, Severity::warning);
  expect_sound(findings);
}

TEST(Detect, broken_tables_and_markers_are_findings) {
  for (const char* table :
       {"{", "[]", "{\"layers\": 3}", "{\"layers\": {\"a\": 3}}", "{\"layers\": {}} x"}) {
    TestFile file;
    file.floats("a.weight", DType::bf16, {4, 4}, 1);
    file.metadata("_quantization_metadata", table);
    EXPECT_TRUE(has_errors(check_file(file))) << table;
  }
  for (const char* marker :
       {"{", "3", "[1]", "{\"format\": 3}", "{\"format\": \"nvfp4\"} x",
        "{\"format\": \"int8_tensorwise\", \"format\": \"nvfp4\"}",
        "{\"format\": \"int8_tensorwise\", \"convrot\": \"yes\"}",
        "{\"format\": \"int8_tensorwise\", \"convrot\": true, \"convrot_groupsize\": 0}",
        "{\"format\": \"int8_tensorwise\", \"convrot\": true, \"convrot_groupsize\": -16}",
        "{\"format\": \"int8_tensorwise\", \"convrot\": true, \"convrot_groupsize\": 1e9}"}) {
    TestFile file;
    add_int8(file, "a", marker);
    EXPECT_TRUE(has_errors(check_file(file))) << marker;
    expect_accounted(*detect_file(file));
  }
}

TEST(Detect, marker_of_the_wrong_type_or_size) {
  TestFile wide;
  add_int8(wide, "a", "");
  wide.codes("a.comfy_quant", DType::u8, {2, 9});
  expect_finding(check_file(wide), ErrorCode::marker_json, Severity::error);
  TestFile huge;
  add_int8(huge, "a", "");
  huge.codes("a.comfy_quant", DType::u8, {3 << 20});
  expect_finding(check_file(huge), ErrorCode::marker_json, Severity::error);
}

TEST(Detect, padded_marker_is_read_with_a_warning) {
  TestFile file;
  add_int8(file, "a", std::string(int8_rotated) + std::string(5, '\0') + "  ");
  const auto findings = check_file(file);
  expect_finding(findings, ErrorCode::marker_padding, Severity::warning);
  expect_sound(findings);
}

TEST(Detect, quant_format_speaks_for_a_whole_file) {
  TestFile file;
  file.codes("a.weight", DType::f8_e4m3, {128, 128});
  file.codes("a.weight_scale", DType::u8, {128, 4});
  file.metadata("quant_format", "MXFP8");
  const auto checkpoint = detect_file(file);
  ASSERT_EQ(checkpoint->layers.size(), 1u);
  EXPECT_EQ(checkpoint->layers[0].format->name, "mxfp8");
  EXPECT_EQ(checkpoint->layers[0].source, Source::quant_format);
}

// --- Class A: silent wrong numbers ---

TEST(Detect, A1_fp8_scales_are_consumed_under_both_names) {
  for (const char* scale : {"scale_weight", "weight_scale"}) {
    TestFile file;
    file.codes("a.weight", DType::f8_e4m3, {64, 128});
    file.floats(std::string("a.") + scale, DType::f32, {}, 1e-3f);
    const auto checkpoint = detect_file(file);
    ASSERT_EQ(checkpoint->layers.size(), 1u) << scale;
    EXPECT_EQ(checkpoint->layers[0].format->name, "float8_e4m3fn");
    ASSERT_NE(checkpoint->layers[0].part("weight_scale"), nullptr) << scale;
    expect_sound(check_file(file));
  }
}

TEST(Detect, A1_a_scale_without_its_weight_is_an_error) {
  TestFile file;
  file.floats("a.weight_scale", DType::f32, {}, 1);
  file.floats("b.weight", DType::bf16, {4, 4}, 1);
  expect_finding(check_file(file), ErrorCode::part_unused, Severity::error);
}

TEST(Detect, A1_a_scale_beside_a_bf16_weight_is_an_error) {
  TestFile file;
  file.floats("b.weight", DType::bf16, {4, 4}, 1);
  file.floats("b.weight_scale", DType::f32, {}, 0.5f);
  expect_finding(check_file(file), ErrorCode::part_unused, Severity::error);
}

TEST(Detect, A2_decoded_fp8_is_scaled) {
  TestFile file;
  std::vector<std::byte> codes(64 * 128);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i % 0x7f);
  file.raw("a.weight", DType::f8_e4m3, {64, 128}, codes);
  file.floats("a.weight_scale", DType::f32, {1}, 0.0013f);
  file.marker("a", R"({"format": "float8_e4m3fn"})");
  const auto checkpoint = detect_file(file);
  auto data = read_layer(*checkpoint->index, checkpoint->layers.at(0));
  ASSERT_TRUE(data.ok());
  std::vector<float> rows(64 * 128);
  checkpoint->layers[0].format->decode(*data, 0, 64, rows.data());
  EXPECT_LE(*std::ranges::max_element(rows), 448 * 0.0013f * 1.0001f);
  EXPECT_NEAR(*std::ranges::max_element(rows), 448 * 0.0013f, 1e-4f);
}

TEST(Detect, A4_no_list_of_names_hides_a_quantised_layer) {
  TestFile file;
  for (const char* name : {"time_embed.linear_2", "blocks.0.attn"}) {
    file.codes(std::string(name) + ".weight", DType::f8_e4m3, {16, 16});
    file.floats(std::string(name) + ".weight_scale", DType::f32, {}, 0.5f);
    file.marker(name, R"({"format": "float8_e4m3fn"})");
  }
  EXPECT_EQ(detect_file(file)->layers.size(), 2u);
}

TEST(Detect, A8_swizzled_or_linear_block_scales_of_one_shape_are_reported) {
  TestFile file;
  add_nvfp4(file, "a", nvfp4_marker, 128, 256);
  const auto findings = check_file(file);
  expect_finding(findings, ErrorCode::dialect_block_scale, Severity::warning);
  expect_sound(findings);
  TestFile padded;
  add_nvfp4(padded, "a", nvfp4_marker, 3, 256);
  EXPECT_EQ(find_code(check_file(padded), ErrorCode::dialect_block_scale), nullptr);
  TestFile linear;  // the logical shape, which differs from the padded one
  linear.codes("a.weight", DType::u8, {3, 128});
  linear.codes("a.weight_scale", DType::f8_e4m3, {3, 16});
  linear.floats("a.weight_scale_2", DType::f32, {}, 0.001f);
  linear.marker("a", nvfp4_marker);
  expect_finding(check_file(linear), ErrorCode::dialect_block_scale, Severity::error);
}

TEST(Detect, A9_lightx2v_nvfp4_is_named) {
  TestFile file;
  file.codes("a.weight", DType::u8, {128, 128});
  file.codes("a.weight_scale", DType::f8_e4m3, {128, 16});
  file.floats("a.alpha", DType::f32, {}, 1);
  file.floats("a.input_global_scale", DType::f32, {}, 1);
  const auto findings = check_file(file);
  expect_finding(findings, ErrorCode::format_foreign, Severity::error);
  EXPECT_NE(find_code(findings, ErrorCode::format_foreign)->message.find("LightX2V"),
            std::string::npos);
  expect_accounted(*detect_file(file));
}

TEST(Detect, A12_a_rotation_that_does_not_fit_is_refused) {
  TestFile file;
  add_int8(file, "x_embedder", int8_rotated, 3, 16);
  const auto findings = check_file(file);
  expect_finding(findings, ErrorCode::layer_columns, Severity::error);
  EXPECT_EQ(find_code(findings, ErrorCode::layer_columns)->layer, "x_embedder");
}

TEST(Detect, A17_every_legacy_fp8_dialect) {
  {
    TestFile file;  // scaled_fp8 with scale_weight and scale_input under a prefix
    file.codes("model.diffusion_model.a.weight", DType::f8_e5m2, {16, 16});
    file.floats("model.diffusion_model.a.scale_weight", DType::f32, {1}, 0.5f);
    file.floats("model.diffusion_model.a.scale_input", DType::f32, {1}, 1);
    file.codes("model.diffusion_model.scaled_fp8", DType::f8_e5m2, {2});
    file.codes("text.b.weight", DType::f8_e4m3, {16, 16});
    const auto checkpoint = detect_file(file);
    const Layer* layer = checkpoint->find("model.diffusion_model.a");
    ASSERT_NE(layer, nullptr);
    EXPECT_EQ(layer->format->name, "float8_e5m2");
    EXPECT_EQ(layer->source, Source::legacy);
    EXPECT_TRUE(layer->full_precision) << "a marker of two elements";
    EXPECT_NE(layer->part("weight_scale"), nullptr);
    EXPECT_NE(layer->part("input_scale"), nullptr);
    // Outside the marker's prefix the file declares nothing, and a bare fp8 weight is an error
    // there.
    EXPECT_EQ(checkpoint->find("text.b"), nullptr);
    expect_finding(checkpoint->findings, ErrorCode::format_undeclared, Severity::error);
    expect_accounted(*checkpoint);
  }
  {
    TestFile file;  // bare fp8, nothing declared anywhere
    file.codes("a.weight", DType::f8_e4m3, {16, 16});
    const auto findings = check_file(file);
    expect_finding(findings, ErrorCode::format_inferred, Severity::note);
    expect_sound(findings);
    EXPECT_EQ(detect_file(file)->layers.at(0).format->name, "float8_e4m3fn");
  }
  {
    TestFile file;  // F32 marker of one element means e4m3fn and no full precision
    file.codes("a.weight", DType::f8_e4m3, {16, 16});
    file.floats("a.scale_weight", DType::f32, {}, 0.5f);
    file.floats("scaled_fp8", DType::f32, {1}, 0);
    const auto checkpoint = detect_file(file);
    ASSERT_EQ(checkpoint->layers.size(), 1u);
    EXPECT_FALSE(checkpoint->layers[0].full_precision);
    expect_accounted(*checkpoint);
  }
}

TEST(Detect, A18_an_empty_scale_is_an_error) {
  TestFile file;
  file.codes("a.weight", DType::f8_e4m3, {16, 16});
  file.raw("a.scale_weight", DType::f32, {0}, {});
  file.codes("scaled_fp8", DType::f8_e4m3, {1});
  expect_finding(check_file(file), ErrorCode::part_shape, Severity::error);
}

// --- Class B: markers missing, empty, unknown, or of another dialect ---

TEST(Detect, B1_an_empty_marker_counts_as_absent) {
  TestFile file;
  file.floats("layer0.weight", DType::bf16, {4, 4}, 1);
  file.marker("layer0", std::string(32, '\0'));
  add_nvfp4(file, "layer1", "{}");
  const auto checkpoint = detect_file(file);
  ASSERT_NE(checkpoint->find("layer0"), nullptr);
  EXPECT_EQ(checkpoint->find("layer0")->format->name, "bf16");
  ASSERT_NE(checkpoint->find("layer1"), nullptr);
  EXPECT_EQ(checkpoint->find("layer1")->format->name, "nvfp4");
  expect_sound(check_file(file));
  expect_accounted(*checkpoint);
}

TEST(Detect, B1_an_empty_marker_on_an_ambiguous_layer_is_an_error) {
  TestFile file;
  add_int8(file, "a", "{}");
  const auto findings = check_file(file);
  EXPECT_TRUE(has_errors(findings));
  expect_finding(findings, ErrorCode::dialect_undeclared_rotation, Severity::error);
}

TEST(Detect, B2_nvfp4_is_recognised_by_its_tensors) {
  TestFile file;
  add_nvfp4(file, "a", "");
  add_nvfp4(file, "b", "");
  const auto checkpoint = detect_file(file);
  ASSERT_EQ(checkpoint->layers.size(), 2u);
  EXPECT_EQ(checkpoint->layers[0].format->name, "nvfp4");
  EXPECT_EQ(checkpoint->layers[0].columns, 256u);
  expect_sound(check_file(file));
}

TEST(Detect, B4_the_int8_fast_dialect_has_no_format_key) {
  TestFile file;
  add_int8(file, "a", R"({"convrot": true, "convrot_groupsize": 64, "per_row": true})");
  const auto checkpoint = detect_file(file);
  ASSERT_EQ(checkpoint->layers.size(), 1u);
  EXPECT_EQ(checkpoint->layers[0].format->name, "int8_tensorwise");
  EXPECT_EQ(checkpoint->layers[0].rotate_group, 64u);
  expect_finding(checkpoint->findings, ErrorCode::marker_dialect, Severity::warning);
}

TEST(Detect, B6_flat_and_nested_keys) {
  TestFile nested;
  add_int8(
      nested, "a",
      R"({"format": "int8_tensorwise", "params": {"convrot": true, "convrot_groupsize": 64}})");
  EXPECT_EQ(detect_file(nested)->layers.at(0).rotate_group, 64u);
  expect_sound(check_file(nested));
  TestFile agree;
  add_int8(agree, "a", R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 64,
                           "params": {"convrot_groupsize": 64}})");
  expect_sound(check_file(agree));
  TestFile conflict;
  add_int8(conflict, "a",
           R"({"params": {"group_size": 128}, "format": "int8_tensorwise", "group_size": 64})");
  expect_finding(check_file(conflict), ErrorCode::marker_key_conflict, Severity::error);
}

TEST(Detect, B8_formats_of_other_tools_are_recognised_by_name) {
  for (const char* name : {"int8_blockwise", "svdquant_w4a4", "nf4", "hybrid_mxfp8"}) {
    TestFile file;
    add_int8(file, "a", std::string("{\"format\": \"") + name + "\"}");
    expect_finding(check_file(file), ErrorCode::format_unsupported, Severity::error);
  }
}

TEST(Detect, B8_an_unknown_format_names_layer_string_and_known_ones) {
  TestFile file;
  add_int8(file, "blocks.7.mlp.fc1", R"({"format": "int6_future"})");
  const auto findings = check_file(file);
  expect_finding(findings, ErrorCode::format_unknown, Severity::error);
  const std::string line = find_code(findings, ErrorCode::format_unknown)->line();
  for (const char* part :
       {"blocks.7.mlp.fc1", "int6_future", "convrot_w4a4", "int8_tensorwise", "mxfp8"})
    EXPECT_NE(line.find(part), std::string::npos) << part << " is not in " << line;
}

TEST(Detect, B9_fp8_scales_by_row_and_block_are_told_apart) {
  for (const std::vector<std::uint64_t>& shape :
       {std::vector<std::uint64_t>{256, 1}, {256, 2, 1}, {2, 2}}) {
    TestFile file;
    file.codes("a.weight", DType::f8_e4m3, {256, 256});
    file.floats("a.weight_scale", DType::f32, shape, 0.5f);
    file.marker("a", R"({"format": "float8_e4m3fn"})");
    expect_finding(check_file(file), ErrorCode::part_shape, Severity::error);
  }
}

TEST(Detect, B10_an_input_scale_beside_int8_is_noted) {
  TestFile file;
  add_int8(file, "a", int8_rotated);
  file.floats("a.input_scale", DType::f32, {}, 0.1f);
  const auto findings = check_file(file);
  expect_finding(findings, ErrorCode::part_ignored, Severity::note);
  expect_sound(findings);
}

TEST(Detect, B12_nvfp4_and_mxfp8_in_one_file) {
  TestFile file;
  add_nvfp4(file, "layer0", nvfp4_marker, 128, 128);
  file.codes("layer1.weight", DType::f8_e4m3, {128, 128});
  file.codes("layer1.weight_scale", DType::u8, {128, 4});
  file.marker("layer1", R"({"format": "mxfp8"})");
  file.floats("layer2.weight", DType::bf16, {4, 4}, 1);
  const auto checkpoint = detect_file(file);
  EXPECT_EQ(checkpoint->find("layer0")->format->name, "nvfp4");
  EXPECT_EQ(checkpoint->find("layer1")->format->name, "mxfp8");
  EXPECT_EQ(checkpoint->find("layer2")->format->name, "bf16");
  expect_sound(check_file(file));
}

TEST(Detect, an_undeclared_int8_weight_is_never_guessed) {
  TestFile file;
  add_int8(file, "a", "");
  expect_finding(check_file(file), ErrorCode::dialect_undeclared_rotation, Severity::error);
  TestFile bare;
  bare.codes("a.weight", DType::i8, {4, 4});
  expect_finding(check_file(bare), ErrorCode::format_undeclared, Severity::error);
}

TEST(Detect, a_rotation_flag_on_block_formats_is_an_error_unless_comfyui_is_asked_for) {
  TestFile file;
  add_nvfp4(file, "a", R"({"format": "nvfp4", "convrot": true, "convrot_groupsize": 256})");
  expect_finding(check_file(file), ErrorCode::dialect_rotation, Severity::error);
  const auto comfy = check_file(file, Compat::comfyui);
  expect_finding(comfy, ErrorCode::dialect_rotation, Severity::note);
  expect_sound(comfy);
}

TEST(Detect, an_unexpected_companion_is_an_error) {
  TestFile file;
  add_int8(file, "a", int8_rotated);
  file.floats("a.weight_scale_2", DType::f32, {}, 1);
  expect_finding(check_file(file), ErrorCode::part_unused, Severity::error);
}

TEST(Detect, a_missing_companion_is_an_error) {
  TestFile file;
  file.codes("a.weight", DType::i8, {3, 128});
  file.marker("a", w4a4_marker);
  const auto findings = check_file(file);
  expect_finding(findings, ErrorCode::part_missing, Severity::error);
  EXPECT_NE(find_code(findings, ErrorCode::part_missing)->line().find("a.weight_scale"),
            std::string::npos);
}

TEST(Detect, C5_narrow_scales_are_widened_with_a_warning) {
  TestFile file;
  file.codes("a.weight", DType::f8_e4m3, {16, 16});
  file.floats("a.weight_scale", DType::bf16, {}, 0.5f);
  file.marker("a", R"({"format": "float8_e4m3fn"})");
  const auto findings = check_file(file);
  expect_finding(findings, ErrorCode::part_widened, Severity::warning);
  expect_sound(findings);
}

// --- Class J: names ---

TEST(Detect, J1_a_table_without_the_prefix_matches_by_ending) {
  TestFile file;
  add_nvfp4(file, "model.diffusion_model.blocks.0.q", "");
  file.metadata("_quantization_metadata", R"({"layers": {"blocks.0.q": {"format": "nvfp4"}}})");
  const auto checkpoint = detect_file(file);
  ASSERT_EQ(checkpoint->layers.size(), 1u);
  EXPECT_EQ(checkpoint->layers[0].source, Source::header_table);
  expect_finding(checkpoint->findings, ErrorCode::marker_renamed, Severity::warning);
}

TEST(Detect, J1_and_the_inverse) {
  TestFile file;
  add_nvfp4(file, "blocks.0.q", "");
  file.metadata("_quantization_metadata",
                R"({"layers": {"model.diffusion_model.blocks.0.q": {"format": "nvfp4"}}})");
  const auto checkpoint = detect_file(file);
  ASSERT_EQ(checkpoint->layers.size(), 1u);
  EXPECT_EQ(checkpoint->layers[0].source, Source::header_table);
  expect_finding(checkpoint->findings, ErrorCode::marker_renamed, Severity::warning);
}

TEST(Detect, J1_two_candidates_are_an_error) {
  TestFile file;
  add_nvfp4(file, "model.diffusion_model.blocks.0.q", "");
  add_nvfp4(file, "text_encoder.blocks.0.q", "");
  file.metadata("_quantization_metadata", R"({"layers": {"blocks.0.q": {"format": "nvfp4"}}})");
  expect_finding(check_file(file), ErrorCode::marker_ambiguous, Severity::error);
}

TEST(Detect, J2_an_orphan_marker_and_its_orphaned_weight_are_both_reported) {
  TestFile file;
  add_int8(file, "new.name", "");
  file.marker("old.layer", int8_rotated);
  const auto findings = check_file(file);
  expect_finding(findings, ErrorCode::marker_orphan, Severity::error);
  expect_finding(findings, ErrorCode::dialect_undeclared_rotation, Severity::error);
  expect_accounted(*detect_file(file));
}

TEST(Detect, J4_the_file_decides_each_layer_and_no_list_of_names) {
  TestFile file;
  add_nvfp4(file, "a", nvfp4_marker);
  file.floats("mod.1.weight", DType::bf16, {6, 4}, 1);
  add_nvfp4(file, "z", nvfp4_marker);
  const auto checkpoint = detect_file(file);
  ASSERT_EQ(checkpoint->layers.size(), 3u);
  EXPECT_EQ(checkpoint->find("mod.1")->format->name, "bf16");
}

TEST(Detect, J6_wrappers_in_names_do_not_count) {
  TestFile file;
  add_nvfp4(file, "blocks.0._checkpoint_wrapped_module.q", "");
  file.metadata("_quantization_metadata", R"({"layers": {"blocks.0.q": {"format": "nvfp4"}}})");
  const auto checkpoint = detect_file(file);
  ASSERT_EQ(checkpoint->layers.size(), 1u);
  EXPECT_EQ(checkpoint->layers[0].source, Source::header_table);
  expect_finding(checkpoint->findings, ErrorCode::marker_renamed, Severity::warning);
}

TEST(Detect, J9_an_all_in_one_file_with_three_prefixes) {
  TestFile file;
  add_int8(file, "model.diffusion_model.blocks.0.q", int8_rotated);
  add_nvfp4(file, "text_encoders.model.layers.0.mlp.up_proj", nvfp4_marker);
  file.floats("vae.decoder.conv_in.weight", DType::f16, {4, 3, 3, 3}, 1);
  const auto checkpoint = detect_file(file);
  EXPECT_EQ(checkpoint->layers.size(), 2u);
  EXPECT_EQ(checkpoint->plain_tensors.size(), 1u);
  expect_sound(check_file(file));
}

TEST(Detect, J10_other_tools_layouts_are_named) {
  struct Case {
    const char *suffix, *tool;
    DType dtype;
  };
  for (const Case& c :
       {Case{"weight.absmax", "bitsandbytes", DType::f32}, Case{"qweight", "GPTQ", DType::i32},
        Case{"wscales", "nunchaku", DType::bf16}}) {
    TestFile file;
    file.codes("a.weight", DType::u8, {18, 1});
    file.codes(std::string("a.") + c.suffix, c.dtype, {16});
    const auto findings = check_file(file);
    expect_finding(findings, ErrorCode::format_foreign, Severity::error);
    EXPECT_NE(find_code(findings, ErrorCode::format_foreign)->message.find(c.tool),
              std::string::npos);
    expect_accounted(*detect_file(file));
  }
}

TEST(Detect, a_module_saved_by_itself_is_a_layer_without_a_name) {
  TestFile file;
  file.codes("weight", DType::i8, {3, 256});
  file.floats("weight_scale", DType::f32, {3, 1}, 0.01f);
  file.raw("comfy_quant", DType::u8, {int8_rotated.size()}, test::to_bytes(int8_rotated));
  const auto checkpoint = detect_file(file);
  ASSERT_EQ(checkpoint->layers.size(), 1u);
  EXPECT_EQ(checkpoint->layers[0].name, "");
  EXPECT_EQ(checkpoint->layers[0].rotate_group, 256u);
  EXPECT_TRUE(checkpoint->plain_tensors.empty());
  expect_sound(check_file(file));
  TestFile orphan;
  orphan.raw("comfy_quant", DType::u8, {int8_rotated.size()}, test::to_bytes(int8_rotated));
  expect_finding(check_file(orphan), ErrorCode::marker_orphan, Severity::error);
}

// --- Class L: embeddings, convolutions, biases ---

TEST(Detect, L1_L2_int8_embeddings_of_three_kinds) {
  TestFile file;
  file.codes("model.embed_tokens.weight", DType::i8, {100, 64});
  file.floats("model.embed_tokens.weight_scale", DType::f32, {100, 1}, 0.5f);
  file.marker("model.embed_tokens",
              R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 16})");
  const auto checkpoint = detect_file(file);
  EXPECT_EQ(checkpoint->layers.at(0).kind, LayerKind::embedding);
  expect_sound(check_file(file));
}

TEST(Detect, L1_a_four_bit_embedding_is_refused) {
  TestFile file;
  add_w4a4(file, "model.embed_tokens", w4a4_marker);
  expect_finding(check_file(file), ErrorCode::layer_kind, Severity::error);
}

TEST(Detect, L4_an_int8_convolution_can_be_decoded) {
  TestFile file;
  file.codes("conv", DType::f32, {1});
  file.codes("c.weight", DType::i8, {8, 4, 3, 3});
  file.floats("c.weight_scale", DType::f32, {8, 1, 1, 1}, 0.5f);
  file.marker("c", R"({"format": "int8_tensorwise"})");
  const auto checkpoint = detect_file(file);
  const Layer* layer = checkpoint->find("c");
  ASSERT_NE(layer, nullptr);
  EXPECT_EQ(layer->kind, LayerKind::convolution);
  EXPECT_EQ(layer->rows, 8u);
  EXPECT_EQ(layer->columns, 36u);
  expect_sound(check_file(file));
}

TEST(Detect, L6_biases_of_any_float_type) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3}) {
    TestFile file;
    add_int8(file, "a", int8_rotated);
    file.codes("a.bias", dtype, {3});
    EXPECT_FALSE(has_errors(check_file(file))) << dtype_name(dtype) << text_of(check_file(file));
    EXPECT_NE(detect_file(file)->layers.at(0).part("bias"), nullptr);
  }
}

// --- Deep checks ---

TEST(Detect, deep_check_finds_what_headers_cannot_show) {
  TestFile file;
  add_int8(file, "a", R"({"format": "int8_tensorwise"})");
  file.floats("norm.weight", DType::f32, {4}, std::nanf(""));
  expect_sound(check_file(file));
  const auto findings = check_file(file, Compat::none, CheckDepth::data);
  expect_finding(findings, ErrorCode::data_not_finite, Severity::error);
  EXPECT_EQ(find_code(findings, ErrorCode::data_not_finite)->tensor, "norm.weight");

  TestFile zero;
  zero.codes("a.weight", DType::i8, {3, 256});
  zero.floats("a.weight_scale", DType::f32, {3, 1}, 0.0f);
  zero.marker("a", R"({"format": "int8_tensorwise"})");
  expect_finding(check_file(zero, Compat::none, CheckDepth::data), ErrorCode::data_zero_scale,
                 Severity::error);
}

TEST(Detect, C10_a_tensor_of_each_dtype_is_accounted_for) {
  TestFile file;
  for (int i = 0; i < dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    file.codes("t" + std::string(dtype_name(dtype)), dtype, {16});
  }
  const auto checkpoint = detect_file(file);
  EXPECT_EQ(checkpoint->plain_tensors.size(), static_cast<std::size_t>(dtype_count));
  expect_accounted(*checkpoint);
}

}  // namespace
}  // namespace parfait::formats
