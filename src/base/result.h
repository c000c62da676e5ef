// What the folders of src/ add to parfait/error.h: a way to make an Error with a formatted
// sentence, and PARFAIT_TRY, which unwraps a Result or returns its error to the caller.
#ifndef PARFAIT_BASE_RESULT_H_
#define PARFAIT_BASE_RESULT_H_

#include <fmt/format.h>

#include <utility>

#include "parfait/error.h"
#include "parfait/text.h"  // printable(), which every message with text from a file needs

namespace parfait {

template <class... Args>
Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace parfait

#define PARFAIT_CONCAT_(a, b) a##b
#define PARFAIT_CONCAT(a, b) PARFAIT_CONCAT_(a, b)
// PARFAIT_TRY(auto x, f()): declares x as the value of f(), or returns f()'s error.
#define PARFAIT_TRY(declaration, expression) \
  PARFAIT_TRY_(PARFAIT_CONCAT(parfait_try_, __LINE__), declaration, expression)
#define PARFAIT_TRY_(name, declaration, expression) \
  auto name = (expression);                         \
  if (!name.ok()) return std::move(name).error();   \
  declaration = std::move(name).value()
// PARFAIT_CHECK_OK(f()): returns f()'s error, if it has one.
#define PARFAIT_CHECK_OK(expression)                            \
  do {                                                          \
    auto parfait_ok = (expression);                             \
    if (!parfait_ok.ok()) return std::move(parfait_ok).error(); \
  } while (false)

#endif  // PARFAIT_BASE_RESULT_H_
