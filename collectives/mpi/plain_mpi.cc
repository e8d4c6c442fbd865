// One MPI call for each collective.
#include "collectives/plain_mpi.h"

#include <mpi.h>

#include <cstdlib>
#include <limits>

#include "collectives/reduce.h"

namespace shardrun {
namespace {

MPI_Datatype mpi_type(DType dtype, const char* operation) {
  switch (dtype) {
    case DType::f32: return MPI_FLOAT;
    case DType::f64: return MPI_DOUBLE;
    case DType::i32: return MPI_INT32_T;
    case DType::i64: return MPI_INT64_T;
    default: fail(ErrorKind::unsupported, operation, ": MPI has no type for ", to_string(dtype));
  }
}

MPI_Op mpi_op(Reduction op) {
  switch (op) {
    case Reduction::sum: return MPI_SUM;
    case Reduction::max: return MPI_MAX;
    case Reduction::min: return MPI_MIN;
    case Reduction::prod: return MPI_PROD;
  }
  return MPI_SUM;
}

int mpi_count(int64_t count, const char* operation) {
  SR_REQUIRE(count <= std::numeric_limits<int>::max(), unsupported, operation, ": ", count,
             " elements are more than MPI counts");
  return static_cast<int>(count);
}

/// Counts of each rank, and where each one's elements begin.
struct Parts {
  std::vector<int> counts, offsets;
  bool even = true;

  Parts(std::span<const int64_t> from, const char* operation) {
    int64_t offset = 0;
    for (const int64_t count : from) {
      counts.push_back(mpi_count(count, operation));
      offsets.push_back(mpi_count(offset, operation));
      offset += count;
      even = even && count == from[0];
    }
  }
};

class PlainMpi : public Communicator {
 public:
  PlainMpi() {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  ~PlainMpi() override { MPI_Comm_free(&comm_); }
  PlainMpi(const PlainMpi&) = delete;
  PlainMpi& operator=(const PlainMpi&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override {
    const MPI_Datatype type = mpi_type(dtype, "all_gather");
    const Parts parts(counts, "all_gather");
    const int own = parts.counts[static_cast<size_t>(rank_)];
    const char* place = static_cast<char*>(recv) + offset_of(counts, rank_) * size_of(dtype);
    const void* from = send == place ? MPI_IN_PLACE : send;
    if (parts.even) {
      MPI_Allgather(from, own, type, recv, own, type, comm_);
    } else {
      MPI_Allgatherv(from, own, type, recv, parts.counts.data(), parts.offsets.data(), type, comm_);
    }
  }

  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void*) override {
    const MPI_Datatype type = mpi_type(dtype, "reduce_scatter");
    const Parts parts(counts, "reduce_scatter");
    if (parts.even) {
      MPI_Reduce_scatter_block(send, recv, parts.counts[0], type, mpi_op(op), comm_);
    } else {
      MPI_Reduce_scatter(send, recv, parts.counts.data(), type, mpi_op(op), comm_);
    }
  }

  void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void*) override {
    MPI_Allreduce(MPI_IN_PLACE, data, mpi_count(count, "all_reduce"), mpi_type(dtype, "all_reduce"),
                  mpi_op(op), comm_);
  }

  void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                  std::span<const int64_t> recv_counts, DType dtype) override {
    const MPI_Datatype type = mpi_type(dtype, "all_to_all");
    const Parts out(send_counts, "all_to_all"), in(recv_counts, "all_to_all");
    if (out.even && in.even && out.counts[0] == in.counts[0]) {
      MPI_Alltoall(send, out.counts[0], type, recv, in.counts[0], type, comm_);
    } else {
      MPI_Alltoallv(send, out.counts.data(), out.offsets.data(), type, recv, in.counts.data(),
                    in.offsets.data(), type, comm_);
    }
  }

  void broadcast(void* data, int64_t bytes, int root) override {
    MPI_Bcast(data, mpi_count(bytes, "broadcast"), MPI_BYTE, root, comm_);
  }
  void send(const void* data, int64_t bytes, int to) override {
    MPI_Send(data, mpi_count(bytes, "send"), MPI_BYTE, to, 0, comm_);
  }
  void recv(void* data, int64_t bytes, int from) override {
    MPI_Recv(data, mpi_count(bytes, "recv"), MPI_BYTE, from, 0, comm_, MPI_STATUS_IGNORE);
  }
  void barrier() override { MPI_Barrier(comm_); }
  uint64_t any_of(uint64_t flags) override {
    MPI_Allreduce(MPI_IN_PLACE, &flags, 1, MPI_UINT64_T, MPI_BOR, comm_);
    return flags;
  }

  Memory allocate(int64_t) override {
    fail(ErrorKind::unsupported, "allocate: plain MPI works on any memory");
  }

  std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>&) override {
    fail(ErrorKind::unsupported, "split: plain MPI is for all processes");
  }
  void set_timeout(double) override {}
  void abort() noexcept override {
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::_Exit(1);
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
};

}  // namespace

std::unique_ptr<Communicator> make_plain_mpi_communicator() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  SR_REQUIRE(initialised, comm, "plain MPI: MPI is not initialised");
  return std::make_unique<PlainMpi>();
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "unknown";
  const std::string version(text, static_cast<size_t>(length));
  return version.substr(0, version.find_first_of(",\n"));
}

}  // namespace shardrun
