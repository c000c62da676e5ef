// What the program writes: text on standard output, sentences and progress on standard error.
//
// Colour is used on a terminal only, never with NO_COLOR set or TERM=dumb. Writing throws
// OutputClosed once the reader has gone (as `| head` does), OutputFailed where the device refuses,
// and Interrupted once the user has asked to stop; main() turns each into an exit status.
#ifndef PARFAIT_CLI_OUTPUT_H_
#define PARFAIT_CLI_OUTPUT_H_

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "parfait/checkpoint.h"

namespace parfait::cli {

struct OutputClosed {};
struct OutputFailed {
  std::string why;
};
struct Interrupted {};

enum class Style { plain, bold, dim, red, yellow, green };

// Standard output. Text is gathered and written in large pieces.
class Output {
 public:
  Output();
  void write(std::string_view text);
  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    write(fmt::format(format, std::forward<Args>(args)...));
  }
  void flush();
  std::string paint(Style style, std::string_view text) const;

 private:
  std::string buffer_;
  enum class Colour { off, on } colour_;
};

// "parfait: <sentence>" on standard error.
void complain(std::string_view sentence);
// A line on standard error as it stands.
void tell(std::string_view line);

// To be called first. From then on SIGINT and SIGTERM only set a flag that progress callbacks and
// writing look at (a second one ends the program at once), a closed pipe is an error instead of a
// signal, and no file that is opened can take the place of a closed standard stream.
void prepare_process();
// The signal that came, or 0.
int signal_caught();

// A progress bar on standard error while it lives; nothing where that is not a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::string doing);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Draws; false once the user has asked to stop.
  bool show(const Progress& progress);
  ProgressCallback callback();

 private:
  std::string doing_;
  enum class Terminal { no, yes } terminal_;
  enum class Drawn { no, yes } drawn_ = Drawn::no;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace parfait::cli

#endif  // PARFAIT_CLI_OUTPUT_H_
