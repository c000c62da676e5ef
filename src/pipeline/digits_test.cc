// The trained example (examples/digits): what it draws is read by a classifier of real digits.

#include "models/models_testing.h"
#include "pipeline/pipeline.h"

namespace parfait::pipeline {
namespace {

const std::string digits = std::string(PARFAIT_SOURCE_DIR) + "/examples/digits";
// Of each digit. Sanitizers make it slow, and look for other things.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int pictures = 2;
#else
constexpr int pictures = 20;
#endif
const char* const words[] = {"zero", "one", "two",   "three", "four",
                             "five", "six", "seven", "eight", "nine"};

// y = W · x + b, and ReLU but for the last.
std::vector<float> layer(const models::Golden& weights, const std::string& name,
                         const std::vector<float>& x, float least) {
  const std::vector<float> w = weights.floats(name + ".weight"), b = weights.floats(name + ".bias");
  std::vector<float> y = b;
  for (std::size_t n = 0; n < y.size(); ++n) {
    for (std::size_t k = 0; k < x.size(); ++k) y[n] += w[n * x.size() + k] * x[k];
    y[n] = std::max(y[n], least);
  }
  return y;
}

std::size_t read_digit(const models::Golden& weights, const Picture& picture) {
  std::vector<float> x(64);
  for (std::size_t row = 0; row < 64; ++row)
    for (std::size_t column = 0; column < 64; ++column)
      for (std::size_t c = 0; c < 3; ++c)
        x[row / 8 * 8 + column / 8] +=
            static_cast<float>(picture.rgb[(row * 64 + column) * 3 + c]) / (255.0f * 3 * 64);
  x = layer(weights, "fc1", x, 0);
  x = layer(weights, "fc2", x, 0);
  x = layer(weights, "fc3", x, -1e30f);
  return static_cast<std::size_t>(std::max_element(x.begin(), x.end()) - x.begin());
}

struct Drawn {
  int right = 0, all = 0;
  std::vector<float> latents;  // of the first picture
};

Drawn draw(const std::string& transformer) {
  const models::Golden classifier(digits + "/classifier.safetensors");
  auto pipeline =
      Pipeline::open({.model_dir = digits, .transformer = digits + "/" + transformer}, {});
  if (!pipeline.ok()) throw std::runtime_error(pipeline.error().message);
  GenerateOptions options;
  for (const char* word : words) options.prompts.push_back(std::string("a handwritten ") + word);
  options.width = options.height = 64;
  options.count = pictures;
  Drawn drawn;
  GenerateCallbacks callbacks;
  callbacks.finished = [&](const Generated& made) {
    const std::size_t digit = static_cast<std::size_t>(drawn.all / pictures);
    EXPECT_EQ(made.prompt, options.prompts[digit]);
    drawn.right += read_digit(classifier, made.picture) == digit;
    ++drawn.all;
    return true;
  };
  GenerateTrace trace;
  const auto made = generate(**pipeline, options, callbacks, &trace);
  if (!made.ok()) throw std::runtime_error(made.error().message);
  drawn.latents = trace.final_latents;
  return drawn;
}

TEST(Digits, a_classifier_reads_what_was_drawn) {
  const Drawn bf16 = draw("originals/digits_bf16.safetensors");
  const Drawn mixed = draw("diffusion_models/digits_mixed.safetensors");
  EXPECT_EQ(bf16.all, 10 * pictures);
  EXPECT_EQ(mixed.all, 10 * pictures);
  RecordProperty("bf16", bf16.right);
  RecordProperty("mixed", mixed.right);
  EXPECT_GE(bf16.right * 100, bf16.all * 95);
  EXPECT_GE(mixed.right * 100, bf16.right * 100 - mixed.all * 3);  // 3 points
  // The mixture is another file: its latents differ, and not by much.
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < bf16.latents.size(); ++i) {
    const double want = static_cast<double>(bf16.latents[i]);
    const double d = static_cast<double>(mixed.latents[i]) - want;
    difference += d * d;
    norm += want * want;
  }
  EXPECT_GT(difference, 0);
  EXPECT_LT(std::sqrt(difference / norm), 0.5);
}

}  // namespace
}  // namespace parfait::pipeline
