// Watchdog: ends a process that MPI does not come back from.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace shardrun::mpi {

/// Seconds that MPI's own collective calls may take, which cannot be watched from within: starting,
/// splitting, sharing memory. $SHARDRUN_START_TIMEOUT, else 600; 0: for ever.
/// Throws invalid_input if that is no such number.
double start_timeout();

/// Ends the process with status 1, and its launcher with it (guard.h), if it still lives after
/// `seconds`; 0: never. It says so first, for nobody else can:
///
///   shardrun: starting MPI on rank 1: waited 600 s for the other ranks; look whether all processes
///   of the job run, or set SHARDRUN_START_TIMEOUT
class Watchdog {
 public:
  /// `what`: a literal, such as "starting MPI".
  explicit Watchdog(const char* what, double seconds = start_timeout());
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void wait(double seconds);

  const char* const what_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace shardrun::mpi
