#include "cli/quantize_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/table.h"
#include "parfait/text.h"

namespace parfait::cli {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : printable(text, 1000)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

constexpr std::string_view colours[] = {"#c2410c", "#1d4ed8", "#15803d", "#7e22ce",
                                        "#b45309", "#0e7490", "#be123c", "#4d7c0f"};

// A colour for each format that occurs, in the order of their names.
std::map<std::string, std::string_view> colours_of(const QuantizeReport& report) {
  std::map<std::string, std::string_view> result;
  for (const LayerReport& layer : report.layers) result[layer.format] = "";
  std::size_t i = 0;
  for (auto& [format, colour] : result) colour = colours[i++ % std::size(colours)];
  return result;
}

constexpr double width = 1040, height = 220, left = 60, gap = 26;

// Two rows of bars over the same layers: error above, size below.
std::string chart(const QuantizeReport& report) {
  const auto colour = colours_of(report);
  double most_error = 0, most_bytes = 1;
  for (const LayerReport& layer : report.layers) {
    if (std::isfinite(layer.relative_l2)) most_error = std::max(most_error, layer.relative_l2);
    most_bytes = std::max(most_bytes, static_cast<double>(layer.bytes));
  }
  if (most_error <= 0) most_error = 1;
  const double step =
      (width - left) / static_cast<double>(std::max<std::size_t>(report.layers.size(), 1));
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Error and size of each layer\">\n",
      width, 2 * height + 3 * gap);
  const auto axis = [&](double top, std::string_view name, const std::string& most) {
    svg += fmt::format(
        "<text x=\"0\" y=\"{0:.0f}\">{1}</text><text x=\"0\" y=\"{2:.0f}\">{3}</text>"
        "<line x1=\"{4}\" y1=\"{5}\" x2=\"{6}\" y2=\"{5}\" stroke=\"#888\"/>\n",
        top - 8, name, top + 12, most, left, top + height, width);
  };
  axis(gap, "relative L2", fmt::format("{:.4f}", most_error));
  axis(2 * gap + height, "bytes", bytes_text(static_cast<std::uint64_t>(most_bytes)));
  for (std::size_t i = 0; i < report.layers.size(); ++i) {
    const LayerReport& layer = report.layers[i];
    const double x = left + step * static_cast<double>(i);
    const auto bar = [&](double top, double share) {
      const double tall = std::max(share * height, 0.5);
      svg += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\">"
          "<title>{}: {}, relative L2 {:.5f}, {}</title></rect>\n",
          x, top + height - tall, std::max(step * 0.85, 0.4), tall, colour.at(layer.format),
          escaped(layer.name), escaped(layer.format), layer.relative_l2, bytes_text(layer.bytes));
    };
    bar(gap, std::isfinite(layer.relative_l2) ? layer.relative_l2 / most_error : 1);
    bar(2 * gap + height, static_cast<double>(layer.bytes) / most_bytes);
  }
  svg += "</svg>\n<p>";
  for (const auto& [format, value] : colour)
    svg += fmt::format("<span class=\"key\" style=\"background:{}\"></span>{} ", value,
                       escaped(format));
  return svg + "</p>\n";
}

std::string row(std::initializer_list<std::string> cells) {
  std::string text = "<tr>";
  for (const std::string& cell : cells) text += "<td>" + cell + "</td>";
  return text + "</tr>\n";
}

}  // namespace

std::string quantize_html(const std::string& title, const QuantizePlan& plan,
                          const QuantizeReport& report) {
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n"
      "<style>body{{font:14px/1.5 system-ui,sans-serif;max-width:1080px;margin:2em auto;padding:0 "
      "1em}}table{{border-collapse:collapse;width:100%}}td,th{{padding:2px 8px;text-align:right;"
      "border-bottom:1px solid #ddd}}td:first-child,th:first-child,td:nth-child(2),"
      "th:nth-child(2){{text-align:left}}svg text{{font:11px system-ui,sans-serif}}.key{{display:"
      "inline-block;width:.9em;height:.9em;margin:0 .3em 0 1em}}</style></head><body>\n"
      "<h1>{0}</h1>\n<p>{1} quantised by the recipe {2}: {3} became {4}, {5:.3f} bits a weight, "
      "relative L2 {6:.5f} of all of them together, in {7:.1f} s.</p>\n",
      escaped(title), counted(report.layers.size(), "layer"), escaped(plan.recipe()),
      bytes_text(report.source_bytes), bytes_text(report.bytes), plan.bits_per_weight(),
      report.relative_l2, report.seconds);
  page += chart(report);
  page +=
      "<table><thead><tr><th>layer</th><th>format</th><th>bytes</th><th>bits</th>"
      "<th>relative L2</th><th>SQNR dB</th><th>max error</th><th>s</th></tr></thead><tbody>\n";
  for (const LayerReport& layer : report.layers)
    page += row(
        {escaped(layer.name),
         escaped(layer.format + (layer.settings.empty() ? "" : ", " + layer.settings)),
         grouped(layer.bytes),
         fmt::format("{:.2f}", static_cast<double>(layer.bytes) * 8 /
                                   static_cast<double>(std::max<std::uint64_t>(layer.weights, 1))),
         fmt::format("{:.5f}", layer.relative_l2),
         std::isfinite(layer.sqnr_db) ? fmt::format("{:.2f}", layer.sqnr_db) : "exact",
         fmt::format("{:.3g}", layer.max_error), fmt::format("{:.2f}", layer.seconds)});
  page += "</tbody></table>\n<h2>Kept</h2>\n<table><tbody>\n";
  for (const QuantizeLayer& layer : plan.layers())
    if (layer.kept)
      page += row(
          {escaped(layer.name), escaped(layer.from), grouped(layer.bytes), escaped(layer.reason)});
  return page + "</tbody></table>\n</body></html>\n";
}

}  // namespace parfait::cli
