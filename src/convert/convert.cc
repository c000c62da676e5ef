// Runs a conversion: what plan_conversion() decided, unit by unit into the output.

#include "parfait/convert.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>

#include "base/floats.h"
#include "base/result.h"
#include "convert/conversion.h"
#include "convert/encode_rows.h"
#include "convert/output_set.h"

namespace parfait {
namespace {

using namespace convert;

constexpr std::uint64_t copy_piece = 4 << 20;
// Rows of each layer that are tried before the output is begun, where nothing may be lost.
constexpr std::uint64_t tried_rows = 32;

Error cancelled() { return {ErrorCode::cancelled, "the conversion was cancelled"}; }

class Converter {
 public:
  Converter(const Checkpoint& source, const Conversion& plan, const ConvertOptions& options)
      : source_(*source.state()), plan_(plan), options_(options), threads_(options.threads) {
    for (const Unit& unit : plan.units) total_ += unit.bytes;
  }

  // Encodes the first rows of each layer, to nowhere.
  Result<Done> try_lossless() {
    const PutBytes nowhere = [](std::size_t, std::uint64_t, ByteSpan) -> Result<Done> {
      return Done{};
    };
    for (const Unit& unit : plan_.units) {
      // A survey reads the whole weight: too long for a trial.
      if (!unit.encoding || unit.encoding->encoder().survey) continue;
      PARFAIT_CHECK_OK(show(0, unit.name));
      EncodeRowsOptions options = encode_options(unit, 0);
      options.row_limit = tried_rows;
      options.progress = {};
      PARFAIT_CHECK_OK(encode_rows(rows_of(*unit.encoding), threads_, options, nowhere));
    }
    return Done{};
  }

  Result<Done> run(OutputSet& out) {
    std::uint64_t done = 0;
    for (std::size_t u = 0; u < plan_.units.size(); ++u) {
      const Unit& unit = plan_.units[u];
      if (!out.has(u)) {
        PARFAIT_CHECK_OK(show(done, unit.name));
        PARFAIT_CHECK_OK(write(unit, done, out));
        PARFAIT_CHECK_OK(out.record(u));
      }
      done += unit.bytes;
    }
    return show(total_, {});
  }

 private:
  Result<Done> show(std::uint64_t done, std::string_view what) const {
    if (options_.progress && !options_.progress({done, total_, what})) return cancelled();
    return Done{};
  }

  Result<Done> write(const Unit& unit, std::uint64_t done, OutputSet& out) {
    for (const Copy& copy : unit.copies) PARFAIT_CHECK_OK(write_copy(copy, unit, done, out));
    if (!unit.encoding) return Done{};
    const std::size_t first = unit.encoding->tensor;
    return encode_rows(rows_of(*unit.encoding), threads_, encode_options(unit, done),
                       [&](std::size_t t, std::uint64_t at, ByteSpan bytes) {
                         return out.put(first + t, at, bytes);
                       });
  }

  EncodeRowsOptions encode_options(const Unit& unit, std::uint64_t done) const {
    EncodeRowsOptions options;
    options.compare = options_.loss == ConvertOptions::Loss::refused
                          ? EncodeRowsOptions::Compare::yes
                          : EncodeRowsOptions::Compare::no;
    options.max_memory = options_.max_memory;
    if (options_.progress)
      options.progress = [this, &unit, done](double share) {
        return options_.progress(
            {done + static_cast<std::uint64_t>(share * static_cast<double>(unit.bytes)), total_,
             unit.name});
      };
    return options;
  }

  RowsToEncode rows_of(const Encoding& encoding) const {
    const Item& item = plan_.items.items[encoding.item];
    RowsToEncode rows{
        source_, item, encoding.shape, encoding.settings, encoding.encoder(), {}, encoding.name()};
    if (encoding.block) {
      rows.decode = [&encoding](const std::vector<std::byte*>& tensors, std::uint64_t first,
                                std::uint64_t count, float* out) {
        const std::uint64_t columns = encoding.shape.columns;
        const std::uint64_t row_bytes =
            encoding.block->encoder.tensors(encoding.shape, encoding.settings)[0].shape[1];
        encoding.block->decode(tensors[0] + first * row_bytes, count, columns, out);
      };
    } else {
      rows.decode = [&encoding](const std::vector<std::byte*>& tensors, std::uint64_t first,
                                std::uint64_t count, float* out) {
        formats::LayerData data;
        data.layer = &encoding.target->written();
        for (std::size_t t = 0; t < tensors.size(); ++t)
          data.data.emplace_back(tensors[t], data.layer->parts[t].tensor->bytes);
        data.scratch.resize(tensors.size());
        data.layer->format->decode(data, first, count, out);
      };
    }
    return rows;
  }

  Result<Done> write_copy(const Copy& copy, const Unit& unit, std::uint64_t done, OutputSet& out) {
    std::uint64_t at = 0;
    if (copy.from.make) {
      PARFAIT_TRY(const std::vector<std::byte> bytes, copy.from.make());
      return put_values(copy, bytes, at, out);
    }
    for (const ByteRun& run : copy.from.runs) {
      for (std::uint64_t read = 0; read < run.bytes; read += copy_piece) {
        PARFAIT_CHECK_OK(show(done + std::min(at, unit.bytes), unit.name));
        TensorInfo piece = *run.tensor;
        piece.offset += run.offset + read;
        piece.bytes = std::min(copy_piece, run.bytes - read);
        PARFAIT_TRY(const ByteSpan bytes, source_.index->read(piece, scratch_));
        PARFAIT_CHECK_OK(put_values(copy, bytes, at, out));
        source_.index->drop(piece);
      }
    }
    return Done{};
  }

  // Appends values at `at`, which moves on.
  Result<Done> put_values(const Copy& copy, ByteSpan bytes, std::uint64_t& at, OutputSet& out) {
    const DType from = copy.from_dtype, to = plan_.tensors[copy.tensor].declaration.dtype;
    if (from == to) {
      PARFAIT_CHECK_OK(out.put(copy.tensor, at, bytes));
      at += bytes.size();
      return Done{};
    }
    const std::uint64_t count = bytes.size() * 8 / dtype_bits(from), size = dtype_bits(to) / 8;
    converted_.resize(count * size);
    for (std::uint64_t i = 0; i < count; ++i) {
      const float value = load_float(from, bytes.data(), i);
      store_float(to, converted_.data(), i, value);
      if (options_.loss == ConvertOptions::Loss::allowed) continue;
      const float written = load_float(to, converted_.data(), i);
      if (std::bit_cast<std::uint32_t>(written) != std::bit_cast<std::uint32_t>(value))
        return make_error(ErrorCode::convert_loss,
                          "tensor {}: {} cannot hold its values exactly: value {} is {}, and would "
                          "be {}; without --lossless it is rounded",
                          printable(plan_.tensors[copy.tensor].declaration.name), dtype_name(to),
                          at / size + i, value, written);
    }
    PARFAIT_CHECK_OK(out.put(copy.tensor, at, converted_));
    at += converted_.size();
    return Done{};
  }

  const formats::Checkpoint& source_;
  const Conversion& plan_;
  const ConvertOptions& options_;
  runtime::Threads threads_;
  std::uint64_t total_ = 0;
  std::vector<std::byte> scratch_, converted_;
};

// One line that is another wherever the output could be: source, options, version.
std::string fingerprint_of(const Checkpoint& source, TargetKind container,
                           const ConvertOptions& options) {
  std::string text = fmt::format(
      "parfait convert 1 to={} layers={} plain={} names={} qkv={} container={} shard={}",
      options.to, fmt::join(options.layers, ","), options.plain ? dtype_name(*options.plain) : "-",
      static_cast<int>(options.names), static_cast<int>(options.qkv), static_cast<int>(container),
      options.max_shard);
  for (const ShardInfo& shard : source.shards()) {
    std::error_code error;
    const auto time = std::filesystem::last_write_time(shard.path, error);
    text += fmt::format(" {}:{}:{}", shard.path, shard.file_bytes,
                        error ? 0 : time.time_since_epoch().count());
  }
  std::ranges::replace_if(
      text, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

TargetKind container_of(const std::filesystem::path& target, const ConvertOptions& options) {
  using Container = ConvertOptions::Container;
  if (options.container == Container::gguf) return TargetKind::gguf;
  if (options.container == Container::by_name && target.extension() == ".gguf")
    return TargetKind::gguf;
  return TargetKind::safetensors;
}

// Threads, two panels of floats each, and the source's small tensors.
constexpr std::uint64_t least_memory = 64 << 20;

}  // namespace

std::string convert_targets() { return target_names(TargetKind::safetensors); }

Result<ConvertReport> convert_checkpoint(const CheckedCheckpoint& checked,
                                         const std::filesystem::path& target,
                                         const ConvertOptions& options) {
  const Checkpoint& source = checked.checkpoint();
  if (options.max_memory < least_memory)
    return make_error(ErrorCode::convert_option,
                      "{} of memory is too little for a conversion, which needs at least {}",
                      bytes_text(options.max_memory), bytes_text(least_memory));
  const TargetKind container = container_of(target, options);
  PARFAIT_CHECK_OK(refuse_inputs(target, std::span(&source, 1)));
  PARFAIT_TRY(Conversion plan, plan_conversion(source, container, options));
  Converter converter(source, plan, options);
  if (options.loss == ConvertOptions::Loss::refused) PARFAIT_CHECK_OK(converter.try_lossless());

  PARFAIT_TRY(OutputSet out,
              OutputSet::create(
                  target, plan, std::span(&source, 1),
                  {options.max_shard, fingerprint_of(source, container, options),
                   options.start == ConvertOptions::Start::resume ? io::PartFile::Start::resume
                                                                  : io::PartFile::Start::afresh}));
  const std::uint64_t resumed = out.resumed();
  Result<Done> ran = converter.run(out);
  if (!ran.ok()) {
    if (ran.error().code == ErrorCode::cancelled && options.start == ConvertOptions::Start::resume)
      out.keep();
    return std::move(ran).error();
  }
  PARFAIT_CHECK_OK(out.finish());

  ConvertReport report;
  report.layers = std::move(plan.layers);
  report.notes = std::move(plan.notes);
  report.files = out.files();
  report.tensors = plan.tensors.size();
  report.bytes = out.bytes();
  report.resumed = resumed;
  return report;
}

}  // namespace parfait
