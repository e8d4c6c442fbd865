// NCCL's calls, never blocking: while the host waits, for NCCL or for the GPU, it looks whether a
// call has failed, the time is up, or another rank has ended the job.
#include "collectives/nccl/nccl_communicator.h"

#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "collectives/nccl/reduce_peers.h"
#include "collectives/nccl/this_process.h"
#include "collectives/reduce.h"
#include "device/cuda/library.h"

namespace shardrun::cuda {
namespace {

#define SR_NCCL(function) SR_VENDOR(nccl(), function)

/// What the ranks of one process share: threads cannot be ended from outside, so they look.
struct Job {
  std::atomic<bool> ended{false};
  bool shared = false;  // by several ranks
};

/// One Job for all ranks of a process. Collective.
std::shared_ptr<Job> share_job(Communicator& host) {
  struct Offer {
    uint64_t process;
    std::shared_ptr<Job>* job;
  };
  auto job = std::make_shared<Job>();
  const Offer mine{this_process(), &job};
  std::vector<Offer> offers(static_cast<size_t>(host.size()));
  host.all_gather(&mine, offers.data(), std::vector<int64_t>(offers.size(), sizeof mine),
                  DType::u8);
  std::erase_if(offers, [&](const Offer& offer) { return offer.process != mine.process; });
  const std::shared_ptr<Job> shared = *offers[0].job;  // the first of this process
  if (shared == job) job->shared = offers.size() > 1;
  host.barrier();  // everybody has taken it
  return shared;
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::f64: return ncclFloat64;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::i8: return ncclInt8;
    case DType::u8:
    case DType::boolean: return ncclUint8;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
  }
  return ncclUint8;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Communicator& host, std::unique_ptr<Communicator> owned, CudaDevice& device,
                   std::shared_ptr<Job> job, double timeout)
      : host_(host),
        owned_(std::move(owned)),
        device_(device),
        job_(std::move(job)),
        timeout_(timeout) {}

  /// Makes NCCL's own communicator, which has buffers in the GPU's memory for each: so for those
  /// alone that are called. Collective over `host`.
  void connect() {
    ncclUniqueId id{};
    if (rank() == 0) expect(SR_NCCL(ncclGetUniqueId)(&id), "ncclGetUniqueId");
    host_.broadcast(&id, sizeof id, 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    device_.use();
    settle(SR_NCCL(ncclCommInitRankConfig)(&comm_, size(), id, rank(), &config),
           "ncclCommInitRank");
    watch_ = device_.add_watch([this](double waited) { look(waited); });
  }

  /// A rank that goes by an exception ends the job: others of its process may wait for it in a call
  /// that nobody else could end.
  ~NcclCommunicator() override {
    if (std::uncaught_exceptions() > exceptions_) job_->ended = true;
    watch_.reset();
    // After a failure there is nothing to wait for.
    if (comm_ != nullptr && !broken_ && !job_->ended) {
      ncclResult_t state = SR_NCCL(ncclCommFinalize)(comm_);
      const auto start = Clock::now();
      while (state == ncclInProgress && seconds_since(start) < kFinalizeSeconds) {
        if (SR_NCCL(ncclCommGetAsyncError)(comm_, &state) != ncclSuccess) break;
      }
      if (state == ncclSuccess) SR_NCCL(ncclCommDestroy)(std::exchange(comm_, nullptr));
    }
    quit();
    if (gone_.valid()) gone_.wait_for(std::chrono::duration<double>(kFinalizeSeconds));
  }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  const Members& members() const override { return host_.members(); }
  Communicator& host() override { return host_; }
  /// One process that launches graphs on several GPUs may wait for itself (NCCL's user guide,
  /// "Using NCCL with CUDA Graphs").
  bool recordable() const override { return !job_->shared; }

  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override {
    check_counts("all_gather", counts, *this);
    if (equal(counts)) {
      if (counts[0] == 0) return;
      return begin("all_gather", [&] {
        return SR_NCCL(ncclAllGather)(send, recv, unsigned_of(counts[0]), type_of(dtype), comm_,
                                      stream());
      });
    }
    const int64_t element = size_of(dtype);
    char* to = static_cast<char*>(recv);
    group("all_gather", [&](const Exchange& exchange) {
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        exchange.send(send, counts[me()] * element, r);
        exchange.recv(to + offset_of(counts, r) * element, counts[static_cast<size_t>(r)] * element,
                      r);
      }
    });
    char* own = to + offset_of(counts, rank()) * element;
    if (own != send) device_.copy(own, send, counts[me()] * element);
  }

  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void* staging) override {
    check_counts("reduce_scatter", counts, *this);
    check_reducible("reduce_scatter", dtype, *this);
    if (equal(counts) && op == Reduction::sum && dtype != DType::boolean) {
      if (counts[0] == 0) return;
      return begin("reduce_scatter", [&] {
        return SR_NCCL(ncclReduceScatter)(send, recv, unsigned_of(counts[0]), type_of(dtype),
                                          ncclSum, comm_, stream());
      });
    }
    const int64_t element = size_of(dtype), per_peer = kReduceChunkBytes / element;
    const auto* from = static_cast<const char*>(send);
    if (op == Reduction::sum && dtype != DType::boolean) {
      return group("reduce_scatter", [&](const Exchange& exchange) {
        for (int r = 0; r < size(); ++r)
          exchange.sum(from + offset_of(counts, r) * element, recv, counts[static_cast<size_t>(r)],
                       dtype, r);
      });
    }
    // Chunk by chunk, as much as the staging holds: each to the rank that reduces it.
    int64_t most = 0;
    for (int64_t count : counts) most = std::max(most, count);
    for (int64_t at = 0; at < most; at += per_peer) {
      const auto here = [&](int r) {
        return std::clamp(counts[static_cast<size_t>(r)] - at, int64_t{0}, per_peer);
      };
      const int64_t mine = here(rank());
      const int64_t slot = round_up_64(std::min(counts[me()], per_peer) * element);
      std::vector<const void*> terms;
      char* to = static_cast<char*>(staging);
      group("reduce_scatter", [&](const Exchange& exchange) {
        for (int r = 0; r < size(); ++r) {
          const char* part = from + (offset_of(counts, r) + at) * element;
          if (r == rank()) {
            terms.push_back(part);
            continue;
          }
          exchange.send(part, here(r) * element, r);
          exchange.recv(to, mine * element, r);
          terms.push_back(to);
          to += slot;
        }
      });
      launch_reduce(stream(), terms, static_cast<char*>(recv) + at * element, mine, dtype, op);
    }
  }

  void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void*) override {
    check_reducible("all_reduce", dtype, *this);
    if (count == 0) return;
    begin("all_reduce", [&] {
      return SR_NCCL(ncclAllReduce)(data, data, unsigned_of(count), type_of(dtype),
                                    operation_of(op, dtype), comm_, stream());
    });
  }

  void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                  std::span<const int64_t> recv_counts, DType dtype) override {
    check_counts("all_to_all", send_counts, *this);
    check_counts("all_to_all", recv_counts, *this);
    const int64_t element = size_of(dtype);
    const auto* from = static_cast<const char*>(send);
    auto* to = static_cast<char*>(recv);
    group("all_to_all", [&](const Exchange& exchange) {
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        exchange.send(from + offset_of(send_counts, r) * element,
                      send_counts[static_cast<size_t>(r)] * element, r);
        exchange.recv(to + offset_of(recv_counts, r) * element,
                      recv_counts[static_cast<size_t>(r)] * element, r);
      }
    });
    SR_REQUIRE(send_counts[me()] == recv_counts[me()], comm, name("all_to_all"), ": sends itself ",
               send_counts[me()], " elements and expects ", recv_counts[me()]);
    device_.copy(to + offset_of(recv_counts, rank()) * element,
                 from + offset_of(send_counts, rank()) * element, send_counts[me()] * element);
  }

  void broadcast(void* data, int64_t bytes, int root) override {
    check_peer("broadcast", root, *this);
    if (bytes == 0) return;
    begin("broadcast", [&] {
      return SR_NCCL(ncclBroadcast)(data, data, unsigned_of(bytes), ncclUint8, root, comm_,
                                    stream());
    });
  }
  void send(const void* data, int64_t bytes, int to) override {
    check_peer("send", to, *this);
    group("send", [&](const Exchange& exchange) { exchange.send(data, bytes, to); });
  }
  void recv(void* data, int64_t bytes, int from) override {
    check_peer("recv", from, *this);
    group("recv", [&](const Exchange& exchange) { exchange.recv(data, bytes, from); });
  }
  void barrier() override {
    device_.synchronize();
    host_.barrier();
  }
  uint64_t any_of(uint64_t flags) override { return host_.any_of(flags); }

  Memory allocate(int64_t bytes) override { return {device_.allocate(bytes), ""}; }

  std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>& groups) override {
    auto part = host_.split(groups);
    if (!part) return nullptr;
    Communicator& host = *part;
    auto group = std::make_unique<NcclCommunicator>(host, std::move(part), device_, job_, timeout_);
    group->connect();  // a program's, of one of its mesh's axes or of several
    return group;
  }

  void set_timeout(double seconds) override {
    timeout_ = seconds;
    host_.set_timeout(seconds);
  }

  /// Each rank aborts its own communicators: those of other threads look at `ended`.
  void abort() noexcept override {
    job_->ended = true;
    host_.abort();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr double kFinalizeSeconds = 5;

  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  static size_t unsigned_of(int64_t n) { return static_cast<size_t>(n); }
  static bool equal(std::span<const int64_t> counts) {
    return std::all_of(counts.begin(), counts.end(), [&](int64_t n) { return n == counts[0]; });
  }
  /// Of booleans the sum is "or" and the product "and", as everywhere else.
  static ncclRedOp_t operation_of(Reduction op, DType dtype) {
    if (op == Reduction::prod) return dtype == DType::boolean ? ncclMin : ncclProd;
    if (op == Reduction::min) return ncclMin;
    return op == Reduction::max || dtype == DType::boolean ? ncclMax : ncclSum;
  }

  size_t me() const { return static_cast<size_t>(rank()); }
  cudaStream_t stream() const { return device_.cuda_stream(); }
  std::string name(std::string_view operation) const { return call_name(operation, *this); }

  /// Messages and sums between begin and end of an NCCL group, which go side by side; of nothing
  /// there are none.
  struct Exchange {
    const NcclCommunicator& c;
    void send(const void* data, int64_t bytes, int to) const {
      if (bytes > 0)
        c.expect(SR_NCCL(ncclSend)(data, unsigned_of(bytes), ncclUint8, to, c.comm_, c.stream()),
                 "ncclSend");
    }
    void recv(void* data, int64_t bytes, int from) const {
      if (bytes > 0)
        c.expect(SR_NCCL(ncclRecv)(data, unsigned_of(bytes), ncclUint8, from, c.comm_, c.stream()),
                 "ncclRecv");
    }
    /// Of all ranks' data, for `root`, which alone gets it: others name no memory but their data's,
    /// for `to` holds their own sum.
    void sum(const void* data, void* to, int64_t count, DType dtype, int root) const {
      void* const there = root == c.rank() ? to : const_cast<void*>(data);
      if (count > 0)
        c.expect(SR_NCCL(ncclReduce)(data, there, unsigned_of(count), type_of(dtype), ncclSum, root,
                                     c.comm_, c.stream()),
                 "ncclReduce");
    }
  };
  void group(const char* operation, const std::function<void(const Exchange&)>& messages) {
    begin(operation, [&] {
      expect(SR_NCCL(ncclGroupStart)(), "ncclGroupStart");
      messages(Exchange{*this});
      return SR_NCCL(ncclGroupEnd)();
    });
  }

  void begin(const char* operation, const std::function<ncclResult_t()>& call) {
    if (watch_ == nullptr) connect();
    clock_.reset();
    last_ = operation;
    settle(call(), operation);
    launched(stream(), kLibraryLaunches);
  }

  /// NCCL does not tell which rank a call lacks: all others may be missing, and those that are not
  /// answer that they wait, too.
  LongWait wait_for_others(std::string_view operation) const {
    LongWait wait{std::string(operation), members().ranks};
    std::erase(wait.missing, members().ranks[me()]);
    return wait;
  }
  void waits(std::string_view operation) {
    if (!members().job) return;
    if (!clock_) clock_.emplace(members().job.get(), members().ranks[me()], timeout_);
    clock_->look([&] { return wait_for_others(operation); });
  }
  std::string blame_others(std::string_view operation) {
    if (!members().job) return "the other ranks";
    if (clock_) clock_->give_up();
    return blame(*members().job, members().ranks[me()], wait_for_others(operation), timeout_);
  }

  /// The rank's other communicators see that the job has ended.
  [[noreturn]] void broken(std::string_view operation, const std::string& what) {
    broken_ = job_->ended = true;
    fail(ErrorKind::comm, name(operation), ": ", what);
  }

  /// Of calls that only note what is asked for.
  void expect(ncclResult_t result, std::string_view operation) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    fail(ErrorKind::comm, name(operation), ": ", SR_NCCL(ncclGetErrorString)(result), " (",
         SR_NCCL(ncclGetLastError)(comm_), ")");
  }

  /// Waits until NCCL has taken the call (not until the GPU has done it).
  void settle(ncclResult_t result, std::string_view operation) {
    const auto start = Clock::now();
    while (result == ncclInProgress) {
      if (job_->ended) broken(operation, "another rank ended the job");
      waits(operation);
      if (timeout_ > 0 && seconds_since(start) > timeout_)
        broken(operation, str("waited ", timeout_, " s for ", blame_others(operation)));
      if (SR_NCCL(ncclCommGetAsyncError)(comm_, &result) != ncclSuccess) break;
      if (result == ncclInProgress) usleep(20);
    }
    if (result != ncclSuccess) {
      broken(operation,
             str(SR_NCCL(ncclGetErrorString)(result), " (", SR_NCCL(ncclGetLastError)(comm_), ")"));
    }
  }

  /// Ends the call that the stream is in. NCCL then waits, from 2.26 on, until all CUDA graphs that
  /// hold calls of the communicator are destroyed, and that is done by whom the error reaches: so
  /// another thread waits.
  void quit() {
    if (comm_ == nullptr) return;
    std::packaged_task<void()> abort([comm = std::exchange(comm_, nullptr)] {
      SR_NCCL(ncclCommAbort)(comm);
    });
    gone_ = abort.get_future();
    std::thread(std::move(abort)).detach();
  }

  /// While the host waits for the stream. What this throws leaves the stream blocked in a call that
  /// will never end, so the communicator goes first.
  void look(double waited) {
    if (comm_ == nullptr) return;
    if (last_ != nullptr) waits(last_);
    ncclResult_t state = ncclSuccess;
    if (SR_NCCL(ncclCommGetAsyncError)(comm_, &state) != ncclSuccess) return;
    std::string what;
    if (job_->ended) {
      what = "another rank ended the job";
    } else if (state != ncclSuccess && state != ncclInProgress) {
      what = str(SR_NCCL(ncclGetErrorString)(state), " (", SR_NCCL(ncclGetLastError)(comm_), ")");
    } else if (last_ != nullptr && timeout_ > 0 && waited > timeout_) {
      what = str("waited ", timeout_, " s for ", blame_others(last_));
    } else {
      return;
    }
    quit();
    broken(last_ != nullptr ? last_ : "a collective", what);
  }

  Communicator& host_;
  std::unique_ptr<Communicator> owned_;  // host_, of a group
  CudaDevice& device_;
  std::shared_ptr<Job> job_;
  double timeout_;
  ncclComm_t comm_ = nullptr;  // null before connect(), and when it has been aborted
  std::future<void> gone_;     // then
  bool broken_ = false;
  const int exceptions_ = std::uncaught_exceptions();
  std::optional<WaitClock> clock_;  // of the wait in progress
  const char* last_ = nullptr;   // the last call that was begun: without one nobody waits for ranks
  std::shared_ptr<void> watch_;  // from connect() on
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, CudaDevice& device) {
  return std::make_unique<NcclCommunicator>(host, nullptr, device, share_job(host),
                                            Communicator::kDefaultTimeout);
}

}  // namespace shardrun::cuda
