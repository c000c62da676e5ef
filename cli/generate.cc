// parfait generate: from a prompt to a picture.

#include <stdlib.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>

#include "cli/table.h"
#include "cli/verbs.h"

namespace parfait::cli {
namespace {

struct Arguments {
  PipelineFiles files;
  std::string model_dir, transformer, text_encoder, vae, tokenizer;
  std::string out, sheet, capture, sampler = "euler";
  std::optional<std::uint64_t> max_memory;
  OpenOptions open;
  MachineArguments machine;
  GenerateOptions generate;
  std::uint32_t threads = 0;
  std::uint64_t capture_rows = 256;
  bool preview = false, profile = false;
};

std::string stem_with(const std::string& path, const std::string& more) {
  const std::filesystem::path file(path);
  return (file.parent_path() / (file.stem().string() + more + file.extension().string())).string();
}

// One line on standard error, rewritten: which picture, which step, how long, how much is left.
class Status {
 public:
  bool show(const GenerateProgress& p) {
    if (p.stage != stage_ || !bar_) {
      bar_.reset();
      bar_.emplace(word(p.stage));
      stage_ = p.stage;
    }
    what_ = p.pictures > 1 && p.stage != GenerateProgress::Stage::load
                ? fmt::format("picture {} of {}", p.picture + 1, p.pictures)
                : "";
    if (p.stage == GenerateProgress::Stage::denoise && p.step_seconds > 0)
      what_ += fmt::format("{}step {} of {}, {:.1f} s a step, {:.0f} s left",
                           what_.empty() ? "" : ", ", std::min(p.step + 1, p.steps), p.steps,
                           p.step_seconds, p.step_seconds * static_cast<double>(p.steps - p.step));
    return bar_->show({p.step, std::max<std::uint64_t>(p.steps, 1), what_});
  }
  void hide() { bar_.reset(); }

 private:
  static std::string word(GenerateProgress::Stage stage) {
    switch (stage) {
      case GenerateProgress::Stage::text:
        return "reading the prompt";
      case GenerateProgress::Stage::load:
        return "loading";
      case GenerateProgress::Stage::denoise:
        return "denoising";
      case GenerateProgress::Stage::decode:
        return "decoding";
    }
    return {};
  }
  std::optional<ProgressBar> bar_;
  GenerateProgress::Stage stage_ = GenerateProgress::Stage::text;
  std::string what_;
};

std::string formats_text(const PartInfo& part) {
  std::string text;
  for (const FormatTotal& total : part.formats)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", total.layers, total.format);
  return text.empty() ? "plain tensors" : text;
}

void print_parts(Program& program, const std::vector<PartInfo>& parts) {
  for (const PartInfo& part : parts)
    program.out.print(
        "{:<12}  {}: {}; {} in the file, {} in memory{}\n", part.role, printable(part.what),
        formats_text(part), bytes_text(part.stored_bytes), bytes_text(part.resident_bytes),
        part.streamed ? fmt::format(" of {}, the rest is streamed", bytes_text(part.weight_bytes))
                      : "");
}

Json to_json(const PartInfo& part) {
  Json formats = Json::array();
  for (const FormatTotal& total : part.formats)
    formats.push_back(
        {{"format", total.format}, {"layers", total.layers}, {"stored_bytes", total.stored_bytes}});
  return {{"role", part.role},
          {"path", part.path},
          {"what", part.what},
          {"formats", std::move(formats)},
          {"stored_bytes", part.stored_bytes},
          {"weight_bytes", part.weight_bytes},
          {"resident_bytes", part.resident_bytes},
          {"streamed", part.streamed}};
}

Json to_json(const Generated& made, const std::string& path) {
  Json profile;
  for (std::size_t i = 0; i < op_kinds; ++i)
    profile[std::string(op_kind_name(static_cast<OpKind>(i)))] = {
        {"seconds", made.profile.entries[i].seconds}, {"calls", made.profile.entries[i].calls}};
  return {{"path", path},
          {"prompt", made.prompt},
          {"seed", made.seed},
          {"tokens", made.tokens},
          {"steps", made.steps},
          {"notes", made.notes},
          {"text_seconds", made.text_seconds},
          {"load_seconds", made.load_seconds},
          {"step_seconds", made.step_seconds},
          {"decode_seconds", made.decode_seconds},
          {"profile", std::move(profile)}};
}

void print_profile(Program& program, const Profile& profile) {
  double total = 0;
  for (const Profile::Entry& entry : profile.entries) total += entry.seconds;
  Table table({{"op"}, {"s", Align::right}, {"calls", Align::right}, {"share", Align::right}});
  for (std::size_t i = 0; i < op_kinds; ++i) {
    const Profile::Entry& entry = profile.entries[i];
    if (entry.calls)
      table.add({std::string(op_kind_name(static_cast<OpKind>(i))),
                 fmt::format("{:.3f}", entry.seconds), grouped(entry.calls),
                 fmt::format("{:.1f} %", total > 0 ? 100 * entry.seconds / total : 0)});
  }
  table.print(program.out);
}

// Pictures side by side, five in a row.
Picture sheet_of(const std::vector<Picture>& pictures) {
  constexpr std::uint64_t most_columns = 5;
  const std::uint64_t columns = std::min<std::uint64_t>(pictures.size(), most_columns),
                      rows = (pictures.size() + columns - 1) / columns, w = pictures[0].width,
                      h = pictures[0].height;
  Picture sheet{columns * w, rows * h, std::vector<std::uint8_t>(columns * w * rows * h * 3, 255)};
  for (std::size_t i = 0; i < pictures.size(); ++i)
    for (std::uint64_t y = 0; y < h; ++y)
      std::copy_n(
          pictures[i].rgb.begin() + static_cast<std::ptrdiff_t>(y * w * 3), w * 3,
          sheet.rgb.begin() + static_cast<std::ptrdiff_t>(
                                  ((i / columns * h + y) * columns * w + i % columns * w) * 3));
  return sheet;
}

// Under a bound, what the program lets go must leave it. By default the allocator keeps up to tens
// of megabytes for the next call, more the larger the blocks that it has seen.
void give_memory_back() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
#endif
}

class Maker {
 public:
  Maker(Program& program, const Arguments& arguments) : program_(program), a_(arguments) {}
  ~Maker() { remove_preview(); }
  Maker(const Maker&) = delete;
  Maker& operator=(const Maker&) = delete;

  int run() {
    total_ = a_.generate.prompts.size() * a_.generate.count;
    if (a_.max_memory) give_memory_back();
    PipelineOptions options;
    options.open = a_.open;
    options.plan = plan_options(a_.machine);
    options.threads = a_.threads;
    options.max_memory = a_.max_memory;
    const Pipeline pipeline = get(open_pipeline(a_.files, options));
    check_targets(pipeline);
    GenerateOptions generate = a_.generate;
    if (a_.preview) generate.previews = Previews::each_step;
    const std::vector<PartInfo> parts = get(pipeline.parts(generate));
    if (!program_.json) print_parts(program_, parts);
    program_.out.flush();
    GenerateCallbacks callbacks;
    callbacks.progress = [this](const GenerateProgress& p) { return status_.show(p); };
    callbacks.finished = [this](const Generated& made) { return finish(made); };
    if (a_.preview)
      callbacks.preview = [this](const Picture& picture) {
        preview_ = stem_with(path_of(made_), ".preview");
        get(write_png(preview_, picture));
      };
    Capture capture(a_.capture_rows);
    if (!a_.capture.empty())
      callbacks.linear = [&](std::string_view layer, const ConstMatrix& x) {
        capture.add(layer, x);
      };
    get(pipeline.generate(a_.generate, callbacks));
    status_.hide();
    if (signal_caught()) throw Interrupted{};
    if (!a_.capture.empty()) {
      get(capture.write(a_.capture));
      if (!program_.json)
        program_.out.print("{}: inputs of {} layers\n", printable(a_.capture, 1000),
                           capture.layers());
    }
    if (!a_.sheet.empty()) {
      get(write_png(a_.sheet, sheet_of(pictures_)));
      if (!program_.json) program_.out.print("{}\n", printable(a_.sheet, 1000));
    }
    if (program_.json) {
      Json json_parts = Json::array();
      for (const PartInfo& part : parts) json_parts.push_back(to_json(part));
      print_json(program_.out, {{"parts", std::move(json_parts)}, {"pictures", std::move(json_)}});
    }
    return exit_ok;
  }

 private:
  std::string path_of(std::size_t i) const {
    const std::string out = a_.out.empty() ? "parfait.png" : a_.out;
    return total_ == 1 ? out : stem_with(out, fmt::format("-{:0{}}", i + 1, total_ < 100 ? 2 : 5));
  }

  // Minutes of work for a picture that cannot be written would be a pity.
  void check_targets(const Pipeline& pipeline) const {
    const std::vector<std::filesystem::path> inputs = pipeline.files();
    require_apart({a_.sheet, a_.capture, writes_pictures() ? path_of(0) : ""});
    if (!a_.sheet.empty()) get(check_target(a_.sheet, OutputKind::png, inputs));
    if (!a_.capture.empty()) get(check_target(a_.capture, OutputKind::safetensors, inputs));
    for (std::size_t i = 0; writes_pictures() && i < total_; ++i)
      get(check_target(path_of(i), OutputKind::png, inputs));
  }

  // A sheet without -o is all that is asked for.
  bool writes_pictures() const { return a_.sheet.empty() || !a_.out.empty(); }

  void remove_preview() {
    std::error_code ignored;
    if (!preview_.empty()) std::filesystem::remove(preview_, ignored);
    preview_.clear();
  }

  bool finish(const Generated& made) {
    status_.hide();
    if (signal_caught()) return false;
    const std::string path = path_of(made_++);
    for (const std::string& note : made.notes)
      if (made_ == 1) complain(note);
    if (!a_.sheet.empty()) pictures_.push_back(made.picture);
    if (writes_pictures())
      get(write_png(
          path, made.picture,
          std::vector<std::pair<std::string, std::string>>{
              {"parameters", made.parameters}, {"Software", "parfait " PARFAIT_VERSION}}));
    remove_preview();
    if (program_.json) {
      json_.push_back(to_json(made, writes_pictures() ? path : a_.sheet));
      return true;
    }
    std::vector<double> sorted = made.step_seconds;
    std::ranges::sort(sorted);
    if (writes_pictures())
      program_.out.print("{}: seed {}, {} step{} of {:.2f} s\n", printable(path, 1000), made.seed,
                         made.steps, made.steps == 1 ? "" : "s", sorted[sorted.size() / 2]);
    if (a_.profile) print_profile(program_, made.profile);
    program_.out.flush();
    return true;
  }

  Program& program_;
  const Arguments& a_;
  Status status_;
  std::size_t made_ = 0, total_ = 1;
  std::string preview_;  // while there is one
  std::vector<Picture> pictures_;
  Json json_ = Json::array();
};

int run(Program& program, Arguments& a) {
  a.files = {a.model_dir, a.transformer, a.text_encoder, a.vae, a.tokenizer};
  return Maker(program, a).run();
}

}  // namespace

void add_generate(CLI::App& app, Program& program) {
  CLI::App& verb = *app.add_subcommand("generate", "Make pictures from prompts");
  verb.footer(
      "The architecture and every layer's format are found from the files. With several prompts "
      "or\n"
      "--count, pictures are numbered: out-01.png, out-02.png.\n"
      "Example: parfait generate --model-dir models --prompt 'a red fox in snow' --seed 7 -o "
      "fox.png");
  auto a = std::make_shared<Arguments>();
  verb.add_option("--model-dir", a->model_dir,
                  "A folder with all parts, as ComfyUI or Hugging Face lay it out")
      ->type_name("DIR");
  verb.add_option("--transformer", a->transformer, "The transformer")->type_name("FILE");
  verb.add_option("--text-encoder", a->text_encoder, "The text encoder")->type_name("FILE");
  verb.add_option("--vae", a->vae, "The image auto-encoder")->type_name("FILE");
  verb.add_option("--tokenizer", a->tokenizer, "tokenizer.json, or vocab.json with merges.txt")
      ->type_name("FILE");
  verb.add_option("--prompt", a->generate.prompts, "What to draw; may be given several times")
      ->type_name("TEXT")
      ->take_all()
      ->required();
  verb.add_option("--negative", a->generate.negative, "What to draw away from, with --guidance")
      ->type_name("TEXT");
  add_number<std::uint64_t>(verb, "--width", a->generate.width, 1, 1 << 20,
                            "Pixels, a multiple of 16 (default 512)");
  add_number<std::uint64_t>(verb, "--height", a->generate.height, 1, 1 << 20,
                            "Pixels, a multiple of 16 (default 512)");
  add_number<std::uint64_t>(verb, "--steps", a->generate.steps, 1, 1000,
                            "Steps (default: the model's own)");
  add_number<std::uint64_t>(verb, "--seed", a->generate.seed, 0, UINT64_MAX,
                            "Seed of the noise, as torch.manual_seed (default 0)");
  add_number<double>(verb, "--guidance", a->generate.guidance, 0, 1000,
                     "Classifier-free guidance; 1 is none (default 1)")
      ->type_name("G");
  add_number<std::uint64_t>(verb, "--count", a->generate.count, 1, 100'000,
                            "Pictures of each prompt, with seeds one apart (default 1)");
  add_choice<std::string>(verb, "--sampler", a->sampler, {{"euler", "euler"}},
                          "How steps are taken (default euler)");
  verb.add_option("-o,--output", a->out, "Where to write it (default parfait.png)")
      ->type_name("FILE");
  verb.add_option("--sheet", a->sheet,
                  "Also write all pictures side by side; without -o, only this")
      ->type_name("FILE");
  verb.add_flag("--preview", a->preview,
                "Write the picture so far after each step, as OUT.preview.png");
  add_size(verb, "--max-memory", a->max_memory,
           "Memory that the process may take, as 6G: weights are streamed where they must be");
  verb.add_option("--capture", a->capture,
                  "Write rows of what each linear layer of the transformer is given, for "
                  "quantize --calibration")
      ->type_name("FILE");
  add_number<std::uint64_t>(verb, "--capture-rows", a->capture_rows, 1, 65536,
                            "Rows of each layer to keep, of all steps and pictures (default 256)");
  verb.add_flag("--profile", a->profile, "Print where the steps' time went");
  add_number<std::uint32_t>(verb, "--threads", a->threads, 0, 1024,
                            "Threads (default: as many as the machine has)");
  add_machine_options(verb, a->machine);
  add_open_options(verb, a->open);
  add_json_option(verb, program);
  verb.callback([&program, a] { program.run = [&program, a] { return run(program, *a); }; });
}

}  // namespace parfait::cli
