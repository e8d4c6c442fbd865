// The thread that waits for signals.
#include "process/signals.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "report.h"
#include "shardrun/shardrun.h"

namespace shardrun::cli {
namespace {

/// Never destroyed: the thread goes on until the process ends.
struct Say {
  std::mutex mutex;
  std::function<void(const std::string&)> what;
};
Say& say() {
  static Say* const one = new Say;
  return *one;
}

/// Where a rank has failed, mpirun sends the others SIGTERM: that rank has said why.
[[noreturn]] void end_at_once(int signal) {
  if (!is_first_process()) {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(300));  // the first one looks who is there
  } else if (!another_has_failed()) {
    const std::string sentence = "ended at once by " + signal_name(signal);
    std::fprintf(stderr, "shardrun: %s\n", sentence.c_str());
    const std::lock_guard lock(say().mutex);
    try {
      if (say().what) say().what(sentence);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "shardrun: %s\n", e.what());
    }
  }
  _exit(128 + signal);
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

int signal_named(const std::string& name) {
  if (name.empty()) return 0;
  std::string all;
  for (const int signal : {SIGUSR1, SIGUSR2, SIGHUP, SIGALRM, SIGURG, SIGWINCH}) {
    const std::string known = signal_name(signal);
    if (name == known || "SIG" + name == known) return signal;
    all += (all.empty() ? "" : ", ") + known.substr(3);
  }
  throw Failure(Failure::Kind::call, "--checkpoint-on-signal " + name + ": wanted one of " + all +
                                         "; TERM and INT end a run, with a checkpoint");
}

std::vector<int> ending_signals() {
  std::vector<int> out;
  for (const int signal : kEndingSignals) {
    struct sigaction action {};
    const bool ignored = ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
    if (!ignored) out.push_back(signal);
  }
  return out;
}

void stop_on_signals(int checkpoint) {
  sigset_t waited;
  sigemptyset(&waited);
  for (const int signal : ending_signals()) sigaddset(&waited, signal);
  if (checkpoint != 0) sigaddset(&waited, checkpoint);
  pthread_sigmask(SIG_BLOCK, &waited, nullptr);
  std::thread([waited, checkpoint] {
    // Where one that comes is still the one before.
    std::chrono::steady_clock::time_point same_until;
    while (true) {
      int signal = 0;
      if (sigwait(&waited, &signal) != 0) continue;
      if (signal == checkpoint) {
        request_checkpoint();
      } else if (request_stop(signal)) {
        same_until = std::chrono::steady_clock::now() + kSameSignal;
      } else if (std::chrono::steady_clock::now() > same_until) {
        end_at_once(signal);
      }
    }
  }).detach();
}

MpirunPatience::MpirunPatience() {
  if (!std::getenv("OMPI_COMM_WORLD_SIZE")) return;
  const char* const set = std::getenv("OMPI_MCA_odls_base_sigkill_timeout");
  patience_ = set ? std::atof(set) : 1;
}

std::string MpirunPatience::step(double seconds) {
  step_ = seconds;
  return tell();
}

std::string MpirunPatience::checkpoint(double seconds) {
  checkpoint_ = seconds;
  return tell();
}

std::string MpirunPatience::tell() {
  if (!patience_ || step_ + checkpoint_ <= *patience_) return "";
  char text[256];
  std::snprintf(text, sizeof text,
                "a step%s %.3g s, and an mpirun that gets SIGTERM kills its ranks after %.3g s: "
                "OMPI_MCA_odls_base_sigkill_timeout=60 in its environment gives them a minute to "
                "write a checkpoint",
                checkpoint_ > 0 ? " and a checkpoint take" : " takes", step_ + checkpoint_,
                *patience_);
  patience_.reset();
  return text;
}

LastWords::LastWords(std::function<void(const std::string&)> what) {
  const std::lock_guard lock(say().mutex);
  say().what = std::move(what);
}
LastWords::~LastWords() {
  const std::lock_guard lock(say().mutex);
  say().what = nullptr;
}

}  // namespace shardrun::cli
