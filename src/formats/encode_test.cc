// What encoders promise beside comfy-kitchen's values (encode_golden_test.cc): markers, shapes,
// refusals, edges, codebooks, and the fast small-float codes.

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <random>

#include "base/hadamard.h"
#include "formats/asym_w4a8_int8/codebook.h"
#include "formats/common.h"
#include "formats/encode_testing.h"
#include "formats/encoding.h"

namespace parfait::formats {
namespace {

using namespace testing;

const Format& format_of(std::string_view name) { return *find_format(name); }

// Whether a format is always rotated.
bool rotates(const Format& format) {
  return format.encoder && !format.encoder->refusal(linear(32, 256), {}).empty();
}
EncodeSettings settings_of(const Format& format, DType arithmetic = DType::f32) {
  EncodeSettings settings;
  settings.rotate_group = rotates(format) ? 256 : 0;
  settings.arithmetic = arithmetic;
  return settings;
}

std::vector<float> bell(std::uint64_t count) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> values(count);
  for (float& value : values) value = round_to_bf16(normal(random));
  return values;
}

TEST(Encoders, every_format_has_one_but_awq) {
  for (const Format* format : all_formats())
    EXPECT_EQ(format->encoder != nullptr, format->name != "awq_w4a16") << format->name;
}

TEST(Encoders, markers_are_those_of_comfyui) {
  EncodeSettings plain, rotated, full;
  rotated.rotate_group = 256;
  full.full_precision = true;
  EncodeSettings wide = rotated, narrow = rotated, groups = rotated, all = rotated;
  wide.activation = Activation::int8;
  narrow.activation = Activation::int4;
  groups.scale_group = 32;
  all.full_precision = true;
  const struct {
    std::string_view format;
    EncodeSettings settings;
    std::string_view expected;
  } cases[] = {
      {"f32", plain, ""},
      {"int8_tensorwise", plain, R"({"format": "int8_tensorwise"})"},
      {"int8_tensorwise", rotated,
       R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 256})"},
      {"int8_tensorwise", all,
       R"({"format": "int8_tensorwise", "full_precision_matrix_mult": true, )"
       R"("convrot": true, "convrot_groupsize": 256})"},
      {"convrot_w4a4", rotated, R"({"format": "convrot_w4a4", "convrot_groupsize": 256})"},
      {"convrot_w4a4", narrow, R"({"format": "convrot_w4a4", "convrot_groupsize": 256})"},
      {"convrot_w4a4", wide,
       R"({"format": "convrot_w4a4", "convrot_groupsize": 256, "linear_dtype": "int8"})"},
      {"asym_w4a8_int8", rotated,
       R"({"format": "asym_w4a8_int8", "group_size": 16, "convrot": true, )"
       R"("convrot_groupsize": 256})"},
      {"w6a8_int8", groups,
       R"({"format": "w6a8_int8", "group_size": 32, "convrot": true, "convrot_groupsize": 256})"},
      {"nvfp4", plain, R"({"format": "nvfp4"})"},
      {"nvfp4", full, R"({"format": "nvfp4", "full_precision_matrix_mult": true})"},
      {"mxfp8", plain, R"({"format": "mxfp8"})"},
      {"float8_e4m3fn", full, R"({"format": "float8_e4m3fn", "full_precision_matrix_mult": true})"},
      {"float8_e5m2", plain, R"({"format": "float8_e5m2"})"},
  };
  for (const auto& c : cases)
    EXPECT_EQ(format_of(c.format).encoder->marker(linear(32, 256), c.settings), c.expected);
  EXPECT_EQ(format_of("asym_w4a8_int8").encoder->marker(linear(32, 256), rotated).size(), 89u);
  EXPECT_EQ(format_of("int8_tensorwise")
                .encoder->marker(weight_shape(LayerKind::experts, {3, 4, 16}), {}),
            R"({"format": "int8_tensorwise", "num_experts": 3})");
}

TEST(Encoders, refusals_name_the_numbers) {
  const auto settings = [](std::uint32_t rotate, std::uint32_t scale = 0) {
    EncodeSettings s;
    s.rotate_group = rotate;
    s.scale_group = scale;
    return s;
  };
  const WeightShape odd = linear(32, 320),
                    embedding = weight_shape(LayerKind::embedding, {32, 256});
  const WeightShape convolution = weight_shape(LayerKind::convolution, {32, 16, 4, 4});
  const WeightShape experts = weight_shape(LayerKind::experts, {2, 32, 256});
  const struct {
    std::string_view format;
    WeightShape shape;
    EncodeSettings settings;
    std::string_view expected;
  } cases[] = {
      {"int8_tensorwise", odd, settings(256), "K = 320 is not a multiple of the ConvRot group 256"},
      {"int8_tensorwise", odd, settings(32), "a ConvRot group of 32 is not a power of 4"},
      {"int8_tensorwise", odd, settings(64, 16), "int8_tensorwise has no scale groups, of 16"},
      {"int8_tensorwise", convolution, settings(0), "ComfyUI reads none"},
      {"convrot_w4a4", odd, settings(256), "K = 320 is not a multiple of the ConvRot group 256"},
      {"convrot_w4a4", linear(4, 48), settings(16), "K = 48 is not a multiple of"},
      {"convrot_w4a4", odd, settings(0), "always rotated"},
      {"convrot_w4a4", embedding, settings(256), "does not hold layers of the kind embedding"},
      {"convrot_w4a4", convolution, settings(256), "of the kind convolution"},
      {"convrot_w4a4", experts, settings(256), "of the kind experts"},
      {"asym_w4a8_int8", linear(4, 256), settings(0), "always rotated"},
      {"asym_w4a8_int8", linear(4, 256), settings(256, 24), "scale groups of 24 are not 4, 8, 16"},
      {"asym_w4a8_int8", linear(4, 256), settings(256, 2), "scale groups of 2 are not"},
      {"asym_w4a8_int8", linear(4, 320), settings(64, 128),
       "K = 320 is not a multiple of the scale"},
      {"asym_w4a8_int8", embedding, settings(256), "of the kind embedding"},
      {"w6a8_int8", linear(4, 48), settings(16), "K = 48 is not a multiple of w6a8_int8's packing"},
      {"w6a8_int8", linear(4, 256), settings(256, 8), "scale groups of 8 are not a multiple of 16"},
      {"w6a8_int8", linear(4, 256), settings(0), "always rotated"},
      {"w6a8_int8", experts, settings(256), "of the kind experts"},
      {"nvfp4", linear(32, 24), settings(0), "K = 24 is not a multiple of nvfp4's block of 16"},
      {"nvfp4", linear(20, 32), settings(0), "N = 20 is not a multiple of 16"},
      {"nvfp4", linear(32, 256), settings(256), "nvfp4 is never rotated"},
      {"nvfp4", linear(32, 256), settings(0, 32), "nvfp4 has scale groups of 16, not of 32"},
      {"mxfp8", linear(32, 48), settings(0), "K = 48 is not a multiple of mxfp8's block of 32"},
      {"mxfp8", linear(48, 64), settings(0), "N = 48 is not a multiple of 32"},
      {"mxfp8", embedding, settings(0), "of the kind embedding"},
      {"float8_e4m3fn", linear(4, 4), settings(4), "float8_e4m3fn is never rotated"},
      {"float8_e5m2", experts, settings(0), "of the kind experts"},
      {"bf16", linear(4, 4), settings(4), "never rotated"},
      {"int8_tensorwise", linear(4, 0), settings(0), "the weight is empty"},
  };
  for (const auto& c : cases)
    EXPECT_NE(format_of(c.format).encoder->refusal(c.shape, c.settings).find(c.expected),
              std::string::npos)
        << c.format << ": " << format_of(c.format).encoder->refusal(c.shape, c.settings);
}

TEST(Encoders, plain_weights_are_rounded_and_hold_anything) {
  const std::vector<float> values = {1.0f, 1.00390625f, 65520.0f, -0.0f, 1e-8f, 3.0f};
  const WeightShape shape = weight_shape(LayerKind::convolution, {3, 1, 2});
  const struct {
    std::string_view name;
    DType dtype;
  } cases[] = {{"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}};
  for (const auto& c : cases) {
    const Encoded encoded = encode_all(format_of(c.name), shape, {}, values, {}, 2);
    EXPECT_EQ(encoded.tensors[0].dtype, c.dtype);
    EXPECT_EQ(encoded.tensors[0].shape, shape.shape);
    std::vector<std::byte> expected(values.size() * dtype_bits(c.dtype) / 8);
    for (std::size_t i = 0; i < values.size(); ++i)
      store_float(c.dtype, expected.data(), i, values[i]);
    EXPECT_EQ(encoded.bytes[0], expected) << c.name;
  }
}

TEST(Encoders, experts_and_embeddings_have_scales_of_their_shape) {
  const WeightShape experts = weight_shape(LayerKind::experts, {3, 4, 256});
  const std::vector<float> values = bell(3 * 4 * 256);
  for (std::string_view name : {"int8_tensorwise", "asym_w4a8_int8"}) {
    const Format& format = format_of(name);
    EncodeSettings settings;
    settings.rotate_group = 64;
    const Encoded encoded = encode_all(format, experts, settings, values);
    const Encoded flat = encode_all(format, linear(12, 256), settings, values);
    EXPECT_EQ(encoded.bytes, flat.bytes);
    const Opened opened(encoded.file());
    expect_clean(opened.check(CheckDepth::data));
    EXPECT_EQ(opened.layer().kind, LayerKind::experts);
    EXPECT_EQ(opened.layer().experts, 3u);
    EXPECT_EQ(opened.decode(), Opened(flat.file()).decode());
  }
  const WeightShape table = weight_shape(LayerKind::embedding, {12, 256});
  const Encoded rows = encode_all(format_of("int8_tensorwise"), table, {}, values);
  EXPECT_EQ(rows.tensors[1].shape, (std::vector<std::uint64_t>{12, 1}));
}

// Any arithmetic, rows of zeros beside others: codes that mean something near the source.
TEST(Encoders, files_are_sound_and_decode_near_their_source) {
  std::vector<float> values = bell(32 * 512);
  std::fill_n(values.begin() + 512, 512, 0.0f);
  for (const Format* format : all_formats()) {
    if (!format->encoder) continue;
    for (DType arithmetic : {DType::f32, DType::f16, DType::bf16}) {
      SCOPED_TRACE(std::string(format->name) + " " + std::string(dtype_name(arithmetic)));
      const Encoded encoded =
          encode_all(*format, linear(32, 512), settings_of(*format, arithmetic), values);
      const Opened opened(encoded.file());
      expect_clean(opened.check(CheckDepth::data));
      EXPECT_EQ(opened.layer().format, format);
      const std::vector<float> decoded = opened.decode();
      ASSERT_EQ(decoded.size(), values.size());
      double error = 0, norm = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        error += std::pow(static_cast<double>(decoded[i]) - values[i], 2);
        norm += std::pow(values[i], 2);
        EXPECT_TRUE(i / 512 != 1 || decoded[i] == 0);
      }
      EXPECT_LE(std::sqrt(error / norm), format->name == "convrot_w4a4" ? 0.2 : 0.1);
    }
  }
}

TEST(Encoders, a_weight_of_zeros_is_zeros) {
  const std::vector<float> values(32 * 256, 0.0f);
  for (const Format* format : all_formats()) {
    if (!format->encoder) continue;
    for (DType arithmetic : {DType::f32, DType::f16, DType::bf16}) {
      const Opened opened(
          encode_all(*format, linear(32, 256), settings_of(*format, arithmetic), values).file());
      expect_sound(opened.check(CheckDepth::data));
      EXPECT_EQ(opened.decode(), values) << format->name;
    }
  }
}

// Where comfy-kitchen makes NaN or saturated codes.
TEST(Encoders, small_weights_in_f16_arithmetic_are_kept) {
  std::vector<float> values = bell(32 * 256);
  for (std::string_view name : {"float8_e4m3fn", "float8_e5m2", "nvfp4"}) {
    for (const float size : {0x1p-8f, 0x1p-20f}) {
      std::vector<float> small = values;
      for (float& value : small) value = round_to_f16(value * size);
      const Opened opened(encode_all(format_of(name), linear(32, 256),
                                     settings_of(format_of(name), DType::f16), small)
                              .file());
      expect_sound(opened.check(CheckDepth::data));
      const std::vector<float> decoded = opened.decode();
      double error = 0, norm = 0;
      for (std::size_t i = 0; i < small.size(); ++i) {
        error += std::pow(static_cast<double>(decoded[i]) - small[i], 2);
        norm += std::pow(static_cast<double>(small[i]), 2);
      }
      EXPECT_LE(std::sqrt(error / norm), name == "nvfp4" ? 0.5 : 0.1) << name << " " << size;
    }
  }
  std::vector<float> tiny(32 * 256, 0x1p-130f);  // mxfp8's scale byte 0 would lose them
  EXPECT_EQ(Opened(encode_all(format_of("mxfp8"), linear(32, 256), {}, tiny).file()).decode(),
            tiny);
}

TEST(Encoders, values_that_are_not_finite_are_seen_and_do_no_harm) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values = bell(32 * 256);
    EXPECT_TRUE(all_finite(values));
    values[300] = bad;
    EXPECT_FALSE(all_finite(values));
    for (const Format* format : all_formats()) {
      if (!format->encoder) continue;
      const EncodeSettings settings = settings_of(*format);
      const Survey survey = survey_of(*format, linear(32, 256), settings, values);
      if (format->encoder->survey && format->name != "int8_tensorwise") {
        EXPECT_FALSE(std::isfinite(survey.absmax)) << format->name;
      }
      const Encoded encoded = encode_all(*format, linear(32, 256), settings, values, survey, 5);
      EXPECT_EQ(encoded.bytes.size(), encoded.tensors.size());
    }
  }
  EXPECT_TRUE(all_finite({}));
}

// A survey's reader may fail; its error comes back.
TEST(Encoders, a_failing_reader_fails_the_survey) {
  const RowReader reader = [](std::uint64_t, std::uint64_t, float*) -> Result<Done> {
    return Error{ErrorCode::data_not_finite, "no"};
  };
  for (const Format* format : all_formats()) {
    if (!format->encoder || !format->encoder->survey) continue;
    EncodeSettings settings = settings_of(*format);
    settings.scale_of = ScaleOf::tensor;
    const auto survey = format->encoder->survey(linear(32, 256), settings, reader);
    ASSERT_FALSE(survey.ok()) << format->name;
    EXPECT_EQ(survey.error().message, "no");
  }
}

// heavy() of tools/make_encoder_goldens.py.
std::vector<float> heavy(std::uint64_t rows, std::uint64_t columns, std::uint32_t outliers) {
  std::vector<float> values(rows * columns);
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto x = static_cast<std::uint32_t>(i * 2654435761u);
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    const int value = static_cast<int>(x % 7) - 3;
    values[i] = static_cast<float>((x >> 8) % outliers == 0 ? 40 * value : value);
  }
  rotate_groups(values, 256);
  return values;
}

TEST(Codebooks, are_those_that_comfy_kitchen_chooses_and_fits) {
  auto index = container::open_index(
      std::filesystem::path(PARFAIT_SOURCE_DIR) / "tests/golden/encoders/codebooks.safetensors",
      {});
  ASSERT_TRUE(index.ok());
  const struct {
    std::string_view name;
    std::uint64_t rows, columns;
    std::uint32_t outliers;
  } cases[] = {{"small", 64, 512, 8},
               {"drawn", 300, 2048, 8},
               {"rows", 1300, 4096, 8},
               {"gaussian", 300, 2048, 1u << 30}};
  EncodeSettings settings;
  settings.rotate_group = 256;
  for (const auto& c : cases) {
    const TensorInfo* tensor = (*index)->find(c.name);
    ASSERT_TRUE(tensor && tensor->bytes == 64);
    std::vector<std::byte> scratch;
    auto expected = (*index)->read(*tensor, scratch);
    ASSERT_TRUE(expected.ok());
    const Survey survey = survey_of(format_of("asym_w4a8_int8"), linear(c.rows, c.columns),
                                    settings, heavy(c.rows, c.columns, c.outliers));
    ASSERT_TRUE(survey.codebook);
    EXPECT_EQ(*survey.codebook == fixed_codebook(), c.name == "gaussian") << c.name;
    Codebook kitchen;
    for (std::size_t level = 0; level < 16; ++level)
      kitchen[level] = load_at<float>(expected->data(), level);
    std::ranges::sort(kitchen);
    EXPECT_TRUE(std::ranges::is_sorted(*survey.codebook));
    for (std::size_t level = 0; level < 16; ++level)
      EXPECT_NEAR((*survey.codebook)[level], kitchen[level], 2e-6) << c.name << " " << level;
  }
}

TEST(Codebooks, the_nearest_level_is_that_of_a_plain_search) {
  Codebook crowded;  // levels closer than the search's buckets, and equal ones
  for (std::size_t i = 0; i < 16; ++i) crowded[i] = 0.001f * static_cast<float>(i / 2);
  for (const Codebook& levels : {fixed_codebook(), crowded}) {
    const NearestLevel nearest(levels);
    for (int step = -1500; step <= 1500; ++step) {
      const float value = static_cast<float>(step) / 1000;
      float best = 1e9f;
      for (float level : levels) best = std::min(best, std::fabs(value - level));
      EXPECT_EQ(std::fabs(value - nearest(value)), best) << value;
    }
  }
}

TEST(SmallFloats, fast_codes_are_the_plain_ones) {
  const auto same = [](float value) {
    EXPECT_EQ(e4m3_code(value), float_to_e4m3(value)) << value;
    EXPECT_EQ(e5m2_code(value), float_to_e5m2(value)) << value;
    EXPECT_EQ(e2m1_code(value), float_to_e2m1(value)) << value;
    EXPECT_EQ(f16_code(value), float_to_f16(value)) << value;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(round_to_f16_fast(value)),
              std::bit_cast<std::uint32_t>(round_to_f16(value)))
        << value;
  };
  // Every bf16 and f16 value, the floats around them and around the middles between codes.
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    for (const float value : {bf16_to_float(static_cast<std::uint16_t>(bits)),
                              f16_to_float(static_cast<std::uint16_t>(bits))}) {
      if (!std::isfinite(value)) continue;
      same(value);
      same(std::nextafter(value, 1e30f));
      same(std::nextafter(value, -1e30f));
    }
  }
}

TEST(Rows, those_of_a_codebook_are_spread_evenly) {
  EXPECT_EQ(codebook_rows(3, 512), (std::vector<std::uint64_t>{0, 1, 2}));
  const std::vector<std::uint64_t> few = codebook_rows(100, std::uint64_t{1} << 21);
  EXPECT_EQ(few, (std::vector<std::uint64_t>{0, 99}));
  EXPECT_EQ(codebook_rows(100, std::uint64_t{1} << 23), (std::vector<std::uint64_t>{0}));
}

}  // namespace
}  // namespace parfait::formats
