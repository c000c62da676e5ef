#include "convert/fast_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/result.h"
#include "convert/panels.h"
#include "formats/convrot_w4a4/layout.h"
#include "kernels/linear/linear.h"

namespace parfait::convert {
namespace {

// comfy-kitchen's floor of a 4-bit row's absolute maximum; the kernel's is lower.
constexpr float int4_floor = 1e-10f;

enum class Codes { int8, int4 };

const kernels::QuantizeKernel& kernel_for(std::optional<Isa> isa) {
  const std::vector<Isa> allowed = isa ? isas_within(*isa) : machine_isas();
  for (const kernels::QuantizeKernel& kernel : kernels::quantize_kernels())
    if (std::ranges::find(allowed, kernel.isa) != allowed.end()) return kernel;
  return kernels::quantize_kernels().back();
}

void pack_nibbles(const std::byte* codes, std::uint64_t columns, std::byte* out) {
  for (std::uint64_t i = 0; i < columns / 2; ++i) {
    const auto pair = load_at<std::uint16_t>(codes, i);  // the even column in the low byte
    out[i] = static_cast<std::byte>((pair & 0x0f) | (pair >> 4 & 0xf0));
  }
}

// The codes of a packed row, sign extended: 16 bits at a time, since no byte shifts are cheap.
void unpack_nibbles(const std::byte* bytes, std::uint64_t columns, std::int8_t* codes) {
  for (std::uint64_t i = 0; i < columns / 2; ++i) {
    const auto byte = static_cast<std::uint16_t>(bytes[i]);
    const auto pair = static_cast<std::uint16_t>((byte | byte << 4) & 0x0f0f);
    const auto signs = static_cast<std::uint16_t>(pair & 0x0808);
    const auto both = static_cast<std::uint16_t>(pair | signs * 0x1e);  // 8 · 0x1e = 0xf0
    std::memcpy(codes + 2 * i, &both, sizeof(both));
  }
}

// written - source of a row, both in the stored basis.
void subtract(const std::int8_t* codes, float scale, const float* r, std::uint64_t count,
              float* out) {
  for (std::uint64_t k = 0; k < count; ++k) out[k] = static_cast<float>(codes[k]) * scale - r[k];
}

// What one thread works with.
struct Scratch {
  kernels::QuantizedRows quantized, discarded;
  kernels::AlignedBytes rotated;      // the panel's rows as the kernel rotated them, as floats
  kernels::AlignedBytes differences;  // of a row
  kernels::AlignedBytes spare;
  std::vector<std::byte> bytes, back;
  std::vector<std::int8_t> codes;
  std::vector<float> values;
};

class FastRows {
 public:
  FastRows(const EncodeWork& work, runtime::LayerRows& rows, std::uint64_t panel_rows,
           const EncodeMeans& means)
      : work_(work),
        rows_(rows),
        means_(means),
        kernel_(kernel_for(means.isa)),
        codes_(work.target.format().name == "convrot_w4a4" ? Codes::int4 : Codes::int8),
        group_(work.target.settings().rotate_group),
        columns_(rows.columns()),
        stride_(round_up(kernels::quantize_scratch(columns_), 16)),
        row_bytes_(codes_ == Codes::int4 ? columns_ / 2 : columns_),
        panel_rows_(panel_rows),
        scales_(rows.rows()),
        errors_(rows.rows(), columns_),
        scratch_(means.threads.count()) {}

  Result<ErrorSums> run() {
    const PanelWork panel = [this](std::uint64_t first, std::uint64_t count,
                                   unsigned thread) -> Result<Done> {
      Scratch& s = scratch_[thread];
      PARFAIT_CHECK_OK(encode(first, count, s));
      PARFAIT_CHECK_OK(means_.out.put(work_.outputs[0], first * row_bytes_,
                                      ByteSpan(s.bytes).first(count * row_bytes_)));
      PARFAIT_CHECK_OK(measure(first, count, s));
      rows_.drop(first, count);
      return Done{};
    };
    PARFAIT_CHECK_OK(
        run_panels(means_.threads, {rows_.rows(), panel_rows_}, means_.progress, panel));
    // The scales, and back: what the codes above were decoded with is what the file holds.
    const ByteSpan bytes = std::as_bytes(std::span(scales_));
    PARFAIT_CHECK_OK(means_.out.put(work_.outputs[1], 0, bytes));
    std::vector<std::byte> back(bytes.size());
    PARFAIT_CHECK_OK(means_.out.get(work_.outputs[1], 0, back));
    if (!std::ranges::equal(back, bytes))
      return make_error(ErrorCode::file_write, "{}: the scales of layer {} read back otherwise",
                        means_.out.file().name(), printable(work_.layer.name));
    return errors_.total();
  }

 private:
  float* rotated(Scratch& s, std::uint64_t row) const {
    return reinterpret_cast<float*>(s.rotated.data()) + row * stride_;
  }

  void prepare(Scratch& s) {
    if (s.rotated.size() > 0) return;
    s.rotated = kernels::AlignedBytes(panel_rows_ * stride_ * sizeof(float));
    s.differences = kernels::AlignedBytes(stride_ * sizeof(float));
    s.spare = kernels::AlignedBytes(stride_ * sizeof(float));
    s.quantized.resize(panel_rows_, columns_);
    s.discarded.resize(1, columns_);
    s.bytes.resize(panel_rows_ * row_bytes_);
    s.back.resize(panel_rows_ * row_bytes_);
    s.codes.resize(columns_);
    if (!rows_.plain()) s.values.resize(panel_rows_ * columns_);
  }

  Result<Done> encode(std::uint64_t first, std::uint64_t count, Scratch& s) {
    prepare(s);
    ConstMatrix x{s.values.data(), DType::f32, count, columns_, columns_};
    if (rows_.plain()) {
      PARFAIT_TRY(x, rows_.view(first, count));
    } else {
      PARFAIT_CHECK_OK(rows_.read(first, count, s.values.data()));
    }
    const Activation mode = codes_ == Codes::int4 ? Activation::int4 : Activation::int8;
    for (std::uint64_t row = 0; row < count; ++row) {
      kernel_.run(x, row, row + 1, group_, mode, s.quantized, rotated(s, row));
      float& scale = s.quantized.scales[row];
      if (!std::isfinite(scale)) return refuse_row(first + row);
      std::byte* codes = s.quantized.codes.data() + row * s.quantized.stride;
      if (codes_ == Codes::int4 && scale < int4_floor / 7.0f) {
        scale = int4_floor / 7.0f;
        for (std::uint64_t k = 0; k < columns_; ++k)
          codes[k] = static_cast<std::byte>(static_cast<std::int8_t>(
              std::clamp(std::nearbyint(rotated(s, row)[k] / scale), -7.0f, 7.0f)));
      }
      scales_[first + row] = scale;
      std::byte* out = s.bytes.data() + row * row_bytes_;
      if (codes_ == Codes::int4)
        pack_nibbles(codes, columns_, out);
      else
        std::memcpy(out, codes, columns_);
    }
    return Done{};
  }

  // A row with a value that is not finite, or which its rotation made so.
  Result<Done> refuse_row(std::uint64_t row) {
    std::vector<float> values(columns_);
    PARFAIT_CHECK_OK(rows_.read(row, 1, values.data()));
    return make_error(ErrorCode::data_not_finite,
                      "layer {}: row {} of its weight is so large that rotating it overflows; a "
                      "recipe can keep the layer as it is",
                      printable(work_.layer.name), row);
  }

  Result<Done> measure(std::uint64_t first, std::uint64_t count, Scratch& s) {
    PARFAIT_CHECK_OK(means_.out.get(work_.outputs[0], first * row_bytes_,
                                    std::span(s.back).first(count * row_bytes_)));
    auto* e = reinterpret_cast<float*>(s.differences.data());
    for (std::uint64_t row = 0; row < count; ++row) {
      const std::byte* stored = s.back.data() + row * row_bytes_;
      const auto* codes = reinterpret_cast<const std::int8_t*>(stored);
      if (codes_ == Codes::int4) {
        unpack_nibbles(stored, columns_, s.codes.data());
        codes = s.codes.data();
      }
      subtract(codes, scales_[first + row], rotated(s, row), columns_, e);
      ErrorSums& sums = errors_.of_row(first + row);
      add_squares({e, columns_}, {rotated(s, row), columns_}, sums);
      sums.most = std::max(sums.most, most(e, s));
    }
    return Done{};
  }

  // The largest difference in the original basis: rotated back by the kernel, which leaves it as
  // 127 times its scale.
  float most(const float* e, Scratch& s) {
    if (group_ == 0) return largest_magnitude({e, columns_});
    kernel_.run({e, DType::f32, 1, columns_, columns_}, 0, 1, group_, Activation::int8, s.discarded,
                reinterpret_cast<float*>(s.spare.data()));
    return s.discarded.scales[0] > 1e-30f ? s.discarded.scales[0] * 127.0f : 0;
  }

  const EncodeWork& work_;
  runtime::LayerRows& rows_;
  const EncodeMeans& means_;
  const kernels::QuantizeKernel& kernel_;
  const Codes codes_;
  const std::uint64_t group_, columns_, stride_, row_bytes_, panel_rows_;
  std::vector<float> scales_;
  BlockErrors errors_;
  std::vector<Scratch> scratch_;
};

}  // namespace

bool has_fast_rows(const EncodeWork& work) {
  const formats::EncodeSettings& settings = work.target.settings();
  const std::string_view format = work.target.format().name;
  const auto& tensors = work.target.tensors();
  return work.encoder == nullptr && (format == "int8_tensorwise" || format == "convrot_w4a4") &&
         work.target.shape().kind != LayerKind::convolution && settings.arithmetic == DType::f32 &&
         settings.scale_of == formats::ScaleOf::row && tensors.size() == 2 &&
         tensors[1].suffix == "weight_scale" && tensors[1].dtype == DType::f32 &&
         checked_product(tensors[1].shape) == work.target.shape().rows;
}

Result<ErrorSums> encode_fast_rows(const EncodeWork& work, runtime::LayerRows& rows,
                                   std::uint64_t panel_rows, const EncodeMeans& means) {
  return FastRows(work, rows, panel_rows, means).run();
}

}  // namespace parfait::convert
