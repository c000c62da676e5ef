#include "bench/linear.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>

#include "base/floats.h"
#include "parfait/parfait.h"
#include "runtime/model.h"

namespace parfait::bench {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Tensor {
  OutputTensor tensor;
  enum class Fill { codes, ones, small_scales, relative, text, bf16 } fill;
  std::string text;
};

void add(std::vector<Tensor>& all, const std::string& name, DType dtype,
         std::vector<std::uint64_t> shape, Tensor::Fill fill) {
  all.push_back({{name, dtype, std::move(shape)}, fill, {}});
}
void add_marker(std::vector<Tensor>& all, const std::string& layer, std::string text) {
  const std::uint64_t size = text.size();
  all.push_back({{layer + ".comfy_quant", DType::u8, {size}}, Tensor::Fill::text, std::move(text)});
}

// A layer of each format that has an integer kernel, and one in bf16.
std::vector<Tensor> tensors_of(std::uint64_t N, std::uint64_t K) {
  using Fill = Tensor::Fill;
  std::vector<Tensor> all;
  add(all, "int8.weight", DType::i8, {N, K}, Fill::codes);
  add(all, "int8.weight_scale", DType::f32, {N, 1}, Fill::small_scales);
  add(all, "int8.bias", DType::bf16, {N}, Fill::bf16);
  add_marker(all, "int8",
             R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 256})");
  add(all, "w4a4.weight", DType::i8, {N, K / 2}, Fill::codes);
  add(all, "w4a4.weight_scale", DType::f32, {N}, Fill::small_scales);
  add(all, "w4a4.bias", DType::bf16, {N}, Fill::bf16);
  add_marker(all, "w4a4",
             R"({"format": "convrot_w4a4", "convrot_groupsize": 256, "linear_dtype": "int4"})");
  constexpr std::uint64_t group = 32;
  add(all, "w4a8.weight", DType::i8, {N, K / 2}, Fill::codes);
  add(all, "w4a8.weight_s_rel", DType::f8_e4m3, {N, K / group}, Fill::relative);
  add(all, "w4a8.weight_s_channel", DType::f32, {N}, Fill::small_scales);
  add_marker(
      all, "w4a8",
      R"({"format": "asym_w4a8_int8", "group_size": 32, "convrot": true, "convrot_groupsize": 256})");
  add(all, "w6a8.weight", DType::i8, {N, K / 4 * 3}, Fill::codes);
  add(all, "w6a8.weight_s_rel", DType::f8_e4m3, {N, K / group}, Fill::relative);
  add(all, "w6a8.weight_s_channel", DType::f32, {N}, Fill::small_scales);
  add_marker(
      all, "w6a8",
      R"({"format": "w6a8_int8", "group_size": 32, "convrot": true, "convrot_groupsize": 256})");
  add(all, "bf16.weight", DType::bf16, {N, K}, Fill::bf16);
  return all;
}

// A stream of bytes that nothing compresses and no branch foresees.
class Noise {
 public:
  std::uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }

 private:
  std::uint64_t state_ = 0x9e3779b97f4a7c15;
};

void fill(const Tensor& tensor, std::uint64_t bytes, Noise& noise, std::vector<std::byte>& out) {
  out.resize(bytes);
  switch (tensor.fill) {
    case Tensor::Fill::text:
      std::transform(tensor.text.begin(), tensor.text.end(), out.begin(),
                     [](char c) { return static_cast<std::byte>(c); });
      return;
    case Tensor::Fill::relative:  // e4m3 from 0.5 to 4
      for (std::byte& b : out) b = static_cast<std::byte>(0x30 + noise.next() % 24);
      return;
    case Tensor::Fill::small_scales:
    case Tensor::Fill::ones:
      for (std::uint64_t i = 0; i < bytes / 4; ++i)
        store_float(DType::f32, out.data(), i, 1e-3f * static_cast<float>(1 + noise.next() % 8));
      return;
    case Tensor::Fill::bf16:  // signs and mantissas at random, magnitudes about 0.01
      for (std::uint64_t i = 0; i < bytes / 2; ++i) {
        const std::uint64_t bits = noise.next();
        const auto value = static_cast<std::uint16_t>(0x3c00 | (bits & 0x80ff));
        std::memcpy(out.data() + 2 * i, &value, sizeof(value));
      }
      return;
    case Tensor::Fill::codes:
      for (std::uint64_t i = 0; i < bytes; i += 8) {
        const std::uint64_t bits = noise.next();
        std::memcpy(out.data() + i, &bits, std::min<std::uint64_t>(8, bytes - i));
      }
  }
}

struct TemporaryFile {
  std::filesystem::path path;
  ~TemporaryFile() {
    std::error_code ignored;
    if (!path.empty()) std::filesystem::remove(path, ignored);
  }
};

Result<Done> write_file(const std::filesystem::path& path, const std::vector<Tensor>& tensors) {
  std::vector<OutputTensor> outputs;
  for (const Tensor& tensor : tensors) outputs.push_back(tensor.tensor);
  PARFAIT_TRY(Writer writer, Writer::create(path, outputs));
  Noise noise;
  std::vector<std::byte> bytes;
  for (const Tensor& tensor : tensors) {
    std::uint64_t size = dtype_bits(tensor.tensor.dtype) / 8;
    for (std::uint64_t d : tensor.tensor.shape) size *= d;
    fill(tensor, size, noise, bytes);
    PARFAIT_CHECK_OK(writer.append(bytes));
  }
  return writer.finish();
}

}  // namespace

struct Layers::State {
  Shape shape;
  Options options;
  TemporaryFile file;
  std::optional<Plan> plan;
  std::shared_ptr<const runtime::Model> model;
  std::unique_ptr<runtime::Session> session;
  std::vector<std::byte> x, y;  // bf16
  std::uint64_t M = 0;
};

Layers::~Layers() = default;

Result<std::unique_ptr<Layers>> Layers::make(const Shape& shape, const Options& options) {
  auto layers = std::unique_ptr<Layers>(new Layers());
  layers->state_ = std::make_unique<State>();
  State& state = *layers->state_;
  state.shape = shape;
  state.options = options;
  state.file.path = std::filesystem::temp_directory_path() /
                    fmt::format("parfait-bench-{}.safetensors", getpid());
  PARFAIT_CHECK_OK(write_file(state.file.path, tensors_of(shape.rows, shape.columns)));
  PARFAIT_TRY(const Checkpoint checkpoint, open(state.file.path));
  PARFAIT_TRY(const CheckReport report, check(checkpoint));
  if (!report.sound())
    return make_error(ErrorCode::not_sound, "the benchmark's own file is not sound: {}",
                      report.findings.front().line());
  PlanOptions plan_options;
  plan_options.isa = options.isa;
  PARFAIT_TRY(Plan plan, make_plan(*report.checked, plan_options));
  state.plan = std::move(plan);
  LoadOptions load_options;
  load_options.threads = options.threads;
  PARFAIT_TRY(const Model model, load(*state.plan, load_options));
  state.model = model.state();
  state.session = std::make_unique<runtime::Session>(state.model, options.threads);
  return layers;
}

std::vector<Contestant> Layers::contestants(std::uint64_t M) {
  State& s = *state_;
  const std::uint64_t N = s.shape.rows, K = s.shape.columns;
  s.M = M;
  s.x.resize(M * K * 2);
  s.y.resize(M * N * 2);
  Noise noise;
  fill({{}, Tensor::Fill::bf16, {}}, s.x.size(), noise, s.x);
  const ConstMatrix x{s.x.data(), DType::bf16, M, K, K};
  const Matrix y{s.y.data(), DType::bf16, M, N, N};
  std::vector<Contestant> all;
  for (const char* name : {"int8", "w4a4", "w4a8", "w6a8"}) {
    const runtime::LoadedLayer* layer = s.model->find(name);
    const std::string kernel(layer->plan->kernel);
    const std::uint64_t bytes = layer->packed.codes.size();
    all.push_back({name + std::string(" product"), kernel, Unit::vnni, bytes, [&s, layer, x, y] {
                     s.session->quantize(*layer, x);
                     const runtime::Session::Call call{layer, y};
                     const auto start = Clock::now();
                     s.session->multiply({&call, 1});
                     return seconds_since(start);
                   }});
  }
  for (const char* name : {"int8", "w4a4", "w4a8", "w6a8", "bf16"}) {
    const runtime::LoadedLayer* layer = s.model->find(name);
    const bool integer = layer->kernels.linear != nullptr;
    all.push_back({name + std::string(" layer"), std::string(layer->plan->kernel),
                   integer ? Unit::vnni : Unit::f32,
                   integer ? layer->packed.codes.size() : N * K * 2, [&s, name, x, y] {
                     const auto start = Clock::now();
                     const auto done = s.session->linear(name, x, y);
                     return done.ok() ? seconds_since(start) : -1;
                   }});
  }
  for (const char* name : {"int8", "w4a4"}) {
    const runtime::LoadedLayer* layer = s.model->find(name);
    all.push_back({name + std::string(" quantize"), std::string(layer->kernels.quantize->name),
                   Unit::f32, 0, [&s, layer, x] {
                     const auto start = Clock::now();
                     s.session->quantize(*layer, x);
                     return seconds_since(start);
                   }});
  }
  return all;
}

Result<std::vector<Packing>> Layers::packings(unsigned repeats) {
  State& s = *state_;
  runtime::Threads pool(s.options.threads);
  std::vector<Packing> all;
  for (const char* name : {"int8", "w4a4", "w4a8", "w6a8"}) {
    const runtime::LoadedLayer* layer = s.model->find(name);
    const kernels::LinearKernel& kernel = *layer->kernels.linear;
    PARFAIT_TRY(
        const formats::LayerData data,
        formats::read_layer(*s.plan->state()->checked.checkpoint().state()->index, *layer->layer));
    // From memory: a first read of the file would be measured otherwise.
    const ByteSpan mapped = data.part("weight"), relative = data.part("weight_s_rel");
    const std::vector<std::byte> codes(mapped.begin(), mapped.end());
    kernels::AlignedBytes out(
        kernel.packed_bytes(s.shape.rows, s.shape.columns, layer->packed.scale_group));
    const kernels::WeightView view{codes.data(), relative.data(), s.shape.rows, s.shape.columns,
                                   layer->packed.scale_group};
    kernels::AlignedBytes copied(out.size());
    const std::uint64_t rows = 256, pieces = (s.shape.rows + rows - 1) / rows;
    const std::uint64_t part = (out.size() + pieces - 1) / pieces;
    std::vector<double> seconds, copying;
    for (unsigned i = 0; i <= repeats; ++i) {
      const auto start = Clock::now();
      pool.run(pieces, [&](std::uint64_t p, unsigned) {
        kernel.pack(view, p * rows, std::min((p + 1) * rows, s.shape.rows), out.data());
      });
      const auto packed = Clock::now();
      pool.run(pieces, [&](std::uint64_t p, unsigned) {
        const std::uint64_t at = std::min(p * part, out.size());
        std::memcpy(copied.data() + at, out.data() + at, std::min(part, out.size() - at));
      });
      if (i == 0) continue;  // it touches the memory for the first time
      seconds.push_back(std::chrono::duration<double>(packed - start).count());
      copying.push_back(seconds_since(packed));
    }
    std::ranges::sort(seconds);
    std::ranges::sort(copying);
    all.push_back({std::string(kernel.name), s.shape.name, out.size(), seconds[seconds.size() / 2],
                   copying[copying.size() / 2]});
  }
  return all;
}

}  // namespace parfait::bench
