// The one error type: a kind, and a sentence that names who, what was found and what was wanted.
#pragma once

#include <exception>
#include <locale>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace shardrun {

enum class ErrorKind { invalid_input, unsupported, out_of_memory, device, comm, internal };

std::string_view to_string(ErrorKind kind);

/// Thrown by every part of shardrun. The message is lower case, without a final period: the
/// subject first, then got and wanted, then what to do.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}

  ErrorKind kind() const { return kind_; }
  const char* what() const noexcept override { return message_.c_str(); }

  /// The same error with its context in front: with_context("model.onnx: node 41 'Loop_7'").
  Error with_context(std::string_view context) const {
    return Error(kind_, std::string(context) + ": " + message_);
  }

 private:
  ErrorKind kind_;
  std::string message_;
};

/// Concatenates anything that streams: str("A[2]=", 768). Numbers are written alike whatever the
/// program's locale is: files and names have them.
template <class... Args>
std::string str(const Args&... args) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << args);
  return out.str();
}

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, const Args&... args) {
  throw Error(kind, str(args...));
}

}  // namespace shardrun

/// Throws Error(kind, message parts...) unless `cond` holds; the condition is always evaluated.
#define SR_REQUIRE(cond, error_kind, ...)                                          \
  do {                                                                             \
    if (!(cond)) ::shardrun::fail(::shardrun::ErrorKind::error_kind, __VA_ARGS__); \
  } while (false)
