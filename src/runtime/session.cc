#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/floats.h"
#include "base/result.h"
#include "runtime/model.h"

namespace parfait::runtime {
namespace {

bool is_activation(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

Result<Done> check_matrix(std::string_view layer, std::string_view what, DType dtype,
                          std::uint64_t rows, std::uint64_t columns, std::uint64_t stride,
                          std::uint64_t want_rows, std::uint64_t want_columns) {
  if (!is_activation(dtype))
    return make_error(ErrorCode::run_dtype, "layer {}: {} is {}, where F32, F16 or BF16 is taken",
                      printable(layer), what, dtype_name(dtype));
  if (rows != want_rows || columns != want_columns)
    return make_error(ErrorCode::run_shape, "layer {}: {} is [{}, {}], expected [{}, {}]",
                      printable(layer), what, rows, columns, want_rows, want_columns);
  if (stride < columns)
    return make_error(ErrorCode::run_shape,
                      "layer {}: rows of {} are {} elements long but start {} apart",
                      printable(layer), what, columns, stride);
  return Done{};
}

Result<const LoadedLayer*> find_layer(const Model& model, std::string_view name) {
  if (const LoadedLayer* layer = model.find(name)) return layer;
  if (model.plan.state()->by_name.contains(name))
    return make_error(ErrorCode::layer_not_found, "layer {} is in the plan but was not loaded",
                      printable(name));
  return make_error(ErrorCode::layer_not_found, "no layer is named {}", printable(name));
}

// What of x a layer's kernel reads.
enum class CodesWanted { none, int4, int8 };
CodesWanted codes_wanted(const LoadedLayer& layer) {
  if (!layer.kernels.linear) return CodesWanted::none;
  return layer.plan->method == Method::w4a4_int4 ? CodesWanted::int4 : CodesWanted::int8;
}

// Decoded rows at a time on each thread: about half a megabyte, never a second copy of the weight,
// and what a second-level cache holds.
std::uint64_t decoded_rows(std::uint64_t columns) {
  return std::clamp<std::uint64_t>((1u << 17) / std::max<std::uint64_t>(columns, 1), 1, 64);
}

// As many rows of codes as leave room for two panels in a second-level cache of a megabyte; the
// tiles of all kernels divide them.
std::uint64_t rows_at_once(std::uint64_t stride) {
  constexpr std::uint64_t bytes = 420 << 10, multiple = 24, least = 96;
  return std::max(bytes / (stride * multiple) * multiple, least);
}

// Row m of x, as floats.
void widen_row(const ConstMatrix& x, std::uint64_t m, float* out) {
  const std::uint64_t size = dtype_bits(x.dtype) / 8;
  widen(x.dtype, static_cast<const std::byte*>(x.data) + m * x.stride * size, x.columns, out);
}

}  // namespace

Result<Done> Session::linear(std::span<const LinearTarget> targets, const ConstMatrix& x) {
  std::vector<Call> calls;
  for (const LinearTarget& target : targets) {
    PARFAIT_TRY(const LoadedLayer* layer, find_layer(*model, target.layer));
    const LayerPlan& plan = *layer->plan;
    if (plan.method == Method::lookup || plan.method == Method::decode_only)
      return make_error(ErrorCode::run_kind,
                        "layer {}: is of kind {}, which is not run as a linear layer",
                        printable(target.layer), layer_kind_name(plan.kind));
    const Matrix& y = target.y;
    PARFAIT_CHECK_OK(check_matrix(target.layer, "x", x.dtype, x.rows, x.columns, x.stride, x.rows,
                                  plan.columns));
    PARFAIT_CHECK_OK(
        check_matrix(target.layer, "y", y.dtype, y.rows, y.columns, y.stride, x.rows, plan.rows));
    calls.push_back({layer, y});
  }
  if (x.rows == 0) return Done{};
  // Layers that want the same codes of x stand together.
  std::ranges::stable_sort(calls, std::less(), [](const Call& call) {
    return std::pair(codes_wanted(*call.layer), call.layer->packed.rotate_group);
  });
  for (std::size_t first = 0; first < calls.size();) {
    if (!calls[first].layer->kernels.linear) {
      const LoadedLayer& layer = *calls[first].layer;
      if (layer.kernels.bf16 && x.dtype == DType::bf16 && x.rows >= plan::least_bf16_rows)
        PARFAIT_CHECK_OK(run_bf16(layer, x, calls[first].y));
      else
        run_decoded(layer, x, calls[first].y);
      ++first;
      continue;
    }
    std::size_t end = first + 1;
    while (end < calls.size() &&
           codes_wanted(*calls[end].layer) == codes_wanted(*calls[first].layer) &&
           calls[end].layer->packed.rotate_group == calls[first].layer->packed.rotate_group)
      ++end;
    quantize(*calls[first].layer, x);
    multiply(std::span(calls).subspan(first, end - first));
    first = end;
  }
  return Done{};
}

void Session::quantize(const LoadedLayer& layer, const ConstMatrix& x) {
  const Activation mode =
      codes_wanted(layer) == CodesWanted::int4 ? Activation::int4 : Activation::int8;
  quantized.resize(x.rows, x.columns);
  reserve_bytes(kernels::quantize_scratch(x.columns) * sizeof(float));
  const std::uint64_t rows = x.rows >= 64 ? 16 : ceil_div(x.rows, 4);
  pool.run(ceil_div(x.rows, rows), [&](std::uint64_t piece, unsigned thread) {
    layer.kernels.quantize->run(x, piece * rows, std::min((piece + 1) * rows, x.rows),
                                layer.packed.rotate_group, mode, quantized,
                                reinterpret_cast<float*>(scratch[thread].data()));
  });
}

// Layers that want the same codes of x. A piece of work is some rows of one weight, which stay in
// the cache while rows of x pass by, and at most m_step rows of x; weights that are widened on the
// way meet all rows of x at once.
void Session::multiply(std::span<const Call> calls) {
  const kernels::QuantizedRows& x = quantized;
  struct Pieces {
    std::uint64_t first, n_pieces, n_step, m_step;
  };
  std::vector<Pieces> pieces;
  std::uint64_t count = 0;
  for (const Call& call : calls) {
    const kernels::LinearKernel& kernel = *call.layer->kernels.linear;
    const std::uint64_t bytes = kernel.scratch_bytes(x.columns);
    reserve_bytes(bytes);
    Pieces one{count, 0, round_up(64, kernel.row_tile),
               bytes != 0 ? x.rows : rows_at_once(quantized.stride)};
    one.n_pieces = ceil_div(call.layer->packed.rows, one.n_step);
    count += one.n_pieces * ceil_div(x.rows, one.m_step);
    pieces.push_back(one);
  }
  pool.run(count, [&](std::uint64_t piece, unsigned thread) {
    std::size_t which = 0;
    while (which + 1 < pieces.size() && pieces[which + 1].first <= piece) ++which;
    const Pieces& p = pieces[which];
    const kernels::PackedWeight& w = calls[which].layer->packed;
    const std::uint64_t n0 = (piece - p.first) % p.n_pieces * p.n_step,
                        m0 = (piece - p.first) / p.n_pieces * p.m_step;
    calls[which].layer->kernels.linear->multiply(w, quantized, m0, std::min(m0 + p.m_step, x.rows),
                                                 n0, std::min(n0 + p.n_step, w.rows),
                                                 calls[which].y, scratch[thread].data());
  });
}

void Session::run_decoded(const LoadedLayer& layer, const ConstMatrix& x, const Matrix& y) {
  const std::uint64_t columns = layer.plan->columns, rows = layer.plan->rows;
  reserve_input(x.rows * columns);
  pool.run(ceil_div(x.rows, 16), [&](std::uint64_t piece, unsigned) {
    for (std::uint64_t m = piece * 16; m < std::min(piece * 16 + 16, x.rows); ++m) {
      float* row = input.data() + m * columns;
      widen_row(x, m, row);
      if (!layer.pre_quant_scale.empty())
        for (std::uint64_t k = 0; k < columns; ++k) row[k] *= layer.pre_quant_scale[k];
    }
  });
  const std::uint64_t tile = decoded_rows(columns);
  reserve_tiles(tile * columns);
  const float* bias = layer.bias.empty() ? nullptr : layer.bias.data();
  pool.run(ceil_div(rows, tile), [&](std::uint64_t piece, unsigned thread) {
    const std::uint64_t n0 = piece * tile, n1 = std::min(n0 + tile, rows);
    std::vector<float>& decoded = row_tiles[thread];
    layer.layer->format->decode(layer.data, n0, n1 - n0, decoded.data());
    layer.kernels.decode->multiply(input.data(), columns, 0, x.rows, decoded.data(), n0, n1,
                                   columns, bias, y);
  });
}

Result<Done> Session::run_bf16(const LoadedLayer& layer, const ConstMatrix& x, const Matrix& y) {
  const std::uint64_t N = layer.plan->rows, K = layer.plan->columns;
  const ConstMatrix w{layer.data.part("weight").data(), DType::bf16, N, K, K};
  const float* bias = layer.bias.empty() ? nullptr : layer.bias.data();
  const std::uint64_t m_pieces = ceil_div(x.rows, kernels::dense_rows),
                      n_pieces = ceil_div(N, kernels::dense_outputs);
  rooms.resize(pool.count());
  std::atomic<bool> failed{false};
  pool.run(m_pieces * n_pieces, [&](std::uint64_t piece, unsigned thread) {
    // The rows of x in turn, so that a piece of the weight is read from memory once.
    const std::uint64_t m0 = piece % m_pieces * kernels::dense_rows,
                        n0 = piece / m_pieces * kernels::dense_outputs;
    try {
      if (!layer.kernels.bf16->multiply(w, bias, x, m0, std::min(m0 + kernels::dense_rows, x.rows),
                                        n0, std::min(n0 + kernels::dense_outputs, N), y,
                                        rooms[thread]))
        failed = true;
    } catch (const std::bad_alloc&) {
      failed = true;
    }
  });
  if (failed)
    return make_error(ErrorCode::out_of_memory,
                      "layer {}: {} had no memory for a piece of the product, or refused it",
                      printable(layer.plan->name), layer.kernels.bf16->name);
  return Done{};
}

std::uint64_t ScratchBytes::count(const LinearInput& in) {
  const auto it = plan_.by_name.find(in.layer);
  if (it == plan_.by_name.end()) return bytes();
  const plan::Chosen& chosen = plan_.chosen[it->second];
  const std::uint64_t columns = plan_.layers[it->second].columns;
  const auto raise = [](std::uint64_t& most, std::uint64_t to) { most = std::max(most, to); };
  if (chosen.linear) {
    raise(codes_, in.rows * (kernels::QuantizedRows::stride_of(columns) + 8));
    raise(thread_, std::max(kernels::quantize_scratch(columns) * sizeof(float),
                            chosen.linear->scratch_bytes(columns)));
  } else if (chosen.bf16 && in.dtype == DType::bf16 && in.rows >= plan::least_bf16_rows) {
    raise(room_, chosen.bf16->scratch_bytes(columns));
  } else {
    raise(input_, in.rows * columns * sizeof(float));
    raise(tile_, decoded_rows(columns) * columns * sizeof(float));
  }
  return bytes();
}

void Session::drop_scratch() {
  quantized = {};
  input = {};
  row_tiles.clear();
  rooms.clear();
  scratch.clear();
}

// Contents are not kept, so that no two of them are held at once.
void Session::reserve_input(std::uint64_t values) {
  if (input.capacity() < values) input = {};
  input.resize(values);
}

void Session::reserve_bytes(std::uint64_t bytes) {
  scratch.resize(pool.count());
  for (kernels::AlignedBytes& one : scratch)
    if (one.size() < bytes) one = kernels::AlignedBytes(bytes);
}

// Before the threads start: work that they share must not fail, and memory can.
void Session::reserve_tiles(std::uint64_t values) {
  row_tiles.resize(pool.count());
  for (std::vector<float>& tile : row_tiles)
    if (tile.size() < values) tile.resize(values);
}

Result<Done> check_lookup(std::string_view name, std::uint64_t rows, std::uint64_t columns,
                          std::span<const std::int64_t> ids, const Matrix& y) {
  PARFAIT_CHECK_OK(
      check_matrix(name, "y", y.dtype, y.rows, y.columns, y.stride, ids.size(), columns));
  for (std::int64_t id : ids)
    if (id < 0 || static_cast<std::uint64_t>(id) >= rows)
      return make_error(ErrorCode::run_shape, "layer {}: id {} lies outside its {} rows",
                        printable(name), id, rows);
  return Done{};
}

Result<Done> Session::lookup(std::string_view name, std::span<const std::int64_t> ids,
                             const Matrix& y) {
  PARFAIT_TRY(const LoadedLayer* layer, find_layer(*model, name));
  if (layer->plan->method != Method::lookup)
    return make_error(ErrorCode::run_kind, "layer {}: is of kind {}, not an embedding",
                      printable(name), layer_kind_name(layer->plan->kind));
  const std::uint64_t columns = layer->plan->columns;
  PARFAIT_CHECK_OK(check_lookup(name, layer->plan->rows, columns, ids, y));
  constexpr std::uint64_t piece_rows = 16;
  reserve_tiles(columns);
  pool.run(ceil_div(ids.size(), piece_rows), [&](std::uint64_t piece, unsigned thread) {
    std::vector<float>& row = row_tiles[thread];
    for (std::uint64_t i = piece * piece_rows;
         i < std::min<std::uint64_t>((piece + 1) * piece_rows, ids.size()); ++i) {
      layer->layer->format->decode(layer->data, static_cast<std::uint64_t>(ids[i]), 1, row.data());
      for (std::uint64_t k = 0; k < columns; ++k)
        store_float(y.dtype, static_cast<std::byte*>(y.data), i * y.stride + k, row[k]);
    }
  });
  return Done{};
}

}  // namespace parfait::runtime
