// SIGTERM and SIGINT to `shardrun train`.
#pragma once

#include <functional>
#include <string>

namespace shardrun::cli {

/// From now on the first of them ends training behind the step that runs (request_stop). Before the
/// first step, and at the second signal, the process ends at once, with status 128 + signal. A
/// signal that the caller had ignored stays ignored.
///
/// To be called before there are threads. A thread of its own takes the signals, and all others
/// block them: oneDNN's generated code keeps values below the stack pointer, where a handler on the
/// same stack would write (2.6.3; a handler that did nothing corrupted the heap within 200 calls).
void stop_on_signals();

/// While it lives, a process that ends at once calls `say` first, on another thread, with the
/// sentence that it prints.
class LastWords {
 public:
  explicit LastWords(std::function<void(const std::string& sentence)> say);
  ~LastWords();
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;
};

/// "SIGTERM"
std::string signal_name(int signal);

}  // namespace shardrun::cli
