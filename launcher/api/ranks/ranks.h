// This process's ranks of a World, between calls.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/thread_group.h"
#include "ranks/threads.h"
#include "ranks/world.h"

namespace shardrun {

/// This process's ranks, each with a communicator and a thread of its own, for as long as this
/// lives: what a rank makes in one call is there in the next, on the same thread. Rank 0's thread,
/// and an MPI rank's, is the caller's.
///
///   Ranks ranks(world);
///   ranks.run([&](Communicator& comm) { begin(comm.rank()); });
///   ranks.run([&](Communicator& comm) { go_on(comm.rank()); });
class Ranks {
 public:
  /// Collective. `world` must outlive it.
  explicit Ranks(World& world);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Runs `body` once per rank, with the rank's communicator. The first failure (of the lowest rank
  /// that did not fail just because a peer did) is thrown when all are through; from then on
  /// communication fails.
  void run(const std::function<void(Communicator&)>& body);

 private:
  void work(int rank);
  void run_as(int rank, std::optional<Pinned>& pinned,
              const std::function<void(Communicator&)>& body);
  void close();

  World::Impl& world_;
  std::vector<std::unique_ptr<Communicator>> communicators_;  // of threads; empty under MPI
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(Communicator&)>* body_ = nullptr;
  int64_t calls_ = 0;  // begun
  int busy_ = 0;       // threads that have not ended the last one
  bool closed_ = false;
  std::vector<std::exception_ptr> errors_;  // by rank, of the last call
  ThreadGroup threads_;
};

/// The same for one call.
void run_ranks(World& world, const std::function<void(Communicator&)>& body);

}  // namespace shardrun
