#include "cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "parfait/text.h"

namespace parfait::cli {
namespace {

volatile std::sig_atomic_t caught = 0;
extern "C" void remember(int signal) { caught = signal; }

// A page of a mapped file that is gone: nothing can go on, and only what a signal handler may do is
// done.
extern "C" void report_lost_page(int) {
  constexpr std::string_view sentence =
      "parfait: a file was shortened while it was mapped into memory; --io pread reads without a "
      "mapping\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, sentence.data(), sentence.size());
  ::_exit(2);
}

bool is_rich_terminal(int fd) {
  if (!::isatty(fd)) return false;
  const char* term = std::getenv("TERM");
  return !term || std::strcmp(term, "dumb") != 0;
}

bool wants_colour(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  return is_rich_terminal(fd) && !(no_color && *no_color);
}

// Writes all of it; the errno of a failure, or 0.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = ::write(fd, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(done));
  }
  return 0;
}

}  // namespace

Output::Output() : colour_(wants_colour(STDOUT_FILENO) ? Colour::on : Colour::off) {}

void Output::write(std::string_view text) {
  buffer_ += text;
  if (buffer_.size() >= 1 << 16) flush();
}

void Output::flush() {
  if (caught) throw Interrupted{};
  const std::string text = std::exchange(buffer_, {});
  const int error = write_all(STDOUT_FILENO, text);
  if (error == EPIPE) throw OutputClosed{};
  if (error) throw OutputFailed{std::generic_category().message(error)};
}

std::string Output::paint(Style style, std::string_view text) const {
  if (colour_ == Colour::off || style == Style::plain) return std::string(text);
  constexpr const char* codes[] = {"", "1", "2", "31", "33", "32"};
  return fmt::format("\x1b[{}m{}\x1b[0m", codes[static_cast<int>(style)], text);
}

void tell(std::string_view line) { write_all(STDERR_FILENO, fmt::format("{}\n", line)); }
void complain(std::string_view sentence) { tell(fmt::format("parfait: {}", sentence)); }

void prepare_process() {
  // Opened for reading, so that writing to a stream that was closed stays an error.
  while (true) {
    const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd > STDERR_FILENO) ::close(fd);
    if (fd < 0 || fd > STDERR_FILENO) break;
  }

  struct sigaction action = {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before = {};
    // What a parent has set to be ignored (nohup, a shell's background job) stays ignored.
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
      ::sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a write past the limit fails, and is reported and cleaned up
  std::signal(SIGBUS, report_lost_page);
}

int signal_caught() { return caught; }

ProgressBar::ProgressBar(std::string doing)
    : doing_(std::move(doing)),
      terminal_(is_rich_terminal(STDERR_FILENO) ? Terminal::yes : Terminal::no),
      next_(std::chrono::steady_clock::now() + std::chrono::milliseconds(300)) {}

ProgressBar::~ProgressBar() {
  if (drawn_ == Drawn::yes) write_all(STDERR_FILENO, "\r\x1b[K");
}

bool ProgressBar::show(const Progress& progress) {
  const auto now = std::chrono::steady_clock::now();
  if (terminal_ == Terminal::yes && now >= next_) {
    constexpr int width = 24;
    const double share = progress.total ? std::min(1.0, static_cast<double>(progress.done) /
                                                            static_cast<double>(progress.total))
                                        : 0;
    const int filled = static_cast<int>(share * width);
    write_all(STDERR_FILENO, fmt::format("\r{} [{}{}] {:3.0f}% {}\x1b[K", doing_,
                                         std::string(filled, '='), std::string(width - filled, ' '),
                                         share * 100, printable(progress.what, 36)));
    drawn_ = Drawn::yes;
    next_ = now + std::chrono::milliseconds(100);
  }
  return !caught;
}

ProgressCallback ProgressBar::callback() {
  return [this](const Progress& progress) { return show(progress); };
}

}  // namespace parfait::cli
