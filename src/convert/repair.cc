#include "convert/repair.h"

#include <algorithm>
#include <system_error>

#include "base/result.h"
#include "container/index_builder.h"
#include "convert/output.h"
#include "convert/repair_mends.h"
#include "formats/format.h"
#include "io/patch.h"
#include "io/replacement.h"

namespace parfait {

RepairPlan::RepairPlan(std::shared_ptr<const State> state) : state_(std::move(state)) {}
std::span<const RepairChange> RepairPlan::changes() const { return state_->changes; }
std::span<const Finding> RepairPlan::remaining() const { return state_->remaining; }
std::span<const RepairFile> RepairPlan::files() const { return state_->files; }
std::span<const std::string> RepairPlan::interrupted() const { return state_->interrupted; }

}  // namespace parfait

namespace parfait::convert {
namespace {

namespace fs = std::filesystem;

// Files at path whose repair was interrupted. A shard set cannot be opened then, so all that lie in
// its folder count.
std::vector<std::string> find_interrupted(const fs::path& path) {
  std::vector<std::string> found;
  std::error_code error;
  const auto look = [&](const fs::path& file) {
    if (io::find_patch(file) == io::PatchState::interrupted) found.push_back(file.string());
  };
  if (fs::is_regular_file(path, error) && path.extension() == ".safetensors") look(path);
  const bool set = fs::is_directory(path, error) || path.extension() == ".json" ||
                   path.filename().string().find("-of-") != std::string::npos;
  if (!set) return found;
  fs::path folder = fs::is_directory(path, error) ? path : path.parent_path();
  if (folder.empty()) folder = ".";
  std::vector<fs::path> journals;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    fs::path file = it->path();
    if (file.extension() != ".repair") continue;
    file.replace_extension();
    if (file.extension() == ".safetensors" && file != path) journals.push_back(file);
  }
  std::ranges::sort(journals);
  for (const fs::path& file : journals)
    if (fs::is_regular_file(file, error)) look(file);
  return found;
}

// Whether a finding of the mended file is something wrong that stays. Warnings that speak of what
// no header can tell (block scales' order, a correction that one tool leaves out) are not.
bool stays_wrong(const Finding& finding) {
  if (finding.severity == Severity::error) return true;
  if (finding.severity == Severity::note) return false;
  return finding.code != ErrorCode::dialect_block_scale &&
         finding.code != ErrorCode::dialect_correction &&
         finding.code != ErrorCode::index_stray_file;
}

class Planner {
 public:
  Planner(const fs::path& path, const RepairOptions& options) : options_(options) {
    state_->path = path;
  }

  Result<RepairPlan> plan() {
    state_->interrupted = find_interrupted(state_->path);
    if (!state_->interrupted.empty()) return RepairPlan(state_);
    OpenOptions open = options_.open;
    open.io = Io::pread;  // what is written in place must not be mapped
    open.strictness = Strictness::lenient;
    PARFAIT_TRY(const container::TensorIndexPtr index, container::open_index(state_->path, open));
    for (const Finding& finding : index->findings())
      if (finding.code == ErrorCode::index_duplicate)
        return make_error(ErrorCode::index_duplicate,
                          "tensor {} stands in two shards, {} and another; such a set is not "
                          "repaired: keep one of them first",
                          printable(finding.tensor), printable(finding.file, 1000));
    PARFAIT_TRY(const auto checkpoint, formats::detect(index, {.compat = options_.open.compat}));
    state_->source.emplace_back(checkpoint);

    Draft draft(index);
    Unproven unproven;
    Proofs proofs;
    if (options_.depth == CheckDepth::data) {
      PARFAIT_CHECK_OK(weigh(*checkpoint, options_.progress, proofs, unproven));
      PARFAIT_CHECK_OK(weigh_bytes(*checkpoint, options_.progress, proofs));
    }
    PARFAIT_CHECK_OK(mend_parts(draft, *checkpoint, proofs));
    PARFAIT_CHECK_OK(mend_declarations(draft, *checkpoint, options_, proofs, unproven));
    state_->changes = std::move(draft.changes());
    state_->drafts = draft.take_files();
    note_trailing(*index);
    PARFAIT_CHECK_OK(lay_out(*index));
    PARFAIT_CHECK_OK(mend_index(*state_, *index));
    PARFAIT_CHECK_OK(check_outcome(*index, std::move(unproven)));
    return RepairPlan(state_);
  }

 private:
  void note_trailing(const container::TensorIndex& index) {
    for (std::size_t i = 0; i < state_->drafts.size(); ++i) {
      const std::uint64_t bytes = state_->drafts[i].trailing_bytes;
      if (bytes == 0) continue;
      state_->changes.push_back({index.shards()[i].reader->name(), "", "the file's end",
                                 fmt::format("{} bytes behind the last tensor", bytes), "none",
                                 "they belong to no tensor; strict readers refuse the file"});
    }
  }

  Result<Done> lay_out(const container::TensorIndex& index) {
    for (std::size_t i = 0; i < state_->drafts.size(); ++i) {
      const DraftFile& draft = state_->drafts[i];
      const container::Shard& shard = index.shards()[i];
      RepairFile file;
      file.path = shard.reader->name();
      InPlace in_place;
      if (draft.edited == DraftFile::Edited::yes || draft.trailing_bytes > 0) {
        PARFAIT_CHECK_OK(fit_in_place(shard, draft, in_place));
        file.way = in_place.patch ? RepairWay::in_place : RepairWay::rewrite;
        file.why = in_place.why;
        if (in_place.patch)
          for (const io::PatchPart& part : in_place.patch->parts)
            file.bytes_to_write += part.bytes.size();
        else
          file.bytes_to_write = shard.reader->size();
      }
      state_->in_place.push_back(std::move(in_place));
      state_->files.push_back(std::move(file));
    }
    return Done{};
  }

  // Opens and checks what would come out, as if it had been written.
  Result<Done> check_outcome(const container::TensorIndex& index, Unproven unproven) {
    OpenOptions open = options_.open;
    open.strictness = Strictness::lenient;
    open.max_header_bytes = std::max(open.max_header_bytes, open.max_header_bytes * 2);
    container::IndexBuilder builder(open);
    for (std::size_t i = 0; i < state_->drafts.size(); ++i) {
      PARFAIT_TRY(io::ReaderPtr reader, preview(index.shards()[i], state_->drafts[i]));
      PARFAIT_CHECK_OK(builder.add(std::move(reader)));
    }
    PARFAIT_TRY(const auto outcome,
                formats::detect(builder.finish(), {.compat = options_.open.compat}));
    PARFAIT_TRY(std::vector<Finding> findings, formats::check_layers(*outcome, {}));
    for (Finding& finding : unproven) state_->remaining.push_back(std::move(finding));
    for (Finding& finding : findings)
      if (stays_wrong(finding) && !is_told(finding))
        state_->remaining.push_back(std::move(finding));
    return Done{};
  }

  bool is_told(const Finding& finding) const {
    // Only the few that precede are compared: they are those without proof.
    return finding.code == ErrorCode::marker_default &&
           std::ranges::any_of(state_->remaining, [&](const Finding& other) {
             return other.layer == finding.layer && other.code == finding.code;
           });
  }

  const RepairOptions& options_;
  std::shared_ptr<RepairPlan::State> state_ = std::make_shared<RepairPlan::State>();
};

Result<Done> check_cancelled(const RepairOutput& output, const Progress& progress) {
  if (output.progress && !output.progress(progress))
    return make_error(ErrorCode::cancelled, "the repair was cancelled");
  return Done{};
}

Result<Done> write_index(const fs::path& file, const std::string& text);

class Writer {
 public:
  Writer(const RepairPlan::State& plan, const RepairOutput& output)
      : plan_(plan), output_(output), options_{output.progress, {}} {}

  Result<RepairReport> write() {
    if (!plan_.interrupted.empty()) return finish_interrupted();
    const bool elsewhere = !output_.target.empty();
    for (const RepairFile& file : plan_.files)
      if (elsewhere || file.way == RepairWay::rewrite)
        options_.progress.total += file_size(file.path);
    PARFAIT_CHECK_OK(check_cancelled(output_, options_.progress));
    if (elsewhere) {
      PARFAIT_CHECK_OK(write_elsewhere());
    } else {
      PARFAIT_CHECK_OK(write_here());
    }
    return std::move(report_);
  }

 private:
  static std::uint64_t file_size(const std::string& path) {
    std::error_code error;
    const auto size = fs::file_size(path, error);
    return error ? 0 : size;
  }

  Result<RepairReport> finish_interrupted() {
    for (const std::string& file : plan_.interrupted) {
      PARFAIT_CHECK_OK(io::finish_patch(file));
      report_.written.push_back(file);
    }
    return std::move(report_);
  }

  const container::Shard& shard(std::size_t i) const {
    return plan_.source.front().state()->index->shards()[i];
  }

  Result<Done> write_here() {
    // An index that names a tensor which its shard lacks makes the set unreadable; one that lacks a
    // name does not. So names that go are taken out first, and those that come put in last.
    if (!plan_.index_between.empty())
      PARFAIT_CHECK_OK(write_index(plan_.index_file, plan_.index_between));
    for (std::size_t i = 0; i < plan_.files.size(); ++i) {
      const RepairFile& file = plan_.files[i];
      if (file.way == RepairWay::nothing) continue;
      if (file.way == RepairWay::in_place) {
        PARFAIT_CHECK_OK(
            io::apply_patch(file.path, *plan_.in_place[i].patch, plan_.in_place[i].old_start));
        report_.bytes_written += file.bytes_to_write;
      } else {
        PARFAIT_CHECK_OK(rewrite(shard(i), plan_.drafts[i], file.path, options_));
        report_.bytes_written += file_size(file.path);
      }
      report_.written.push_back(file.path);
    }
    if (!plan_.index_text.empty()) {
      PARFAIT_CHECK_OK(write_index(plan_.index_file, plan_.index_text));
      report_.written.push_back(plan_.index_file.string());
    }
    return Done{};
  }

  Result<Done> write_elsewhere() {
    std::error_code error;
    if (plan_.files.size() == 1 && plan_.index_file.empty()) {
      PARFAIT_CHECK_OK(refuse_inputs(output_.target, plan_.source));
      PARFAIT_CHECK_OK(io::refuse_other_kind(output_.target, io::safetensors_file));
      return write_to(0, output_.target);
    }
    if (fs::exists(output_.target, error) && !fs::is_directory(output_.target, error))
      return make_error(ErrorCode::file_write,
                        "{}: is a file, where the {} shards of a set need a folder",
                        printable(output_.target.string(), 1000), plan_.files.size());
    const fs::path root = plan_.index_file.empty() ? fs::path(plan_.files[0].path).parent_path()
                                                   : plan_.index_file.parent_path();
    for (std::size_t i = 0; i < plan_.files.size(); ++i) {
      const fs::path target =
          output_.target / fs::path(plan_.files[i].path).lexically_proximate(root);
      PARFAIT_CHECK_OK(refuse_inputs(target, plan_.source));
      fs::create_directories(target.parent_path(), error);
      if (error)
        return make_error(ErrorCode::file_write, "{}: the folder cannot be made: {}",
                          printable(target.parent_path().string(), 1000), error.message());
      PARFAIT_CHECK_OK(write_to(i, target));
    }
    if (plan_.index_file.empty()) return Done{};
    const fs::path target = output_.target / plan_.index_file.filename();
    std::string text = plan_.index_text;
    if (text.empty()) {
      PARFAIT_TRY(const io::ReaderPtr reader, io::open_file(plan_.index_file, Io::pread));
      std::vector<std::byte> scratch;
      PARFAIT_TRY(const ByteSpan bytes, reader->read(0, reader->size(), scratch));
      text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    PARFAIT_CHECK_OK(write_index(target, text));
    report_.written.push_back(target.string());
    return Done{};
  }

  Result<Done> write_to(std::size_t i, const fs::path& target) {
    PARFAIT_CHECK_OK(rewrite(shard(i), plan_.drafts[i], target, options_));
    report_.bytes_written += file_size(target.string());
    report_.written.push_back(target.string());
    return Done{};
  }

  const RepairPlan::State& plan_;
  const RepairOutput& output_;
  RewriteOptions options_;
  RepairReport report_;
};

Result<Done> write_index(const fs::path& file, const std::string& text) {
  PARFAIT_TRY(io::Replacement out, io::Replacement::create(file, io::json_file));
  PARFAIT_CHECK_OK(out.append({reinterpret_cast<const std::byte*>(text.data()), text.size()}));
  return out.finish();
}

}  // namespace

Result<RepairPlan> make_repair_plan(const fs::path& path, const RepairOptions& options) {
  return Planner(path, options).plan();
}

Result<RepairReport> carry_out_repair(const RepairPlan& plan, const RepairOutput& output) {
  return Writer(plan.state(), output).write();
}

}  // namespace parfait::convert
