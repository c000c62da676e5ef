// For the tests of encoders: a whole weight encoded in ranges of rows, and the file that it makes.
#ifndef PARFAIT_FORMATS_ENCODE_TESTING_H_
#define PARFAIT_FORMATS_ENCODE_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/checked.h"
#include "formats/encode.h"
#include "formats/format_testing.h"

namespace parfait::formats::testing {

inline WeightShape weight_shape(LayerKind kind, const Shape& shape) {
  const std::uint64_t columns = shape.back();
  return {kind, shape, columns == 0 ? 0 : *checked_product(shape) / columns, columns};
}
inline WeightShape linear(std::uint64_t rows, std::uint64_t columns) {
  return weight_shape(LayerKind::linear, {rows, columns});
}

struct Encoded {
  std::vector<EncodedTensor> tensors;
  std::vector<std::vector<std::byte>> bytes;
  std::string marker;

  const std::vector<std::byte>& of(std::string_view suffix) const {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].suffix == suffix) return bytes[i];
    static const std::vector<std::byte> none;
    ADD_FAILURE() << "no tensor " << suffix;
    return none;
  }
  // A file with the one layer "a".
  TestFile file() const {
    TestFile file;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      file.raw("a." + std::string(tensors[i].suffix), tensors[i].dtype, tensors[i].shape, bytes[i]);
    if (!marker.empty()) file.marker("a", marker);
    return file;
  }
};

inline Survey survey_of(const Format& format, const WeightShape& shape,
                        const EncodeSettings& settings, const std::vector<float>& values) {
  if (!format.encoder->survey) return {};
  const RowReader reader = [&](std::uint64_t first, std::uint64_t count,
                               float* out) -> Result<Done> {
    EXPECT_LE((first + count) * shape.columns, values.size());
    std::memcpy(out, values.data() + first * shape.columns, count * shape.columns * sizeof(float));
    return Done{};
  };
  auto survey = format.encoder->survey(shape, settings, reader);
  EXPECT_TRUE(survey.ok());
  return survey.ok() ? *survey : Survey{};
}

// In ranges of that many rows, the last first; each range's weight in a buffer of its own.
inline Encoded encode_all(const Format& format, const WeightShape& shape,
                          const EncodeSettings& settings, const std::vector<float>& values,
                          const Survey& survey, std::uint64_t rows_at_once) {
  const Encoder& encoder = *format.encoder;
  EXPECT_EQ(encoder.refusal(shape, settings), "");
  Encoded encoded{encoder.tensors(shape, settings), {}, encoder.marker(shape, settings)};
  EncodeBuffers buffers;
  for (const EncodedTensor& tensor : encoded.tensors) {
    encoded.bytes.emplace_back(*checked_product(tensor.shape) * dtype_bits(tensor.dtype) / 8);
    buffers.tensors.push_back(encoded.bytes.back().data());
  }
  const std::uint64_t row_bytes = encoded.bytes[0].size() / shape.rows;
  for (std::uint64_t first = (shape.rows - 1) / rows_at_once * rows_at_once;;
       first -= rows_at_once) {
    const std::uint64_t count = std::min(rows_at_once, shape.rows - first);
    const auto from = values.begin() + static_cast<std::ptrdiff_t>(first * shape.columns);
    std::vector<float> w(from, from + static_cast<std::ptrdiff_t>(count * shape.columns));
    std::vector<std::byte> weight(count * row_bytes);
    buffers.first_row = first;
    buffers.tensors[0] = weight.data();
    encoder.encode(shape, settings, survey, first, count, w.data(), buffers);
    std::ranges::copy(weight,
                      encoded.bytes[0].begin() + static_cast<std::ptrdiff_t>(first * row_bytes));
    if (first == 0) break;
  }
  return encoded;
}

inline Encoded encode_all(const Format& format, const WeightShape& shape,
                          const EncodeSettings& settings, const std::vector<float>& values) {
  return encode_all(format, shape, settings, values, survey_of(format, shape, settings, values),
                    shape.rows);
}

}  // namespace parfait::formats::testing

#endif  // PARFAIT_FORMATS_ENCODE_TESTING_H_
