// A thread that waits while the call runs.
#include "collectives/mpi/watchdog.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "collectives/communicator.h"
#include "collectives/mpi/guard.h"

namespace shardrun::mpi {

double start_timeout() {
  const char* const text = std::getenv("SHARDRUN_START_TIMEOUT");
  if (text == nullptr) return Communicator::kDefaultTimeout;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  SR_REQUIRE(end != text && *end == '\0' && std::isfinite(seconds) && seconds >= 0, invalid_input,
             "SHARDRUN_START_TIMEOUT is '", text, "', wanted seconds, 0 or more");
  return seconds;
}

Watchdog::Watchdog(const char* what, double seconds) : what_(what) {
  if (seconds <= 0) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // they are for other threads
  thread_ = std::thread([this, seconds] { wait(seconds); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::wait(double seconds) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return over_; }))
    return;
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  std::fprintf(stderr,
               "shardrun: %s%s%s: waited %g s for the other ranks; look whether all processes of "
               "the job run, or set SHARDRUN_START_TIMEOUT\n",
               what_, rank == nullptr ? "" : " on rank ", rank == nullptr ? "" : rank, seconds);
  guard_launcher();
  _exit(1);
}

}  // namespace shardrun::mpi
