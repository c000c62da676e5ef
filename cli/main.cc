// parfait VERB ...: parses the command line, runs the verb, and turns whatever ends it into a
// sentence and an exit status.

#include <csignal>
#include <exception>
#include <new>

#include "cli/verbs.h"

namespace parfait::cli {
namespace {

constexpr int exit_pipe_closed = 128 + SIGPIPE;

int report(Program& program, const Error& error) {
  complain(error.message);
  if (program.json) print_json(program.out, {{"error", to_json(error)}});
  if (error.code == ErrorCode::not_sound || error.code == ErrorCode::plan_split_refused)
    return exit_no;
  if (error.code == ErrorCode::convert_loss) return exit_no;
  return exit_failed;
}

// Runs the verb; what it throws becomes an exit status. Whatever it had opened for writing is gone
// by then, with its temporary file.
int run_verb(Program& program) try {
  int status = exit_ok;
  try {
    status = program.run();
  } catch (const Failure& failure) {
    if (signal_caught()) throw Interrupted{};
    status = report(program, failure.error);
  } catch (const Exit& end) {
    status = end.status;
  } catch (const std::bad_alloc&) {
    status = report(program, {ErrorCode::out_of_memory, "there is not enough memory for this"});
  }
  program.out.flush();
  return status;
} catch (const OutputClosed&) {
  return exit_pipe_closed;
} catch (const OutputFailed& failure) {
  complain("standard output cannot be written: " + failure.why);
  return exit_failed;
} catch (const Interrupted&) {
  complain("interrupted; nothing was left half written");
  return 128 + signal_caught();
}

// The sentence for a first argument that is no verb, or nothing.
std::string unknown_verb(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return {};
  std::string verbs;
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (verb->check_name(argv[1])) return {};
    verbs += (verbs.empty() ? "" : ", ") + verb->get_name();
  }
  return fmt::format("{} is no verb of this program; there are {}", printable(argv[1]), verbs);
}

int main(int argc, char** argv) {
  prepare_process();
  Program program;
  CLI::App app{
      "Opens, checks, plans and runs diffusion checkpoints whose layers are stored in different "
      "low-bit formats.",
      "parfait"};
  app.set_version_flag("--version", "parfait " PARFAIT_VERSION);
  app.require_subcommand(0, 1);
  app.footer(
      "Exit status: 0 yes or done, 1 no (findings, differences, an error above tolerance), "
      "2 the command could not do its work.\n`parfait VERB --help` has each verb's options and "
      "an example.");
  add_inspect(app, program);
  add_check(app, program);
  add_plan(app, program);
  add_diff(app, program);
  add_decode(app, program);
  add_convert(app, program);
  add_repair(app, program);
  add_run(app, program);
  add_generate(app, program);
  add_quantize(app, program);
  add_shard(app, program);
  add_merge(app, program);
  add_verify(app, program);
  add_formats(app, program);
#if defined(PARFAIT_WITH_BENCH)
  add_bench(app, program);
#endif

  const std::string sentence = unknown_verb(app, argc, argv);
  if (!sentence.empty()) return complain(sentence), exit_failed;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    // Of the verb that stands on the command line, if one does.
    const auto verbs = app.get_subcommands();
    program.run = [&, verbs] {
      program.out.write(verbs.empty() ? app.help() : verbs.front()->help("parfait"));
      return exit_ok;
    };
  } catch (const CLI::CallForVersion& version) {
    program.run = [&] { return program.out.print("{}\n", version.what()), exit_ok; };
    return run_verb(program);
  } catch (const CLI::ParseError& error) {
    const auto verbs = app.get_subcommands();
    complain(fmt::format("{} (see `parfait {}--help`)", printable(error.what(), 500),
                         verbs.empty() ? "" : verbs.front()->get_name() + " "));
    return exit_failed;
  }
  if (!program.run) program.run = [&] { return program.out.write(app.help()), exit_ok; };
  return run_verb(program);
}

}  // namespace
}  // namespace parfait::cli

int main(int argc, char** argv) { return parfait::cli::main(argc, argv); }
