// Sharding: one pass over the source's bytes, in order, each of which goes to the ranks that hold
// it or, where none does, to the rest.

#include "parfait/shard.h"

#include <algorithm>
#include <unordered_map>

#include "container/header.h"
#include "container/writer.h"
#include "convert/manifest.h"
#include "convert/rank_check.h"
#include "convert/rank_file.h"
#include "convert/source_names.h"
#include "io/json.h"
#include "io/new_folder.h"
#include "plan/state.h"

namespace parfait {
namespace convert {
namespace {

namespace fs = std::filesystem;
using plan::Cut;

// The shape of a tensor on a rank.
std::vector<std::uint64_t> shape_of(const TensorInfo& tensor, const Slices& slices,
                                    std::uint64_t experts, std::uint32_t rank) {
  std::vector<std::uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
  switch (slices.cut.cut) {
    case Cut::none:
    case Cut::first_rank:
      break;
    case Cut::tiles: {
      const formats::BlockScales tiles = slices.tiles_of(rank);
      shape = {tiles.stored_rows(), tiles.stored_columns()};
      break;
    }
    case Cut::rows:
      if (shape[0] == slices.cut.rows)
        shape[0] = slices.stored_rows_of(rank);
      else
        shape[1] = slices.rows_of(rank) / experts;  // [E, N/E, ...]
      break;
    case Cut::columns: {
      std::uint64_t row = 0;
      for (const Slices::Piece& piece : slices.pieces_of(rank)) row += piece.bytes;
      shape.back() = shape.back() * row / slices.row_bytes();
      break;
    }
  }
  return shape;
}

class Sharder {
 public:
  Sharder(const Plan& plan, const ShardOptions& options)
      : plan_(plan),
        options_(options),
        source_(*plan.checked().checkpoint().state()),
        ranks_(plan.options().ranks) {}

  Result<ShardReport> run(const fs::path& folder) {
    PARFAIT_CHECK_OK(refuse_source(folder));
    std::vector<std::string> ours;
    if (const auto old = read_manifest(folder); old.ok()) {
      ours = {std::string(manifest_name), std::string(rest_name)};
      for (std::uint32_t rank = 0; rank < old->ranks; ++rank)
        ours.push_back(rank_name(rank, old->ranks));
    }
    manifest_.ranks = ranks_;
    PARFAIT_CHECK_OK(cut_layers());
    PARFAIT_TRY(io::NewFolder target,
                io::NewFolder::create(folder, ours, fingerprint(), start_of(options_.start)));
    if (const Result<Done> written = write(target); !written.ok()) {
      if (written.error().code == ErrorCode::cancelled && options_.start == ShardStart::resume)
        target.keep();
      return written.error();
    }
    PARFAIT_CHECK_OK(target.finish());
    return report(folder);
  }

 private:
  static ByteSpan as_bytes(const std::string& text) {
    return std::as_bytes(std::span(text.data(), text.size()));
  }

  // Of work whose files are worth comparing with these.
  std::string fingerprint() const {
    std::string text = fmt::format("shard 1 ranks={}", ranks_);
    for (const container::Shard& shard : source_.index->shards())
      text += fmt::format(" {}:{}", shard.reader->name(), shard.reader->size());
    return text;
  }

  Result<Done> write(const io::NewFolder& target) {
    PARFAIT_TRY(StreamOut rest, StreamOut::create(target, std::string(rest_name)));
    rest_ = &rest;
    PARFAIT_CHECK_OK(name_source());
    PARFAIT_CHECK_OK(create_ranks(target));
    for (std::uint32_t i = 0; i < source_.index->shards().size(); ++i)
      PARFAIT_CHECK_OK(copy_file(i));
    PARFAIT_CHECK_OK(advance(""));
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      PARFAIT_CHECK_OK(files_[rank].finish());
      manifest_.rank_files[rank].digest = files_[rank].digest();
      report_.resumed_bytes += files_[rank].kept();
    }
    PARFAIT_CHECK_OK(rest.finish());
    manifest_.rest = {std::string(rest_name), rest.bytes(), 0, "", rest.digest()};
    for (std::uint32_t rank = 0; rank < ranks_; ++rank)
      PARFAIT_CHECK_OK(
          check_rank(target.path() / rank_name(rank, ranks_), plan_, rank, options_.compat));
    PARFAIT_TRY(StreamOut manifest, StreamOut::create(target, std::string(manifest_name)));
    PARFAIT_CHECK_OK(manifest.append(as_bytes(manifest_.text())));
    PARFAIT_CHECK_OK(manifest.finish());
    return advance("");
  }

  // A folder that is about to be replaced may not hold the source.
  Result<Done> refuse_source(const fs::path& folder) const {
    for (const container::Shard& shard : source_.index->shards()) {
      std::error_code absent;
      const fs::path parent = fs::absolute(shard.reader->name()).parent_path();
      if (fs::equivalent(parent, folder, absent))
        return make_error(ErrorCode::file_write,
                          "{}: holds the source {}; the ranks need a folder of their own",
                          printable(folder.string(), 1000), printable(shard.reader->name(), 1000));
    }
    return Done{};
  }

  Result<Done> cut_layers() {
    for (std::size_t i = 0; i < plan_.layers().size(); ++i) {
      const LayerPlan& plan = plan_.layers()[i];
      const formats::Layer& layer = source_.layers[i];
      ManifestLayer entry{
          plan.name, std::string(plan.format), plan.split, plan.split_reason, nullptr, {}};
      if (!plan.shares.empty()) {
        entry.shares = std::make_shared<const Shares>(
            Shares{plan.split == SplitAxis::outputs ? layer.rows : layer.columns, plan.shares});
        ++report_.layers_split;
        for (const formats::Part& part : layer.parts) {
          const Slices slices{plan::cut_of(layer, plan.split, part), entry.shares};
          if (slices.cut.cut == Cut::none) continue;
          if (const std::string why = slices.objection(part.tensor->bytes); !why.empty())
            return make_error(ErrorCode::shard_rank, "layer {}: {} cannot be cut: {}",
                              printable(plan.name), printable(part.tensor->name), why);
          entry.tensors.emplace_back(part.tensor->name);
          manifest_.cut.emplace(part.tensor->name, CutTensor{slices, 0});
          experts_.emplace(part.tensor->name, layer.experts);
        }
      } else {
        ++report_.layers_replicated;
      }
      manifest_.layers.push_back(std::move(entry));
    }
    return Done{};
  }

  // Names of the source's files; the text of its index goes to the rest.
  Result<Done> name_source() {
    const SourceNames names = source_names(source_, options_.source);
    if (!names.index.empty()) {
      PARFAIT_TRY(const io::ReaderPtr reader, io::open_file(names.index, Io::pread));
      StreamIn in(reader);
      PARFAIT_CHECK_OK(in.each(reader->size(), [&](ByteSpan b) { return rest_->append(b); }));
      manifest_.index.push_back({names.index_name, reader->size(), 0, "", in.digest()});
    }
    for (std::size_t i = 0; i < names.files.size(); ++i) {
      const container::Shard& shard = source_.index->shards()[i];
      manifest_.files.push_back(
          {names.files[i], shard.reader->size(), 8 + shard.header_bytes, "", ""});
      progress_.total += shard.reader->size();
    }
    return Done{};
  }

  Result<Done> create_ranks(const io::NewFolder& folder) {
    Digest source;
    for (const container::Shard& shard : source_.index->shards()) {
      StreamIn in(shard.reader);
      PARFAIT_CHECK_OK(in.each(8 + shard.header_bytes,
                               [&](ByteSpan b) -> Result<Done> { return source.add(b), Done{}; }));
    }
    PARFAIT_TRY(auto metadata, merged_metadata(source_));
    std::erase_if(metadata, [](const auto& pair) { return pair.first == rank_key; });
    metadata.emplace_back(rank_key, "");
    files_.reserve(ranks_);
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      metadata.back().second = fmt::format("{{\"rank\": {}, \"ranks\": {}, \"source\": \"{}\"}}",
                                           rank, ranks_, source.text());
      std::vector<container::TensorDeclaration> tensors;
      for (const TensorInfo& tensor : source_.index->tensors()) {
        const std::string name(tensor.name);
        const auto it = manifest_.cut.find(name);
        tensors.push_back({name, tensor.dtype,
                           it == manifest_.cut.end()
                               ? std::vector(tensor.shape.begin(), tensor.shape.end())
                               : shape_of(tensor, it->second.slices, experts_.at(name), rank)});
      }
      PARFAIT_TRY(const std::vector<std::byte> header, container::make_header(tensors, metadata));
      PARFAIT_TRY(StreamOut file, StreamOut::create(folder, rank_name(rank, ranks_)));
      PARFAIT_CHECK_OK(file.append(header));
      std::uint64_t bytes = header.size();
      for (const container::TensorDeclaration& tensor : tensors) {
        PARFAIT_TRY(const std::uint64_t size, container::tensor_bytes(tensor));
        bytes += size;
      }
      manifest_.rank_files.push_back(
          {rank_name(rank, ranks_), bytes, header.size(), file.digest(), ""});
      files_.push_back(std::move(file));
    }
    return Done{};
  }

  Result<Done> copy_file(std::uint32_t shard) {
    StreamIn in(source_.index->shards()[shard].reader);
    FileEntry& entry = manifest_.files[shard];
    PARFAIT_CHECK_OK(keep(in, entry.header_bytes));
    entry.header_digest = in.digest();
    const auto tensors = source_.index->tensors();  // by file, then offset
    for (; next_ < tensors.size() && tensors[next_].shard == shard; ++next_) {
      const TensorInfo& tensor = tensors[next_];
      // In front of it: a tensor that stands in an earlier file too.
      PARFAIT_CHECK_OK(keep(in, tensor.offset - in.at()));
      progress_.what = tensor.name;
      const auto it = manifest_.cut.find(std::string(tensor.name));
      PARFAIT_CHECK_OK(it == manifest_.cut.end() ? copy_whole(in, tensor.bytes)
                                                 : copy_cut(in, tensor, it->second));
    }
    PARFAIT_CHECK_OK(keep(in, entry.bytes - in.at()));
    entry.digest = in.digest();
    return Done{};
  }

  Result<Done> advance(std::string_view what, std::uint64_t bytes = 0) {
    if (!what.empty()) progress_.what = what;
    progress_.done += bytes;
    if (options_.progress && !options_.progress(progress_))
      return make_error(ErrorCode::cancelled, "the sharding was cancelled");
    return Done{};
  }

  Result<Done> keep(StreamIn& in, std::uint64_t bytes) {
    return in.each(bytes, [&](ByteSpan piece) -> Result<Done> {
      PARFAIT_CHECK_OK(rest_->append(piece));
      return advance("", piece.size());
    });
  }

  Result<Done> copy_whole(StreamIn& in, std::uint64_t bytes) {
    return in.each(bytes, [&](ByteSpan piece) -> Result<Done> {
      for (StreamOut& file : files_) PARFAIT_CHECK_OK(file.append(piece));
      return advance("", piece.size());
    });
  }

  Result<Done> copy_cut(StreamIn& in, const TensorInfo& tensor, CutTensor& cut) {
    switch (cut.slices.cut.cut) {
      case Cut::rows:
        return copy_rows(in, tensor, cut);
      case Cut::columns:
        return copy_columns(in, cut.slices);
      case Cut::tiles:
        return copy_tiles(in, tensor, cut);
      case Cut::first_rank:
        PARFAIT_CHECK_OK(in.each(tensor.bytes, [&](ByteSpan b) { return files_[0].append(b); }));
        for (std::uint32_t rank = 1; rank < ranks_; ++rank)
          PARFAIT_CHECK_OK(files_[rank].append_zeros(tensor.bytes));
        return advance("", tensor.bytes);
      case Cut::none:
        break;
    }
    return copy_whole(in, tensor.bytes);
  }

  Result<Done> copy_rows(StreamIn& in, const TensorInfo& tensor, CutTensor& cut) {
    const Slices& slices = cut.slices;
    const std::uint64_t row = slices.row_bytes();
    for (const Slices::Run& run : slices.runs()) {
      const auto write = [&](ByteSpan bytes) -> Result<Done> {
        PARFAIT_CHECK_OK(files_[run.rank].append(bytes));
        return advance("", bytes.size());
      };
      PARFAIT_CHECK_OK(in.each((run.end - run.begin) * row, write));
    }
    for (std::uint32_t rank = 0; rank < ranks_; ++rank)
      PARFAIT_CHECK_OK(
          files_[rank].append_zeros((slices.stored_rows_of(rank) - slices.rows_of(rank)) * row));
    // The padding is kept if it is not zeros, as it should be.
    const std::uint64_t padding = tensor.bytes - slices.cut.used * row;
    std::vector<std::byte> scratch;
    PARFAIT_TRY(const ByteSpan bytes, in.peek(0, padding, scratch));
    if (std::ranges::any_of(bytes, [](std::byte b) { return b != std::byte{0}; })) {
      cut.kept = padding;
      return keep(in, padding);
    }
    PARFAIT_CHECK_OK(in.skip(padding));
    return advance("", padding);
  }

  Result<Done> copy_columns(StreamIn& in, const Slices& slices) {
    const std::uint64_t row = slices.row_bytes(), rows = slices.cut.rows;
    const std::uint64_t at_once = std::max<std::uint64_t>(1, piece_bytes / row);
    std::vector<std::vector<Slices::Piece>> pieces;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) pieces.push_back(slices.pieces_of(rank));
    std::vector<std::byte> mine;
    for (std::uint64_t first = 0; first < rows; first += at_once) {
      const std::uint64_t count = std::min(at_once, rows - first);
      PARFAIT_TRY(const ByteSpan bytes, in.take(count * row));
      for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
        std::uint64_t size = 0;
        for (const Slices::Piece& piece : pieces[rank]) size += piece.bytes;
        mine.resize(count * size);
        std::byte* out = mine.data();
        for (std::uint64_t r = 0; r < count; ++r)
          for (const Slices::Piece& piece : pieces[rank]) {
            std::memcpy(out, bytes.data() + r * row + piece.at, piece.bytes);
            out += piece.bytes;
          }
        PARFAIT_CHECK_OK(files_[rank].append(mine));
      }
      PARFAIT_CHECK_OK(advance("", bytes.size()));
    }
    return Done{};
  }

  // Block scales: each rank's band of 128 rows is gathered from the bands of the whole.
  Result<Done> copy_tiles(StreamIn& in, const TensorInfo& tensor, CutTensor& cut) {
    const Slices& slices = cut.slices;
    const formats::BlockScales whole = slices.tiles();
    const std::uint64_t band_bytes = whole.tile_rows * whole.stored_columns();
    constexpr std::uint64_t none = ~std::uint64_t{0};
    std::uint64_t held = none;  // the band in `band`
    ByteSpan band;
    std::vector<std::byte> scratch;
    const auto hold = [&](std::uint64_t row) -> Result<Done> {
      if (row / whole.tile_rows == held) return Done{};
      held = row / whole.tile_rows;
      PARFAIT_TRY(band, in.peek(held * band_bytes, band_bytes, scratch));
      return Done{};
    };
    std::vector<std::vector<Slices::Run>> runs(ranks_);
    for (const Slices::Run& run : slices.runs()) runs[run.rank].push_back(run);
    std::vector<std::byte> out;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      const formats::BlockScales tiles = slices.tiles_of(rank);
      out.assign(band_bytes, std::byte{0});
      std::uint64_t at = 0;
      const auto flush = [&]() -> Result<Done> {
        PARFAIT_CHECK_OK(files_[rank].append(out));
        out.assign(band_bytes, std::byte{0});
        return Done{};
      };
      for (const Slices::Run& run : runs[rank]) {
        for (std::uint64_t row = run.begin; row < run.end; ++row, ++at) {
          if (at > 0 && at % whole.tile_rows == 0) PARFAIT_CHECK_OK(flush());
          PARFAIT_CHECK_OK(hold(row));
          for (std::uint64_t c = 0; c < whole.columns; ++c)
            out[tiles.offset(at % whole.tile_rows, c)] =
                band[whole.offset(row % whole.tile_rows, c)];
        }
      }
      // Of weight rows that are padding, there may be a whole band more.
      PARFAIT_CHECK_OK(flush());
      PARFAIT_CHECK_OK(files_[rank].append_zeros(tiles.stored_bytes() -
                                                 ceil_div(at, whole.tile_rows) * band_bytes));
    }
    // The padding, in the order of rows and columns: kept if it is not zeros.
    const auto each_padding = [&](const auto& use) -> Result<Done> {
      for (std::uint64_t row = 0; row < whole.stored_rows(); ++row) {
        const std::uint64_t first = row < slices.cut.used ? whole.columns : 0;
        for (std::uint64_t c = first; c < whole.stored_columns(); ++c) {
          PARFAIT_CHECK_OK(hold(row));
          PARFAIT_CHECK_OK(use(band[whole.offset(row % whole.tile_rows, c)]));
        }
      }
      return Done{};
    };
    std::uint64_t padding = 0;
    bool zeros = true;
    PARFAIT_CHECK_OK(each_padding([&](std::byte b) -> Result<Done> {
      ++padding;
      zeros &= b == std::byte{0};
      return Done{};
    }));
    if (!zeros) {
      cut.kept = padding;
      PARFAIT_CHECK_OK(each_padding([&](std::byte b) { return rest_->append({&b, 1}); }));
    }
    PARFAIT_CHECK_OK(in.skip(tensor.bytes));
    return advance("", tensor.bytes);
  }

  ShardReport report(const fs::path& folder) {
    for (const FileEntry& file : manifest_.rank_files)
      report_.ranks.push_back({(folder / file.name).string(), file.bytes});
    report_.source_bytes = progress_.total;
    return std::move(report_);
  }

  const Plan& plan_;
  const ShardOptions& options_;
  const formats::Checkpoint& source_;
  const std::uint32_t ranks_;
  Manifest manifest_;
  std::unordered_map<std::string_view, std::uint64_t> experts_;  // of cut tensors
  std::vector<StreamOut> files_;
  StreamOut* rest_ = nullptr;
  std::size_t next_ = 0;  // tensor of the source
  ShardReport report_;
  Progress progress_;
};

}  // namespace
}  // namespace convert

Result<ShardReport> shard(const Plan& plan, const std::filesystem::path& folder,
                          const ShardOptions& options) {
  return convert::Sharder(plan, options).run(folder);
}

}  // namespace parfait
