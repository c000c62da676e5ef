// parfait run FILE: the linear layers, one at a time, timed and compared.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "cli/activations.h"
#include "cli/table.h"
#include "cli/verbs.h"

namespace parfait::cli {
namespace {

constexpr std::uint64_t most_rows = 1 << 20;

struct Arguments {
  std::string path, layers, input, out;
  OpenOptions open;
  MachineArguments machine;
  std::uint64_t rows = 16;
  std::uint64_t seed = 0;
  std::uint32_t repeat = 3;
  std::uint32_t threads = 0;
  std::optional<DType> dtype;
  bool verify = false;
};

// A layer to run, or why it is not run.
struct Job {
  const LayerPlan* plan = nullptr;
  Activations::Input input;
  DType output = DType::bf16;
  std::string skipped;

  std::vector<std::uint64_t> output_shape() const {
    std::vector<std::uint64_t> shape = input.shape;
    shape.back() = plan->rows;
    return shape;
  }
  std::uint64_t output_values() const { return input.rows * plan->rows; }
  double operations() const {
    return 2 * static_cast<double>(input.rows) * static_cast<double>(plan->rows) *
           static_cast<double>(plan->columns);
  }
};

struct Outcome {
  double seconds = 0;
  std::optional<double> error;  // relative L2
  double tolerance = 0;
  bool good() const { return !error || *error <= tolerance; }
};

std::string why_not_run(const LayerPlan& layer) {
  if (layer.method == Method::lookup) return "an embedding is looked up, not multiplied";
  if (layer.method == Method::decode_only)
    return fmt::format("a layer of kind {} is not run as a linear one",
                       layer_kind_name(layer.kind));
  return {};
}

std::vector<Job> make_jobs(const Checkpoint& checkpoint, const Plan& plan,
                           const Activations& activations, const Arguments& arguments) {
  std::vector<Job> jobs;
  for (const Layer& layer :
       get(match_layers(checkpoint, arguments.layers.empty() ? "*" : arguments.layers))) {
    Job job;
    job.plan = plan.find(layer.name());
    job.skipped = why_not_run(*job.plan);
    if (job.skipped.empty()) {
      job.input = activations.find(*job.plan);
      job.skipped = job.input.why_not;
      job.output = arguments.dtype.value_or(job.input.dtype);
    }
    jobs.push_back(std::move(job));
  }
  if (std::ranges::none_of(jobs, [](const Job& job) { return job.skipped.empty(); }))
    fail(ErrorCode::run_kind,
         fmt::format("none of {} can be run; {}: {}", counted(jobs.size(), "layer"),
                     printable(jobs[0].plan->name), jobs[0].skipped));
  return jobs;
}

std::optional<Writer> make_writer(const std::vector<Job>& jobs, const Checkpoint& checkpoint,
                                  const Activations& activations, const std::string& target) {
  if (target.empty()) return {};
  std::vector<OutputTensor> tensors;
  for (const Job& job : jobs)
    if (job.skipped.empty()) tensors.push_back({job.plan->name, job.output, job.output_shape()});
  std::vector<Checkpoint> inputs = {checkpoint};
  if (activations.file()) inputs.push_back(*activations.file());
  return get(Writer::create(target, tensors, {}, inputs));
}

double relative_l2(DType dtype, const std::vector<std::byte>& y,
                   const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double want = static_cast<double>(expected[i]);
    const double d = static_cast<double>(load_float(dtype, y.data(), i)) - want;
    difference += d * d;
    norm += want * want;
  }
  if (difference == 0) return 0;
  return std::sqrt(difference / norm);
}

// Loads one layer, runs it and lets it go.
Outcome run_layer(const Job& job, const Plan& plan, const Activations& activations,
                  const Arguments& arguments, std::optional<Writer>& writer, ProgressBar& bar) {
  const LayerPlan& layer = *job.plan;
  const std::vector<std::byte> x = activations.read(layer, job.input);
  std::vector<std::byte> y(job.output_values() * dtype_bits(job.output) / 8);
  const ConstMatrix input{x.data(), job.input.dtype, job.input.rows, layer.columns, layer.columns};
  const Matrix output{y.data(), job.output, job.input.rows, layer.rows, layer.rows};
  Outcome outcome;
  {
    LoadOptions options;
    options.layers = {layer.name};
    options.threads = arguments.threads;
    Session session(get(load(plan, options)), arguments.threads);
    std::vector<double> seconds;
    for (std::uint32_t i = 0; i < arguments.repeat; ++i) {
      if (signal_caught()) throw Interrupted{};
      const auto start = std::chrono::steady_clock::now();
      get(session.linear(layer.name, input, output));
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::ranges::sort(seconds);
    outcome.seconds = seconds[seconds.size() / 2];
  }
  outcome.tolerance = layer_tolerance(layer, job.output, job.input.rows * layer.rows);
  if (arguments.verify) {
    const Checkpoint& checkpoint = plan.checked().checkpoint();
    std::vector<float> expected(job.output_values());
    get(reference_linear(checkpoint, *checkpoint.find(layer.name), input, expected,
                         arguments.threads, bar.callback()));
    outcome.error = relative_l2(job.output, y, expected);
  }
  if (writer) get(writer->append(y));
  return outcome;
}

// --- What is printed ---

struct Summary {
  std::uint64_t layers = 0;
  double seconds = 0, operations = 0, worst = 0;
  void add(const Job& job, const Outcome& outcome) {
    ++layers;
    seconds += outcome.seconds;
    operations += job.operations();
    // A NaN is as bad as can be.
    if (outcome.error) worst = *outcome.error <= worst ? worst : *outcome.error;
  }
};

double giga_rate(double operations, double seconds) {
  return seconds > 0 ? operations / seconds / 1e9 : 0;
}

class Report {
 public:
  Report(Program& program, const Arguments& arguments, const std::vector<Job>& jobs)
      : program_(program), arguments_(arguments), table_(columns(jobs)) {
    if (!program.json) table_.print_titles(program.out);
  }

  void add(const Job& job, const Outcome& outcome) {
    summaries_[job.plan->format].add(job, outcome);
    failed_ += !outcome.good();
    if (program_.json) return layers_.push_back(layer_json(job, outcome));
    Row row = {printable(job.plan->name, 1000),
               job.plan->format,
               method_name(job.plan->method),
               job.plan->kernel,
               fmt::format("{}", job.input.rows),
               fmt::format("{:.3f}", outcome.seconds * 1e3),
               fmt::format("{:.2f}", giga_rate(job.operations(), outcome.seconds))};
    if (outcome.error) {
      row.push_back(
          Cell(fmt::format("{:.2e}", *outcome.error), outcome.good() ? Style::green : Style::red));
      row.push_back(fmt::format("{:.2e}", outcome.tolerance));
      if (!outcome.good()) row.push_back(Cell("above tolerance", Style::red));
    }
    table_.print_row(program_.out, row);
    program_.out.flush();
  }

  void skip(const Job& job) {
    if (program_.json)
      layers_.push_back(
          {{"name", job.plan->name}, {"format", job.plan->format}, {"skipped", job.skipped}});
    else
      program_.out.print(
          "{}\n", program_.out.paint(Style::dim,
                                     fmt::format("{}: skipped: {}", printable(job.plan->name, 1000),
                                                 job.skipped)));
  }

  int finish() {
    if (program_.json)
      print_as_json();
    else
      print_summary();
    if (failed_) complain(fmt::format("{} above tolerance", counted(failed_, "layer")));
    return failed_ ? exit_no : exit_ok;
  }

 private:
  // Wide enough for every row, since rows are printed as layers finish.
  std::vector<Column> columns(const std::vector<Job>& jobs) const {
    std::size_t name = 0, format = 0, method = 0, kernel = 0;
    for (const Job& job : jobs) {
      if (!job.skipped.empty()) continue;
      name = std::max(name, display_width(printable(job.plan->name, 1000)));
      format = std::max(format, job.plan->format.size());
      method = std::max(method, method_name(job.plan->method).size());
      kernel = std::max(kernel, job.plan->kernel.size());
    }
    std::vector<Column> columns = {{"layer", Align::left, name},    {"format", Align::left, format},
                                   {"method", Align::left, method}, {"kernel", Align::left, kernel},
                                   {"rows", Align::right, 5},       {"ms", Align::right, 9},
                                   {"GOP/s", Align::right, 8}};
    if (arguments_.verify)
      columns.insert(
          columns.end(),
          {{"rel. L2", Align::right, 8}, {"tolerance", Align::right}, {"", Align::left}});
    return columns;
  }

  Json layer_json(const Job& job, const Outcome& outcome) const {
    Json json = {{"name", job.plan->name},
                 {"format", job.plan->format},
                 {"method", method_name(job.plan->method)},
                 {"kernel", job.plan->kernel},
                 {"rows", job.input.rows},
                 {"ms", outcome.seconds * 1e3},
                 {"gops", giga_rate(job.operations(), outcome.seconds)}};
    if (outcome.error) {
      json["relative_l2"] = *outcome.error;
      json["tolerance"] = outcome.tolerance;
      json["within_tolerance"] = outcome.good();
    }
    return json;
  }

  void print_summary() {
    std::vector<Column> columns = {
        {"format"}, {"layers", Align::right}, {"ms", Align::right}, {"GOP/s", Align::right}};
    if (arguments_.verify) columns.push_back({"worst rel. L2", Align::right});
    Table table(std::move(columns));
    for (const FormatInfo& format : formats_table()) {
      const auto it = summaries_.find(format.name);
      if (it == summaries_.end()) continue;
      const Summary& summary = it->second;
      Row row = {format.name, grouped(summary.layers), fmt::format("{:.3f}", summary.seconds * 1e3),
                 fmt::format("{:.2f}", giga_rate(summary.operations, summary.seconds))};
      if (arguments_.verify) row.push_back(fmt::format("{:.2e}", summary.worst));
      table.add(std::move(row));
    }
    program_.out.write("\n");
    table.print(program_.out);
  }

  void print_as_json() {
    Json totals = Json::array();
    for (const auto& [format, summary] : summaries_) {
      Json json = {{"format", format},
                   {"layers", summary.layers},
                   {"ms", summary.seconds * 1e3},
                   {"gops", giga_rate(summary.operations, summary.seconds)}};
      if (arguments_.verify) json["worst_relative_l2"] = summary.worst;
      totals.push_back(std::move(json));
    }
    print_json(program_.out, {{"path", arguments_.path},
                              {"layers", std::move(layers_)},
                              {"totals", std::move(totals)},
                              {"above_tolerance", failed_}});
  }

  Program& program_;
  const Arguments& arguments_;
  Table table_;
  Json layers_ = Json::array();
  std::map<std::string_view, Summary> summaries_;
  std::uint64_t failed_ = 0;
};

int run(Program& program, const Arguments& arguments) {
  const PlanOptions options = plan_options(arguments.machine);
  const Checkpoint checkpoint = get(open(arguments.path, arguments.open));
  const CheckedCheckpoint checked = require_sound(program, checkpoint, arguments.path);
  const Plan plan = get(make_plan(checked, options));
  const Activations activations =
      arguments.input.empty()
          ? Activations::random(arguments.rows, arguments.dtype.value_or(DType::bf16),
                                arguments.seed)
          : Activations::from_file(arguments.input);
  const std::vector<Job> jobs = make_jobs(checkpoint, plan, activations, arguments);
  std::optional<Writer> writer = make_writer(jobs, checkpoint, activations, arguments.out);
  Report report(program, arguments, jobs);
  for (const Job& job : jobs) {
    if (!job.skipped.empty()) {
      report.skip(job);
      continue;
    }
    Outcome outcome;
    {
      ProgressBar bar("verifying");
      outcome = run_layer(job, plan, activations, arguments, writer, bar);
    }
    report.add(job, outcome);
  }
  if (signal_caught()) throw Interrupted{};
  if (writer) get(writer->finish());
  return report.finish();
}

}  // namespace

void add_run(CLI::App& app, Program& program) {
  CLI::App& verb = *app.add_subcommand("run", "Run linear layers, one at a time, and time them");
  verb.footer(
      "Tolerances are for bell-shaped inputs; inputs with outliers lose more in 4 and 8 bits.\n"
      "Exit status: 0 done, 1 not sound or above tolerance, 2 failed.\n"
      "Example: parfait run mixed.safetensors --layers 'blocks.0.*' --rows 256 --verify");
  auto arguments = std::make_shared<Arguments>();
  verb.add_option("FILE", arguments->path, "A safetensors file, a shard index, or a folder")
      ->required();
  verb.add_option("--layers", arguments->layers, "Only layers whose names match (* and ?)")
      ->type_name("GLOB");
  CLI::Option* rows = add_number<std::uint64_t>(verb, "--rows", arguments->rows, 1, most_rows,
                                                "Rows of the random input (default 16)");
  verb.add_option("--input", arguments->input,
                  "Take inputs from this safetensors file: a tensor of the layer's name, or x")
      ->type_name("FILE")
      ->excludes(rows);
  verb.add_option("-o,--output", arguments->out, "Write the outputs, by layer name")
      ->type_name("FILE");
  verb.add_flag("--verify", arguments->verify, "Compare with the product with the decoded weight");
  add_number<std::uint64_t>(verb, "--seed", arguments->seed, 0, UINT64_MAX,
                            "Seed of the random input (default 0)");
  add_number<std::uint32_t>(verb, "--threads", arguments->threads, 0, 1024,
                            "Threads (default: as many as the machine has)");
  add_number<std::uint32_t>(verb, "--repeat", arguments->repeat, 1, 1'000'000,
                            "Timed runs; the median counts (default 3)");
  add_choice<DType>(verb, "--dtype", arguments->dtype,
                    {{"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}},
                    "Type of random inputs and of outputs (default bf16, or the given input's)");
  add_machine_options(verb, arguments->machine);
  add_open_options(verb, arguments->open);
  add_json_option(verb, program);
  verb.callback([&program, arguments] {
    program.run = [&program, arguments] { return run(program, *arguments); };
  });
}

}  // namespace parfait::cli
