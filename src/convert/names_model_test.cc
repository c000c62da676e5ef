// Renamed models compute what they computed.

#include "convert/convert_testing.h"
#include "models/models_testing.h"

namespace parfait::convert {
namespace {

std::vector<float> velocity(const std::string& path, const models::Golden& io,
                            const std::string& text, std::uint64_t columns) {
  models::Loaded loaded(path);
  auto found = models::find_transformer(loaded.checkpoint(), path);
  if (!found.ok()) throw std::runtime_error(found.error().message);
  models::Transformer& model = **found;
  loaded.load(model.blocks());
  const ImageSize size{4, 8};
  auto prepared = model.prepare(*loaded.run, io.matrix(text), size);
  if (!prepared.ok()) throw std::runtime_error(prepared.error().message);
  models::Buffer x(8, columns, DType::f32), y(8, columns, DType::f32);
  for (std::uint64_t i = 0; i < 8 * columns; ++i) x.floats()[i] = std::sin(static_cast<float>(i));
  const auto done = model.velocity(*loaded.run, **prepared, 0.7f, 1, x, y);
  if (!done.ok()) throw std::runtime_error(done.error().message);
  return {y.floats(), y.floats() + 8 * columns};
}

TEST(NamesOfModels, give_the_same_outputs) {
  const test::TemporaryFolder folder;
  for (const auto& [model, text] :
       {std::pair<std::string, std::string>("klein", "context"), {"z_image", "caption"}}) {
    const std::string golden = golden_path("models/" + model + "_tiny.safetensors");
    const models::Golden io(golden_path("models/" + model + "_tiny_io.safetensors"));
    for (const std::string to : {"", "int8_tensorwise"}) {
      const std::string own = (folder.path() / "own.safetensors").string();
      const std::string diffusers = (folder.path() / "d.safetensors").string();
      converted(golden, own, {.to = to});
      converted(own, diffusers, {.names = ConvertOptions::Names::diffusers});
      EXPECT_EQ(velocity(own, io, text, 16), velocity(diffusers, io, text, 16))
          << model << " " << to;
    }
  }
}

}  // namespace
}  // namespace parfait::convert
