// The MPI backend by messages: ranks are processes. Everything is built from nonblocking
// point-to-point messages, for three reasons: reductions stay in rank order, any count fits (MPI
// 3.1's collectives count in int), and a wait can be watched and end with a sentence instead of a
// hang. Ranks that share memory use it instead where they can (node_communicator.cc).
#include <mpi.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/process/processors.h"
#include "base/shape.h"
#include "collectives/mpi/guard.h"
#include "collectives/mpi/leftovers.h"
#include "collectives/mpi/mpi_job.h"
#include "collectives/mpi/node.h"
#include "collectives/mpi/watchdog.h"
#include "collectives/reduce.h"
#include "collectives/wait.h"

namespace shardrun {
namespace mpi {

// Also make_mpi_communicator's, below.
static int64_t env_int(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  return end == text ? otherwise : value;
}

namespace {

using Clock = std::chrono::steady_clock;

// One MPI message: MPI 3.1 counts in int. Both sides cut a transfer at the same places.
constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;
// Two tags keep a collective's messages apart from those of send and recv.
constexpr int kCollectiveTag = 1;
constexpr int kPointToPointTag = 2;

class MpiCommunicator : public MessageCommunicator {
 public:
  /// Takes over `comm`.
  MpiCommunicator(MPI_Comm comm, std::shared_ptr<Node> node, double timeout)
      : comm_(comm),
        node_(std::move(node)),
        members_{node_->job(), job_ranks(comm)},
        timeout_(timeout) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    operation_ = "set-up";
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    const auto ranks = static_cast<size_t>(size_);
    counts_.resize(ranks), offsets_.resize(ranks), in_.resize(ranks);
  }
  ~MpiCommunicator() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized) MPI_Comm_free(&comm_);
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const Members& members() const override { return members_; }

  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override {
    begin("all_gather", sum_of(counts) * size_of(dtype));
    check_counts(operation_, counts, *this);
    const int64_t element = size_of(dtype);
    const int64_t own = counts[static_cast<size_t>(rank_)] * element;
    char* own_place = static_cast<char*>(recv) + offset_of(counts, rank_) * element;
    // Peers in the order rank+1, rank+2, …, so that not everybody sends to rank 0 first.
    for (int i = 1; i < size_; ++i) {
      const int from = (rank_ + size_ - i) % size_;
      post_recv(static_cast<char*>(recv) + offset_of(counts, from) * element,
                counts[static_cast<size_t>(from)] * element, from);
    }
    for (int i = 1; i < size_; ++i) post_send(send, own, (rank_ + i) % size_);
    if (own > 0 && send != own_place) std::memmove(own_place, send, static_cast<size_t>(own));
    wait();
  }

  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void* staging) override {
    begin("reduce_scatter", sum_of(counts) * size_of(dtype));
    check_counts(operation_, counts, *this);
    check_reducible(operation_, dtype, *this);
    for (int r = 0; r < size_; ++r) offsets_[static_cast<size_t>(r)] = offset_of(counts, r);
    const Reduced all{const_cast<void*>(send), sum_of(counts)};
    reduce_parts({&all, 1}, static_cast<char*>(recv), false, counts, dtype, op, staging,
                 kReduceChunkBytes);
  }

  void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void* staging) override {
    const Reduced one{data, count};
    all_reduce_each({&one, 1}, dtype, op, staging);
  }

  void all_reduce_each(std::span<const Reduced> buffers, DType dtype, Reduction op,
                       void* staging) override {
    const int64_t count = count_of(buffers), bytes = count * size_of(dtype);
    begin("all_reduce", bytes);
    check_reducible(operation_, dtype, *this);
    if (size_ == 1 || count == 0) return;
    const int64_t staging_bytes =
        all_reduce_each_staging(buffers, dtype) / (size_ - 1);  // of a peer
    if (bytes <= std::min(kSmallAllReduceBytes, staging_bytes)) {
      all_reduce_small(buffers, count, dtype, op, staging);
      return;
    }
    for (int r = 0; r < size_; ++r) {
      const Range part = shard_range(count, size_, r);
      counts_[static_cast<size_t>(r)] = part.size;
      offsets_[static_cast<size_t>(r)] = part.begin;
    }
    reduce_parts(buffers, nullptr, true, counts_, dtype, op, staging,
                 std::min(staging_bytes, kReduceChunkBytes));
  }

  void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                  std::span<const int64_t> recv_counts, DType dtype) override {
    begin("all_to_all", std::max(sum_of(send_counts), sum_of(recv_counts)) * size_of(dtype));
    check_counts(operation_, send_counts, *this);
    check_counts(operation_, recv_counts, *this);
    const int64_t element = size_of(dtype);
    const char* from_here = static_cast<const char*>(send);
    char* to_here = static_cast<char*>(recv);
    for (int i = 1; i < size_; ++i) {
      const int from = (rank_ + size_ - i) % size_;
      post_recv(to_here + offset_of(recv_counts, from) * element,
                recv_counts[static_cast<size_t>(from)] * element, from);
    }
    for (int i = 1; i < size_; ++i) {
      const int to = (rank_ + i) % size_;
      post_send(from_here + offset_of(send_counts, to) * element,
                send_counts[static_cast<size_t>(to)] * element, to);
    }
    const int64_t own = send_counts[static_cast<size_t>(rank_)];
    SR_REQUIRE(own == recv_counts[static_cast<size_t>(rank_)], comm, name(), ": sends ", own,
               " to itself and expects ", recv_counts[static_cast<size_t>(rank_)]);
    if (own > 0) {
      std::memcpy(to_here + offset_of(recv_counts, rank_) * element,
                  from_here + offset_of(send_counts, rank_) * element,
                  static_cast<size_t>(own * element));
    }
    wait();
  }

  /// A binomial tree: in round k the 2^k ranks that have the data (counted from the root) send it
  /// on.
  void broadcast(void* data, int64_t bytes, int root) override {
    begin("broadcast", bytes);
    check_peer(operation_, root, *this);
    const int relative = (rank_ - root + size_) % size_;
    for (int have = 1; have < size_; have *= 2) {
      if (relative < have && relative + have < size_) {
        post_send(data, bytes, (rank_ + have) % size_);
      } else if (relative >= have && relative < 2 * have) {
        post_recv(data, bytes, (rank_ - have + size_) % size_);
      }
      wait();
    }
  }

  void send(const void* data, int64_t bytes, int to) override {
    begin("send", bytes);
    check_peer(operation_, to, *this);
    post_send(data, bytes, to, kPointToPointTag);
    wait();
  }

  void recv(void* data, int64_t bytes, int from) override {
    begin("recv", bytes);
    check_peer(operation_, from, *this);
    post_recv(data, bytes, from, kPointToPointTag);
    wait();
  }

  void exchange(std::span<const Sent> out, std::span<const Received> in) override {
    begin("exchange", bytes_of(out, in));
    for (const Received& message : in) post_recv(message.data, message.bytes, message.from);
    for (const Sent& message : out) post_send(message.data, message.bytes, message.to);
    wait();
  }

  void barrier() override { any_of(0); }
  uint64_t any_of(uint64_t flags) override {
    begin("barrier", 0);
    return synchronise(flags);
  }

  std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>& groups) override {
    begin("split", 0);
    check_groups(groups, *this);
    synchronise();  // MPI_Comm_split cannot be watched: enter it only with everybody there
    int color = MPI_UNDEFINED, key = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      const auto it = std::find(groups[g].begin(), groups[g].end(), rank_);
      if (it == groups[g].end()) continue;
      color = static_cast<int>(g);
      key = static_cast<int>(it - groups[g].begin());
    }
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_, color, key, &part), "MPI_Comm_split");
    if (part == MPI_COMM_NULL) return nullptr;
    return communicate(part, node_, timeout_);
  }

  Memory allocate(int64_t bytes) override {
    begin("allocate", 0);
    synchronise();  // as in split
    return node_->allocate(comm_, bytes);
  }

  void set_timeout(double seconds) override { timeout_ = seconds; }

  void abort() noexcept override {
    if (node_->is_one_of_several()) guard_launcher();
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::_Exit(1);
  }

 private:
  struct Transfer {
    int peer;
    int64_t bytes;
    bool receives;
  };

  std::string name() const { return call_name(operation_, *this, bytes_of_call()); }
  std::optional<int64_t> bytes_of_call() const {
    return bytes_ > 0 ? std::optional(bytes_) : std::nullopt;
  }
  int job_rank(int r) const { return members_.ranks[static_cast<size_t>(r)]; }

  void begin(const char* operation, int64_t bytes) {
    operation_ = operation;
    bytes_ = bytes;
  }
  static int64_t bytes_of(std::span<const Sent> out, std::span<const Received> in) {
    int64_t bytes = 0;
    for (const Sent& message : out) bytes += message.bytes;
    for (const Received& message : in) bytes += message.bytes;
    return bytes;
  }

  void check(int code, const char* function) const {
    SR_REQUIRE(code == MPI_SUCCESS, comm, name(), ": ", function, " failed: ", error_string(code));
  }

  void post_send(const void* data, int64_t bytes, int to, int tag = kCollectiveTag) {
    for (int64_t at = 0; at < bytes; at += kMaxMessageBytes) {
      const int64_t n = std::min(kMaxMessageBytes, bytes - at);
      MPI_Request request = MPI_REQUEST_NULL;
      check(MPI_Isend(static_cast<const char*>(data) + at, static_cast<int>(n), MPI_BYTE, to, tag,
                      comm_, &request),
            "MPI_Isend");
      requests_.push_back(request);
      transfers_.push_back({to, n, false});
    }
  }

  void post_recv(void* data, int64_t bytes, int from, int tag = kCollectiveTag) {
    for (int64_t at = 0; at < bytes; at += kMaxMessageBytes) {
      const int64_t n = std::min(kMaxMessageBytes, bytes - at);
      MPI_Request request = MPI_REQUEST_NULL;
      check(MPI_Irecv(static_cast<char*>(data) + at, static_cast<int>(n), MPI_BYTE, from, tag,
                      comm_, &request),
            "MPI_Irecv");
      requests_.push_back(request);
      transfers_.push_back({from, n, true});
    }
  }

  /// Dissemination: after round k every rank has heard, directly or not, of the 2^(k+1) - 1 before
  /// it. Returns the flags of all: those that come twice change nothing.
  uint64_t synchronise(uint64_t flags = 0) {
    for (int distance = 1; distance < size_; distance *= 2) {
      post_recv(&flags_in_, sizeof flags_in_, (rank_ + size_ - distance) % size_);
      flags_out_ = flags;
      post_send(&flags_out_, sizeof flags_out_, (rank_ + distance) % size_);
      wait();
      flags |= flags_in_;
    }
    return flags;
  }

  /// Completes everything posted, and leaves the core to the rest where it takes long. Where ranks
  /// share cores it sleeps soon: who yields has to wait for a turn, which on a busy machine comes
  /// milliseconds after the message.
  void wait() {
    if (requests_.empty()) return;
    statuses_.resize(requests_.size());
    constexpr int kFewPolls = 16;
    Wait wait;
    WaitClock clock(members_.job.get(), job_rank(rank_), timeout_);
    Clock::time_point started{};
    for (int64_t polls = 0;; ++polls) {
      int done = 0;
      const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                                   statuses_.data());
      if (code != MPI_SUCCESS) fail_transfer(code);
      if (done) break;
      if (oversubscribed_ ? polls < kFewPolls : wait.stay_awake()) continue;
      const Clock::time_point now = Clock::now();
      if (started == Clock::time_point{}) started = now;
      const double waited = std::chrono::duration<double>(now - started).count();
      try {
        clock.look([&] { return long_wait(); });
      } catch (const Error&) {
        cancel();
        throw;
      }
      if (timeout_ > 0 && waited > timeout_) {
        clock.give_up();
        fail_timeout();
      }
      // An eighth of what it has waited makes a rank late by little.
      const timespec pause{0, static_cast<long>(std::clamp(waited / 8, 20e-6, 2e-3) * 1e9)};
      nanosleep(&pause, nullptr);
    }
    for (size_t i = 0; i < transfers_.size(); ++i) {
      if (!transfers_[i].receives) continue;
      int got = 0;
      MPI_Get_count(&statuses_[i], MPI_BYTE, &got);
      if (got == transfers_[i].bytes) continue;
      const Transfer wrong = transfers_[i];
      const std::string who = name();
      forget();
      fail(ErrorKind::comm, who, ": expects ", wrong.bytes, " bytes from ",
           peer_name(*this, wrong.peer), ", which sends ", got);
    }
    forget();
  }

  void forget() {
    requests_.clear();
    transfers_.clear();
  }

  /// Gives up what is outstanding: the caller's buffers end with the exception.
  void cancel() {
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
    forget();
  }

  [[noreturn]] void fail_transfer(int code) {
    std::string what = error_string(code);
    if (code == MPI_ERR_IN_STATUS) {
      for (size_t i = 0; i < transfers_.size(); ++i) {
        const int error = statuses_[i].MPI_ERROR;
        if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) continue;
        what = str(transfers_[i].receives ? "receiving " : "sending ", transfers_[i].bytes,
                   transfers_[i].receives ? " bytes from " : " bytes to ",
                   peer_name(*this, transfers_[i].peer), ": ", error_string(error));
        break;
      }
    }
    const std::string who = name();
    cancel();
    fail(ErrorKind::comm, who, ": ", what);
  }

  /// Whose messages have not come, or not gone.
  LongWait long_wait() const {
    LongWait out{bytes_of_call() ? str(operation_, " of ", *bytes_of_call(), " bytes") : operation_,
                 {}};
    for (size_t i = 0; i < requests_.size(); ++i) {
      int done = 0;
      MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
      if (!done) out.missing.push_back(job_rank(transfers_[i].peer));
    }
    std::sort(out.missing.begin(), out.missing.end());
    out.missing.erase(std::unique(out.missing.begin(), out.missing.end()), out.missing.end());
    return out;
  }

  [[noreturn]] void fail_timeout() {
    const std::string who = name(),
                      blamed = blame(*members_.job, job_rank(rank_), long_wait(), timeout_);
    cancel();
    fail(ErrorKind::comm, who, ": waited ", timeout_, " s for ", blamed);
  }

  char* slot(void* staging, int peer, int64_t slot_bytes) const {
    return static_cast<char*>(staging) + (peer < rank_ ? peer : peer - 1) * slot_bytes;
  }

  /// What of the buffers lies in `range`, a message for each: from them; or to them, or one behind
  /// the other to `place`.
  void send_parts(std::span<const Reduced> buffers, Range range, int64_t element, int to) {
    each_part(buffers, range, [&](size_t b, int64_t first, int64_t n, int64_t) {
      post_send(static_cast<char*>(buffers[b].data) + first * element, n * element, to);
    });
  }
  void recv_parts(std::span<const Reduced> buffers, Range range, int64_t element, int from,
                  char* place = nullptr) {
    each_part(buffers, range, [&](size_t b, int64_t first, int64_t n, int64_t at) {
      char* const own = static_cast<char*>(buffers[b].data) + first * element;
      post_recv(place == nullptr ? own : place + at * element, n * element, from);
    });
  }

  /// Of this rank's and its peers' contributions, which lie in their slots, to `range` of the
  /// buffers: into `out`, or, if that is null, in place.
  void reduce_range(std::span<const Reduced> buffers, Range range, DType dtype, Reduction op,
                    void* staging, int64_t slot_bytes, char* out) {
    const int64_t element = size_of(dtype);
    each_part(buffers, range, [&](size_t b, int64_t first, int64_t n, int64_t at) {
      char* const own = static_cast<char*>(buffers[b].data) + first * element;
      for (int r = 0; r < size_; ++r)
        in_[static_cast<size_t>(r)] =
            r == rank_ ? own : slot(staging, r, slot_bytes) + at * element;
      reduce_in_rank_order(in_, out == nullptr ? own : out + at * element, n, dtype, op);
    });
  }

  void all_reduce_small(std::span<const Reduced> buffers, int64_t count, DType dtype, Reduction op,
                        void* staging) {
    const int64_t element = size_of(dtype), slot_bytes = round_up_64(count * element);
    const Range all{0, count};
    for (int i = 1; i < size_; ++i) {
      const int from = (rank_ + size_ - i) % size_;
      recv_parts(buffers, all, element, from, slot(staging, from, slot_bytes));
    }
    for (int i = 1; i < size_; ++i) send_parts(buffers, all, element, (rank_ + i) % size_);
    wait();
    reduce_range(buffers, all, dtype, op, staging, slot_bytes, nullptr);
  }

  /// Part r is counts[r] elements from offsets_[r] of `send`, several buffers end to end. Part
  /// `rank` is reduced into `out`, or, if it `gathers`, in place, and everybody gets all parts. In
  /// round c each rank sends its contribution to chunk c of every part, of at most `chunk_bytes`,
  /// to the part's owner, which reduces. The owners hand the reduced chunk c to everybody during
  /// round c + 1, while it is in cache.
  void reduce_parts(std::span<const Reduced> send, char* out, bool gathers,
                    std::span<const int64_t> counts, DType dtype, Reduction op, void* staging,
                    int64_t chunk_bytes) {
    const int64_t element = size_of(dtype), step = chunk_bytes / element;
    const int64_t rounds = (*std::max_element(counts.begin(), counts.end()) + step - 1) / step;
    const auto chunk = [&](int part, int64_t round) {
      const auto p = static_cast<size_t>(part);
      return Range{offsets_[p] + round * step,
                   std::clamp(counts[p] - round * step, int64_t{0}, step)};
    };
    const int64_t slot_bytes =
        round_up_64(std::min(counts[static_cast<size_t>(rank_)], step) * element);
    for (int64_t round = 0; round < rounds + (gathers ? 1 : 0); ++round) {
      const Range mine = chunk(rank_, round);
      for (int i = 1; i < size_; ++i) {
        const int peer = (rank_ + size_ - i) % size_;
        recv_parts(send, mine, element, peer, slot(staging, peer, slot_bytes));
        if (gathers && round > 0) recv_parts(send, chunk(peer, round - 1), element, peer);
      }
      for (int i = 1; i < size_; ++i) {
        const int peer = (rank_ + i) % size_;
        send_parts(send, chunk(peer, round), element, peer);
        if (gathers && round > 0) send_parts(send, chunk(rank_, round - 1), element, peer);
      }
      wait();
      char* const to = gathers ? nullptr : out + round * step * element;
      reduce_range(send, mine, dtype, op, staging, slot_bytes, to);
    }
  }

  MPI_Comm comm_;
  std::shared_ptr<Node> node_;
  const Members members_;
  double timeout_;
  int rank_ = 0;
  int size_ = 1;
  const bool oversubscribed_ = oversubscribed();
  const char* operation_ = "";
  int64_t bytes_ = 0;  // of the call in progress
  uint64_t flags_in_ = 0, flags_out_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<Transfer> transfers_;
  std::vector<MPI_Status> statuses_;
  std::vector<int64_t> counts_, offsets_;  // of the parts of the call in progress, by rank
  std::vector<const void*> in_;
};

}  // namespace

bool oversubscribed() {
  return ranks_of_machine() >
         std::min<int64_t>(sysconf(_SC_NPROCESSORS_ONLN), own_quota().processors);
}

std::unique_ptr<MessageCommunicator> communicate_by_messages(MPI_Comm comm,
                                                             std::shared_ptr<Node> node,
                                                             double timeout) {
  return std::make_unique<MpiCommunicator>(comm, std::move(node), timeout);
}

}  // namespace mpi

namespace {

/// How many processes the launcher says there are; 0 if no launcher is known.
int64_t launched_processes() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_WORLD_SIZE"}) {
    if (const int64_t n = mpi::env_int(name, 0); n > 0) return n;
  }
  if (std::getenv("PMIX_RANK") != nullptr || std::getenv("PMI_RANK") != nullptr) {
    return std::max<int64_t>(1, mpi::env_int("SLURM_STEP_NUM_TASKS", 1));
  }
  if (std::getenv("SLURM_PROCID") != nullptr) {
    const int64_t n = mpi::env_int("SLURM_STEP_NUM_TASKS", 1);
    return n > 1 ? n : 0;
  }
  return 0;
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(int ranks_per_node) {
  const auto check = [](int code, const char* function) {
    SR_REQUIRE(code == MPI_SUCCESS, comm, "starting MPI: ", function,
               " failed: ", mpi::error_string(code));
  };
  const mpi::Watchdog watchdog("starting MPI");
  int initialized = 0;
  check(MPI_Initialized(&initialized), "MPI_Initialized");
  if (!initialized) {
    // Open MPI spins inside its own calls (start, split, end) unless it knows that cores are
    // scarce.
    if (mpi::oversubscribed()) setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
    if (mpi::env_int("OMPI_COMM_WORLD_LOCAL_RANK", -1) == 0)
      mpi::sweep_leftovers(mpi::leftover_places());
    int provided = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    SR_REQUIRE(
        provided >= MPI_THREAD_FUNNELED, comm,
        "starting MPI: this MPI has no thread support; use one built with MPI_THREAD_FUNNELED");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int size = 1;
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  const int64_t launched = launched_processes();
  SR_REQUIRE(size > 1 || launched <= 1, comm, "starting MPI: the launcher started ", launched,
             " processes, but MPI connects only 1; start them with mpirun of the same MPI, or srun "
             "--mpi=pmix");
  MPI_Comm comm = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  return mpi::communicate(comm, std::make_shared<mpi::Node>(comm, ranks_per_node),
                          Communicator::kDefaultTimeout);
}

bool launched_by_mpi() { return launched_processes() > 0; }

}  // namespace shardrun
