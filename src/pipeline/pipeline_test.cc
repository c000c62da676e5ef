// Whole pipelines against diffusers', stage by stage (tests/golden/pipelines/README.md).

#include "pipeline/pipeline.h"

#include "io/json.h"
#include "models/models_testing.h"
#include "support/file_text.h"

namespace parfait::pipeline {
namespace {

using models::Golden;
using models::golden_path;
using models::worst_difference;

struct Case {
  std::string folder;
  bool comfy = false;
  std::optional<std::uint64_t> max_memory = {};
  std::uint64_t steps = 4;
  double guidance = 1;
  std::optional<unsigned> threads = {};
  std::optional<std::uint64_t> side = {};  // of a square picture; the golden's size if unset
};

PipelineFiles files_of(const Case& c) {
  const std::string folder = golden_path("pipelines/" + c.folder);
  if (!c.comfy) return {.model_dir = folder};
  return {.transformer = folder + "/comfy/diffusion_model.safetensors",
          .text_encoder = folder + "/comfy/text_encoder.safetensors",
          .vae = folder + "/comfy/vae.safetensors",
          .tokenizer = folder + "/tokenizer/tokenizer.json"};
}

std::string read_file(const std::string& path) { return test::file_text(path); }

struct Made {
  std::vector<Generated> pictures;
  GenerateTrace trace;
};

Made make(const Case& c, const Golden& golden) {
  PipelineOptions options;
  options.max_memory = c.max_memory;
  options.threads = c.threads.value_or(2);
  auto pipeline = Pipeline::open(files_of(c), options);
  if (!pipeline.ok()) throw std::runtime_error(pipeline.error().message);
  GenerateOptions generate_options;
  for (const auto& [key, value] : golden.index().shards()[0].metadata) {
    if (key == "prompt") generate_options.prompts = {value};
    if (key == "seed") generate_options.seed = std::stoull(value);
  }
  generate_options.height = c.side.value_or(golden.side("pixels", 1));
  generate_options.width = c.side.value_or(golden.side("pixels", 2));
  generate_options.steps = c.steps;
  generate_options.guidance = c.guidance;
  Made made;
  auto pictures = generate(**pipeline, generate_options, {}, &made.trace);
  if (!pictures.ok()) throw std::runtime_error(pictures.error().message);
  made.pictures = *std::move(pictures);
  return made;
}

// [C, h, w] as the transformer's rows.
std::vector<double> rows_of_image(const Golden& golden, const std::string& name) {
  const std::vector<double> in = golden.values(name);
  const std::uint64_t C = golden.side(name, 0), H = golden.side(name, 1), W = golden.side(name, 2);
  std::vector<double> out;
  for (std::uint64_t y = 0; y < H; y += 2)
    for (std::uint64_t x = 0; x < W; x += 2)
      for (std::uint64_t p = 0; p < 4; ++p)
        for (std::uint64_t c = 0; c < C; ++c)
          out.push_back(in[(c * H + y + p / 2) * W + x + p % 2]);
  return out;
}

// Tolerances are shares of the largest value.
struct Tolerances {
  double text, velocity, latents, pixels;
};

void expect_stages(const Case& c, const Tolerances& tolerances) {
  const Golden golden(golden_path("pipelines/" + c.folder + "/golden.safetensors"));
  const Made made = make(c, golden);
  const bool rows = c.folder == "klein";
  const auto expected = [&](const std::string& name) {
    return rows ? golden.values(name) : rows_of_image(golden, name);
  };
  std::vector<std::int64_t> ids = golden.integers("tokens.ids");
  if (!rows) ids.resize(made.trace.token_ids.size());
  EXPECT_EQ(made.trace.token_ids, ids);
  EXPECT_EQ(made.trace.noise, golden.floats("noise"));
  EXPECT_EQ(made.trace.sigmas, golden.floats("sigmas"));
  EXPECT_LT(worst_difference(made.trace.text_states, golden.values("text_states")),
            tolerances.text);
  ASSERT_EQ(made.trace.velocities.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_LT(
        worst_difference(made.trace.velocities[i], expected(fmt::format("step.{}.velocity", i))),
        tolerances.velocity)
        << "step " << i;
  EXPECT_LT(worst_difference(made.trace.final_latents, expected("step.3.latents")),
            tolerances.latents);
  const std::uint64_t H = golden.side("pixels", 1), W = golden.side("pixels", 2);
  const std::vector<double> pixels = golden.values("pixels");
  std::vector<double> last;
  for (std::uint64_t i = 0; i < H * W; ++i)
    for (std::uint64_t channel = 0; channel < 3; ++channel)
      last.push_back(pixels[channel * H * W + i]);
  EXPECT_LT(worst_difference(made.trace.pixels, last), tolerances.pixels);
  EXPECT_EQ(made.pictures[0].picture.rgb.size(), H * W * 3);
}

// Float32 but for the auto-encoder, whose weights are bf16.
TEST(Pipeline, klein_in_hugging_faces_layout) {
  expect_stages({.folder = "klein"}, {2e-6, 2e-5, 2e-5, 0.06});
}
TEST(Pipeline, z_image_in_hugging_faces_layout) {
  expect_stages({.folder = "z_image"}, {2e-6, 2e-5, 2e-5, 0.06});
}
// bf16 throughout.
TEST(Pipeline, klein_under_comfys_names) {
  expect_stages({.folder = "klein", .comfy = true}, {0.04, 0.1, 0.1, 0.3});
}
TEST(Pipeline, z_image_under_comfys_names) {
  expect_stages({.folder = "z_image", .comfy = true}, {0.04, 0.1, 0.1, 0.3});
}

TEST(Pipeline, guidance) {
  const Golden golden(golden_path("pipelines/klein/golden.safetensors"));
  const Made made = make({.folder = "klein", .steps = 2, .guidance = 4}, golden);
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_LT(worst_difference(made.trace.velocities[i],
                               golden.values(fmt::format("cfg.step.{}.velocity", i))),
              5e-5);
}

TEST(Pipeline, threads_do_not_change_a_bit) {
  const Golden golden(golden_path("pipelines/klein/golden.safetensors"));
  const Made one = make({.folder = "klein", .threads = 1}, golden);
  const Made three = make({.folder = "klein", .threads = 3}, golden);
  EXPECT_EQ(one.trace.velocities, three.trace.velocities);
  EXPECT_EQ(one.pictures[0].picture.rgb, three.pictures[0].picture.rgb);
}

// The smallest budget that is taken keeps blocks on the disk; a byte less is refused, by how much
// and what would do. No budget changes a bit.
void expect_streamed_the_same(const std::string& folder) {
  const Golden golden(golden_path("pipelines/" + folder + "/golden.safetensors"));
  // So small that a pass needs more than decoding does.
  constexpr std::uint64_t side = 16;
  const GenerateOptions options{.prompts = {"a"}, .width = side, .height = side};
  const auto parts = [&](std::uint64_t max_memory) {
    PipelineOptions setup;
    setup.max_memory = max_memory;
    setup.threads = 2;
    return (*Pipeline::open({.model_dir = golden_path("pipelines/" + folder)}, setup))
        ->parts(options);
  };
  std::uint64_t refused = 1, taken = 1 << 30;
  while (taken - refused > 1) {
    const std::uint64_t middle = refused + (taken - refused) / 2;
    (parts(middle).ok() ? taken : refused) = middle;
  }
  const auto error = parts(refused);
  ASSERT_FALSE(error.ok());
  const std::uint64_t mebibytes = (taken + (1 << 20) - 1) >> 20;
  for (const std::string& part : {std::string("is the least that works"), std::string("1 B more"),
                                  fmt::format("--max-memory {}M would do", mebibytes)})
    EXPECT_NE(error.error().message.find(part), std::string::npos) << error.error().message;
  const auto least = parts(taken);
  ASSERT_TRUE(least.ok()) << least.error().message;
  EXPECT_TRUE((*least)[0].streamed || (*least)[1].streamed);
  for (const PartInfo& part : *least)
    EXPECT_TRUE(!part.streamed || part.resident_bytes < part.weight_bytes) << part.role;

  const Made resident = make({.folder = folder, .side = side}, golden);
  const std::uint64_t weights = (*least)[1].weight_bytes;
  for (const std::uint64_t more : {std::uint64_t{0}, weights / 4, weights / 2}) {
    const Made streamed =
        make({.folder = folder, .max_memory = taken + more, .side = side}, golden);
    EXPECT_EQ(resident.trace.text_states, streamed.trace.text_states) << more;
    EXPECT_EQ(resident.trace.velocities, streamed.trace.velocities) << more;
    EXPECT_EQ(resident.pictures[0].picture.rgb, streamed.pictures[0].picture.rgb) << more;
  }
}
TEST(Pipeline, klein_streamed_from_the_least_memory) { expect_streamed_the_same("klein"); }
TEST(Pipeline, z_image_streamed_from_the_least_memory) { expect_streamed_the_same("z_image"); }

// A preview's decoder needs room beside the transformer.
TEST(Pipeline, previews_are_counted) {
  PipelineOptions setup;
  setup.max_memory = 1 << 30;
  const auto pipeline = *Pipeline::open({.model_dir = golden_path("pipelines/klein")}, setup);
  const GenerateOptions without{.prompts = {"a"}, .width = 1024, .height = 1024},
      with{.prompts = {"a"}, .width = 1024, .height = 1024, .previews = Previews::each_step};
  const auto room = [&](const GenerateOptions& options) {
    return pipeline->budget(options)->transformer.max_bytes;
  };
  EXPECT_LT(room(with) + 1024 * 1024, room(without));
}

TEST(Pipeline, schedules_of_diffusers) {
  const auto file = io::parse_json(read_file(golden_path("pipelines/sigmas.json")), {});
  ASSERT_TRUE(file.ok()) << file.error().message;
  for (const std::string folder : {"klein", "z_image"}) {
    auto pipeline = Pipeline::open({.model_dir = golden_path("pipelines/" + folder)}, {});
    ASSERT_TRUE(pipeline.ok()) << pipeline.error().message;
    const auto model = *(*pipeline)->make_transformer();
    int compared = 0;
    for (const io::Json& one : *file->find(folder)->array()) {
      const std::int64_t* tokens =
          one.find("image_tokens") ? one.find("image_tokens")->integer() : nullptr;
      const auto steps = static_cast<std::uint64_t>(*one.find("steps")->integer());
      const ImageSize size{2, tokens ? 2 * static_cast<std::uint64_t>(*tokens) : 2};
      const std::vector<float> sigmas = model->sigmas(steps, size);
      const io::Json::Array& want = *one.find("sigmas")->array();
      ASSERT_EQ(sigmas.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) {
        const double value =
            want[i].number() ? *want[i].number() : static_cast<double>(*want[i].integer());
        EXPECT_NEAR(static_cast<double>(sigmas[i]), value, 1e-7) << folder << " " << steps;
      }
      ++compared;
    }
    EXPECT_GE(compared, 3);
  }
}

// What stands in the wrong place, and the sentence's part that says so.
TEST(Pipeline, parts_that_do_not_fit) {
  const std::string klein = golden_path("pipelines/klein"), z = golden_path("pipelines/z_image");
  const auto error = [](PipelineFiles files) -> std::string {
    auto pipeline = Pipeline::open(files, {});
    return pipeline.ok() ? "" : pipeline.error().message;
  };
  const auto expect = [&](PipelineFiles files, const std::string& part) {
    const std::string message = error(files);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect({.model_dir = klein, .vae = z + "/vae"}, "makes latents of 8 channels");
  expect({.model_dir = klein, .transformer = klein + "/text_encoder"}, "it is a text encoder");
  expect({.model_dir = klein, .transformer = klein + "/vae"}, "it is an image auto-encoder");
  expect({.model_dir = klein, .text_encoder = klein + "/transformer"}, "this is no text encoder");
  expect({.model_dir = klein, .vae = klein + "/transformer"}, "this is no image auto-encoder");
  expect({.model_dir = klein + "/vae"}, "has no folder for the transformer");
  expect({.model_dir = "/nonexistent"}, "is not a folder");
  expect({}, "--transformer FILE names it");
  expect({.model_dir = klein, .tokenizer = klein + "/vae/config.json"}, "model.type is not BPE");
  expect({.model_dir = klein, .text_encoder = golden_path("models/klein_tiny.safetensors")},
         "this is no text encoder");
}

TEST(Pipeline, options_that_cannot_be_done) {
  auto pipeline = Pipeline::open({.model_dir = golden_path("pipelines/klein")}, {});
  ASSERT_TRUE(pipeline.ok()) << pipeline.error().message;
  const auto expect = [&](const GenerateOptions& options, const std::string& part) {
    const auto parts = (*pipeline)->parts(options);
    ASSERT_FALSE(parts.ok()) << part;
    EXPECT_NE(parts.error().message.find(part), std::string::npos) << parts.error().message;
  };
  expect({.prompts = {"a"}, .width = 100}, "the nearest are 96 and 112");
  expect({.prompts = {"a"}, .height = 0}, "a height of 0");
  expect({.prompts = {"a"}, .height = 100'000}, "a height of 100000");
  expect({.prompts = {}}, "no prompt");
  expect({.prompts = {"a"}, .guidance = -1}, "a guidance of -1");
  expect({.prompts = {"a"}, .steps = 1001}, "at most 1000");
  expect({.prompts = {"a"}, .count = 100'001}, "1 to 100000 are made");
  expect({.prompts = {"a"}, .seed = UINT64_MAX, .count = 2}, "the last seed would be beyond");
  expect({.prompts = {"good", "b\xff"}}, "the prompt is not UTF-8 from byte 1 on");
  expect({.prompts = {"a"}, .negative = "\xc3"}, "the negative prompt");
  EXPECT_TRUE((*pipeline)->parts({.prompts = {""}, .width = 64, .height = 96}).ok());
  EXPECT_TRUE((*pipeline)->parts({.prompts = {std::string(1, '\0')}, .seed = UINT64_MAX}).ok());
}

// Prompts of any length: template and text are cut at 512 tokens, with a note.
TEST(Pipeline, prompts_of_every_length) {
  auto pipeline = Pipeline::open({.model_dir = golden_path("pipelines/klein")}, {});
  ASSERT_TRUE(pipeline.ok()) << pipeline.error().message;
  for (std::size_t letters : {0u, 1u, 511u, 512u, 5000u}) {
    std::string prompt;
    for (std::size_t i = 0; i < letters; ++i) prompt += "1";  // a token each
    auto made = generate(**pipeline, {.prompts = {prompt}, .width = 16, .height = 16, .steps = 1},
                         {}, nullptr);
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ((*made)[0].notes.size(), (*made)[0].tokens > 512 ? 1u : 0u) << letters;
    EXPECT_GE((*made)[0].tokens, letters);
  }
}

TEST(Pipeline, cancelled_at_any_callback) {
  auto pipeline = Pipeline::open({.model_dir = golden_path("pipelines/z_image")}, {});
  ASSERT_TRUE(pipeline.ok()) << pipeline.error().message;
  const GenerateOptions options{.prompts = {"a"}, .width = 16, .height = 16, .steps = 2};
  int calls = 0;
  GenerateCallbacks callbacks;
  callbacks.progress = [&](const GenerateProgress&) { return ++calls > 0; };
  ASSERT_TRUE(generate(**pipeline, options, callbacks, nullptr).ok());
  ASSERT_GT(calls, 10);
  for (int stop = 1; stop <= calls; stop += 3) {
    int seen = 0;
    callbacks.progress = [&](const GenerateProgress&) { return ++seen < stop; };
    const auto made = generate(**pipeline, options, callbacks, nullptr);
    ASSERT_FALSE(made.ok()) << stop;
    EXPECT_EQ(made.error().code, ErrorCode::cancelled) << made.error().message;
  }
}

}  // namespace
}  // namespace parfait::pipeline
