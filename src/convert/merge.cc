// Merging: the source's bytes in order, each from the rank that holds it. Every rank's file is read
// from front to back as well, so that its digest, and that of what is written, prove the result.

#include <algorithm>
#include <unordered_set>

#include "container/header.h"
#include "convert/manifest.h"
#include "convert/rank_file.h"
#include "io/new_folder.h"
#include "parfait/shard.h"

namespace parfait {
namespace convert {
namespace {

namespace fs = std::filesystem;
using plan::Cut;

// The header of a file that is not there: what lies behind it is never looked at.
class HeaderReader final : public io::Reader {
 public:
  HeaderReader(std::string name, std::uint64_t size, std::vector<std::byte> header)
      : Reader(std::move(name), size), header_(std::move(header)) {}
  Result<ByteSpan> read(std::uint64_t offset, std::uint64_t bytes,
                        std::vector<std::byte>& scratch) const override {
    // Files are recognised by their first bytes, of which a short header is a part.
    constexpr std::uint64_t behind = 4096;
    if (offset > header_.size() || bytes > header_.size() + behind - offset)
      return make_error(ErrorCode::shard_manifest,
                        "{}: its header is longer than the manifest says", printable(name(), 1000));
    scratch.assign(bytes, std::byte{0});
    const std::uint64_t here = std::min(bytes, header_.size() - offset);
    if (here > 0) std::memcpy(scratch.data(), header_.data() + offset, here);
    return ByteSpan(scratch);
  }

 private:
  std::vector<std::byte> header_;
};

class Merger {
 public:
  Merger(const fs::path& folder, const MergeOptions& options)
      : folder_(folder),
        options_(options),
        manifest_file_(printable((folder / manifest_name).string(), 1000)) {}

  Result<MergeReport> run(const fs::path& target) {
    PARFAIT_TRY(manifest_, read_manifest(folder_));
    PARFAIT_CHECK_OK(refuse_source(target));
    PARFAIT_CHECK_OK(open_ranks());
    for (const FileEntry& file : manifest_.files) progress_.total += file.bytes;
    if (manifest_.files.size() == 1 && manifest_.index.empty()) return write_single(target);
    return write_folder(target);
  }

 private:
  // Where the merge was cancelled and may be resumed, what was written stays.
  template <class Target>
  Result<Done> keep_or_drop(Result<Done> written, Target& target) const {
    if (!written.ok() && written.error().code == ErrorCode::cancelled &&
        options_.start == ShardStart::resume)
      target.keep();
    return written;
  }

  Result<MergeReport> write_single(const fs::path& target) {
    PARFAIT_TRY(StreamOut out, StreamOut::create(target, manifest_.files[0].bytes, fingerprint(),
                                                 start_of(options_.start)));
    PARFAIT_CHECK_OK(keep_or_drop(write_file(out, 0), out));
    PARFAIT_CHECK_OK(check_ends());
    PARFAIT_CHECK_OK(out.finish());
    return MergeReport{{{target.string(), out.bytes()}}, out.kept()};
  }

  Result<MergeReport> write_folder(const fs::path& target) {
    PARFAIT_TRY(io::NewFolder folder,
                io::NewFolder::create(target, {}, fingerprint(), start_of(options_.start)));
    MergeReport report;
    PARFAIT_CHECK_OK(keep_or_drop(write_files(folder, report), folder));
    PARFAIT_CHECK_OK(check_ends());
    PARFAIT_CHECK_OK(folder.finish());
    for (WrittenFile& file : report.files) file.path = (target / file.path).string();
    return report;
  }

  Result<Done> write_files(const io::NewFolder& folder, MergeReport& report) {
    std::unordered_set<std::string> names;
    const auto write = [&](const std::string& name, const auto& fill) -> Result<Done> {
      if (!names.insert(fs::path(name).lexically_normal().string()).second)
        return lie(fmt::format("names the file {} twice", printable(name)));
      PARFAIT_TRY(StreamOut out, StreamOut::create(folder, name));
      PARFAIT_CHECK_OK(fill(out));
      PARFAIT_CHECK_OK(out.finish());
      report.files.push_back({name, out.bytes()});
      report.resumed_bytes += out.kept();
      return Done{};
    };
    for (const FileEntry& index : manifest_.index) {
      const auto fill = [&](StreamOut& out) -> Result<Done> {
        PARFAIT_CHECK_OK(rest_->each(index.bytes, [&](ByteSpan b) { return out.append(b); }));
        if (out.digest() != index.digest) return changed(index.name, out.digest(), index.digest);
        return Done{};
      };
      PARFAIT_CHECK_OK(write(index.name, fill));
    }
    for (std::size_t i = 0; i < manifest_.files.size(); ++i)
      PARFAIT_CHECK_OK(
          write(manifest_.files[i].name, [&](StreamOut& out) { return write_file(out, i); }));
    return Done{};
  }

  // Of work whose files are worth comparing with these.
  std::string fingerprint() const {
    std::string text = "merge 1";
    for (const FileEntry& file : manifest_.files)
      text += fmt::format(" {}:{}", file.bytes, file.digest);
    return text;
  }

  Error lie(const std::string& what) const {
    return make_error(ErrorCode::shard_manifest, "{}: {}", manifest_file_, what);
  }
  Error changed(const std::string& file, const std::string& got,
                const std::string& expected) const {
    return make_error(
        ErrorCode::shard_rank,
        "{}: is not what was written with this manifest (its digest is {}, expected {}); fetch the "
        "folder again",
        printable(file, 1000), got, expected);
  }

  // The ranks would be read while the target is replaced.
  Result<Done> refuse_source(const fs::path& target) const {
    std::error_code absent;
    std::vector<std::string> names = {std::string(manifest_name), std::string(rest_name)};
    for (std::uint32_t rank = 0; rank < manifest_.ranks; ++rank)
      names.push_back(rank_name(rank, manifest_.ranks));
    for (const std::string& name : names)
      if (fs::equivalent(target, folder_ / name, absent))
        return make_error(ErrorCode::file_write, "{}: is an input; the output needs another name",
                          printable(target.string(), 1000));
    if (fs::equivalent(target, folder_, absent))
      return make_error(ErrorCode::file_write,
                        "{}: is the folder of ranks; the output needs another name",
                        printable(target.string(), 1000));
    return Done{};
  }

  Result<io::ReaderPtr> open_file(const std::string& name, std::uint64_t bytes) const {
    const fs::path path = folder_ / name;
    std::error_code error;
    if (!fs::exists(path, error))
      return make_error(ErrorCode::shard_rank, "{}: is missing from the set of {} ranks",
                        printable(path.string(), 1000), manifest_.ranks);
    PARFAIT_TRY(io::ReaderPtr reader, io::open_file(path, options_.io));
    if (reader->size() == bytes) return reader;
    return make_error(ErrorCode::shard_rank,
                      "{}: is {} bytes long, where the manifest beside it says {}; it is cut "
                      "short, or of another set",
                      printable(path.string(), 1000), reader->size(), bytes);
  }

  Result<Done> open_ranks() {
    PARFAIT_TRY(io::ReaderPtr rest, open_file(std::string(rest_name), manifest_.rest.bytes));
    rest_.emplace(std::move(rest));
    for (std::uint32_t rank = 0; rank < manifest_.ranks; ++rank) {
      const FileEntry& entry = manifest_.rank_files[rank];
      const std::string name = rank_name(rank, manifest_.ranks);
      if (entry.name != name)
        return lie(fmt::format("calls rank {} {}, expected {}", rank, printable(entry.name), name));
      PARFAIT_TRY(io::ReaderPtr reader, open_file(name, entry.bytes));
      PARFAIT_TRY(container::Header header,
                  container::read_header(*reader, open_options(), arena_));
      if (entry.header_bytes != 8 + header.header_bytes)
        return changed(reader->name(), fmt::format("of {} header bytes", header.header_bytes + 8),
                       fmt::format("of {}", entry.header_bytes));
      StreamIn& in = ranks_.emplace_back(std::move(reader));
      PARFAIT_CHECK_OK(in.skip(entry.header_bytes));
      if (in.digest() != entry.header_digest)
        return make_error(
            ErrorCode::shard_rank,
            "{}: its header is not the one that the manifest beside it was written with; it is of "
            "another set, or was edited",
            printable(in.reader().name(), 1000));
      headers_.push_back(std::move(header.tensors));
    }
    return Done{};
  }

  OpenOptions open_options() const {
    OpenOptions options;
    options.max_header_bytes = options_.max_header_bytes + (options_.max_header_bytes >> 1);
    return options;
  }

  Result<Done> write_file(StreamOut& out, std::size_t i) {
    const FileEntry& entry = manifest_.files[i];
    const std::string name = printable(entry.name, 1000);
    if (entry.header_bytes > rest_->reader().size() - rest_->at() ||
        entry.header_bytes > open_options().max_header_bytes)
      return lie(fmt::format("{} cannot have a header of {} bytes", name, entry.header_bytes));
    std::vector<std::byte> bytes;
    PARFAIT_CHECK_OK(rest_->each(entry.header_bytes, [&](ByteSpan piece) -> Result<Done> {
      bytes.insert(bytes.end(), piece.begin(), piece.end());
      return Done{};
    }));
    PARFAIT_CHECK_OK(out.append(bytes));
    if (out.digest() != entry.header_digest)
      return changed(std::string(rest_name), out.digest(), entry.header_digest);
    const HeaderReader reader(name, entry.bytes, std::move(bytes));
    PARFAIT_TRY(const container::Header header,
                container::read_header(reader, open_options(), arena_));
    for (const TensorInfo& tensor : header.tensors) {
      progress_.what = tensor.name;
      // A tensor that an earlier file has too was taken from there.
      if (seen_.insert(tensor.name).second)
        PARFAIT_CHECK_OK(write_tensor(out, tensor));
      else
        PARFAIT_CHECK_OK(restore(out, tensor.bytes));
    }
    PARFAIT_CHECK_OK(restore(out, header.trailing_bytes));
    if (out.digest() != entry.digest) {
      PARFAIT_CHECK_OK(check_ends());  // which names the file that was changed, if one was
      return lie(fmt::format("the ranks do not make up {}: its digest is {}, expected {}", name,
                             out.digest(), entry.digest));
    }
    return Done{};
  }

  Result<Done> advance(std::uint64_t bytes) {
    progress_.done += bytes;
    if (options_.progress && !options_.progress(progress_))
      return make_error(ErrorCode::cancelled, "the merge was cancelled");
    return Done{};
  }

  Result<Done> restore(StreamOut& out, std::uint64_t bytes) {
    if (bytes > rest_->reader().size() - rest_->at())
      return lie(fmt::format("{} is too short for it", rest_name));
    return rest_->each(bytes, [&](ByteSpan piece) -> Result<Done> {
      PARFAIT_CHECK_OK(out.append(piece));
      return advance(piece.size());
    });
  }

  // The same tensor on every rank: name, dtype and the bytes that the manifest gives it.
  Result<Done> match_ranks(const TensorInfo& tensor, const Slices& slices) {
    if (const std::string why = slices.objection(tensor.bytes); !why.empty())
      return lie(fmt::format("tensor {}: {}", printable(tensor.name), why));
    for (std::uint32_t rank = 0; rank < manifest_.ranks; ++rank) {
      const std::vector<TensorInfo>& header = headers_[rank];
      const TensorInfo* mine = next_ < header.size() ? &header[next_] : nullptr;
      const std::uint64_t expected = slices.bytes_of(rank, tensor.bytes);
      if (mine && mine->name == tensor.name && mine->dtype == tensor.dtype &&
          mine->bytes == expected && mine->offset == ranks_[rank].at())
        continue;
      return lie(fmt::format("tensor {} should be the {}. of rank {}, {} of {} bytes, and is not",
                             printable(tensor.name), next_ + 1, rank, dtype_name(tensor.dtype),
                             expected));
    }
    ++next_;
    return Done{};
  }

  Result<Done> write_tensor(StreamOut& out, const TensorInfo& tensor) {
    const auto it = manifest_.cut.find(std::string(tensor.name));
    const CutTensor whole;
    const CutTensor& cut = it == manifest_.cut.end() ? whole : it->second;
    used_ += it != manifest_.cut.end();
    PARFAIT_CHECK_OK(match_ranks(tensor, cut.slices));
    switch (cut.slices.cut.cut) {
      case Cut::none:
      case Cut::first_rank:
        return join_whole(out, tensor, cut.slices.cut.cut);
      case Cut::rows:
        return join_rows(out, tensor, cut);
      case Cut::columns:
        return join_columns(out, cut.slices);
      case Cut::tiles:
        return join_tiles(out, tensor, cut);
    }
    return Done{};
  }

  // From the first rank; copies on the others must be the same bytes.
  Result<Done> join_whole(StreamOut& out, const TensorInfo& tensor, Cut cut) {
    for (std::uint64_t at = 0; at < tensor.bytes; at += piece_bytes) {
      const std::uint64_t count = std::min(piece_bytes, tensor.bytes - at);
      PARFAIT_TRY(const ByteSpan first, ranks_[0].take(count));
      PARFAIT_CHECK_OK(out.append(first));
      for (std::uint32_t rank = 1; rank < manifest_.ranks; ++rank) {
        PARFAIT_TRY(const ByteSpan copy, ranks_[rank].take(count));
        if (cut == Cut::none && !std::ranges::equal(first, copy))
          return make_error(
              ErrorCode::shard_rank,
              "{}: its copy of tensor {} differs from rank 0's; one of them was edited",
              printable(ranks_[rank].reader().name(), 1000), printable(tensor.name));
      }
      PARFAIT_CHECK_OK(advance(count));
    }
    return Done{};
  }

  Result<Done> join_rows(StreamOut& out, const TensorInfo& tensor, const CutTensor& cut) {
    const Slices& slices = cut.slices;
    const std::uint64_t row = slices.row_bytes();
    for (const Slices::Run& run : slices.runs()) {
      const auto write = [&](ByteSpan bytes) -> Result<Done> {
        PARFAIT_CHECK_OK(out.append(bytes));
        return advance(bytes.size());
      };
      PARFAIT_CHECK_OK(ranks_[run.rank].each((run.end - run.begin) * row, write));
    }
    for (std::uint32_t rank = 0; rank < manifest_.ranks; ++rank)
      PARFAIT_CHECK_OK(
          ranks_[rank].skip((slices.stored_rows_of(rank) - slices.rows_of(rank)) * row));
    const std::uint64_t padding = tensor.bytes - slices.cut.used * row;
    if (cut.kept != 0 && cut.kept != padding)
      return lie(fmt::format("tensor {} has {} bytes of padding, not {}", printable(tensor.name),
                             padding, cut.kept));
    if (cut.kept != 0) return restore(out, padding);
    PARFAIT_CHECK_OK(out.append_zeros(padding));
    return advance(padding);
  }

  Result<Done> join_columns(StreamOut& out, const Slices& slices) {
    const std::uint64_t row = slices.row_bytes(), rows = slices.cut.rows;
    const std::uint64_t at_once = std::max<std::uint64_t>(1, piece_bytes / row);
    std::vector<std::vector<Slices::Piece>> pieces;
    for (std::uint32_t rank = 0; rank < manifest_.ranks; ++rank)
      pieces.push_back(slices.pieces_of(rank));
    std::vector<std::byte> joined;
    for (std::uint64_t first = 0; first < rows; first += at_once) {
      const std::uint64_t count = std::min(at_once, rows - first);
      joined.resize(count * row);
      for (std::uint32_t rank = 0; rank < manifest_.ranks; ++rank) {
        std::uint64_t size = 0;
        for (const Slices::Piece& piece : pieces[rank]) size += piece.bytes;
        PARFAIT_TRY(const ByteSpan bytes, ranks_[rank].take(count * size));
        const std::byte* in = bytes.data();
        for (std::uint64_t r = 0; r < count; ++r)
          for (const Slices::Piece& piece : pieces[rank]) {
            std::memcpy(joined.data() + r * row + piece.at, in, piece.bytes);
            in += piece.bytes;
          }
      }
      PARFAIT_CHECK_OK(out.append(joined));
      PARFAIT_CHECK_OK(advance(joined.size()));
    }
    return Done{};
  }

  // Block scales: each band of 128 rows is gathered from the ranks' bands.
  Result<Done> join_tiles(StreamOut& out, const TensorInfo& tensor, const CutTensor& cut) {
    const Slices& slices = cut.slices;
    const formats::BlockScales whole = slices.tiles();
    const std::uint64_t band_bytes = whole.tile_rows * whole.stored_columns();
    const std::uint64_t padding = whole.stored_bytes() - slices.cut.used * whole.columns;
    if (cut.kept != 0 && cut.kept != padding)
      return lie(fmt::format("tensor {} has {} bytes of padding, not {}", printable(tensor.name),
                             padding, cut.kept));
    const std::vector<Slices::Run> runs = slices.runs();
    auto run = runs.begin();
    constexpr std::uint64_t none = ~std::uint64_t{0};
    std::uint64_t held = none;  // the rank's band in `band`
    std::uint32_t held_rank = 0;
    ByteSpan band;
    std::vector<std::byte> scratch, joined;
    for (std::uint64_t first = 0; first < whole.stored_rows(); first += whole.tile_rows) {
      joined.assign(band_bytes, std::byte{0});
      for (std::uint64_t row = first; row < first + whole.tile_rows; ++row) {
        std::uint64_t c = 0;
        if (row < slices.cut.used) {
          while (row >= run->end) ++run;
          const std::uint64_t at = run->at + (row - run->begin);
          if (held != at / whole.tile_rows || held_rank != run->rank) {
            held = at / whole.tile_rows;
            held_rank = run->rank;
            PARFAIT_TRY(band, ranks_[held_rank].peek(held * band_bytes, band_bytes, scratch));
          }
          for (; c < whole.columns; ++c)
            joined[whole.offset(row - first, c)] = band[whole.offset(at % whole.tile_rows, c)];
        }
        if (cut.kept == 0) continue;
        for (; c < whole.stored_columns(); ++c) {
          PARFAIT_TRY(const ByteSpan byte, rest_->take(1));
          joined[whole.offset(row - first, c)] = byte[0];
        }
      }
      PARFAIT_CHECK_OK(out.append(joined));
      PARFAIT_CHECK_OK(advance(joined.size()));
    }
    for (std::uint32_t rank = 0; rank < manifest_.ranks; ++rank)
      PARFAIT_CHECK_OK(ranks_[rank].skip(slices.tiles_of(rank).stored_bytes()));
    return Done{};
  }

  // Every file was read to its end and is the one that was written; nothing in the manifest is of
  // no tensor.
  Result<Done> check_ends() {
    for (std::uint32_t rank = 0; rank < manifest_.ranks; ++rank) {
      StreamIn& in = ranks_[rank];
      PARFAIT_CHECK_OK(in.skip(in.reader().size() - in.at()));
      if (in.digest() != manifest_.rank_files[rank].digest)
        return changed(in.reader().name(), in.digest(), manifest_.rank_files[rank].digest);
    }
    PARFAIT_CHECK_OK(rest_->skip(rest_->reader().size() - rest_->at()));
    if (rest_->digest() != manifest_.rest.digest)
      return changed(rest_->reader().name(), rest_->digest(), manifest_.rest.digest);
    if (used_ != manifest_.cut.size()) return lie("it cuts tensors that the source does not have");
    return Done{};
  }

  const fs::path& folder_;
  const MergeOptions& options_;
  const std::string manifest_file_;
  Manifest manifest_;
  std::pmr::monotonic_buffer_resource arena_;  // names of all headers
  std::vector<StreamIn> ranks_;
  std::vector<std::vector<TensorInfo>> headers_;  // by rank
  std::optional<StreamIn> rest_;
  std::unordered_set<std::string_view> seen_;
  std::size_t next_ = 0;  // tensor of the ranks
  std::size_t used_ = 0;  // cut tensors that were written
  Progress progress_;
};

}  // namespace
}  // namespace convert

Result<MergeReport> merge(const std::filesystem::path& folder, const std::filesystem::path& target,
                          const MergeOptions& options) {
  return convert::Merger(folder, options).run(target);
}

}  // namespace parfait
