// Errors are values. Every fallible function returns Result<T>: a T or an Error with a stable code
// and one sentence that names the subject, what was found, what was expected and, where it is
// known, the likely cause. No exception crosses this interface and nothing here prints, aborts or
// exits. All types are plain values: copy and move them freely between threads.
#ifndef PARFAIT_ERROR_H_
#define PARFAIT_ERROR_H_

#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace parfait {

enum class ErrorCode {
#define PARFAIT_ERROR(identifier, text, meaning) identifier,
#include "parfait/errors.inc"
#undef PARFAIT_ERROR
};

// The stable string of a code ("header.overlap") and one line on what it means.
std::string_view error_code_name(ErrorCode code);
std::string_view error_code_meaning(ErrorCode code);

struct Error {
  ErrorCode code;
  std::string message;
};

// What a function hands back in place of "nothing": Result<Done>.
struct Done {};

// A value or an Error, after std::expected. value() and error() may only be called on the side that
// is there (ok() tells); they do not check.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return *std::get_if<0>(&state_); }
  const T& value() const& { return *std::get_if<0>(&state_); }
  T&& value() && { return std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return std::get_if<0>(&state_); }
  const T* operator->() const { return std::get_if<0>(&state_); }

  const Error& error() const& { return *std::get_if<1>(&state_); }
  Error&& error() && { return std::move(*std::get_if<1>(&state_)); }

 private:
  std::variant<T, Error> state_;
};

enum class Severity {
  note,     // worth knowing; nothing is wrong
  warning,  // the file can be used, but a reader may differ, or its writer erred
  error,    // the file must not be planned or run
};
std::string_view severity_name(Severity severity);

// One thing that opening, detection or checking found. Empty strings are fields that do not apply.
struct Finding {
  ErrorCode code;
  Severity severity = Severity::error;
  std::string layer = {};     // "blocks.3.attn.qkv_proj"
  std::string tensor = {};    // "blocks.3.attn.qkv_proj.weight_scale"
  std::string got = {};       // "F32 [3]"
  std::string expected = {};  // "F32 with 1 or 21504 values"
  std::string message = {};   // the sentence: what is wrong and what to do
  std::string file = {};      // the shard, where there are several

  // "error header.trailing: ..." on one line: layer, tensor, got and expected included.
  std::string line() const;
};

}  // namespace parfait

#endif  // PARFAIT_ERROR_H_
