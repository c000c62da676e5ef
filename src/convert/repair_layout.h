// A DraftFile as bytes: over the file itself where its weights can stay where they are, or as a
// stream of a whole new file.
#ifndef PARFAIT_CONVERT_REPAIR_LAYOUT_H_
#define PARFAIT_CONVERT_REPAIR_LAYOUT_H_

#include <filesystem>
#include <optional>
#include <string>

#include "convert/repair_draft.h"
#include "io/patch.h"
#include "io/reader.h"

namespace parfait::convert {

// Bytes that are moved at most so that a file can be mended in place, and spaces at most that its
// header is padded with.
inline constexpr std::uint64_t max_moved_bytes = 64 << 20;
inline constexpr std::uint64_t max_header_padding = 8 << 20;

// How a file is mended in place, or why it is not.
//
// safetensors allows no holes, so a tensor may change its length, go or come at the end of the data
// only. From the first such tensor on, the file's tail is written anew, if it is small: writers put
// markers last. Where the header outgrows its room, tensors at the start of the data move to the
// tail and leave theirs. Values stay aligned to their size in the file, as torch wants them.
struct InPlace {
  std::optional<io::Patch> patch;
  std::vector<std::byte> old_start;  // what the file begins with now
  std::string why;                   // there is no patch
};
Result<Done> fit_in_place(const container::Shard& shard, const DraftFile& file, InPlace& out);

// The file as it will be, to be read without having been written. Lives as long as what it is made
// of: the draft and the shard's reader.
Result<io::ReaderPtr> preview(const container::Shard& shard, const DraftFile& file);

struct RewriteOptions {
  ProgressCallback callback;
  Progress progress;  // of the whole work; done is counted up
};
// Writes the file to target in the project's order (output.h).
Result<Done> rewrite(const container::Shard& shard, const DraftFile& file,
                     const std::filesystem::path& target, RewriteOptions& options);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_REPAIR_LAYOUT_H_
