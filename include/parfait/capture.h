// What a model's linear layers are given while it runs: rows of real activations, from which
// quantising with a calibration learns which errors matter.
//
//   parfait::Capture capture;
//   callbacks.linear = [&](std::string_view layer, const ConstMatrix& x) { capture.add(layer, x);
//   };
//   ... generate ...
//   capture.write("rows.safetensors");
//
// Of all rows that a layer is given, a fixed number is kept, each with the same chance (reservoir
// sampling from a seed of the layer's name, so the same run keeps the same rows). They are held in
// BF16. A Capture belongs to one thread at a time.
#ifndef PARFAIT_CAPTURE_H_
#define PARFAIT_CAPTURE_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

#include "parfait/error.h"
#include "parfait/model.h"

namespace parfait {

class Capture {
 public:
  explicit Capture(std::uint64_t rows_of_each_layer = 256);
  ~Capture();
  Capture(Capture&&) noexcept;
  Capture& operator=(Capture&&) noexcept;

  // Rows that are not finite are left out.
  void add(std::string_view layer, const ConstMatrix& x);
  std::size_t layers() const;
  // A safetensors file with a tensor [rows, K] for each layer, of the layer's name.
  Result<Done> write(const std::filesystem::path& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace parfait

#endif  // PARFAIT_CAPTURE_H_
