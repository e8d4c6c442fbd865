// Collectives between the ranks of one node, through shared memory.
//
// As in the local backend, a collective is a meeting or two with work between them: each rank
// writes into its slot, which its peers can see, what it calls and where its buffer lies; once all
// have come, everybody reads (and for all_reduce writes) its peers' buffers directly; a last
// meeting makes sure that nobody goes on while a peer still reads. What is small goes along in the
// slots, and one meeting is enough. Where a buffer lies outside of memory that
// Communicator::allocate gave, all ranks see it in the slots, and make the call by messages.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>

#include "base/shape.h"
#include "collectives/mpi/node.h"
#include "collectives/reduce.h"
#include "collectives/wait.h"

namespace shardrun::mpi {
namespace {

using Clock = std::chrono::steady_clock;

enum class Operation : uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  broadcast,
  barrier,
  reach
};
constexpr const char* kNames[] = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                                  "broadcast",  "barrier",        "reach"};

/// A buffer of at most so many bytes goes along in the slot. Of an all_reduce more does, where that
/// is so little for all ranks to read: they would write each other's buffers otherwise.
constexpr int64_t kSmallBytes = 512, kSmallSumBytes = 8 << 10, kSmallSumsBytes = 16 << 10;

/// What a rank shows its peers during a call.
struct Call {
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  Reduction reduction = Reduction::sum;
  bool reachable = true;  // do peers reach the buffer at `place`?
  int32_t root = 0;
  int64_t count = 0;
  uint64_t counts = 0;  // the call's counts, hashed
  Place place;
  alignas(64) char small[kSmallSumBytes] = {};
};

/// A rank's part of the group's shared memory; behind it, for each parity of calls, one int64_t a
/// rank: all_to_all's counts.
struct alignas(64) Slot {
  std::atomic<uint32_t> meetings{0};  // at which this rank has arrived
  std::atomic<uint32_t> sleepers{0};  // who waits for its next one in the kernel
  /// Calls alternate: a rank that has left a call's last meeting may write its next call while a
  /// peer still reads this one.
  alignas(64) Call calls[2];
  int64_t* counts(uint64_t call, int ranks) {
    return reinterpret_cast<int64_t*>(this + 1) + (call % 2) * static_cast<uint64_t>(ranks);
  }
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

int64_t slot_bytes(int ranks) {
  return round_up_64(static_cast<int64_t>(sizeof(Slot)) + 2 * ranks * int64_t{8});
}

uint64_t hash(std::span<const int64_t> counts) {
  uint64_t h = counts.size();
  for (int64_t n : counts) h = (h ^ static_cast<uint64_t>(n)) * 0x9e3779b97f4a7c15ull;
  return h;
}

void sleep_while(std::atomic<uint32_t>& word, uint32_t value, double seconds) {
  const timespec limit{
      static_cast<time_t>(seconds),
      static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

class SharingCommunicator : public NodeCommunicator {
 public:
  /// `slots`: this rank's memory for its Slot; `places`: every rank's; `ranks`: in the world.
  SharingCommunicator(std::unique_ptr<Communicator> messages, std::shared_ptr<Node> node,
                      std::vector<int> ranks, Memory slots, const std::vector<Place>& places,
                      double timeout)
      : messages_(std::move(messages)),
        node_(std::move(node)),
        ranks_(std::move(ranks)),
        memory_(std::move(slots)),
        rank_(messages_->rank()),
        size_(messages_->size()),
        timeout_(timeout) {
    for (int r = 0; r < size_; ++r) {
      slots_.push_back(reinterpret_cast<Slot*>(
          node_->at(ranks_[static_cast<size_t>(r)], places[static_cast<size_t>(r)])));
    }
    parts_.resize(slots_.size());
    in_.resize(slots_.size());
    reached_.resize(slots_.size());
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override {
    check_counts("all_gather", counts, rank_, size_);
    const int64_t element = size_of(dtype);
    const int64_t own = counts[static_cast<size_t>(rank_)] * element;
    const bool small = *std::max_element(counts.begin(), counts.end()) * element <= kSmallBytes;
    Call& call = begin(Operation::all_gather, dtype);
    call.counts = hash(counts);
    show(call, send, own, small);
    if (!enter()) return messages_->all_gather(send, recv, counts, dtype);
    const auto take = [&](int r) {
      const int64_t bytes = counts[static_cast<size_t>(r)] * element;
      char* to = static_cast<char*>(recv) + offset_of(counts, r) * element;
      const void* from = r == rank_ ? send : small ? call_of(r).small : theirs(r);
      if (bytes > 0 && from != to) std::memmove(to, from, static_cast<size_t>(bytes));
    };
    for (int i = 0; i < size_; ++i) take((rank_ + i) % size_);  // not all from rank 0 first
    if (!small) meet();
  }

  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void* staging) override {
    check_counts("reduce_scatter", counts, rank_, size_);
    check_reducible("reduce_scatter", dtype, rank_, size_);
    const int64_t element = size_of(dtype);
    Call& call = begin(Operation::reduce_scatter, dtype);
    call.reduction = op;
    call.counts = hash(counts);
    show(call, send, sum_of(counts) * element, false);
    if (!enter()) return messages_->reduce_scatter(send, recv, counts, dtype, op, staging);
    const int64_t offset = offset_of(counts, rank_) * element;
    for (int r = 0; r < size_; ++r) {
      const void* from = r == rank_ ? send : theirs(r);
      in_[static_cast<size_t>(r)] = static_cast<const char*>(from) + offset;
    }
    reduce_in_rank_order(in_, recv, counts[static_cast<size_t>(rank_)], dtype, op);
    meet();
  }

  /// Rank r reduces slice r, and writes it where everybody wants it.
  void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void* staging) override {
    check_reducible("all_reduce", dtype, rank_, size_);
    const int64_t element = size_of(dtype);
    const int64_t bytes = count * element;
    const bool small =
        bytes <= kSmallBytes || (bytes <= kSmallSumBytes && bytes * size_ <= kSmallSumsBytes);
    Call& call = begin(Operation::all_reduce, dtype);
    call.reduction = op;
    call.count = count;
    show(call, data, bytes, small);
    if (!enter()) return messages_->all_reduce(data, count, dtype, op, staging);
    const Range mine = small ? Range{0, count} : chunk(count, size_, rank_);
    for (int r = 0; r < size_; ++r) {
      void* buffer = small ? call_of(r).small : r == rank_ ? data : theirs(r);
      void*& slice = parts_[static_cast<size_t>(r)];
      slice = static_cast<char*>(buffer) + mine.begin * element;
      in_[static_cast<size_t>(r)] = slice;
    }
    if (small) return reduce_in_rank_order(in_, data, count, dtype, op);
    reduce_in_rank_order(in_, parts_, mine.size, dtype, op);
    meet();
  }

  void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                  std::span<const int64_t> recv_counts, DType dtype) override {
    check_counts("all_to_all", send_counts, rank_, size_);
    check_counts("all_to_all", recv_counts, rank_, size_);
    const int64_t element = size_of(dtype);
    Call& call = begin(Operation::all_to_all, dtype);
    std::copy(send_counts.begin(), send_counts.end(), counts_of(rank_));
    show(call, send, sum_of(send_counts) * element, false);
    if (!enter()) return messages_->all_to_all(send, send_counts, recv, recv_counts, dtype);
    for (int i = 0; i < size_; ++i) {
      const int r = (rank_ + i) % size_;
      const std::span<const int64_t> sent(counts_of(r), static_cast<size_t>(size_));
      const int64_t wanted = recv_counts[static_cast<size_t>(r)];
      const int64_t offered = sent[static_cast<size_t>(rank_)];
      SR_REQUIRE(offered == wanted, comm, call_name("all_to_all", rank_, size_), ": expects ",
                 wanted, " elements from rank ", r, ", which sends ", offered);
      if (wanted == 0) continue;
      const char* from = r == rank_ ? static_cast<const char*>(send) : theirs(r);
      std::memcpy(static_cast<char*>(recv) + offset_of(recv_counts, r) * element,
                  from + offset_of(sent, rank_) * element, static_cast<size_t>(wanted * element));
    }
    meet();
  }

  void broadcast(void* data, int64_t bytes, int root) override {
    check_peer("broadcast", root, rank_, size_);
    const bool small = bytes <= kSmallBytes;
    Call& call = begin(Operation::broadcast, DType::u8);
    call.root = root;
    call.count = bytes;
    if (rank_ == root) show(call, data, bytes, small);
    if (!enter()) return messages_->broadcast(data, bytes, root);
    if (rank_ != root && bytes > 0)
      std::memcpy(data, small ? call_of(root).small : theirs(root), static_cast<size_t>(bytes));
    if (!small) meet();
  }

  std::span<char* const> reach(const void* data, int64_t bytes) override {
    Call& call = begin(Operation::reach, DType::u8);
    show(call, data, bytes, false);
    if (!enter()) return {};
    for (int r = 0; r < size_; ++r) reached_[static_cast<size_t>(r)] = theirs(r);
    return reached_;
  }

  void barrier() override {
    begin(Operation::barrier, DType::u8);
    enter();
  }

  void send(const void* data, int64_t bytes, int to) override { messages_->send(data, bytes, to); }
  void recv(void* data, int64_t bytes, int from) override { messages_->recv(data, bytes, from); }
  Memory allocate(int64_t bytes) override { return messages_->allocate(bytes); }
  std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>& groups) override {
    return messages_->split(groups);
  }

  void set_timeout(double seconds) override {
    timeout_ = seconds;
    messages_->set_timeout(seconds);
  }
  void abort() noexcept override { messages_->abort(); }

 private:
  Slot& slot(int r) const { return *slots_[static_cast<size_t>(r)]; }
  Call& call_of(int r) const { return slot(r).calls[calls_ % 2]; }
  int64_t* counts_of(int r) const { return slot(r).counts(calls_, size_); }
  char* theirs(int r) const { return node_->at(ranks_[static_cast<size_t>(r)], call_of(r).place); }

  /// This rank's part of the next call, still to be shown.
  Call& begin(Operation operation, DType dtype) {
    ++calls_;
    Call& call = call_of(rank_);
    call.operation = operation;
    call.dtype = dtype;
    call.reduction = Reduction::sum;
    call.reachable = true;
    call.root = 0;
    call.count = 0;
    call.counts = 0;
    return call;
  }

  void show(Call& call, const void* data, int64_t bytes, bool small) const {
    if (small) {
      if (bytes > 0) std::memcpy(call.small, data, static_cast<size_t>(bytes));
      return;
    }
    const std::optional<Place> place = node_->find(data, bytes);
    call.reachable = place.has_value();
    call.place = place.value_or(Place{});
  }

  /// Waits for everybody's part of the call. False if a buffer lies where peers do not reach it.
  /// Throws where the calls differ; every rank compares all with rank 0, so all then throw.
  bool enter() {
    meet();
    const Call& first = call_of(0);
    bool reachable = true;
    for (int r = 0; r < size_; ++r) {
      const Call& c = call_of(r);
      reachable = reachable && c.reachable;
      const bool same_call = c.operation == first.operation;
      if (same_call && c.dtype == first.dtype && c.reduction == first.reduction &&
          c.root == first.root && c.count == first.count && c.counts == first.counts)
        continue;
      const std::string who =
          str(call_name(kNames[static_cast<size_t>(call_of(rank_).operation)], rank_, size_),
              ": rank ", r, " of ", size_);
      SR_REQUIRE(same_call, comm, who, " calls ", kNames[static_cast<size_t>(c.operation)],
                 " where rank 0 calls ", kNames[static_cast<size_t>(first.operation)]);
      SR_REQUIRE(c.count == first.count, comm, who, " has count ", c.count, " where rank 0 has ",
                 first.count);
      SR_REQUIRE(c.counts == first.counts, comm, who, " has other counts than rank 0");
      fail(ErrorKind::comm, who, " differs from rank 0 in dtype, reduction or root");
    }
    return reachable;
  }

  /// Arrives, and waits until all have. Where ranks share cores it sleeps at once: whoever it waits
  /// for may want this core.
  void meet() {
    Slot& own = slot(rank_);
    const uint32_t meeting = ++meetings_;
    own.meetings.store(meeting);
    if (own.sleepers.load() > 0) wake(own.meetings);
    Wait wait;
    Clock::time_point slept{};
    for (int i = 1; i < size_; ++i) {
      Slot& peer = slot((rank_ + i) % size_);
      while (!came(peer, meeting)) {
        if (!oversubscribed_ && wait.stay_awake()) continue;
        const Clock::time_point now = Clock::now();
        if (slept == Clock::time_point{}) slept = now;
        const double waited = std::chrono::duration<double>(now - slept).count();
        if (timeout_ > 0 && waited > timeout_) fail_timeout(meeting);
        ++peer.sleepers;
        const uint32_t seen = peer.meetings.load();
        if (static_cast<int32_t>(seen - meeting) < 0)
          sleep_while(peer.meetings, seen, timeout_ > 0 ? std::min(1.0, timeout_ / 8) : 1.0);
        --peer.sleepers;
      }
    }
  }

  /// Counts wrap around.
  static bool came(const Slot& peer, uint32_t meeting) {
    return static_cast<int32_t>(peer.meetings.load() - meeting) >= 0;
  }

  [[noreturn]] void fail_timeout(uint32_t meeting) const {
    std::string names;
    for (int r = 0; r < size_; ++r) {
      if (!came(slot(r), meeting)) names += (names.empty() ? "" : ", ") + std::to_string(r);
    }
    fail(ErrorKind::comm,
         call_name(kNames[static_cast<size_t>(call_of(rank_).operation)], rank_, size_),
         ": waited ", timeout_, " s for rank ", names, ", which has stopped or makes other calls");
  }

  std::unique_ptr<Communicator> messages_;
  std::shared_ptr<Node> node_;
  std::vector<int> ranks_;
  Memory memory_;
  std::vector<Slot*> slots_;
  std::vector<void*> parts_;     // of the call in progress, by rank
  std::vector<const void*> in_;  // the same, to be read
  std::vector<char*> reached_;   // by the last reach
  const int rank_;
  const int size_;
  const bool oversubscribed_ = oversubscribed();
  double timeout_;
  uint64_t calls_ = 0;
  uint32_t meetings_ = 0;
};

}  // namespace

std::unique_ptr<NodeCommunicator> share_memory(MPI_Comm comm, std::shared_ptr<Node> node,
                                               std::unique_ptr<Communicator>& messages,
                                               double timeout) {
  const int size = messages->size();
  Memory slots = node->allocate(comm, slot_bytes(size));
  if (!slots.why_private.empty()) return nullptr;
  new (slots.data.get()) Slot;
  struct Member {
    int rank;
    Place place;
  };
  const Member own{node->world_rank(), node->find(slots.data.get(), slot_bytes(size)).value()};
  std::vector<Member> members(static_cast<size_t>(size));
  const int bytes = static_cast<int>(sizeof own);
  SR_REQUIRE(
      MPI_Allgather(&own, bytes, MPI_BYTE, members.data(), bytes, MPI_BYTE, comm) == MPI_SUCCESS,
      comm, "sharing memory: MPI_Allgather failed");
  std::vector<int> ranks;
  std::vector<Place> places;
  for (const Member& member : members) {
    ranks.push_back(member.rank);
    places.push_back(member.place);
  }
  return std::make_unique<SharingCommunicator>(std::move(messages), std::move(node),
                                               std::move(ranks), std::move(slots), places, timeout);
}

}  // namespace shardrun::mpi
