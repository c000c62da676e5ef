// What the tests of conversions share: sources, conversions that must succeed, decoded values.
#ifndef PARFAIT_CONVERT_CONVERT_TESTING_H_
#define PARFAIT_CONVERT_CONVERT_TESTING_H_

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "formats/format.h"
#include "parfait/convert.h"
#include "support/file_text.h"
#include "support/test_file.h"

namespace parfait::convert {

inline std::string golden_path(const std::string& name) {
  return std::string(PARFAIT_SOURCE_DIR) + "/tests/golden/" + name;
}

inline std::string file_bytes(const std::string& path) { return test::file_text(path); }

// Opened, and proven sound; throws where it is not.
inline CheckedCheckpoint checked(const std::string& path) {
  auto opened = open(path);
  if (!opened.ok()) throw std::runtime_error(opened.error().message);
  auto report = check(*opened);
  if (!report.ok()) throw std::runtime_error(report.error().message);
  if (!report->sound()) {
    std::string text = path + " is not sound:";
    for (const Finding& finding : report->findings) text += "\n" + finding.line();
    throw std::runtime_error(text);
  }
  return *report->checked;
}

inline ConvertReport converted(const std::string& from, const std::string& to,
                               const ConvertOptions& options = {}) {
  auto report = convert_checkpoint(checked(from), to, options);
  if (!report.ok()) throw std::runtime_error(report.error().message);
  return *std::move(report);
}

// All layers' values, by name.
inline std::map<std::string, std::vector<float>> decoded(const std::string& path) {
  const CheckedCheckpoint file = checked(path);
  std::map<std::string, std::vector<float>> all;
  for (const Layer layer : file.checkpoint()) {
    std::vector<float>& values = all[std::string(layer.name())];
    values.resize(layer.rows() * layer.columns());
    const auto done = decode(file.checkpoint(), layer, 0, layer.rows(), values);
    if (!done.ok()) throw std::runtime_error(done.error().message);
  }
  return all;
}

// Two linear layers of 32 × 256 and 64 × 512 and a norm, in a float type; values that the type
// holds exactly.
inline std::vector<std::byte> two_layers(DType dtype) {
  std::mt19937 random(5);
  std::normal_distribution<float> bell(0, 0.05f);
  test::TestFile file;
  const auto values = [&](std::size_t count) {
    std::vector<float> out(count);
    for (float& value : out) value = bell(random);
    return out;
  };
  file.values("blocks.0.fc1.weight", dtype, {32, 256}, values(32 * 256));
  file.values("blocks.0.fc1.bias", dtype, {32}, values(32));
  file.values("blocks.0.fc2.weight", dtype, {64, 512}, values(64 * 512));
  file.values("norm.weight", dtype, {256}, values(256));
  file.metadata("made_by", "tests");
  return file.bytes();
}

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_CONVERT_TESTING_H_
