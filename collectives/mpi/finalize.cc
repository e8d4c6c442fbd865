// The end of MPI. PMIx asks the launcher, as a rank's last word, to note that the rank finished,
// and leaves without an answer after two seconds. A launcher that is held up longer (a disk that
// takes its output slowly, a machine that stands still) may then find the rank gone before it reads
// the word: Open MPI 4 reports "exiting improperly" and ends a job that did all its work with
// status 1. A rank whose leave took anything like that long stays until its launcher has caught up.
#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "collectives/communicator.h"

namespace shardrun {
namespace {

using Clock = std::chrono::steady_clock;
// Far below PMIx's wait, which begins at a time of its own thread's that may be long past.
constexpr std::chrono::milliseconds kSwift{250};
constexpr std::chrono::seconds kPatience{60};  // for a launcher that never comes back
constexpr std::chrono::milliseconds kLook{20};
constexpr int kLooksIdle = 5;

/// Does the thread wait for something to do? Not so if it runs, is stopped or waits for a disk.
bool is_thread_idle(const std::filesystem::path& thread) {
  char state = '?';
  std::FILE* stat = std::fopen((thread / "stat").c_str(), "r");
  if (stat == nullptr) return false;
  const bool read = std::fscanf(stat, "%*d (%*[^)]) %c", &state) == 1;
  std::fclose(stat);
  return read && state == 'S';
}

/// One thread of a launcher reads a rank's word, another hears that the rank has ended. nullopt:
/// the process cannot be looked at.
std::optional<bool> is_idle(pid_t process) {
  const std::filesystem::path threads = "/proc/" + std::to_string(process) + "/task";
  std::error_code hidden;
  for (std::filesystem::directory_iterator it(threads, hidden), end; !hidden && it != end;
       it.increment(hidden)) {
    if (!is_thread_idle(it->path())) return false;
  }
  if (hidden) return std::nullopt;
  return true;
}

void await_launcher() {
  const pid_t launcher = getppid();
  const Clock::time_point end = Clock::now() + kPatience;
  for (int idle = 0; idle < kLooksIdle && getppid() == launcher && Clock::now() < end;) {
    const std::optional<bool> now = is_idle(launcher);
    if (!now) return;
    idle = *now ? idle + 1 : 0;
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace

void finalize_mpi() noexcept {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (!initialized || finalized) return;
  const Clock::time_point start = Clock::now();
  MPI_Finalize();
  if (Clock::now() - start >= kSwift) await_launcher();
}

}  // namespace shardrun
