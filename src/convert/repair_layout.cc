#include "convert/repair_layout.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/result.h"
#include "convert/output.h"

namespace parfait::convert {
namespace {

constexpr std::string_view marker_suffix = "comfy_quant";
constexpr std::uint64_t copy_bytes = 4 << 20;

bool is_marker(const DraftTensor& tensor) { return tensor.declared.name.ends_with(marker_suffix); }

std::uint64_t element_bytes(const DraftTensor& tensor) {
  return std::max<std::uint64_t>(dtype_bits(tensor.declared.dtype) / 8, 1);
}

// The header for these tensors, its length in front, padded to `room` bytes in all (0: unpadded).
// Where it is longer than that it comes as it is.
Result<std::vector<std::byte>> header_of(
    const std::vector<const DraftTensor*>& tensors,
    const std::vector<std::pair<std::string, std::string>>& metadata, std::uint64_t room) {
  std::vector<container::TensorDeclaration> declared;
  declared.reserve(tensors.size());
  for (const DraftTensor* tensor : tensors) declared.push_back(tensor->declared);
  PARFAIT_TRY(std::vector<std::byte> header, container::make_header(declared, metadata));
  while (header.size() > 8 && header.back() == std::byte{' '}) header.pop_back();
  if (header.size() < room) header.resize(room, std::byte{' '});
  store_at<std::uint64_t>(header.data(), 0, header.size() - 8);
  return header;
}

// A marker that became shorter, made as long as it was by spaces inside its braces.
void keep_length(DraftTensor& tensor) {
  std::vector<std::byte>& bytes = *tensor.bytes;
  const std::uint64_t longer = tensor.old->bytes - bytes.size();
  bytes.insert(bytes.end() - 1, longer, std::byte{' '});
  tensor.declared.shape = {bytes.size()};
}

class Fitter {
 public:
  Fitter(const container::Shard& shard, const DraftFile& file)
      : shard_(shard), metadata_(file.metadata) {
    for (const DraftTensor& tensor : file.tensors) {
      if (tensor.old)
        olds_.push_back(tensor);
      else
        added_.push_back(&tensor);
    }
    data_end_ = shard.reader->size() - file.trailing_bytes;
    edited_ = file.edited;
  }

  Result<Done> fit(InPlace& out) {
    const std::uint64_t start = 8 + shard_.header_bytes;
    std::vector<std::byte> scratch;
    PARFAIT_TRY(const ByteSpan bytes, shard_.reader->read(0, start, scratch));
    out.old_start.assign(bytes.begin(), bytes.end());
    PARFAIT_CHECK_OK(attempt(out));
    if (out.patch) return Done{};
    // Once more with markers that keep their length, so that more of the file stays as it is.
    bool any = false;
    for (DraftTensor& tensor : olds_) {
      if (!is_marker(tensor) || !tensor.bytes || tensor.bytes->size() >= tensor.old->bytes ||
          tensor.fate == DraftTensor::Fate::removed || tensor.bytes->empty() ||
          tensor.bytes->back() != std::byte{'}'})
        continue;
      keep_length(tensor);
      any = true;
    }
    if (any) PARFAIT_CHECK_OK(attempt(out));
    return Done{};
  }

 private:
  static bool disturbed(const DraftTensor& tensor) {
    if (tensor.fate == DraftTensor::Fate::removed) return tensor.old->bytes > 0;
    return tensor.size() != tensor.old->bytes;
  }

  // Tensors olds_[0, front) move to the tail, olds_[front, tail) stay, the rest is written anew.
  Result<Done> attempt(InPlace& out) {
    std::size_t tail = 0;
    while (tail < olds_.size() && !disturbed(olds_[tail])) ++tail;
    const std::size_t first_disturbed = tail;
    std::size_t front = 0;
    for (;;) {
      tail = aligned_tail(front, std::min(tail, first_disturbed));
      if (tail < front || moved_bytes(front, tail) > max_moved_bytes) {
        out.why = front > 0
                      ? "its header outgrows its room, and the data behind it are too large to move"
                  : first_disturbed < olds_.size()
                      ? fmt::format("{} changes its length or goes, in the midst of the weights",
                                    printable(olds_[first_disturbed].old->name, 200))
                      : "there is nowhere to put the tensors that are added";
        return Done{};
      }
      const std::vector<const DraftTensor*> order = new_order(front, tail);
      const std::uint64_t room = offset_of(front, tail);
      PARFAIT_TRY(const std::vector<std::byte> header, header_of(order, metadata_, room));
      if (header.size() <= room) return finish(out, order, header, front, tail);
      // As many tensors as free what is missing.
      const std::uint64_t wanted = room + (header.size() - room) + 64;
      while (front < tail && offset_of(front, tail) < wanted) ++front;
      if (offset_of(front, tail) < wanted || offset_of(front, tail) - wanted > max_header_padding) {
        out.why = "its header has no room for what must be added";
        return Done{};
      }
    }
  }

  std::uint64_t offset_of(std::size_t i, std::size_t tail) const {
    return i < tail || tail < olds_.size() ? olds_[std::min(i, tail)].old->offset : data_end_;
  }

  template <class Visit>
  void visit_tail(std::size_t front, std::size_t tail, Visit visit) const {
    for (std::size_t i = tail; i < olds_.size(); ++i)
      if (olds_[i].fate == DraftTensor::Fate::kept) visit(olds_[i]);
    for (const DraftTensor* tensor : added_) visit(*tensor);
    for (std::size_t i = 0; i < front; ++i)
      if (olds_[i].fate == DraftTensor::Fate::kept) visit(olds_[i]);
  }

  std::uint64_t moved_bytes(std::size_t front, std::size_t tail) const {
    std::uint64_t bytes = 0;
    visit_tail(front, tail, [&](const DraftTensor& tensor) { bytes += tensor.size(); });
    return bytes;
  }

  // The tail begins where its widest values are aligned: they come first in it.
  std::size_t aligned_tail(std::size_t front, std::size_t tail) const {
    std::uint64_t width = 1;
    visit_tail(front, tail,
               [&](const DraftTensor& tensor) { width = std::max(width, element_bytes(tensor)); });
    while (tail > front && offset_of(tail, tail) % width != 0) {
      --tail;
      width = std::max(width, element_bytes(olds_[tail]));
    }
    return tail;
  }

  std::vector<const DraftTensor*> new_order(std::size_t front, std::size_t tail) const {
    std::vector<const DraftTensor*> order, behind;
    for (std::size_t i = front; i < tail; ++i)
      if (olds_[i].fate == DraftTensor::Fate::kept) order.push_back(&olds_[i]);
    visit_tail(front, tail, [&](const DraftTensor& tensor) { behind.push_back(&tensor); });
    std::stable_sort(behind.begin(), behind.end(), [](const DraftTensor* a, const DraftTensor* b) {
      const auto rank = [](const DraftTensor& tensor) {
        return is_marker(tensor) ? std::uint64_t{1000} : 500 - element_bytes(tensor);
      };
      return rank(*a) < rank(*b);
    });
    order.insert(order.end(), behind.begin(), behind.end());
    return order;
  }

  Result<Done> finish(InPlace& out, const std::vector<const DraftTensor*>& order,
                      const std::vector<std::byte>& header, std::size_t front, std::size_t tail) {
    io::Patch patch;
    patch.old_size = shard_.reader->size();
    if (edited_ == DraftFile::Edited::yes) patch.parts.push_back({0, header});
    for (std::size_t i = front; i < tail; ++i)
      if (olds_[i].bytes && olds_[i].fate == DraftTensor::Fate::kept)
        patch.parts.push_back({olds_[i].old->offset, *olds_[i].bytes});
    io::PatchPart end{offset_of(tail, tail), {}};
    std::size_t staying = 0;
    for (std::size_t i = front; i < tail; ++i) staying += olds_[i].fate == DraftTensor::Fate::kept;
    for (const DraftTensor* tensor : std::span(order).subspan(staying)) {
      if (tensor->bytes) {
        end.bytes.insert(end.bytes.end(), tensor->bytes->begin(), tensor->bytes->end());
        continue;
      }
      std::vector<std::byte> scratch;
      PARFAIT_TRY(const ByteSpan bytes,
                  shard_.reader->read(tensor->old->offset, tensor->old->bytes, scratch));
      end.bytes.insert(end.bytes.end(), bytes.begin(), bytes.end());
    }
    patch.new_size = end.offset + end.bytes.size();
    if (!end.bytes.empty()) patch.parts.push_back(std::move(end));
    out.patch = std::move(patch);
    out.why.clear();
    return Done{};
  }

  const container::Shard& shard_;
  const std::vector<std::pair<std::string, std::string>>& metadata_;
  std::vector<DraftTensor> olds_;
  std::vector<const DraftTensor*> added_;
  std::uint64_t data_end_ = 0;
  DraftFile::Edited edited_ = DraftFile::Edited::no;
};

// A file that is put together of other readers' pieces.
class Pieces final : public io::Reader {
 public:
  struct Piece {
    std::uint64_t at = 0, bytes = 0;
    const std::byte* memory = nullptr;  // or else from the source
    std::uint64_t offset = 0;
  };
  Pieces(std::string name, std::uint64_t size, std::vector<Piece> pieces,
         std::vector<std::byte> header, io::ReaderPtr source)
      : io::Reader(std::move(name), size),
        pieces_(std::move(pieces)),
        header_(std::move(header)),
        source_(std::move(source)) {
    pieces_.front().memory = header_.data();
  }

  Result<ByteSpan> read(std::uint64_t offset, std::uint64_t bytes,
                        std::vector<std::byte>& scratch) const override {
    if (offset > size() || bytes > size() - offset)
      return make_error(ErrorCode::file_read, "{}: a read goes past its end",
                        printable(name(), 1000));
    scratch.resize(bytes);
    auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                  [](std::uint64_t at, const Piece& p) { return at < p.at; });
    --piece;
    std::vector<std::byte> own;
    for (std::uint64_t done = 0; done < bytes; ++piece) {
      const std::uint64_t from = offset + done - piece->at;
      if (from >= piece->bytes) continue;
      const std::uint64_t count = std::min(piece->bytes - from, bytes - done);
      const std::byte* data = piece->memory ? piece->memory + from : nullptr;
      if (!data) {
        PARFAIT_TRY(const ByteSpan read, source_->read(piece->offset + from, count, own));
        data = read.data();
      }
      std::memcpy(scratch.data() + done, data, count);
      done += count;
    }
    return ByteSpan(scratch);
  }

 private:
  std::vector<Piece> pieces_;
  std::vector<std::byte> header_;
  io::ReaderPtr source_;
};

}  // namespace

Result<Done> fit_in_place(const container::Shard& shard, const DraftFile& file, InPlace& out) {
  return Fitter(shard, file).fit(out);
}

Result<io::ReaderPtr> preview(const container::Shard& shard, const DraftFile& file) {
  std::vector<const DraftTensor*> order;
  for (const DraftTensor& tensor : file.tensors)
    if (tensor.fate == DraftTensor::Fate::kept) order.push_back(&tensor);
  PARFAIT_TRY(std::vector<std::byte> header, header_of(order, file.metadata, 0));
  std::vector<Pieces::Piece> pieces = {{0, header.size(), nullptr, 0}};
  std::uint64_t end = header.size();
  for (const DraftTensor* tensor : order) {
    if (tensor->size() == 0) continue;
    pieces.push_back({end, tensor->size(), tensor->bytes ? tensor->bytes->data() : nullptr,
                      tensor->bytes ? 0 : tensor->old->offset});
    end += tensor->size();
  }
  return io::ReaderPtr(std::make_shared<Pieces>(shard.reader->name(), end, std::move(pieces),
                                                std::move(header), shard.reader));
}

Result<Done> rewrite(const container::Shard& shard, const DraftFile& file,
                     const std::filesystem::path& target, RewriteOptions& options) {
  std::vector<container::TensorDeclaration> declared;
  std::vector<const DraftTensor*> tensors;
  for (const DraftTensor& tensor : file.tensors) {
    if (tensor.fate == DraftTensor::Fate::removed) continue;
    declared.push_back(tensor.declared);
    tensors.push_back(&tensor);
  }
  PARFAIT_TRY(Output output, Output::create(target, declared, {},
                                            {.metadata = file.metadata, .fingerprint = "repair"}));
  std::vector<std::byte> scratch;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const DraftTensor& tensor = *tensors[i];
    if (tensor.bytes) {
      PARFAIT_CHECK_OK(output.put(i, 0, *tensor.bytes));
      continue;
    }
    for (std::uint64_t at = 0; at < tensor.old->bytes; at += copy_bytes) {
      options.progress.what = tensor.old->name;
      if (options.callback && !options.callback(options.progress))
        return make_error(ErrorCode::cancelled, "the repair was cancelled");
      const std::uint64_t count = std::min(copy_bytes, tensor.old->bytes - at);
      PARFAIT_TRY(const ByteSpan bytes,
                  shard.reader->read(tensor.old->offset + at, count, scratch));
      PARFAIT_CHECK_OK(output.put(i, at, bytes));
      shard.reader->drop(tensor.old->offset + at, count);
      options.progress.done += count;
    }
  }
  return output.file().finish();
}

}  // namespace parfait::convert
