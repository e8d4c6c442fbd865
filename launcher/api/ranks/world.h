// World's inside: the ranks behind it, and calls in which rank 0 decides for all.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "shardrun/shardrun.h"

namespace shardrun {

struct World::Impl {
  std::unique_ptr<Communicator> mpi;  // under an MPI launcher; else null
  int threads = 1;                    // without one: ranks are threads of this process
  std::optional<double> timeout;      // seconds that a rank waits for others
  bool checks = false;                // World::check_collectives
  std::optional<int> asked;           // threads of each rank's kernels
  int kernel_threads = 0;             // the same, agreed; 0: not yet
  std::vector<int> cores;             // of this process, its own if mpi, else all ranks'; agreed

  int size() const { return mpi ? mpi->size() : threads; }
};

/// Gives every rank the text of `root`. Collective.
void broadcast_text(Communicator& comm, std::string& text, int root);

/// Runs `decide` on rank 0 and gives its result to every rank; if it throws, every rank throws the
/// same Failure. No other rank goes on before rank 0 is through.
std::string decide_on_rank0(World& world, const std::function<std::string()>& decide);

/// Gives the calling thread's kernels as many threads as a rank shall have (threads.h). Every rank
/// takes the least of all ranks: workspaces depend on it, and rank 0 predicts everyone's. The first
/// call on a World is collective.
void share_cores(World::Impl& world);

/// Throws, of what ranks of this process have failed with, the failure of the lowest rank that did
/// not fail just because a peer did, with the rank in front. Nothing if none has failed.
void throw_first(const std::vector<std::exception_ptr>& by_rank);

/// Turns an internal Error into a Failure: wrong input is Kind::call, all else Kind::run.
[[noreturn]] void rethrow_as_failure();

/// Calls f and turns what it throws into a Failure.
template <class F>
auto at_boundary(F&& f) {
  try {
    return f();
  } catch (...) {
    rethrow_as_failure();
  }
}

}  // namespace shardrun
