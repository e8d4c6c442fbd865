// Handling of the signals that end `shardrun train`.
#pragma once

#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace shardrun::cli {

/// Those that end a run with a checkpoint, and its process with 128 more; SIGHUP: a terminal is
/// gone.
inline constexpr int kEndingSignals[] = {SIGTERM, SIGINT, SIGHUP};
/// But for those that the caller had ignored, as nohup does: these stay ignored.
std::vector<int> ending_signals();
/// One signal may come twice: timeout(1) sends it to its child, and to the group of that.
inline constexpr std::chrono::milliseconds kSameSignal{100};

/// From now on the first of them ends training behind the step that runs (request_stop). Before the
/// first step, and at the second signal, the process ends at once, with status 128 + signal; once
/// the last step has ended, a signal that comes within a second changes nothing.
///
/// To be called before there are threads. A thread of its own takes the signals, and all others
/// block them: oneDNN's generated code keeps values below the stack pointer, where a handler on the
/// same stack would write (2.6.3; a handler that did nothing corrupted the heap within 200 calls).
///
/// `checkpoint`: a signal that asks for a checkpoint (request_checkpoint), and ends nothing; 0:
/// none does.
void stop_on_signals(int checkpoint = 0);

/// Open MPI's mpirun, asked to end, kills its ranks a second after it has passed the signal on, or
/// after odls_base_sigkill_timeout. Tells once, where that is too short for a step and a
/// checkpoint.
class MpirunPatience {
 public:
  MpirunPatience();
  /// What to tell, after a step or a checkpoint of so many seconds; "": nothing.
  std::string step(double seconds);
  std::string checkpoint(double seconds);

 private:
  std::string tell();

  std::optional<double> patience_;  // none: no such mpirun, or it has been used
  double step_ = 0, checkpoint_ = 0;
};

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
