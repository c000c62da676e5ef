// Dense products and convolutions by oneDNN, called single-threaded from whichever thread takes a
// piece: a primitive is made for the piece by the thread that runs it, from oneDNN's own cache of
// primitives, so that one object is never run by two threads. Through the C interface, which throws
// nothing.

#include "kernels/dense/variants.h"

#if defined(PARFAIT_ONEDNN)

#include <dnnl.h>

#include <array>
#include <cstring>
#include <type_traits>

#include "base/checked.h"

// Of OpenMP's runtime, whose header not every compiler has.
extern "C" {
int omp_get_max_threads();
void omp_set_num_threads(int);
}

namespace parfait::kernels {
namespace {

// One OpenMP thread for calls from this thread, while it lives.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

template <class Handle, dnnl_status_t (*destroy)(Handle)>
struct Owned {
  Handle handle = nullptr;
  Owned() = default;
  ~Owned() {
    if (handle) destroy(handle);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
};
using Engine = Owned<dnnl_engine_t, dnnl_engine_destroy>;
using Stream = Owned<dnnl_stream_t, dnnl_stream_destroy>;
using Primitive = Owned<dnnl_primitive_t, dnnl_primitive_destroy>;
using Description = Owned<dnnl_primitive_desc_t, dnnl_primitive_desc_destroy>;
using Memory = Owned<dnnl_memory_t, dnnl_memory_destroy>;

// An engine and a stream for each thread, for as long as the thread lives.
struct Device {
  Engine engine;
  Stream stream;
  bool ok = false;
  Device() {
    ok = dnnl_engine_create(&engine.handle, dnnl_cpu, 0) == dnnl_success &&
         dnnl_stream_create(&stream.handle, engine.handle, dnnl_stream_default_flags) ==
             dnnl_success;
  }
};
Device& device() {
  thread_local Device one;
  return one;
}

dnnl_data_type_t type_of(DType dtype) { return dtype == DType::bf16 ? dnnl_bf16 : dnnl_f32; }

// oneDNN also emulates BF16 products, at a third of the speed of floats.
bool multiplies_bf16() {
  constexpr unsigned wanted = dnnl_cpu_isa_avx512_core_bf16;
  return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & wanted) == wanted;
}

struct Argument {
  int index;
  dnnl_memory_desc_t desc;
  const void* data;
};

// Runs a primitive that is described.
bool execute(dnnl_primitive_desc_t description, std::span<const Argument> arguments) {
  Device& on = device();
  Primitive primitive;
  if (dnnl_primitive_create(&primitive.handle, description) != dnnl_success) return false;
  std::array<Memory, 4> memory;
  std::array<dnnl_exec_arg_t, 4> given;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (dnnl_memory_create(&memory[i].handle, &arguments[i].desc, on.engine.handle,
                           const_cast<void*>(arguments[i].data)) != dnnl_success)
      return false;
    given[i] = {arguments[i].index, memory[i].handle};
  }
  return dnnl_primitive_execute(primitive.handle, on.stream.handle,
                                static_cast<int>(arguments.size()), given.data()) == dnnl_success &&
         dnnl_stream_wait(on.stream.handle) == dnnl_success;
}

bool reorder(const dnnl_memory_desc_t& from_desc, const void* from,
             const dnnl_memory_desc_t& to_desc, void* to) {
  Description description;
  return dnnl_reorder_primitive_desc_create(&description.handle, &from_desc, device().engine.handle,
                                            &to_desc, device().engine.handle,
                                            nullptr) == dnnl_success &&
         execute(description.handle, std::array{Argument{DNNL_ARG_FROM, from_desc, from},
                                                Argument{DNNL_ARG_TO, to_desc, to}});
}

dnnl_memory_desc_t strided(dnnl_data_type_t type, std::initializer_list<std::uint64_t> sizes,
                           std::initializer_list<std::uint64_t> strides) {
  dnnl_dims_t dims, steps;
  std::copy(sizes.begin(), sizes.end(), dims);
  std::copy(strides.begin(), strides.end(), steps);
  dnnl_memory_desc_t desc;
  dnnl_memory_desc_init_by_strides(&desc, static_cast<int>(sizes.size()), dims, type, steps);
  return desc;
}
dnnl_memory_desc_t any(dnnl_data_type_t type, std::initializer_list<std::uint64_t> sizes) {
  dnnl_dims_t dims;
  std::copy(sizes.begin(), sizes.end(), dims);
  dnnl_memory_desc_t desc;
  dnnl_memory_desc_init_by_tag(&desc, static_cast<int>(sizes.size()), dims, type,
                               dnnl_format_tag_any);
  return desc;
}

dnnl_status_t describe_product(const dnnl_memory_desc_t& x, const dnnl_memory_desc_t& w,
                               const dnnl_memory_desc_t* bias, const dnnl_memory_desc_t& y,
                               Description& out) {
  dnnl_matmul_desc_t desc;
  const dnnl_status_t status = dnnl_matmul_desc_init(&desc, &x, &w, bias, &y);
  if (status != dnnl_success) return status;
  return dnnl_primitive_desc_create(&out.handle, &desc, nullptr, device().engine.handle, nullptr);
}

// The layouts of whole pieces and of the last, shorter one.
struct Layouts {
  dnnl_memory_desc_t whole, last;
};

// The layout that oneDNN likes for so many outputs, or null where it has no such product.
bool find_layout(dnnl_data_type_t type, std::uint64_t outputs, std::uint64_t columns,
                 dnnl_memory_desc_t& found) {
  Description description;
  if (describe_product(strided(type, {dense_rows, columns}, {columns, 1}),
                       any(type, {columns, outputs}), nullptr,
                       strided(dnnl_f32, {dense_rows, outputs}, {outputs, 1}),
                       description) != dnnl_success)
    return false;
  found = *dnnl_primitive_desc_query_md(description.handle, dnnl_query_weights_md, 0);
  return true;
}

bool pack(const ConstMatrix& w, PackedDense& out) {
  const OneThread one;
  if (!device().ok) return false;
  auto layouts = std::make_shared<Layouts>();
  const std::uint64_t rest = w.rows % dense_outputs;
  // F16, and BF16 on a machine that does not multiply it, stay plain.
  if (w.dtype == DType::f16 || (w.dtype == DType::bf16 && !multiplies_bf16()) || w.rows == 0 ||
      w.columns == 0 || !find_layout(type_of(w.dtype), dense_outputs, w.columns, layouts->whole) ||
      (rest != 0 && !find_layout(type_of(w.dtype), rest, w.columns, layouts->last)))
    return pack_plain(w, out);
  out.dtype = w.dtype;
  out.rows = w.rows;
  out.columns = w.columns;
  const std::uint64_t size = dtype_bits(w.dtype) / 8;
  for (std::uint64_t n = 0; n < w.rows; n += dense_outputs) {
    const std::uint64_t count = std::min(dense_outputs, w.rows - n);
    const dnnl_memory_desc_t& layout = count == dense_outputs ? layouts->whole : layouts->last;
    out.pieces.emplace_back(dnnl_memory_desc_get_size(&layout));
    // [K, N] in oneDNN's terms, so its first axis is the contiguous one.
    if (!reorder(strided(type_of(w.dtype), {w.columns, count}, {1, w.stride}),
                 static_cast<const std::byte*>(w.data) + n * w.stride * size, layout,
                 out.pieces.back().data()))
      return false;
  }
  out.layout = layouts;
  return true;
}

// x as oneDNN takes it: rows one behind the other, in the type that is computed with. Where it is
// not so already it is copied to `room`. oneDNN takes rows that lie apart too, but then leaves its
// fast code for plain loops, and does not say so.
const void* contiguous(const ConstMatrix& x, std::uint64_t first, std::uint64_t last, DType type,
                       float* room) {
  if (x.dtype == type && x.stride == x.columns)
    return static_cast<const std::byte*>(x.data) + first * x.stride * (dtype_bits(type) / 8);
  if (x.dtype == type)
    copy_rows(x, first, last, reinterpret_cast<std::byte*>(room));
  else
    widen_rows(x, first, last, room);
  return room;
}

// Where oneDNN puts rows of y: in y itself, or in `room` when y's rows lie apart or its type is not
// the one that oneDNN rounds to.
struct Target {
  DType type;
  void* data;
  bool in_place;
};
Target target_of(const Matrix& y, std::uint64_t m0, std::uint64_t n0, std::uint64_t outputs,
                 DType type, float* room) {
  if (y.dtype != type || y.stride != outputs) return {type, room, false};
  return {type, static_cast<std::byte*>(y.data) + (m0 * y.stride + n0) * (dtype_bits(type) / 8),
          true};
}
void put(const Target& from, const Matrix& y, std::uint64_t m0, std::uint64_t m1, std::uint64_t n0,
         std::uint64_t n1) {
  if (from.in_place) return;
  if (from.type == y.dtype)
    place_rows(static_cast<const std::byte*>(from.data), y, m0, m1, n0, n1);
  else
    store_rows(static_cast<const float*>(from.data), y, m0, m1, n0, n1);
}

float* reserve(std::vector<float>& scratch, std::uint64_t values) {
  if (scratch.size() < values) scratch.resize(values);
  return scratch.data();
}

// y[m0..m1, n0..n1) from operands that are laid out, computed with in `type`.
bool product(const Argument& x, const Argument& w, const float* bias, DType type, std::uint64_t m0,
             std::uint64_t m1, std::uint64_t n0, std::uint64_t n1, const Matrix& y, float* y_room) {
  const std::uint64_t rows = m1 - m0, outputs = n1 - n0;
  const Target out =
      target_of(y, m0, n0, outputs, y.dtype == DType::bf16 ? type : DType::f32, y_room);
  const Argument y_out{DNNL_ARG_DST, strided(type_of(out.type), {rows, outputs}, {outputs, 1}),
                       out.data};
  const dnnl_memory_desc_t bias_desc = strided(dnnl_f32, {1, outputs}, {outputs, 1});
  Description description;
  if (describe_product(x.desc, w.desc, bias ? &bias_desc : nullptr, y_out.desc, description) !=
      dnnl_success)
    return false;
  const Argument arguments[] = {x, w, y_out, {DNNL_ARG_BIAS, bias_desc, bias}};
  if (!execute(description.handle, std::span(arguments).first(bias ? 4 : 3))) return false;
  put(out, y, m0, m1, n0, n1);
  return true;
}

bool multiply(const PackedDense& w, const ConstMatrix& x, std::uint64_t m0, std::uint64_t m1,
              std::uint64_t n0, std::uint64_t n1, const Matrix& y, std::vector<float>& scratch) {
  const OneThread one;
  if (!device().ok) return false;
  const std::uint64_t rows = m1 - m0, outputs = n1 - n0, K = w.columns;
  const DType type = !w.pieces.empty() && w.dtype == DType::bf16 && x.dtype == DType::bf16
                         ? DType::bf16
                         : DType::f32;
  const bool w_as_it_is = !w.pieces.empty() && w.dtype == type;
  float* x_room = reserve(scratch, rows * K + rows * outputs + (w_as_it_is ? 0 : outputs * K));
  float *y_room = x_room + rows * K, *w_room = y_room + rows * outputs;

  const Argument x_in{DNNL_ARG_SRC, strided(type_of(type), {rows, K}, {K, 1}),
                      contiguous(x, m0, m1, type, x_room)};
  Argument w_in{DNNL_ARG_WEIGHTS, strided(dnnl_f32, {K, outputs}, {1, K}), w_room};
  if (!w.pieces.empty()) {
    const auto* layouts = static_cast<const Layouts*>(w.layout.get());
    const bool whole = std::min(dense_outputs, w.rows - n0) == dense_outputs;
    const dnnl_memory_desc_t& layout = whole ? layouts->whole : layouts->last;
    const std::byte* piece = w.pieces[n0 / dense_outputs].data();
    if (w_as_it_is)
      w_in = {DNNL_ARG_WEIGHTS, layout, piece};
    else if (!reorder(layout, piece, w_in.desc, w_room))
      return false;
  } else {
    const ConstMatrix plain{w.plain.data(), w.dtype, w.rows, K, K};
    widen_rows(plain, n0, n1, w_room);
  }
  return product(x_in, w_in, w.bias.empty() ? nullptr : w.bias.data() + n0, type, m0, m1, n0, n1, y,
                 y_room);
}

bool multiply_bf16(const ConstMatrix& w, const float* bias, const ConstMatrix& x, std::uint64_t m0,
                   std::uint64_t m1, std::uint64_t n0, std::uint64_t n1, const Matrix& y,
                   std::vector<float>& scratch) {
  const OneThread one;
  if (!device().ok) return false;
  const std::uint64_t rows = m1 - m0, outputs = n1 - n0, K = w.columns;
  float* x_room = reserve(scratch, rows * K + rows * outputs);
  const Argument x_in{DNNL_ARG_SRC, strided(dnnl_bf16, {rows, K}, {K, 1}),
                      contiguous(x, m0, m1, DType::bf16, x_room)};
  const Argument w_in{DNNL_ARG_WEIGHTS, strided(dnnl_bf16, {K, outputs}, {1, w.stride}),
                      static_cast<const std::byte*>(w.data) + n0 * w.stride * 2};
  return product(x_in, w_in, bias ? bias + n0 : nullptr, DType::bf16, m0, m1, n0, n1, y,
                 x_room + rows * K);
}

std::uint64_t bf16_scratch_bytes(std::uint64_t columns) {
  constexpr std::uint64_t rows = dense_rows, outputs = dense_outputs;
  const std::uint64_t own = (rows * columns + rows * outputs) * sizeof(float);
  Description description;
  dnnl_dim_t library = 0;
  if (!device().ok ||
      describe_product(strided(dnnl_bf16, {rows, columns}, {columns, 1}),
                       strided(dnnl_bf16, {columns, outputs}, {1, columns}), nullptr,
                       strided(dnnl_bf16, {rows, outputs}, {outputs, 1}),
                       description) != dnnl_success ||
      dnnl_primitive_desc_query(description.handle, dnnl_query_memory_consumption_s64, 0,
                                &library) != dnnl_success)
    return own;
  return own + static_cast<std::uint64_t>(std::max<dnnl_dim_t>(library, 0));
}

// --- Convolution ---

// The strip of input that output rows [oy0, oy1) read, and what of its padding is left.
struct Strip {
  std::uint64_t first, last, pad_top, pad_bottom;  // input rows [first, last)
};
Strip strip_of(const ConvShape& shape, std::uint64_t oy0, std::uint64_t oy1) {
  const ConvOptions& o = shape.options;
  const std::uint64_t begin = oy0 * o.stride, end = (oy1 - 1) * o.stride + o.kernel_height;
  Strip strip;
  strip.pad_top = begin < o.pad_top ? o.pad_top - begin : 0;
  strip.first = begin + strip.pad_top - o.pad_top;
  const std::uint64_t want = end - o.pad_top;  // a kernel is taller than its padding
  strip.last = std::min(want, shape.in.height);
  strip.pad_bottom = want - strip.last;
  return strip;
}

dnnl_memory_desc_t image(DType type, std::uint64_t height, std::uint64_t width,
                         std::uint64_t channels) {
  return strided(type_of(type), {1, channels, height, width},
                 {height * width * channels, 1, width * channels, channels});
}

// w may be of any layout: oneDNN's choice is then the description's weights.
dnnl_status_t describe_convolution(const ConvShape& shape, const Strip& strip,
                                   const dnnl_memory_desc_t& x, const dnnl_memory_desc_t& w,
                                   const dnnl_memory_desc_t* bias, const dnnl_memory_desc_t& y,
                                   Description& out) {
  const ConvOptions& o = shape.options;
  const auto stride = static_cast<dnnl_dim_t>(o.stride);
  const dnnl_dims_t strides = {stride, stride},
                    before = {static_cast<dnnl_dim_t>(strip.pad_top),
                              static_cast<dnnl_dim_t>(o.pad_left)},
                    after = {static_cast<dnnl_dim_t>(strip.pad_bottom),
                             static_cast<dnnl_dim_t>(o.pad_right)};
  dnnl_convolution_desc_t desc;
  const dnnl_status_t status =
      dnnl_convolution_forward_desc_init(&desc, dnnl_forward_inference, dnnl_convolution_direct, &x,
                                         &w, bias, &y, strides, before, after);
  if (status != dnnl_success) return status;
  return dnnl_primitive_desc_create(&out.handle, &desc, nullptr, device().engine.handle, nullptr);
}

bool convolve(const PackedConv& w, const ConvShape& shape, const ConstMatrix& x, std::uint64_t oy0,
              std::uint64_t oy1, const Matrix& y, std::vector<float>& scratch) {
  const OneThread one;
  if (!device().ok) return false;
  const ConvOptions& o = shape.options;
  const Strip strip = strip_of(shape, oy0, oy1);
  const std::uint64_t height = strip.last - strip.first, in_pixels = height * shape.in.width,
                      out_height = oy1 - oy0, out_pixels = out_height * shape.out.width;
  const std::uint64_t C = shape.in_channels, O = shape.out_channels,
                      taps = o.kernel_height * o.kernel_width;
  const DType type = w.dtype == DType::bf16 && x.dtype == DType::bf16 && multiplies_bf16()
                         ? DType::bf16
                         : DType::f32;
  const DType y_type = y.dtype == DType::bf16 ? type : DType::f32;

  // x and y as contiguous pixels in channels-last order; w in the layout that oneDNN asks for.
  const dnnl_memory_desc_t x_desc = image(type, height, shape.in.width, C);
  const dnnl_memory_desc_t y_desc = image(y_type, out_height, shape.out.width, O);
  const dnnl_memory_desc_t bias_desc = strided(dnnl_f32, {O}, {1});
  const bool biased = !w.bias.empty();
  Description description;
  if (describe_convolution(shape, strip, x_desc,
                           any(type_of(type), {O, C, o.kernel_height, o.kernel_width}),
                           biased ? &bias_desc : nullptr, y_desc, description) != dnnl_success)
    return false;
  const dnnl_memory_desc_t w_desc =
      *dnnl_primitive_desc_query_md(description.handle, dnnl_query_weights_md, 0);

  const std::uint64_t x_values = in_pixels * C, y_values = out_pixels * O,
                      w_floats = w.dtype == type ? 0 : O * C * taps,
                      w_values = round_up(dnnl_memory_desc_get_size(&w_desc), 64) / 4 + 16;
  float* x_room = reserve(scratch, x_values + y_values + w_floats + w_values);
  float *y_room = x_room + x_values, *plain_room = y_room + y_values,
        *w_room = plain_room + w_floats;
  const std::uint64_t first_pixel = strip.first * shape.in.width;
  const void* x_data = contiguous(x, first_pixel, first_pixel + in_pixels, type, x_room);
  const void* plain = w.plain.data();
  if (w_floats != 0) {
    widen_rows({w.plain.data(), w.dtype, 1, w_floats, w_floats}, 0, 1, plain_room);
    plain = plain_room;
  }
  if (!reorder(strided(type_of(type), {O, C, o.kernel_height, o.kernel_width},
                       {C * taps, taps, o.kernel_width, 1}),
               plain, w_desc, w_room))
    return false;
  const std::uint64_t y_pixel = oy0 * shape.out.width;
  const Target out = target_of(y, y_pixel, 0, O, y_type, y_room);
  const Argument arguments[] = {{DNNL_ARG_SRC, x_desc, x_data},
                                {DNNL_ARG_WEIGHTS, w_desc, w_room},
                                {DNNL_ARG_DST, y_desc, out.data},
                                {DNNL_ARG_BIAS, bias_desc, biased ? w.bias.data() : nullptr}};
  if (!execute(description.handle, std::span(arguments).first(biased ? 4 : 3))) return false;
  put(out, y, y_pixel, y_pixel + out_pixels, 0, O);
  return true;
}

}  // namespace

const DenseKernel dense_onednn = {"dense.onednn", Isa::avx2, pack, multiply};
const Bf16Kernel bf16_onednn = {"bf16.onednn", Isa::avx512_bf16, multiply_bf16, bf16_scratch_bytes};
const ConvKernel conv_onednn = {"conv.onednn", Isa::avx2, convolve};

}  // namespace parfait::kernels

#endif  // PARFAIT_ONEDNN
