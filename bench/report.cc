#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/bench.h"

namespace parfait::bench {
namespace {

using Json = nlohmann::ordered_json;

const Entry* find(const Report& report, const Entry& of, std::string_view what) {
  for (const Entry& entry : report.entries)
    if (entry.what == what && entry.shape == of.shape && entry.M == of.M) return &entry;
  return nullptr;
}

// The names of contestants, in the order of their first appearance.
std::vector<std::string> names(const Report& report) {
  std::vector<std::string> all;
  for (const Entry& entry : report.entries)
    if (std::ranges::find(all, entry.what) == all.end()) all.push_back(entry.what);
  return all;
}

// The first entry of each shape and M.
std::vector<const Entry*> cases(const Report& report) {
  std::vector<const Entry*> all;
  for (const Entry& entry : report.entries)
    if (all.empty() || all.back()->shape != entry.shape || all.back()->M != entry.M)
      all.push_back(&entry);
  return all;
}

bool is_own(std::string_view what) {
  return what.ends_with(" layer") ||
         (what.ends_with(" product") && what.find(' ') == what.rfind(' '));
}

template <class Cell>
std::string table(const Report& report, const std::vector<std::string>& columns, Cell cell) {
  std::string text = fmt::format("{:14} {:>5} {:>6} {:>6}", "shape", "M", "N", "K");
  for (const std::string& column : columns)
    text += fmt::format("  {:>{}}", column, std::max<std::size_t>(column.size(), 11));
  text += '\n';
  for (const Entry* one : cases(report)) {
    text += fmt::format("{:14} {:>5} {:>6} {:>6}", one->shape, one->M, one->N, one->K);
    for (const std::string& column : columns)
      text += fmt::format("  {:>{}}", cell(*one, column), std::max<std::size_t>(column.size(), 11));
    text += '\n';
  }
  return text;
}

std::string share(const Entry& entry) {
  return entry.peak > 0
             ? fmt::format("{:.0f} {:3.0f}%", entry.gops(), 100 * entry.gops() / entry.peak)
             : fmt::format("{:.0f}", entry.gops());
}

}  // namespace

std::string to_text(const Report& report) {
  std::string text = fmt::format("machine     {}\n", report.machine);
  text += fmt::format("run         {} threads, medians of {} repeats, interleaved\n",
                      report.threads, report.repeats);
  const Peaks& peaks = report.peaks;
  text += fmt::format(
      "peaks       VNNI {:.0f} GOP/s, bf16 {:.0f} GFLOP/s, f32 {:.0f} GFLOP/s; memory read {:.1f} "
      "GB/s, copy {:.1f} GB/s\n",
      peaks.vnni, peaks.bf16, peaks.f32, peaks.read, peaks.copy);
  text += fmt::format("peers       {}\n", fmt::join(report.peers, ", "));

  const std::vector<std::string> all = names(report);
  std::vector<std::string> own, rivals;
  for (const std::string& name : all) (is_own(name) ? own : rivals).push_back(name);
  text +=
      "\nGOP/s, and the share of the unit's peak measured beside it (VNNI; f32 for the bf16 "
      "layer)\n";
  text += table(report, own, [&](const Entry& of, const std::string& what) {
    const Entry* entry = find(report, of, what);
    return entry ? share(*entry) : std::string("-");
  });
  text += "\nPeers, the same way (int8: VNNI, bf16: bf16, f32: f32)\n";
  text += table(report, rivals, [&](const Entry& of, const std::string& what) {
    const Entry* entry = find(report, of, what);
    return entry ? share(*entry) : std::string("-");
  });

  std::vector<std::string> ratios;
  for (const char* mine : {"int8 layer", "w4a4 layer"})
    for (const std::string& rival : rivals) ratios.push_back(fmt::format("{} / {}", mine, rival));
  ratios.insert(ratios.begin(), "int8 product / oneDNN int8 product");
  text += "\nHow many times as fast\n";
  text += table(report, ratios, [&](const Entry& of, const std::string& what) {
    const std::size_t slash = what.find(" / ");
    const Entry *mine = find(report, of, what.substr(0, slash)),
                *theirs = find(report, of, what.substr(slash + 3));
    return mine && theirs ? fmt::format("{:.2f}", theirs->seconds / mine->seconds)
                          : std::string("-");
  });

  text +=
      "\nWeight bytes read, GB/s, and their share of the measured read bandwidth; quantise: share "
      "of the layer's time\n";
  const std::vector<std::string> memory = {"int8 product", "w4a4 product",  "w4a8 product",
                                           "w6a8 product", "int8 quantise", "w4a4 quantise"};
  text += table(report, memory, [&](const Entry& of, const std::string& what) {
    const std::size_t at = what.find(" quantise");
    if (at != std::string::npos) {
      const Entry* layer = find(report, of, what.substr(0, at) + " layer");
      return layer ? fmt::format("{:.1f}%", 100 * layer->quantize_share) : std::string("-");
    }
    const Entry* entry = find(report, of, what);
    if (!entry) return std::string("-");
    const double rate = static_cast<double>(entry->weight_bytes) / entry->seconds / 1e9;
    return fmt::format("{:.1f} {:3.0f}%", rate, 100 * rate / peaks.read);
  });

  text +=
      "\nPacking at load, GB/s of packed bytes, and the share of the speed of a copy of as many\n";
  for (const Packing& packing : report.packings) {
    const double rate = static_cast<double>(packing.bytes) / packing.seconds / 1e9;
    text += fmt::format("{:14} {:18} {:6.1f} {:3.0f}%\n", packing.shape, packing.kernel, rate,
                        100 * packing.copy_seconds / packing.seconds);
  }
  if (!report.attentions.empty()) {
    text += "\nAttention, GFLOP/s, and the share of the bf16 peak\n";
    for (const Attention& one : report.attentions)
      text +=
          fmt::format("{:6} {} queries, {} keys, {} heads x {}: {:.1f} ms {:.0f} {:.0f}%\n",
                      one.what, one.queries, one.keys, one.heads, one.head_size, one.seconds * 1e3,
                      one.gflops(), one.peak > 0 ? 100 * one.gflops() / one.peak : 0.0);
  }
  return text;
}

std::string to_json(const Report& report) {
  Json json;
  json["machine"] = report.machine;
  json["threads"] = report.threads;
  json["repeats"] = report.repeats;
  json["peaks"] = {{"vnni_gops", report.peaks.vnni},
                   {"bf16_gflops", report.peaks.bf16},
                   {"f32_gflops", report.peaks.f32},
                   {"read_gbs", report.peaks.read},
                   {"copy_gbs", report.peaks.copy}};
  json["peers"] = report.peers;
  for (const Entry& e : report.entries)
    json["linear"].push_back({{"what", e.what},
                              {"kernel", e.kernel},
                              {"shape", e.shape},
                              {"M", e.M},
                              {"N", e.N},
                              {"K", e.K},
                              {"seconds", e.seconds},
                              {"gops", e.gops()},
                              {"peak_gops", e.peak},
                              {"weight_bytes", e.weight_bytes},
                              {"quantize_share", e.quantize_share}});
  for (const Packing& p : report.packings)
    json["packing"].push_back({{"kernel", p.kernel},
                               {"shape", p.shape},
                               {"bytes", p.bytes},
                               {"seconds", p.seconds},
                               {"copy_seconds", p.copy_seconds}});
  for (const Attention& a : report.attentions)
    json["attention"].push_back({{"what", a.what},
                                 {"queries", a.queries},
                                 {"keys", a.keys},
                                 {"heads", a.heads},
                                 {"head_size", a.head_size},
                                 {"seconds", a.seconds},
                                 {"gflops", a.gflops()},
                                 {"peak_gflops", a.peak}});
  return json.dump(1);
}

}  // namespace parfait::bench
