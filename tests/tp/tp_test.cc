// Plans and tensor parallelism: which axis, where it may be cut, what each rank holds and reads.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "parfait/parfait.h"
#include "plan/tp_rules.h"
#include "support/test_file.h"

namespace parfait {
namespace {

using test::TestFile;

// Codes that need not be random, without writing real megabytes for wide layers.
void add_int8(TestFile& file, const std::string& name, std::uint64_t rows, std::uint64_t columns,
              int group = 256, std::vector<std::uint64_t> scale_shape = {}) {
  file.raw(name + ".weight", DType::i8, {rows, columns},
           std::vector<std::byte>(rows * columns, std::byte{1}));
  if (scale_shape.empty()) scale_shape = {rows, 1};
  file.floats(name + ".weight_scale", DType::f32, scale_shape, 0.01f);
  file.marker(
      name, group ? "{\"format\": \"int8_tensorwise\", \"convrot\": true, \"convrot_groupsize\": " +
                        std::to_string(group) + "}"
                  : "{\"format\": \"int8_tensorwise\"}");
}
void add_w4a4(TestFile& file, const std::string& name, std::uint64_t rows, std::uint64_t columns,
              int group = 256) {
  file.raw(name + ".weight", DType::i8, {rows, columns / 2},
           std::vector<std::byte>(rows * columns / 2, std::byte{0x11}));
  file.floats(name + ".weight_scale", DType::f32, {rows}, 0.01f);
  file.marker(
      name, "{\"format\": \"convrot_w4a4\", \"convrot_groupsize\": " + std::to_string(group) + "}");
}
void add_nvfp4(TestFile& file, const std::string& name, std::uint64_t rows, std::uint64_t columns) {
  file.raw(name + ".weight", DType::u8, {rows, columns / 2},
           std::vector<std::byte>(rows * columns / 2, std::byte{0x22}));
  file.codes(name + ".weight_scale", DType::f8_e4m3,
             {(rows + 127) / 128 * 128, (columns / 16 + 3) / 4 * 4});
  file.floats(name + ".weight_scale_2", DType::f32, {}, 0.01f);
  file.marker(name, R"({"format": "nvfp4"})");
}

struct Planned {
  test::TemporaryFolder folder;
  std::optional<CheckedCheckpoint> checked;

  explicit Planned(const TestFile& file) {
    auto checkpoint = open(folder.write("x.safetensors", file.bytes()));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    auto report = check(*checkpoint);
    for (const Finding& finding : report->findings)
      if (finding.severity == Severity::error) ADD_FAILURE() << finding.line();
    checked = *report->checked;
  }
  Result<Plan> plan(PlanOptions options) const { return make_plan(*checked, options); }
  Plan over(std::uint32_t ranks, Unevenness unevenness = Unevenness::forbidden) const {
    PlanOptions options;
    options.ranks = ranks;
    options.unevenness = unevenness;
    auto made = plan(options);
    EXPECT_TRUE(made.ok()) << made.error().message;
    return *made;
  }
};

std::uint64_t total(const std::vector<Range>& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), std::uint64_t{0},
                         [](std::uint64_t s, Range r) { return s + r.size(); });
}

// The shares cover the axis exactly once.
void expect_partition(const LayerPlan& layer, std::uint64_t length) {
  std::vector<Range> all;
  for (const auto& share : layer.shares) all.insert(all.end(), share.begin(), share.end());
  std::ranges::sort(all, {}, &Range::begin);
  std::uint64_t at = 0;
  for (const Range& range : all) {
    EXPECT_EQ(range.begin, at) << layer.name;
    at = range.end;
  }
  EXPECT_EQ(at, length) << layer.name;
}

TEST(TensorParallel, one_rank_holds_everything) {
  TestFile file;
  add_int8(file, "blocks.0.attn.qkv_proj", 6, 256);
  const Plan plan = Planned(file).over(1);
  EXPECT_EQ(plan.layers()[0].split, SplitAxis::whole);
  EXPECT_EQ(plan.layers()[0].rank_bytes,
            std::vector<std::uint64_t>{plan.layers()[0].resident_bytes});
}

// The example of the documents: 3200 is not a multiple of 256.
TEST(TensorParallel, K6400_over_two_ranks) {
  TestFile file;
  add_int8(file, "blocks.0.attn.out_proj", 4, 6400);
  add_w4a4(file, "blocks.1.attn.out_proj", 4, 6400);
  const Planned planned(file);
  const Plan even = planned.over(2);
  for (const LayerPlan& layer : even.layers()) {
    EXPECT_EQ(layer.split, SplitAxis::replicated);
    for (const char* part : {"6400", "3200", "256"})
      EXPECT_NE(layer.split_reason.find(part), std::string::npos) << layer.split_reason;
    EXPECT_EQ(layer.rank_bytes,
              (std::vector<std::uint64_t>{layer.resident_bytes, layer.resident_bytes}));
  }
  const Plan uneven = planned.over(2, Unevenness::allowed);
  for (const LayerPlan& layer : uneven.layers()) {
    ASSERT_EQ(layer.split, SplitAxis::inputs) << layer.split_reason;
    EXPECT_EQ(layer.shares[0], (std::vector<Range>{{0, 3328}}));
    EXPECT_EQ(layer.shares[1], (std::vector<Range>{{3328, 6400}}));
  }
}

TEST(TensorParallel, H1_a_group_that_the_ranks_do_not_divide_names_its_numbers) {
  TestFile file;
  add_int8(file, "blocks.0.mlp.fc2", 4, 320, 64);
  const Plan plan = Planned(file).over(2);
  EXPECT_EQ(plan.layers()[0].split, SplitAxis::replicated);
  EXPECT_NE(
      plan.layers()[0].split_reason.find("320 columns over 2 ranks are 160, not a multiple of 64"),
      std::string::npos)
      << plan.layers()[0].split_reason;
}

TEST(TensorParallel, H2_groups_are_dealt_out_unevenly_on_request) {
  TestFile file;
  add_w4a4(file, "blocks.0.mlp.fc2", 4, 29 * 64, 64);
  const Planned planned(file);
  EXPECT_EQ(planned.over(2).layers()[0].split, SplitAxis::replicated);
  const Plan plan = planned.over(2, Unevenness::allowed);
  EXPECT_EQ(total(plan.layers()[0].shares[0]), 15u * 64);
  EXPECT_EQ(total(plan.layers()[0].shares[1]), 14u * 64);
  const LayerPlan few = planned.over(32, Unevenness::allowed).layers()[0];
  EXPECT_EQ(few.split, SplitAxis::replicated);
  EXPECT_NE(few.split_reason.find("fewer than 32 ranks"), std::string::npos) << few.split_reason;
}

TEST(TensorParallel, H4_one_file_over_1_2_4_and_8_ranks) {
  TestFile file;
  add_int8(file, "blocks.0.attn.out_proj", 8, 1024);
  const Planned planned(file);
  for (std::uint32_t ranks : {1u, 2u, 4u, 8u}) {
    const LayerPlan layer = planned.over(ranks).layers()[0];
    EXPECT_EQ(layer.split, ranks == 1   ? SplitAxis::whole
                           : ranks == 8 ? SplitAxis::replicated
                                        : SplitAxis::inputs);
    EXPECT_EQ(layer.rank_bytes.size(), ranks);
  }
}

TEST(TensorParallel, H5_inputs_are_cut_at_the_least_common_multiple_of_group_and_packing) {
  TestFile file;
  add_w4a4(file, "blocks.0.attn.out_proj", 4, 512, 256);
  add_w4a4(file, "blocks.1.attn.out_proj", 4, 512, 16);  // packing of 64 decides
  const Planned planned(file);
  EXPECT_EQ(planned.over(2).layers()[0].split, SplitAxis::inputs);
  EXPECT_EQ(planned.over(4).layers()[0].split, SplitAxis::replicated);
  EXPECT_EQ(planned.over(8).layers()[1].split, SplitAxis::inputs);
  EXPECT_EQ(planned.over(16).layers()[1].split, SplitAxis::replicated);
}

TEST(TensorParallel, each_layer_has_its_own_group) {
  TestFile file;
  add_int8(file, "blocks.0.attn.out_proj", 4, 512, 256);
  add_int8(file, "blocks.1.attn.out_proj", 4, 512, 64);
  add_int8(file, "blocks.2.attn.out_proj", 4, 512, 0);
  const Plan plan = Planned(file).over(8);
  EXPECT_EQ(plan.layers()[0].split, SplitAxis::replicated);
  EXPECT_EQ(plan.layers()[1].split, SplitAxis::inputs);
  EXPECT_EQ(plan.layers()[2].split, SplitAxis::inputs);
}

TEST(TensorParallel, fused_parts_are_split_each) {
  TestFile file;
  add_int8(file, "blocks.0.attn.qkv_proj", 12, 256);
  add_int8(file, "blocks.0.mlp.fc1", 16, 256);
  add_int8(file, "single_blocks.0.linear1", 36, 4, 0);  // FLUX.2: q k v | gate up at 3 to 3
  add_int8(file, "single_blocks.0.linear2", 4, 16, 0);  // attention | MLP at 1 to 3
  const Plan plan = Planned(file).over(2);
  EXPECT_EQ(plan.find("blocks.0.attn.qkv_proj")->shares[1],
            (std::vector<Range>{{2, 4}, {6, 8}, {10, 12}}));
  EXPECT_EQ(plan.find("blocks.0.mlp.fc1")->shares[0], (std::vector<Range>{{0, 4}, {8, 12}}));
  EXPECT_EQ(plan.find("single_blocks.0.linear1")->shares[0],
            (std::vector<Range>{{0, 2}, {4, 6}, {8, 10}, {12, 18}, {24, 30}}));
  EXPECT_EQ(plan.find("single_blocks.0.linear2")->split, SplitAxis::inputs);
  EXPECT_EQ(plan.find("single_blocks.0.linear2")->shares[1],
            (std::vector<Range>{{2, 4}, {10, 16}}));
  for (const LayerPlan& layer : plan.layers())
    expect_partition(layer, layer.split == SplitAxis::outputs ? layer.rows : layer.columns);
}

TEST(TensorParallel, parts_that_do_not_divide_replicate_with_the_reason) {
  TestFile file;
  add_int8(file, "blocks.0.attn.qkv_proj", 4, 256);
  const LayerPlan layer = Planned(file).over(2).layers()[0];
  EXPECT_EQ(layer.split, SplitAxis::replicated);
  EXPECT_NE(layer.split_reason.find("fused parts"), std::string::npos) << layer.split_reason;
}

TEST(TensorParallel, H6_each_rank_reads_its_own_bytes_only) {
  TestFile file;
  add_int8(file, "blocks.0.attn.qkv_proj", 12, 256);
  add_int8(file, "blocks.0.attn.out_proj", 8, 512);
  const Planned planned(file);
  const Plan plan = planned.over(2);
  for (const LayerPlan& layer : plan.layers()) {
    std::vector<Range> all;
    std::uint64_t bytes = 0;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      auto ranges = rank_byte_ranges(plan, layer.name, rank);
      ASSERT_TRUE(ranges.ok());
      EXPECT_TRUE(
          std::ranges::is_sorted(*ranges, {}, [](const ByteRange& r) { return r.bytes.begin; }));
      for (const ByteRange& range : *ranges)
        all.push_back(range.bytes), bytes += range.bytes.size();
    }
    // What both read: the marker, and for an input split the row scales.
    const Layer stored = *planned.checked->checkpoint().find(layer.name);
    std::uint64_t shared = 0;
    for (const Layer::Part& part : stored.parts())
      if (part.role == "comfy_quant" ||
          (layer.split == SplitAxis::inputs && part.role == "weight_scale"))
        shared += part.tensor.bytes;
    EXPECT_EQ(bytes, stored.stored_bytes() + shared) << layer.name;
  }
  EXPECT_FALSE(rank_byte_ranges(plan, "nothing", 0).ok());
  EXPECT_FALSE(rank_byte_ranges(plan, "blocks.0.attn.qkv_proj", 2).ok());
}

TEST(TensorParallel, H8_scales_of_any_shape_follow_their_rows) {
  for (const std::vector<std::uint64_t>& shape : {std::vector<std::uint64_t>{12}, {12, 1}, {1}}) {
    TestFile file;
    add_int8(file, "blocks.0.attn.qkv_proj", 12, 256, shape[0] == 1 ? 0 : 256, shape);
    const Plan plan = Planned(file).over(2);
    ASSERT_EQ(plan.layers()[0].split, SplitAxis::outputs);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      std::uint64_t bytes = 0;
      const auto ranges = rank_byte_ranges(plan, "blocks.0.attn.qkv_proj", rank);
      ASSERT_TRUE(ranges.ok());
      for (const ByteRange& range : *ranges) bytes += range.bytes.size();
      const std::uint64_t marker = shape[0] == 1 ? 29 : 72;
      EXPECT_EQ(bytes, 6 * 256 + (shape[0] == 1 ? 4 : 24) + marker);
    }
  }
}

TEST(TensorParallel, H8_q_k_and_v_may_have_unlike_formats) {
  TestFile file;
  add_int8(file, "layers.0.self_attn.q_proj", 8, 256);
  add_int8(file, "layers.0.self_attn.k_proj", 8, 256);
  file.floats("layers.0.self_attn.v_proj.weight", DType::bf16, {8, 256}, 1);
  const Plan plan = Planned(file).over(2);
  for (const LayerPlan& layer : plan.layers())
    EXPECT_EQ(layer.split, SplitAxis::outputs) << layer.name;
  EXPECT_EQ(plan.find("layers.0.self_attn.v_proj")->method, Method::decode_rows);
  ASSERT_EQ(plan.notes().size(), 1u);
  EXPECT_NE(plan.notes()[0].got.find("v_proj"), std::string::npos) << plan.notes()[0].line();
}

TEST(TensorParallel, H10_block_formats_are_cut_at_tile_borders) {
  TestFile file;
  add_nvfp4(file, "layers.0.mlp.up_proj", 464, 256);
  add_nvfp4(file, "layers.0.mlp.down_proj", 16, 256);
  const Planned planned(file);
  const Plan plan = planned.over(4);
  const LayerPlan& up = *plan.find("layers.0.mlp.up_proj");
  ASSERT_EQ(up.split, SplitAxis::outputs) << up.split_reason;
  for (const auto& share : up.shares) EXPECT_EQ(total(share), 116u);
  // Each rank's own scales are padded to whole tiles: 116 rows need 128.
  for (std::uint64_t bytes : up.rank_bytes) EXPECT_EQ(bytes, 116 * 128 + 128 * 16 + 4u);
  EXPECT_EQ(plan.find("layers.0.mlp.down_proj")->split, SplitAxis::inputs)
      << "64 columns each: one tile";
  EXPECT_EQ(planned.over(8).find("layers.0.mlp.down_proj")->split, SplitAxis::replicated)
      << "half a tile";
}

TEST(TensorParallel, strict_plans_name_every_layer_that_cannot_be_split) {
  TestFile file;
  add_int8(file, "blocks.0.attn.out_proj", 4, 6400);
  add_int8(file, "blocks.1.attn.out_proj", 4, 6400);
  add_int8(file, "blocks.2.attn.out_proj", 4, 512);
  file.floats("final_layer.linear.weight", DType::bf16, {4, 256},
              1);  // replicated by rule: no complaint
  PlanOptions options;
  options.ranks = 2;
  options.unsplittable = Unsplittable::refuse;
  const Planned planned(file);
  auto plan = planned.plan(options);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ErrorCode::plan_split_refused);
  for (const char* part : {"2 layers", "blocks.0.attn.out_proj", "blocks.1.attn.out_proj", "6400"})
    EXPECT_NE(plan.error().message.find(part), std::string::npos) << plan.error().message;
  EXPECT_EQ(plan.error().message.find("blocks.2"), std::string::npos);
  options.unevenness = Unevenness::allowed;
  EXPECT_TRUE(planned.plan(options).ok());
}

TEST(TensorParallel, rank_counts_out_of_range) {
  TestFile file;
  add_int8(file, "a", 4, 256);
  const Planned planned(file);
  for (std::uint32_t ranks : {0u, 1025u}) {
    PlanOptions options;
    options.ranks = ranks;
    EXPECT_EQ(planned.plan(options).error().code, ErrorCode::plan_ranks);
  }
}

TEST(TpRules, a_file_of_rules_replaces_the_built_in_ones) {
  TestFile file;
  add_int8(file, "my.layer", 8, 256);
  PlanOptions options;
  options.ranks = 2;
  const Planned planned(file);
  EXPECT_EQ(planned.plan(options)->layers()[0].split_reason, "no rule names an axis");
  options.tp_rules = "# mine\nmy.* outputs parts=1,3 # half and half of each\n";
  auto plan = planned.plan(options);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->layers()[0].shares[0], (std::vector<Range>{{0, 1}, {2, 5}}));
}

TEST(TpRules, bad_rules_are_refused_with_their_line) {
  for (const char* text : {"a", "a sideways", "a outputs parts=", "a outputs parts=0",
                           "a outputs parts=1,,2", "a outputs parts=1,x", "a outputs rows=columns",
                           "a outputs rows=0*columns", "a outputs more", "a outputs parts=99999"}) {
    auto rules = plan::parse_tp_rules(std::string("\n# first\n") + text);
    ASSERT_FALSE(rules.ok()) << text;
    EXPECT_EQ(rules.error().code, ErrorCode::plan_rules);
    EXPECT_NE(rules.error().message.find("line 3"), std::string::npos) << rules.error().message;
  }
}

TEST(TpRules, the_first_match_counts_and_conditions_choose) {
  auto rules = plan::parse_tp_rules(builtin_tp_rules());
  ASSERT_TRUE(rules.ok()) << rules.error().message;
  const auto axis = [&](std::string_view name, std::uint64_t rows,
                        std::uint64_t columns) -> const plan::TpRule* {
    for (const plan::TpRule& rule : *rules)
      if (rule.matches(name, rows, columns)) return &rule;
    return nullptr;
  };
  EXPECT_EQ(axis("model.diffusion_model.double_blocks.0.img_mlp.0", 18432, 3072)->parts.size(), 2u);
  EXPECT_EQ(axis("double_blocks.0.img_mlp.0", 12288, 3072)->parts.size(), 1u);
  EXPECT_EQ(axis("single_blocks.3.linear1", 27648, 3072)->parts,
            (std::vector<std::uint64_t>{1, 1, 1, 3, 3}));
  EXPECT_EQ(axis("single_blocks.3.linear1", 21504, 3072)->parts,
            (std::vector<std::uint64_t>{1, 1, 1, 4}));
  EXPECT_EQ(axis("blocks.0.adaln_proj.linear", 96768, 8)->axis, plan::NaturalAxis::replicate);
  EXPECT_EQ(axis("q_proj", 8, 8)->axis, plan::NaturalAxis::outputs)
      << "a name without anything in front";
  EXPECT_EQ(axis("layers.0.attention.out", 8, 8)->axis, plan::NaturalAxis::inputs);
  EXPECT_EQ(axis("visual.blocks.0.attn.qkv_proj", 8, 8)->axis, plan::NaturalAxis::replicate);
  EXPECT_EQ(axis("something.else", 8, 8), nullptr);
}

TEST(Plan, is_a_value_that_compares) {
  TestFile file;
  add_int8(file, "a", 4, 256);
  add_w4a4(file, "b", 4, 256);
  const Planned planned(file);
  EXPECT_TRUE(planned.over(2) == planned.over(2));
  EXPECT_FALSE(planned.over(2) == planned.over(1));
}

TEST(Plan, activation_width_by_marker_and_by_option) {
  TestFile file;
  add_w4a4(file, "a", 4, 256);
  file.raw("b.weight", DType::i8, {4, 128}, std::vector<std::byte>(512, std::byte{0x11}));
  file.floats("b.weight_scale", DType::f32, {4}, 0.01f);
  file.marker("b",
              R"({"format": "convrot_w4a4", "convrot_groupsize": 256, "linear_dtype": "int8"})");
  const Planned planned(file);
  const Plan by_marker = planned.over(1);
  EXPECT_EQ(by_marker.find("a")->method, Method::w4a4_int4);
  EXPECT_EQ(by_marker.find("b")->method, Method::w4a4_int8);
  EXPECT_TRUE(by_marker.notes().empty());
  PlanOptions options;
  options.w4a4_activation = Activation::int8;
  auto by_option = planned.plan(options);
  ASSERT_TRUE(by_option.ok());
  EXPECT_EQ(by_option->find("a")->method, Method::w4a4_int8);
  EXPECT_NE(by_option->find("a")->reason.find("asked for by option"), std::string::npos);
  EXPECT_EQ(by_option->notes().size(), 1u);
}

TEST(Plan, full_precision_in_the_marker_decodes_rows) {
  TestFile file;
  file.raw("a.weight", DType::i8, {4, 256}, std::vector<std::byte>(1024, std::byte{1}));
  file.floats("a.weight_scale", DType::f32, {4, 1}, 0.01f);
  file.marker("a", R"({"format": "int8_tensorwise", "full_precision_matrix_mult": true})");
  const Plan plan = Planned(file).over(1);
  EXPECT_EQ(plan.layers()[0].method, Method::decode_rows);
  EXPECT_NE(plan.layers()[0].reason.find("full_precision_matrix_mult"), std::string::npos);
}

}  // namespace
}  // namespace parfait
