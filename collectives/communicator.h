// Communicator: a group of ranks. Knows pointers, counts, dtypes and groups; no Graph.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "collectives/job.h"

namespace shardrun {

enum class Reduction { sum, max, min, prod };

/// Bytes of scratch that a reduction needs, the same for every backend and a multiple of 64, so
/// that a plan can account for them without a communicator. Zero for one rank, the same on all: a
/// chunk of the largest part from each peer.
int64_t reduce_scatter_staging_bytes(std::span<const int64_t> counts, DType dtype);
int64_t all_reduce_staging_bytes(int64_t count, DType dtype, int ranks);

/// What Communicator::allocate gives.
struct Memory {
  std::shared_ptr<char> data;  // zeroed, touched, aligned to a page; null for 0 bytes
  std::string why_private;  // why peers on this machine cannot reach it; "": they can, or are none
};

/// Who a communicator's ranks are in their job, in its order; without `job` they are all there are.
struct Members {
  std::shared_ptr<Job> job;
  std::vector<int> ranks;
};

/// One of the buffers of Communicator::all_reduce_each.
struct Reduced {
  void* data = nullptr;
  int64_t count = 0;
};

/// Counts are elements. Calls are collective: every rank of the group makes the same calls in the
/// same order, and a call returns when this rank's result is complete and its input may be reused.
/// One communicator serves one call at a time. Zero counts are legal everywhere.
///
/// Reductions add rank 0's contribution first, then rank 1's, …, bf16 through f32 with one rounding
/// at the end, so that every rank of every backend gets bitwise the same result each run.
/// Example, 3 ranks, all_reduce(sum) of bf16: bf16((f32(a0) + f32(a1)) + f32(a2)).
///
/// Errors are Error(comm) with the operation and the ranks named, by their numbers in the job; a
/// communicator that threw one can only be aborted or destroyed. `staging` is scratch, 64-byte
/// aligned, of the size that reduce_scatter_staging_bytes or all_reduce_staging_bytes says; it may
/// be null where that is 0.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const Members& members() const;

  /// recv = concatenation of the ranks' `counts[r]` elements. `send` may be recv + this rank's
  /// offset.
  virtual void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                          DType dtype) = 0;
  /// `send` holds sum(counts) elements; recv gets this rank's counts[rank], reduced. Must not
  /// overlap.
  virtual void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts,
                              DType dtype, Reduction op, void* staging) = 0;
  /// In place.
  virtual void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void* staging) = 0;
  /// An all_reduce of each buffer, with the same bits, by one call where the backend can do that:
  /// ranks then wait for each other once, and not for each buffer. Buffers are apart from each
  /// other, and `staging` is as large as any of them would want by itself.
  ///   all_reduce_each({{dw, 768}, {db, 12}}, DType::f32, Reduction::sum, staging);
  virtual void all_reduce_each(std::span<const Reduced> buffers, DType dtype, Reduction op,
                               void* staging);
  /// send: for rank 0, 1, … send_counts[r] elements one after the other; recv likewise. Must not
  /// overlap.
  virtual void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                          std::span<const int64_t> recv_counts, DType dtype) = 0;
  virtual void broadcast(void* data, int64_t bytes, int root) = 0;
  /// A send may wait for its recv: two ranks that both send first can wait for each other.
  virtual void send(const void* data, int64_t bytes, int to) = 0;
  virtual void recv(void* data, int64_t bytes, int from) = 0;
  virtual void barrier() = 0;
  /// A barrier that gives every rank the bitwise or of all ranks' `flags`, for little more than a
  /// message's time: what any of them was asked for in the meantime. In memory of the host.
  virtual uint64_t any_of(uint64_t flags) = 0;

  /// Memory for buffers, of any size on each rank; collective. Peers on the same machine read and
  /// write in place what lies in it, so no byte of a call is copied on its way:
  ///   Memory arena = world.allocate(bytes);        // on every rank
  ///   group->all_reduce(arena.data.get() + offset, …);
  /// Calls on other memory work too, and slower. It may outlive the communicator. Throws
  /// out_of_memory.
  virtual Memory allocate(int64_t bytes) = 0;

  /// The same ranks, for memory of the host: this one, if it is of the host itself.
  virtual Communicator& host() { return *this; }
  /// Do its calls ask a device for work without waiting, so that Device::record can note them?
  virtual bool recordable() const { return false; }

  int64_t reduce_scatter_staging(std::span<const int64_t> counts, DType dtype) const {
    return reduce_scatter_staging_bytes(counts, dtype);
  }
  int64_t all_reduce_staging(int64_t count, DType dtype) const {
    return all_reduce_staging_bytes(count, dtype, size());
  }

  int64_t all_reduce_each_staging(std::span<const Reduced> buffers, DType dtype) const;

  /// Collective over the whole group: disjoint groups of ranks (of this communicator), each listed
  /// in the order its members shall have; `groups` is the same on every rank. Returns this rank's
  /// group's communicator, or null if it is in none.
  virtual std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>& groups) = 0;

  /// A call that waits longer than this for its peers throws Error(comm) naming the operation, its
  /// bytes, this rank and the ranks that do not wait themselves (blame in collectives/job.h). 0:
  /// wait for ever. Communicators split off later inherit it.
  virtual void set_timeout(double seconds) = 0;
  static constexpr double kDefaultTimeout = 600;

  /// Ends the whole job on behalf of a failed rank. local: peers blocked in a call, on this
  /// communicator or any other of the job, fail with Error(comm), and so does every later call.
  /// mpi: ends every process of the job with status 1, this one included.
  virtual void abort() noexcept = 0;
};

/// n ranks as threads of one process; element r is for rank r's thread. Throws invalid_input if n
/// < 1.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(int n);

/// All of MPI_COMM_WORLD (collectives/mpi). Ranks of one machine exchange through shared memory,
/// where they can have it, and calls of several machines do in each of them. `ranks_per_node`:
/// only so many consecutive ones of a machine share memory, as if each such group had a machine of
/// its own; 0: all of them. Initialises MPI on first use; finalize_mpi() ends it after the last
/// communicator is destroyed (and does nothing where MPI was never used). Throws Error(comm), also
/// if a launcher started several processes but MPI connects none of them.
std::unique_ptr<Communicator> make_mpi_communicator(int ranks_per_node = 0);
void finalize_mpi() noexcept;
/// Is this process started by mpirun or srun (from the environment; does not initialise MPI)?
bool launched_by_mpi();

}  // namespace shardrun
