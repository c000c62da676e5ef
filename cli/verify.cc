// parfait verify A B: how far B's decoded weights are from A's.

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cli/table.h"
#include "cli/verbs.h"

namespace parfait::cli {
namespace {

constexpr std::size_t shown_rows = 20;

struct Arguments {
  std::string a, b;
  OpenOptions open;
  VerifyOptions verify;
  bool all = false;
};

double parse_threshold(const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || next != end || !(value >= 0) || !std::isfinite(value))
    throw CLI::ValidationError("--threshold",
                               "takes a relative error such as 0.05, not " + printable(text));
  return value;
}

// The width of the terminal; no limit where standard output is none.
std::size_t terminal_width() {
  winsize size{};
  if (!::isatty(STDOUT_FILENO)) return ~std::size_t{0};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// A name with its middle left out, so that both the block's number and the layer can be read.
std::string elided(std::string_view name, std::size_t most) {
  const std::string text = printable(name, 1000);
  if (display_width(text) <= most || text.size() != display_width(text)) return text;
  const std::size_t head = (most - 1) / 2, tail = most - 1 - head;
  return text.substr(0, head) + "…" + text.substr(text.size() - tail);
}

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.3g}", value) : "inf";
}

Json json_number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::string formats_text(const LayerError& error) {
  if (error.a == error.b) return error.a;
  return fmt::format("{} → {}", error.a.empty() ? "-" : error.a, error.b.empty() ? "-" : error.b);
}

Row row_of(const LayerError& error, std::size_t name_width) {
  const Style style = error.exceeds() ? Style::red : Style::plain;
  Row row = {Cell(elided(error.name, name_width), style), Cell(formats_text(error))};
  if (error.comparison == Comparison::compared) {
    row.insert(
        row.end(),
        {Cell(number(error.relative_l2), style), Cell(number(error.limit)),
         Cell(std::isfinite(error.sqnr_db()) ? fmt::format("{:.1f}", error.sqnr_db()) : "same"),
         Cell(error.not_finite ? counted(error.not_finite, "NaN/inf") : number(error.max_error),
              error.not_finite ? Style::red : Style::plain)});
  } else {
    const bool shape = error.comparison == Comparison::shape;
    row.insert(row.end(), {Cell("-"), Cell("-"), Cell("-"),
                           Cell(shape ? error.a_shape + " ≠ " + error.b_shape
                                      : std::string(comparison_name(error.comparison)),
                                Style::red)});
  }
  return row;
}

void print_table(Output& out, const VerifyReport& report, const Arguments& arguments) {
  const std::size_t rows =
      arguments.all ? report.layers.size() : std::min(report.layers.size(), shown_rows);
  const auto make = [&](std::size_t name_width) {
    std::vector<Row> made;
    for (std::size_t i = 0; i < rows; ++i) made.push_back(row_of(report.layers[i], name_width));
    return made;
  };
  // What the other columns leave of the line.
  std::size_t others = 0, name_width = ~std::size_t{0};
  const std::size_t width = terminal_width();
  const std::vector<std::string> titles = {"layer or tensor", "a → b",   "rel. L2",
                                           "limit",           "SQNR dB", "max error"};
  if (width != name_width) {
    const std::vector<Row> probe = make(name_width);
    for (std::size_t column = 1; column < titles.size(); ++column) {
      std::size_t widest = display_width(titles[column]);
      for (const Row& row : probe) widest = std::max(widest, display_width(row[column].text));
      others += widest + 2;
    }
    constexpr std::size_t least = 24;
    name_width = std::max(least, width > others ? width - others : 0);
  }
  Table table({{titles[0]},
               {titles[1]},
               {titles[2], Align::right},
               {titles[3], Align::right},
               {titles[4], Align::right},
               {titles[5], Align::right}});
  for (Row& row : make(name_width)) table.add(std::move(row));
  table.print(out);
  if (rows < report.layers.size())
    out.print("... and {} that are closer to a (--all lists them)\n",
              grouped(report.layers.size() - rows));
}

void print_report(Output& out, const VerifyReport& report, const Arguments& arguments) {
  print_table(out, report, arguments);
  out.print("\n{} compared, relative L2 {} over all; {}\n", counted(report.values, "value"),
            number(report.relative_l2),
            report.exceeding == 0
                ? out.paint(Style::green, "all within their limits")
                : out.paint(Style::red,
                            fmt::format("{} of {} beyond the limit", grouped(report.exceeding),
                                        grouped(report.layers.size()))));
}

Json to_json(const LayerError& error) {
  Json json = {{"name", error.name}};
  if (!error.b_name.empty()) json["name_in_b"] = error.b_name;
  json["a"] = error.a;
  json["b"] = error.b;
  json["comparison"] = comparison_name(error.comparison);
  json["exceeds"] = error.exceeds();
  if (error.comparison != Comparison::compared) {
    json["a_shape"] = error.a_shape;
    json["b_shape"] = error.b_shape;
    return json;
  }
  json["shape"] = error.a_shape;
  json["values"] = error.values;
  json["relative_l2"] = json_number(error.relative_l2);
  json["limit"] = error.limit;
  json["sqnr_db"] = json_number(error.sqnr_db());  // null: nothing differs
  json["max_error"] = json_number(error.max_error);
  json["not_finite"] = error.not_finite;
  return json;
}

int run(Program& program, const Arguments& arguments) {
  const Checkpoint a = get(open(arguments.a, arguments.open));
  const Checkpoint b = get(open(arguments.b, arguments.open));
  const CheckedCheckpoint checked_a = require_sound(program, a, arguments.a);
  const CheckedCheckpoint checked_b = require_sound(program, b, arguments.b);
  VerifyOptions options = arguments.verify;
  VerifyReport report;
  {
    ProgressBar bar("verifying");
    options.progress = bar.callback();
    report = get(verify(checked_a, checked_b, options));
  }
  if (program.json) {
    Json layers = Json::array();
    for (const LayerError& error : report.layers) layers.push_back(to_json(error));
    print_json(program.out, {{"a", arguments.a},
                             {"b", arguments.b},
                             {"within_limits", report.exceeding == 0},
                             {"exceeding", report.exceeding},
                             {"values", report.values},
                             {"bytes", report.bytes},
                             {"relative_l2", json_number(report.relative_l2)},
                             {"layers", std::move(layers)}});
  } else {
    print_report(program.out, report, arguments);
  }
  return report.exceeding == 0 ? exit_ok : exit_no;
}

}  // namespace

void add_verify(CLI::App& app, Program& program) {
  CLI::App& verb = *app.add_subcommand(
      "verify", "Decode two checkpoints and say how far the second is from the first, by layer");
  verb.footer(
      "A is the reference. Layers are matched by name, with or without model.diffusion_model. in "
      "front; biases and\nplain tensors are compared too. Without --threshold each layer's limit "
      "is what is usual for its format.\n"
      "Exit status: 0 all within their limits, 1 beyond (or only in one file, or of other shapes), "
      "2 failed.\n"
      "Example: parfait verify model-bf16.safetensors model-w4a4.safetensors --threshold 0.2");
  auto arguments = std::make_shared<Arguments>();
  verb.add_option("A", arguments->a, "The reference")->required();
  verb.add_option("B", arguments->b, "What is to be close to it")->required();
  verb.add_option_function<std::string>(
          "--threshold",
          [arguments](const std::string& text) {
            arguments->verify.threshold = parse_threshold(text);
          },
          "The relative L2 error to allow (default: what is usual for the formats)")
      ->type_name("X");
  verb.add_option("--layers", arguments->verify.pattern,
                  "Only layers and tensors whose names match (* and ?)")
      ->type_name("GLOB");
  verb.add_flag("--all", arguments->all, "List all of them, not only the worst");
  add_number<unsigned>(verb, "--threads", arguments->verify.threads, 1, 1024,
                       "Threads to use (default: as many as the machine has)");
  add_open_options(verb, arguments->open);
  add_json_option(verb, program);
  verb.callback([&program, arguments] {
    program.run = [&program, arguments] { return run(program, *arguments); };
  });
}

}  // namespace parfait::cli
