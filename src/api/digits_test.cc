// The trained example (examples/digits): what it draws is read by a classifier of real digits, in
// bf16, as the mixture that lies beside it, and as what quantize makes of it.

#include "models/models_testing.h"
#include "parfait/parfait.h"
#include "support/safetensors_builder.h"

namespace parfait {
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
  std::vector<std::vector<float>> latents;  // of each digit's first picture
};

Drawn draw(const std::string& transformer, int count) {
  const models::Golden classifier(digits + "/classifier.safetensors");
  auto pipeline = open_pipeline({.model_dir = digits, .transformer = transformer}, {});
  if (!pipeline.ok()) throw std::runtime_error(pipeline.error().message);
  Drawn drawn;
  for (std::size_t digit = 0; digit < 10; ++digit) {
    GenerateOptions options;
    options.prompts = {std::string("a handwritten ") + words[digit]};
    options.width = options.height = 64;
    options.count = static_cast<std::uint64_t>(count);
    GenerateCallbacks callbacks;
    callbacks.finished = [&](const Generated& made) {
      EXPECT_EQ(made.prompt, options.prompts[0]);
      drawn.right += read_digit(classifier, made.picture) == digit;
      ++drawn.all;
      return true;
    };
    GenerateTrace trace;
    const auto made = pipeline->generate(options, callbacks, &trace);
    if (!made.ok()) throw std::runtime_error(made.error().message);
    drawn.latents.push_back(trace.final_latents);
  }
  return drawn;
}

// Of the latents, where the largest of the original's is the peak.
double psnr(const Drawn& original, const Drawn& other) {
  double error = 0, peak = 0, values = 0;
  for (std::size_t i = 0; i < original.latents.size(); ++i) {
    for (std::size_t k = 0; k < original.latents[i].size(); ++k) {
      const double want = static_cast<double>(original.latents[i][k]);
      const double d = static_cast<double>(other.latents[i][k]) - want;
      error += d * d;
      peak = std::max(peak, std::fabs(want));
      ++values;
    }
  }
  return 10 * std::log10(peak * peak * values / error);
}

// The bf16 original with its linear layers in a format.
std::string quantized(const test::TemporaryFolder& folder, const std::string& format) {
  const auto opened = open(digits + "/originals/digits_bf16.safetensors");
  if (!opened.ok()) throw std::runtime_error(opened.error().message);
  const auto report = check(*opened);
  QuantizeOptions options;
  options.default_format = format;
  const auto plan = plan_quantize(*report->checked, options);
  if (!plan.ok()) throw std::runtime_error(plan.error().message);
  EXPECT_EQ(plan->quantized(), 12u);
  const std::string path = (folder.path() / (format + ".safetensors")).string();
  const auto written = quantize(*plan, path);
  if (!written.ok()) throw std::runtime_error(written.error().message);
  return path;
}

TEST(Digits, a_classifier_reads_what_was_drawn) {
  const test::TemporaryFolder folder;
  const Drawn bf16 = draw(digits + "/originals/digits_bf16.safetensors", pictures);
  const Drawn mixed = draw(digits + "/diffusion_models/digits_mixed.safetensors", pictures);
  const Drawn int8 = draw(quantized(folder, "int8_tensorwise"), pictures);
  for (const Drawn* drawn : {&bf16, &mixed, &int8}) EXPECT_EQ(drawn->all, 10 * pictures);
  RecordProperty("bf16", bf16.right);
  RecordProperty("mixed", mixed.right);
  RecordProperty("int8", int8.right);
  EXPECT_GE(bf16.right * 100, bf16.all * 95);
  EXPECT_GE(mixed.right * 100, bf16.right * 100 - mixed.all * 3);  // 3 points
  EXPECT_GE(int8.right * 100, bf16.right * 100 - int8.all);        // 1 point
}

// The fewer the bits, the farther from the original; and none is so far that it draws something
// else.
TEST(Digits, latents_of_each_format_are_as_near_as_its_bits_allow) {
  const test::TemporaryFolder folder;
  const Drawn original = draw(digits + "/originals/digits_bf16.safetensors", 1);
  double before = 1e9;
  for (const char* format : {"int8_tensorwise", "w6a8_int8", "asym_w4a8_int8", "convrot_w4a4"}) {
    const double db = psnr(original, draw(quantized(folder, format), 1));
    std::printf("%-16s %.2f dB\n", format, db);
    EXPECT_LT(db, before) << format;
    EXPECT_GT(db, 12) << format;
    before = db;
  }
}

}  // namespace
}  // namespace parfait
