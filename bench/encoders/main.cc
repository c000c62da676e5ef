// Encodes every matrix of a file in one format, better than by absmax: what tools/encoder_table.py
// measures. The output's tensors stand in the order of their making, without markers.
//
//   parfait_encoders IN.safetensors OUT.safetensors FORMAT [CALIBRATION.safetensors]
//
// Rotated formats take the largest ConvRot group of 256, 64 and 16 that divides K.

#include <cstdio>
#include <string>
#include <vector>

#include "base/floats.h"
#include "base/result.h"
#include "container/tensor_index.h"
#include "container/writer.h"
#include "convert/best/best.h"
#include "formats/format.h"

namespace {

using namespace parfait;

struct Made {
  std::vector<container::TensorDeclaration> tensors;
  std::vector<std::vector<std::byte>> data;
};

std::vector<formats::EncodedTensor> tensors_of(const convert::BestLayer& layer) {
  return layer.format->encoder->tensors(layer.weight, layer.settings);
}

Result<Done> encode(const std::string& name, convert::BestLayer layer, std::vector<float> weight,
                    const convert::Calibration* calibration, runtime::Threads& threads,
                    Made& made) {
  const std::uint64_t columns = layer.weight.columns, rows = layer.weight.rows;
  std::optional<convert::Inputs> inputs;
  if (calibration != nullptr && calibration->find(name) != nullptr) {
    PARFAIT_TRY(inputs, calibration->inputs(name, layer.weight, layer.settings, {}, threads));
    layer.inputs = &*inputs;
  }
  const formats::RowReader reader = [&](std::uint64_t first, std::uint64_t count, float* out) {
    std::copy_n(weight.data() + first * columns, count * columns, out);
    return Result<Done>(Done{});
  };
  PARFAIT_TRY(const convert::BestSurvey survey, convert::survey_best(layer, reader));
  formats::EncodeBuffers buffers;
  std::vector<std::vector<std::byte>> data;
  for (const formats::EncodedTensor& tensor : tensors_of(layer)) {
    made.tensors.push_back({name + "." + std::string(tensor.suffix), tensor.dtype, tensor.shape});
    PARFAIT_TRY(const std::uint64_t bytes, container::tensor_bytes(made.tensors.back()));
    data.emplace_back(bytes);
    buffers.tensors.push_back(data.back().data());
  }
  constexpr std::uint64_t panel = 64;
  threads.run((rows + panel - 1) / panel, [&](std::uint64_t piece, unsigned) {
    const std::uint64_t first = piece * panel, count = std::min(panel, rows - first);
    convert::encode_best(layer, survey, first, count, weight.data() + first * columns, buffers);
  });
  for (auto& bytes : data) made.data.push_back(std::move(bytes));
  return Done{};
}

Result<Done> run(const std::vector<std::string>& arguments) {
  const formats::Format* format = formats::find_format(arguments[2]);
  if (format == nullptr || !convert::has_best(arguments[2]))
    return make_error(ErrorCode::format_unknown, "no better encoder for {}", arguments[2]);
  PARFAIT_TRY(container::TensorIndexPtr index, container::open_index(arguments[0], OpenOptions{}));
  std::optional<convert::Calibration> calibration;
  if (arguments.size() > 3) {
    PARFAIT_TRY(calibration, convert::Calibration::open(arguments[3]));
  }
  runtime::Threads threads;
  Made made;
  const bool rotates =
      !format->name.starts_with("float8") && format->name != "nvfp4" && format->name != "mxfp8";
  for (const TensorInfo& tensor : index->tensors()) {
    if (tensor.shape.size() != 2 || !tensor.name.ends_with(".weight")) continue;
    convert::BestLayer layer{format, {}, {}, nullptr};
    layer.weight.shape.assign(tensor.shape.begin(), tensor.shape.end());
    layer.weight.rows = tensor.shape[0];
    layer.weight.columns = tensor.shape[1];
    for (std::uint32_t group : {16u, 64u, 256u})
      if (rotates && tensor.shape[1] % group == 0) layer.settings.rotate_group = group;
    std::vector<std::byte> scratch;
    PARFAIT_TRY(const ByteSpan bytes, index->read(tensor, scratch));
    std::vector<float> weight(layer.weight.rows * layer.weight.columns);
    widen(tensor.dtype, bytes.data(), weight.size(), weight.data());
    const std::string name(tensor.name.substr(0, tensor.name.size() - 7));
    PARFAIT_CHECK_OK(encode(name, layer, std::move(weight), calibration ? &*calibration : nullptr,
                            threads, made));
  }
  PARFAIT_TRY(container::Writer writer, container::Writer::create(arguments[1], made.tensors));
  for (const auto& data : made.data) PARFAIT_CHECK_OK(writer.append(data));
  return writer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 3 && arguments.size() != 4) {
    std::fputs("usage: parfait_encoders IN OUT FORMAT [CALIBRATION]\n", stderr);
    return 2;
  }
  const auto done = run(arguments);
  if (done.ok()) return 0;
  std::fprintf(stderr, "parfait_encoders: %s\n", done.error().message.c_str());
  return 2;
}
