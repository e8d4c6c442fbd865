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
///
/// `checkpoint`: a signal that asks for a checkpoint (request_checkpoint); 0: none does.
void stop_on_signals(int checkpoint = 0);

/// "USR1" or "SIGUSR1", one that a process can wait for and that stops nothing; "": 0. Throws
/// Failure(call).
int signal_named(const std::string& name);

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
