// torch's own numbers (tests/golden/pipelines/README.md).

#include "pipeline/torch_random.h"

#include "models/models_testing.h"

namespace parfait::pipeline {
namespace {

TEST(TorchRandom, bits_of_torch_randn) {
  const models::Golden golden(models::golden_path("random/randn.safetensors"));
  int compared = 0;
  for (const TensorInfo& tensor : golden.index().tensors()) {
    const std::string name(tensor.name);
    if (!name.starts_with("f32.")) continue;
    const std::string seed = name.substr(4, name.find('.', 4) - 4);
    EXPECT_EQ(torch_randn(tensor.shape[0], std::stoull(seed)), golden.floats(name)) << name;
    ++compared;
  }
  EXPECT_GE(compared, 60);
}

}  // namespace
}  // namespace parfait::pipeline
