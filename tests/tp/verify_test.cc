// How far decoded weights are from each other, and how that is told.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "formats/format.h"
#include "parfait/parfait.h"
#include "support/test_file.h"

namespace parfait {
namespace {

using test::TestFile;

struct Files {
  test::TemporaryFolder folder;
  TestFile a, b;

  Result<VerifyReport> verify(const VerifyOptions& options = {}) const {
    return parfait::verify(checked("a.safetensors", a), checked("b.safetensors", b), options);
  }
  VerifyReport report(const VerifyOptions& options = {}) const {
    auto made = verify(options);
    EXPECT_TRUE(made.ok()) << made.error().message;
    return *made;
  }

 private:
  CheckedCheckpoint checked(const std::string& name, const TestFile& file) const {
    auto checkpoint = open(folder.write(name, file.bytes()));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    auto report = check(*checkpoint);
    for (const Finding& finding : report->findings)
      if (finding.severity == Severity::error) ADD_FAILURE() << finding.line();
    return *report->checked;
  }
};

const LayerError& find(const VerifyReport& report, std::string_view name) {
  for (const LayerError& error : report.layers)
    if (error.name == name) return error;
  ADD_FAILURE() << name << " is not in the report";
  static const LayerError none;
  return none;
}

std::vector<float> bell(std::size_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// The plain encoding to int8 with a scale for each row.
void add_int8(TestFile& file, const std::string& name, const std::vector<float>& w,
              std::uint64_t rows, std::uint64_t columns) {
  std::vector<std::byte> codes;
  std::vector<float> scales;
  for (std::uint64_t n = 0; n < rows; ++n) {
    float most = 0;
    for (std::uint64_t k = 0; k < columns; ++k)
      most = std::fmax(most, std::fabs(w[n * columns + k]));
    scales.push_back(most / 127);
    for (std::uint64_t k = 0; k < columns; ++k)
      codes.push_back(static_cast<std::byte>(std::lrint(w[n * columns + k] / scales.back())));
  }
  file.raw(name + ".weight", DType::i8, {rows, columns}, codes);
  file.values(name + ".weight_scale", DType::f32, {rows, 1}, scales);
  file.marker(name, R"({"format": "int8_tensorwise"})");
}

TEST(Verify, TheNumbersAreThoseOfTheFormula) {
  Files files;
  const std::uint64_t rows = 37, columns = 1000;
  const std::vector<float> w = bell(rows * columns);
  files.a.values("blocks.0.fc1.weight", DType::f32, {rows, columns}, w);
  add_int8(files.b, "blocks.0.fc1", w, rows, columns);
  for (unsigned threads : {1u, 2u, 5u}) {
    VerifyOptions options;
    options.threads = threads;
    const VerifyReport report = files.report(options);
    ASSERT_EQ(report.layers.size(), 1u);
    const auto b = open(files.folder.path() / "b.safetensors");
    std::vector<float> decoded(w.size());
    ASSERT_TRUE(decode(*b, (*b)[0], 0, rows, decoded).ok());
    double signal = 0, noise = 0, largest = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double d = static_cast<double>(w[i]) - static_cast<double>(decoded[i]);
      signal += static_cast<double>(w[i]) * static_cast<double>(w[i]);
      noise += d * d;
      largest = std::fmax(largest, std::fabs(d));
    }
    const LayerError& error = report.layers[0];
    EXPECT_NEAR(error.relative_l2, std::sqrt(noise / signal), 1e-6);
    EXPECT_NEAR(error.sqnr_db(), 10 * std::log10(signal / noise), 1e-3);
    EXPECT_NEAR(error.max_error, largest, 1e-9);
    EXPECT_EQ(error.values, w.size());
    EXPECT_EQ(error.a, "f32");
    EXPECT_EQ(error.b, "int8_tensorwise");
    EXPECT_FALSE(error.exceeds()) << error.relative_l2;
    EXPECT_EQ(report.exceeding, 0u);
    static const double first = error.relative_l2;
    EXPECT_EQ(error.relative_l2, first) << "whatever the number of threads";
  }
  VerifyOptions strict;
  strict.threshold = 1e-3;
  EXPECT_EQ(files.report(strict).exceeding, 1u);
}

TEST(Verify, ALayerBeyondItsLimitComesFirst) {
  Files files;
  for (int i = 0; i < 3; ++i) {
    const std::string name = "blocks." + std::to_string(i) + ".fc1";
    std::vector<float> w = bell(64 * 64, static_cast<unsigned>(i));
    files.a.values(name + ".weight", DType::f32, {64, 64}, w);
    if (i == 1)
      for (float& value : w) value *= 1.5f;  // a scale that was lost
    add_int8(files.b, name, w, 64, 64);
  }
  const VerifyReport report = files.report();
  EXPECT_EQ(report.exceeding, 1u);
  EXPECT_EQ(report.layers[0].name, "blocks.1.fc1");
  EXPECT_NEAR(report.layers[0].relative_l2, 0.5, 0.01);
}

TEST(Verify, BiasesAndPlainTensorsAreComparedToo) {
  Files files;
  files.a.values("fc1.weight", DType::bf16, {8, 8}, bell(64));
  files.a.values("fc1.bias", DType::f32, {8}, bell(8));
  files.a.values("norm.weight", DType::f32, {8}, bell(8));
  files.a.values("table", DType::f32, {2, 3, 4}, bell(24));
  files.b.values("fc1.weight", DType::bf16, {8, 8}, bell(64));
  files.b.values("fc1.bias", DType::f32, {8}, bell(8, 9));
  files.b.values("norm.weight", DType::f16, {8}, bell(8));
  files.b.values("table", DType::f32, {2, 3, 4}, bell(24));
  const VerifyReport report = files.report();
  EXPECT_EQ(report.layers.size(), 4u);
  EXPECT_TRUE(find(report, "fc1.bias").exceeds());
  EXPECT_EQ(find(report, "fc1").relative_l2, 0);
  EXPECT_EQ(find(report, "fc1").sqnr_db(), std::numeric_limits<double>::infinity());
  EXPECT_GT(find(report, "norm.weight").relative_l2, 0);
  EXPECT_FALSE(find(report, "norm.weight").exceeds());
  EXPECT_EQ(find(report, "table").limit, 0);
  EXPECT_EQ(report.layers[0].name, "fc1.bias");
}

TEST(Verify, WholeNumbersAndDoublesAreCompared) {
  Files files;
  const auto words = [](std::int64_t third) {
    std::vector<std::byte> bytes(24);
    const std::int64_t values[] = {1, 2, third};
    std::memcpy(bytes.data(), values, 24);
    return bytes;
  };
  files.a.raw("ids", DType::i64, {3}, words(3));
  files.b.raw("ids", DType::i64, {3}, words(4));
  files.a.raw("same", DType::i64, {3}, words(3));
  files.b.raw("same", DType::i64, {3}, words(3));
  files.a.raw("complex", DType::c64, {3}, words(3));
  files.b.raw("complex", DType::c64, {3}, words(4));
  const VerifyReport report = files.report();
  EXPECT_TRUE(find(report, "ids").exceeds());
  EXPECT_EQ(find(report, "ids").max_error, 1);
  EXPECT_FALSE(find(report, "same").exceeds());
  EXPECT_TRUE(find(report, "complex").exceeds());
}

TEST(Verify, LayersAreMatchedAcrossThePrefixOfWholeModels) {
  Files files;
  files.a.values("blocks.0.fc1.weight", DType::bf16, {8, 8}, bell(64));
  files.a.values("norm.weight", DType::bf16, {8}, bell(8));
  files.b.values("model.diffusion_model.blocks.0.fc1.weight", DType::bf16, {8, 8}, bell(64));
  files.b.values("model.diffusion_model.norm.weight", DType::bf16, {8}, bell(8));
  const VerifyReport report = files.report();
  EXPECT_EQ(report.layers.size(), 2u);
  EXPECT_EQ(report.exceeding, 0u);
  EXPECT_EQ(find(report, "blocks.0.fc1").b_name, "model.diffusion_model.blocks.0.fc1");
}

TEST(Verify, WhatOneFileLacksOrHasInAnotherShapeIsReported) {
  Files files;
  files.a.values("one.weight", DType::bf16, {8, 8}, bell(64));
  files.a.values("both.weight", DType::bf16, {8, 8}, bell(64));
  files.a.values("shaped.weight", DType::bf16, {8, 8}, bell(64));
  files.b.values("both.weight", DType::bf16, {8, 8}, bell(64));
  files.b.values("shaped.weight", DType::bf16, {4, 16}, bell(64));
  files.b.values("two.weight", DType::bf16, {8, 8}, bell(64));
  const VerifyReport report = files.report();
  EXPECT_EQ(report.exceeding, 3u);
  EXPECT_EQ(find(report, "one").comparison, Comparison::only_in_a);
  EXPECT_EQ(find(report, "two").comparison, Comparison::only_in_b);
  EXPECT_EQ(find(report, "shaped").comparison, Comparison::shape);
  EXPECT_EQ(find(report, "both").comparison, Comparison::compared);
  EXPECT_EQ(report.layers.back().name, "both");
  VerifyOptions options;
  options.pattern = "bo*";
  EXPECT_EQ(files.report(options).exceeding, 0u);
  options.pattern = "bth";
  const auto none = files.verify(options);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::layer_not_found);
  EXPECT_NE(none.error().message.find("both"), std::string::npos) << none.error().message;
}

TEST(Verify, ValuesThatAreNotFiniteAreNeverWithinTheLimit) {
  Files files;
  std::vector<float> w = bell(1024);
  files.a.values("fc.weight", DType::f32, {4, 256}, w);
  files.a.values("huge.weight", DType::f32, {4, 256}, std::vector<float>(1024, 1e30f));
  files.a.values("tiny.weight", DType::f32, {4, 256}, std::vector<float>(1024, 1e-30f));
  w[700] = std::numeric_limits<float>::quiet_NaN();
  w[701] = std::numeric_limits<float>::infinity();
  files.b.values("fc.weight", DType::f32, {4, 256}, w);
  files.b.values("huge.weight", DType::f32, {4, 256}, std::vector<float>(1024, 1.5e30f));
  files.b.values("tiny.weight", DType::f32, {4, 256}, std::vector<float>(1024, 1.5e-30f));
  VerifyOptions options;
  options.threshold = 10;
  const VerifyReport report = files.report(options);
  EXPECT_EQ(find(report, "fc").not_finite, 2u);
  EXPECT_EQ(report.exceeding, 1u);
  EXPECT_EQ(report.layers[0].name, "fc");
  EXPECT_NEAR(find(report, "huge").relative_l2, 0.5, 1e-6);
  EXPECT_NEAR(find(report, "tiny").relative_l2, 0.5, 1e-6);
}

TEST(Verify, TheInputsScaleCountsAsTheWeights) {
  Files files;
  for (TestFile* file : {&files.a, &files.b}) {
    file->codes("fc.weight", DType::u8, {8, 32});
    file->codes("fc.weight_scale", DType::f8_e4m3, {128, 4});
    file->floats("fc.weight_scale_2", DType::f32, {}, 0.05f);
    if (file == &files.b) file->floats("fc.pre_quant_scale", DType::bf16, {64}, 2);
    file->marker("fc", R"({"format": "nvfp4"})");
  }
  EXPECT_NEAR(files.report().layers[0].relative_l2, 1, 1e-6);
}

TEST(Verify, CanBeCancelled) {
  Files files;
  files.a.values("fc.weight", DType::f32, {8, 8}, bell(64));
  files.b.values("fc.weight", DType::f32, {8, 8}, bell(64, 2));
  VerifyOptions options;
  options.progress = [](const Progress&) { return false; };
  const auto made = files.verify(options);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::cancelled);
}

TEST(Verify, EveryFormatHasItsUsualError) {
  for (const FormatInfo& format : formats_table())
    EXPECT_GT(usual_error(format.name), 0) << format.name;
  EXPECT_EQ(usual_error("I64"), 0);
}

// A file is where it is: by whatever format, nothing differs.
TEST(Verify, AFileIsNotFarFromItself) {
  std::size_t layers = 0;
  const std::filesystem::path folder =
      std::filesystem::path(PARFAIT_SOURCE_DIR) / "tests/golden/formats";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().string().find(".expected.") != std::string::npos) continue;
    const auto checkpoint = open(entry.path());
    ASSERT_TRUE(checkpoint.ok());
    auto report = check(*checkpoint);
    if (!report->sound()) continue;
    const auto same = verify(*report->checked, *report->checked);
    ASSERT_TRUE(same.ok()) << same.error().message;
    EXPECT_EQ(same->exceeding, 0u) << entry.path();
    EXPECT_EQ(same->relative_l2, 0) << entry.path();
    layers += same->layers.size();
  }
  EXPECT_GT(layers, 20u);
}

}  // namespace
}  // namespace parfait
