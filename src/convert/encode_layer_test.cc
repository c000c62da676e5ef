#include "convert/encode_layer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "support/test_file.h"

namespace parfait::convert {
namespace {

using test::TestFile;

// A matrix of every sort of row that encoders have trouble with.
std::vector<float> awkward_rows(std::uint64_t rows, std::uint64_t columns, DType dtype) {
  std::mt19937 random(7);
  std::normal_distribution<float> bell(0, 0.04f);
  std::vector<float> values(rows * columns);
  for (std::uint64_t row = 0; row < rows; ++row)
    for (std::uint64_t k = 0; k < columns; ++k) {
      float& value = values[row * columns + k];
      value = bell(random);
      switch (row % 8) {
        case 1:
          value = 0;
          break;
        case 2:
          value = k == 5 ? 30.0f : value * 0.01f;
          break;
        case 3:
          value *= 1e-12f;
          break;
        case 4:
          value *= 1e-34f;
          break;
        case 5:
          value = k % 2 ? 1.0f : -1.0f;
          break;
      }
      std::byte rounded[4];
      store_float(dtype, rounded, 0, value);
      value = load_float(dtype, rounded, 0);
    }
  return values;
}

formats::EncodeSettings rotated_by(std::uint32_t group) {
  formats::EncodeSettings settings;
  settings.rotate_group = group;
  return settings;
}

class EncodeLayerTest : public ::testing::Test {
 protected:
  struct Made {
    std::vector<std::vector<std::byte>> tensors;
    LayerError error;
  };
  enum class Path { usual, plain };

  void source(DType dtype, std::uint64_t rows, std::uint64_t columns,
              const std::vector<float>& values, Io io = Io::mapped, std::size_t shift = 0) {
    TestFile file;
    file.values("a.weight", dtype, {rows, columns}, values);
    const auto path = folder_.write("source.safetensors", file.bytes(shift));
    OpenOptions options;
    options.io = io;
    auto index = container::open_index(path, options);
    ASSERT_TRUE(index.ok()) << index.error().message;
    auto found = formats::detect(*index);
    ASSERT_TRUE(found.ok()) << found.error().message;
    source_ = *found;
  }

  Result<Made> make(std::string_view format, const formats::EncodeSettings& settings,
                    Path path = Path::usual, unsigned threads = 2, std::optional<Isa> isa = {},
                    std::uint64_t memory = 1 << 30) {
    const formats::Layer& layer = source_->layers[0];
    auto target = LayerTarget::settle(layer, *formats::find_format(format), settings);
    if (!target.ok()) return target.error();
    std::vector<container::TensorDeclaration> declared;
    std::vector<std::size_t> outputs;
    for (const auto& tensor : target->tensors()) {
      outputs.push_back(declared.size());
      declared.push_back({"a." + std::string(tensor.suffix), tensor.dtype, tensor.shape});
    }
    auto out = Output::create(folder_.path() / "out.safetensors", declared, {}, {});
    if (!out.ok()) return out.error();
    formats::Survey survey;
    const RowEncoder plain{
        target->encoder().survey
            ? [&](const formats::RowReader& reader) -> Result<Done> {
                auto found = target->encoder().survey(target->shape(), settings, reader);
                if (!found.ok()) return found.error();
                survey = *found;
                return Done{};
              }
            : std::function<Result<Done>(const formats::RowReader&)>(),
        [&](std::uint64_t first, std::uint64_t count, float* w,
            const formats::EncodeBuffers& buffers) {
          target->encoder().encode(target->shape(), settings, survey, first, count, w, buffers);
        }};
    runtime::Threads pool(threads);
    auto error =
        encode_layer({*source_, layer, *target, outputs, path == Path::plain ? &plain : nullptr},
                     {*out, pool, memory, isa, progress_});
    if (!error.ok()) return error.error();
    Made made{{}, *error};
    for (std::size_t i = 0; i < out->size(); ++i) {
      made.tensors.emplace_back(out->bytes(i));
      EXPECT_TRUE(out->get(i, 0, made.tensors.back()).ok());
    }
    return made;
  }

  test::TemporaryFolder folder_;
  std::shared_ptr<const formats::Checkpoint> source_;
  std::function<bool(double)> progress_;
};

const struct {
  std::string_view format;
  std::uint32_t group;
} fast[] = {{"int8_tensorwise", 0},   {"int8_tensorwise", 16}, {"int8_tensorwise", 64},
            {"int8_tensorwise", 256}, {"convrot_w4a4", 16},    {"convrot_w4a4", 64},
            {"convrot_w4a4", 256}};

TEST_F(EncodeLayerTest, kernels_write_the_encoders_bytes_on_every_instruction_set) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    // Off its alignment too: files need not keep it.
    source(dtype, 83, 512, awkward_rows(83, 512, dtype), Io::mapped, dtype == DType::f32 ? 0 : 1);
    for (const auto& [format, group] : fast) {
      const auto expected = make(format, rotated_by(group), Path::plain);
      ASSERT_TRUE(expected.ok()) << expected.error().message;
      for (const Isa isa : machine_isas())
        for (const unsigned threads : {1u, 3u}) {
          const auto made = make(format, rotated_by(group), Path::usual, threads, isa);
          ASSERT_TRUE(made.ok()) << made.error().message;
          EXPECT_TRUE(made->tensors == expected->tensors)
              << format << " " << group << " " << dtype_name(dtype) << " " << isa_name(isa);
          EXPECT_NEAR(made->error.relative_l2 / expected->error.relative_l2, 1, 1e-4);
          EXPECT_NEAR(made->error.energy / expected->error.energy, 1, 1e-4);
          EXPECT_NEAR(made->error.max_error / expected->error.max_error, 1, 1e-3);
        }
    }
  }
}

TEST_F(EncodeLayerTest, threads_memory_and_reader_change_nothing) {
  for (const Io io : {Io::mapped, Io::pread}) {
    source(DType::bf16, 700, 384, awkward_rows(700, 384, DType::bf16), io);
    formats::EncodeSettings rotated, of_tensor, narrow;
    rotated.rotate_group = 64;
    of_tensor.scale_of = formats::ScaleOf::tensor;
    narrow.rotate_group = 16;
    narrow.arithmetic = DType::bf16;
    for (const formats::EncodeSettings& settings : {rotated, of_tensor, narrow}) {
      std::optional<Made> first;
      for (const unsigned threads : {1u, 2u, 3u})
        for (const std::uint64_t memory : {std::uint64_t{1}, std::uint64_t{1} << 30}) {
          const auto made = make("int8_tensorwise", settings, Path::usual, threads, {}, memory);
          ASSERT_TRUE(made.ok()) << made.error().message;
          if (!first) first = *made;
          EXPECT_TRUE(made->tensors == first->tensors);
          EXPECT_EQ(made->error.relative_l2, first->error.relative_l2);
          EXPECT_EQ(made->error.max_error, first->error.max_error);
        }
    }
  }
}

TEST_F(EncodeLayerTest, measures_what_a_reader_decodes) {
  const std::vector<float> values = awkward_rows(40, 256, DType::f32);
  source(DType::f32, 40, 256, values);
  for (const auto& [format, group] : fast) {
    const auto made = make(format, rotated_by(group));
    ASSERT_TRUE(made.ok()) << made.error().message;
    const auto target =
        LayerTarget::settle(source_->layers[0], *formats::find_format(format), rotated_by(group));
    ASSERT_TRUE(target.ok());
    formats::LayerData data{&target->written(), {}, {}};
    for (const auto& tensor : made->tensors) data.data.emplace_back(tensor);
    std::vector<float> decoded(values.size());
    target->format().decode(data, 0, 40, decoded.data());
    double error = 0, energy = 0, most = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double difference = double{decoded[i]} - double{values[i]};
      error += difference * difference;
      energy += double{values[i]} * double{values[i]};
      most = std::max(most, std::fabs(difference));
    }
    EXPECT_NEAR(made->error.relative_l2, std::sqrt(error / energy), 1e-6) << format;
    EXPECT_NEAR(made->error.max_error / most, 1, 1e-3) << format;
  }
}

TEST_F(EncodeLayerTest, plain_formats_lose_nothing_or_little) {
  source(DType::bf16, 40, 48, awkward_rows(40, 48, DType::bf16));
  const auto widened = make("f32", {});
  ASSERT_TRUE(widened.ok()) << widened.error().message;
  EXPECT_EQ(widened->error.relative_l2, 0);
  EXPECT_EQ(widened->error.max_error, 0);
  EXPECT_TRUE(std::isinf(widened->error.sqnr_db()));
}

TEST_F(EncodeLayerTest, values_that_are_not_finite_are_named) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> values = awkward_rows(300, 256, DType::f32);
    values[123 * 256 + 45] = bad;
    source(DType::f32, 300, 256, values);
    for (const Path path : {Path::usual, Path::plain}) {
      const auto made = make("convrot_w4a4", rotated_by(256), path);
      ASSERT_FALSE(made.ok());
      EXPECT_EQ(made.error().code, ErrorCode::data_not_finite);
      for (const char* word : {"layer a", "row 123", "column 45"})
        EXPECT_NE(made.error().message.find(word), std::string::npos) << made.error().message;
    }
  }
}

TEST_F(EncodeLayerTest, a_rotation_that_overflows_is_named) {
  std::vector<float> values(256 * 4, 1.0f);
  std::fill_n(values.begin() + 256, 256, 3e38f);
  source(DType::f32, 4, 256, values);
  const auto made = make("convrot_w4a4", rotated_by(256));
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("row 1 "), std::string::npos) << made.error().message;
}

TEST_F(EncodeLayerTest, cancelling_ends_it) {
  source(DType::f32, 3000, 256, awkward_rows(3000, 256, DType::f32));
  progress_ = [](double) { return false; };
  const auto made = make("int8_tensorwise", rotated_by(256), Path::usual, 1);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::cancelled);
}

TEST_F(EncodeLayerTest, refusals_name_layer_format_and_reason) {
  source(DType::f32, 8, 320, awkward_rows(8, 320, DType::f32));
  const auto made = make("convrot_w4a4", rotated_by(256));
  ASSERT_FALSE(made.ok());
  for (const char* word : {"layer a", "convrot_w4a4", "320", "256"})
    EXPECT_NE(made.error().message.find(word), std::string::npos) << made.error().message;
}

}  // namespace
}  // namespace parfait::convert
