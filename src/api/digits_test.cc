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
constexpr int pictures = 1;
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

Pipeline pipeline_with(const std::string& transformer) {
  auto pipeline = open_pipeline({.model_dir = digits, .transformer = transformer}, {});
  if (!pipeline.ok()) throw std::runtime_error(pipeline.error().message);
  return *pipeline;
}

GenerateOptions small() {
  GenerateOptions options;
  options.width = options.height = 64;
  return options;
}

struct Drawn {
  int right = 0, all = 0;
};

Drawn draw(const std::string& transformer) {
  const models::Golden classifier(digits + "/classifier.safetensors");
  GenerateOptions options = small();
  for (const char* word : words) options.prompts.push_back(std::string("a handwritten ") + word);
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
  const auto made = pipeline_with(transformer).generate(options, callbacks);
  if (!made.ok()) throw std::runtime_error(made.error().message);
  return drawn;
}

// Of one picture of each of some digits.
std::vector<float> latents(const std::string& transformer) {
  const Pipeline pipeline = pipeline_with(transformer);
  std::vector<float> all;
  for (const int digit : {0, 3, 7}) {
    GenerateOptions options = small();
    options.prompts = {std::string("a handwritten ") + words[digit]};
    GenerateTrace trace;
    const auto made = pipeline.generate(options, {}, &trace);
    if (!made.ok()) throw std::runtime_error(made.error().message);
    all.insert(all.end(), trace.final_latents.begin(), trace.final_latents.end());
  }
  return all;
}

// Where the largest of the original's is the peak.
double psnr(const std::vector<float>& original, const std::vector<float>& other) {
  double error = 0, peak = 0;
  for (std::size_t i = 0; i < original.size(); ++i) {
    const double want = static_cast<double>(original[i]);
    const double d = static_cast<double>(other[i]) - want;
    error += d * d;
    peak = std::max(peak, std::fabs(want));
  }
  return 10 * std::log10(peak * peak * static_cast<double>(original.size()) / error);
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
  const Drawn bf16 = draw(digits + "/originals/digits_bf16.safetensors");
  const Drawn mixed = draw(digits + "/diffusion_models/digits_mixed.safetensors");
  const Drawn int8 = draw(quantized(folder, "int8_tensorwise"));
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
  const std::vector<float> original = latents(digits + "/originals/digits_bf16.safetensors");
  double before = 1e9;
  for (const char* format : {"int8_tensorwise", "w6a8_int8", "asym_w4a8_int8", "convrot_w4a4"}) {
    const double db = psnr(original, latents(quantized(folder, format)));
    std::printf("%-16s %.2f dB\n", format, db);
    EXPECT_LT(db, before) << format;
    EXPECT_GT(db, 12) << format;
    before = db;
  }
}

}  // namespace
}  // namespace parfait
