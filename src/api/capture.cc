#include "parfait/capture.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/floats.h"
#include "base/result.h"
#include "container/writer.h"

namespace parfait {
namespace {

struct Rows {
  std::uint64_t columns = 0, seen = 0, kept = 0;
  std::uint64_t random = 0;
  std::vector<std::uint16_t> values;  // bf16, kept × columns

  // splitmix64
  std::uint64_t next() {
    std::uint64_t z = random += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
};

std::uint64_t seed_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

struct Capture::State {
  std::uint64_t most = 0;
  std::map<std::string, Rows, std::less<>> layers;
  std::vector<float> row;
};

Capture::Capture(std::uint64_t rows_of_each_layer) : state_(std::make_unique<State>()) {
  state_->most = std::max<std::uint64_t>(rows_of_each_layer, 1);
}
Capture::~Capture() = default;
Capture::Capture(Capture&&) noexcept = default;
Capture& Capture::operator=(Capture&&) noexcept = default;

void Capture::add(std::string_view layer, const ConstMatrix& x) {
  auto found = state_->layers.find(layer);
  if (found == state_->layers.end()) {
    found = state_->layers.emplace(std::string(layer), Rows{}).first;
    found->second.columns = x.columns;
    found->second.random = seed_of(layer);
  }
  Rows& rows = found->second;
  if (rows.columns != x.columns) return;  // another model's layer of the same name
  std::vector<float>& row = state_->row;
  row.resize(x.columns);
  const std::uint64_t size = dtype_bits(x.dtype) / 8;
  for (std::uint64_t m = 0; m < x.rows; ++m) {
    const std::uint64_t place =
        rows.seen < state_->most ? rows.seen : rows.next() % (rows.seen + 1);
    if (place >= state_->most) {
      ++rows.seen;
      continue;
    }
    widen(x.dtype, static_cast<const std::byte*>(x.data) + m * x.stride * size, x.columns,
          row.data());
    if (!std::ranges::all_of(row, [](float v) { return std::isfinite(v); })) continue;
    ++rows.seen;
    if (place == rows.kept) {
      ++rows.kept;
      rows.values.resize(rows.kept * x.columns);
    }
    std::ranges::transform(
        row, rows.values.begin() + static_cast<std::ptrdiff_t>(place * x.columns), float_to_bf16);
  }
}

std::size_t Capture::layers() const { return state_->layers.size(); }

Result<Done> Capture::write(const std::filesystem::path& path) const {
  std::vector<container::TensorDeclaration> tensors;
  for (const auto& [name, rows] : state_->layers)
    tensors.push_back({name, DType::bf16, {rows.kept, rows.columns}});
  PARFAIT_TRY(container::Writer writer,
              container::Writer::create(path, tensors, {{"rows_of", "linear layers' inputs"}}));
  for (const auto& [name, rows] : state_->layers)
    PARFAIT_CHECK_OK(writer.append(std::as_bytes(std::span(rows.values))));
  return writer.finish();
}

}  // namespace parfait
