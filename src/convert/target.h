// What a layer is to become: a format with its settings, the tensors that it will have, and the
// layer as a reader of the written file will see it. Settled from shapes alone, before any work.
#ifndef PARFAIT_CONVERT_TARGET_H_
#define PARFAIT_CONVERT_TARGET_H_

#include <memory>
#include <string>
#include <vector>

#include "formats/format.h"

namespace parfait::convert {

class LayerTarget {
 public:
  // Asks the format's encoder, then reads its marker and tensors as detection would. An error says
  // why the format cannot hold such a layer, as a sentence about the layer.
  static Result<LayerTarget> settle(const formats::Layer& source, const formats::Format& format,
                                    const formats::EncodeSettings& settings);

  const formats::Format& format() const { return *format_; }
  const formats::Encoder& encoder() const { return *format_->encoder; }
  const formats::EncodeSettings& settings() const { return settings_; }
  const formats::WeightShape& shape() const { return shape_; }
  // The encoder's: the weight, then what is beside it. <layer>.<suffix> each.
  const std::vector<formats::EncodedTensor>& tensors() const { return tensors_; }
  const std::string& marker() const { return marker_; }  // JSON; empty: none is needed
  std::uint64_t bytes() const;                           // of tensors() and the marker
  // The layer of the written file, to decode it. part(i) of it is tensors()[i].
  const formats::Layer& written() const { return *written_; }

 private:
  const formats::Format* format_ = nullptr;
  formats::EncodeSettings settings_;
  formats::WeightShape shape_;
  std::vector<formats::EncodedTensor> tensors_;
  std::string marker_;
  std::shared_ptr<std::vector<TensorInfo>> infos_;  // written_ points into it, it into tensors_
  std::shared_ptr<formats::Layer> written_;
};

// A weight of this layer, as an encoder is asked about it.
formats::WeightShape weight_shape(const formats::Layer& layer);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_TARGET_H_
