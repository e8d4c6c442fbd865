// Communicator: a group of ranks. Knows pointers, counts, dtypes and groups; no Graph.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.h"

namespace shardrun {

enum class Reduction { sum, max, min };

/// Counts are elements. Calls are collective: every rank of the group makes the same calls in the
/// same order, and a call returns when this rank's result is complete and its input may be reused.
/// Reductions add rank 0's contribution first, then rank 1's, …, bf16 through f32, so every rank of every backend gets bitwise
/// the same result each run. Errors are Error(comm) with the operation and the rank named.
/// Zero counts are legal everywhere. `staging` is scratch of the matching *_staging size in bytes (64-byte aligned).
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// recv = concatenation of the ranks' `counts[r]` elements. `send` may be recv + this rank's offset.
  virtual void all_gather(const void* send, void* recv, std::span<const int64_t> counts, DType dtype) = 0;
  /// `send` holds sum(counts) elements; recv gets this rank's counts[rank], reduced. Must not overlap.
  virtual void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                              Reduction op, void* staging) = 0;
  /// In place.
  virtual void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void* staging) = 0;
  /// send: for rank 0, 1, … send_counts[r] elements one after the other; recv likewise. Must not overlap.
  virtual void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                          std::span<const int64_t> recv_counts, DType dtype) = 0;
  virtual void broadcast(void* data, int64_t bytes, int root) = 0;
  virtual void send(const void* data, int64_t bytes, int to) = 0;
  virtual void recv(void* data, int64_t bytes, int from) = 0;
  virtual void barrier() = 0;

  virtual int64_t reduce_scatter_staging(std::span<const int64_t> counts, DType dtype) const = 0;
  virtual int64_t all_reduce_staging(int64_t count, DType dtype) const = 0;

  /// Collective over the whole group: disjoint groups of ranks (of this communicator), each listed in
  /// the order its members shall have; `groups` is the same on every rank. Returns this rank's group's
  /// communicator, or null if it is in none.
  virtual std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>& groups) = 0;

  /// Ends the whole job on behalf of a failed rank: peers blocked in a call fail with Error(comm).
  virtual void abort() noexcept = 0;
};

/// n ranks as threads of one process; element r is for rank r's thread.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(int n);

/// MPI_COMM_WORLD (collectives/mpi). Initialises MPI on first use; finalised by finalize_mpi().
std::unique_ptr<Communicator> make_mpi_communicator();
void finalize_mpi() noexcept;
/// Is this process started by mpirun or srun (from the environment; does not initialise MPI)?
bool launched_by_mpi();

}  // namespace shardrun
