// The collectives, by meetings of the ranks.
#include "collectives/sharing.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "base/shape.h"
#include "collectives/reduce.h"

namespace shardrun {
namespace {

constexpr const char* kNames[] = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                                  "broadcast",  "barrier",        "reach",      "split"};

/// A buffer of at most so many bytes goes along in the slot. Of an all_reduce more does, where that
/// is so little for all ranks to read: they would write each other's buffers otherwise.
constexpr int64_t kSmallBytes = 512, kSmallSumBytes = 8 << 10, kSmallSumsBytes = 16 << 10;

uint64_t hash(uint64_t h, int64_t count) {
  return (h ^ static_cast<uint64_t>(count)) * 0x9e3779b97f4a7c15ull;
}
uint64_t hash(std::span<const int64_t> counts) {
  uint64_t h = counts.size();
  for (int64_t n : counts) h = hash(h, n);
  return h;
}

}  // namespace

/// What a rank shows its peers during a call.
struct SharingCommunicator::Call {
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  Reduction reduction = Reduction::sum;
  bool reachable = true;  // do peers reach the buffer at `place`?
  uint64_t flags = 0;     // any_of: may differ
  int32_t root = 0;
  int64_t count = 0;
  uint64_t counts = 0;  // the call's counts, or groups, hashed
  Place place;
  alignas(64) char small[kSmallSumBytes] = {};
};

/// What a rank lets its peers see; behind it, for each parity of calls, one int64_t a rank:
/// all_to_all's counts.
struct alignas(64) SharingCommunicator::Slot {
  Meeting meeting;                    // the first rank's is the group's
  std::atomic<uint32_t> meetings{0};  // at which this rank has arrived
  /// Calls alternate: a rank that has left a call's last meeting may write its next call while a
  /// peer still reads this one.
  alignas(64) Call calls[2];
  int64_t* counts(uint64_t call, int ranks) {
    return reinterpret_cast<int64_t*>(this + 1) + (call % 2) * static_cast<uint64_t>(ranks);
  }
};

int64_t SharingCommunicator::slot_bytes(int ranks) {
  return round_up_64(static_cast<int64_t>(sizeof(Slot)) + 2 * ranks * int64_t{8});
}

void SharingCommunicator::make_slot(char* at) { new (at) Slot; }

void SharingCommunicator::end_meetings(char* first_slot) noexcept {
  reinterpret_cast<Slot*>(first_slot)->meeting.end();
}

SharingCommunicator::SharingCommunicator(const std::vector<char*>& slots, Members members, int rank,
                                         double timeout, bool polls,
                                         std::unique_ptr<Communicator> messages, bool bounded)
    : members_(std::move(members)),
      messages_(std::move(messages)),
      parts_(slots.size()),
      in_(slots.size()),
      reached_(slots.size()),
      rank_(rank),
      size_(static_cast<int>(slots.size())),
      polls_(polls),
      bounded_(bounded),
      timeout_(timeout) {
  for (char* slot : slots) slots_.push_back(reinterpret_cast<Slot*>(slot));
}

void SharingCommunicator::all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                                     DType dtype) {
  check_counts("all_gather", counts, *this);
  const int64_t element = size_of(dtype);
  const int64_t own = counts[static_cast<size_t>(rank_)] * element;
  const bool small = *std::max_element(counts.begin(), counts.end()) * element <= kSmallBytes;
  Call& call = begin(Operation::all_gather, dtype, sum_of(counts) * element);
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

void SharingCommunicator::reduce_scatter(const void* send, void* recv,
                                         std::span<const int64_t> counts, DType dtype, Reduction op,
                                         void* staging) {
  check_counts("reduce_scatter", counts, *this);
  check_reducible("reduce_scatter", dtype, *this);
  const int64_t element = size_of(dtype);
  Call& call = begin(Operation::reduce_scatter, dtype, sum_of(counts) * element);
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

void SharingCommunicator::all_reduce(void* data, int64_t count, DType dtype, Reduction op,
                                     void* staging) {
  const Reduced one{data, count};
  all_reduce_each({&one, 1}, dtype, op, staging);
}

/// Of all buffers, end to end, rank r reduces slice r, and writes it where everybody wants it. What
/// is small goes along in the slots, and of other buffers their places, as many as fit.
void SharingCommunicator::all_reduce_each(std::span<const Reduced> buffers, DType dtype,
                                          Reduction op, void* staging) {
  check_reducible("all_reduce", dtype, *this);
  if (size_ == 1) return;  // one contribution is its own reduction
  constexpr size_t kMost = kSmallSumBytes / sizeof(Place);
  if (buffers.size() > kMost) {
    all_reduce_each(buffers.first(kMost), dtype, op, staging);
    return all_reduce_each(buffers.subspan(kMost), dtype, op, staging);
  }
  const int64_t element = size_of(dtype), count = count_of(buffers), bytes = count * element;
  const bool small =
      bytes <= kSmallBytes || (bytes <= kSmallSumBytes && bytes * size_ <= kSmallSumsBytes);
  show_sum(begin(Operation::all_reduce, dtype, bytes), buffers, dtype, op, small);
  if (!enter()) return messages_->all_reduce_each(buffers, dtype, op, staging);
  const Range mine = small ? Range{0, count} : shard_range(count, size_, rank_);
  each_part(buffers, mine, [&](size_t b, int64_t first, int64_t n, int64_t from) {
    char* const own = static_cast<char*>(buffers[b].data) + first * element;
    for (int r = 0; r < size_; ++r) {
      char* part = own;
      if (small) {
        part = call_of(r).small + from * element;
      } else if (r != rank_) {
        Place place;
        std::memcpy(&place, call_of(r).small + b * sizeof place, sizeof place);
        part = at(r, place) + first * element;
      }
      parts_[static_cast<size_t>(r)] = part;
      in_[static_cast<size_t>(r)] = part;
    }
    if (small) {
      reduce_in_rank_order(in_, own, n, dtype, op);
    } else {
      reduce_in_rank_order(in_, parts_, n, dtype, op);
    }
  });
  if (!small) meet();
}

void SharingCommunicator::all_to_all(const void* send, std::span<const int64_t> send_counts,
                                     void* recv, std::span<const int64_t> recv_counts,
                                     DType dtype) {
  check_counts("all_to_all", send_counts, *this);
  check_counts("all_to_all", recv_counts, *this);
  const int64_t element = size_of(dtype);
  const int64_t moved = std::max(sum_of(send_counts), sum_of(recv_counts));
  Call& call = begin(Operation::all_to_all, dtype, moved * element);
  std::copy(send_counts.begin(), send_counts.end(), counts_of(rank_));
  show(call, send, sum_of(send_counts) * element, false);
  if (!enter()) return messages_->all_to_all(send, send_counts, recv, recv_counts, dtype);
  int wrong = -1;  // peers read this rank's buffer even so
  for (int i = 0; i < size_; ++i) {
    const int r = (rank_ + i) % size_;
    const std::span<const int64_t> sent(counts_of(r), static_cast<size_t>(size_));
    const int64_t wanted = recv_counts[static_cast<size_t>(r)];
    const int64_t offered = sent[static_cast<size_t>(rank_)];
    if (offered != wanted) wrong = r;
    if (wanted == 0 || offered != wanted) continue;
    const char* from = r == rank_ ? static_cast<const char*>(send) : theirs(r);
    std::memcpy(static_cast<char*>(recv) + offset_of(recv_counts, r) * element,
                from + offset_of(sent, rank_) * element, static_cast<size_t>(wanted * element));
  }
  meet();
  if (wrong < 0) return;
  fail(ErrorKind::comm, call_name("all_to_all", *this), ": expects ",
       recv_counts[static_cast<size_t>(wrong)], " elements from ", peer_name(*this, wrong),
       ", which sends ", counts_of(wrong)[rank_]);
}

void SharingCommunicator::broadcast(void* data, int64_t bytes, int root) {
  check_peer("broadcast", root, *this);
  const bool small = bytes <= kSmallBytes;
  Call& call = begin(Operation::broadcast, DType::u8, bytes);
  call.root = root;
  call.count = bytes;
  if (rank_ == root) show(call, data, bytes, small);
  if (!enter()) return messages_->broadcast(data, bytes, root);
  if (rank_ != root && bytes > 0)
    std::memcpy(data, small ? call_of(root).small : theirs(root), static_cast<size_t>(bytes));
  if (!small) meet();
}

std::span<char* const> SharingCommunicator::reach(const void* data, int64_t bytes) {
  Call& call = begin(Operation::reach, DType::u8, bytes);
  show(call, data, bytes, false);
  if (!enter()) return {};
  for (int r = 0; r < size_; ++r) reached_[static_cast<size_t>(r)] = theirs(r);
  return reached_;
}

uint64_t SharingCommunicator::any_of(uint64_t flags) {
  begin(Operation::barrier, DType::u8, 0).flags = flags;
  enter();
  uint64_t all = 0;
  for (int r = 0; r < size_; ++r) all |= call_of(r).flags;
  return all;
}

void SharingCommunicator::enter_split(const std::vector<std::vector<int>>& groups) {
  std::vector<int64_t> members;
  for (const std::vector<int>& group : groups) {
    members.push_back(-1);
    members.insert(members.end(), group.begin(), group.end());
  }
  begin(Operation::split, DType::u8, 0).counts = hash(members);
  enter();
}

Meeting& SharingCommunicator::meeting() const { return slot(0).meeting; }
SharingCommunicator::Call& SharingCommunicator::call_of(int r) const {
  return slot(r).calls[calls_ % 2];
}
int64_t* SharingCommunicator::counts_of(int r) const { return slot(r).counts(calls_, size_); }
char* SharingCommunicator::theirs(int r) const { return at(r, call_of(r).place); }

/// This rank's part of the next call, still to be shown.
SharingCommunicator::Call& SharingCommunicator::begin(Operation operation, DType dtype,
                                                      int64_t bytes) {
  ++calls_;
  bytes_ = bytes;
  Call& call = call_of(rank_);
  call.operation = operation;
  call.dtype = dtype;
  call.reduction = Reduction::sum;
  call.reachable = true;
  call.flags = 0;
  call.root = 0;
  call.count = 0;
  call.counts = 0;
  return call;
}

void SharingCommunicator::show(Call& call, const void* data, int64_t bytes, bool small) const {
  if (small) {
    if (bytes > 0) std::memcpy(call.small, data, static_cast<size_t>(bytes));
    return;
  }
  const std::optional<Place> place = find(data, bytes);
  call.reachable = place.has_value();
  call.place = place.value_or(Place{});
}

/// Of an all_reduce: the buffers, if `small`, or where they lie.
void SharingCommunicator::show_sum(Call& call, std::span<const Reduced> buffers, DType dtype,
                                   Reduction op, bool small) const {
  call.reduction = op;
  call.count = count_of(buffers);
  char* to = call.small;
  for (const Reduced& b : buffers) {
    const int64_t bytes = b.count * size_of(dtype);
    call.counts = hash(call.counts, b.count);
    if (small) {
      if (bytes > 0) std::memcpy(to, b.data, static_cast<size_t>(bytes));
      to += bytes;
    } else {
      const std::optional<Place> place = find(b.data, bytes);
      call.reachable = call.reachable && place.has_value();
      const Place there = place.value_or(Place{});
      std::memcpy(to, &there, sizeof there);
      to += sizeof there;
    }
  }
}

/// Waits for everybody's part of the call. False if a buffer lies where peers do not reach it.
/// Throws where the calls differ; every rank compares all with rank 0, so all then throw.
bool SharingCommunicator::enter() {
  slot(rank_).meetings = ++meetings_;
  meet_at(meeting(), size_, true, kNames[static_cast<size_t>(call_of(rank_).operation)], bytes_,
          [this] { return missing(); });
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
        str(call_name(kNames[static_cast<size_t>(call_of(rank_).operation)], *this), ": ",
            peer_name(*this, r));
    SR_REQUIRE(same_call, comm, who, " calls ", kNames[static_cast<size_t>(c.operation)],
               " where rank 0 calls ", kNames[static_cast<size_t>(first.operation)]);
    SR_REQUIRE(c.count == first.count, comm, who, " has count ", c.count, " where rank 0 has ",
               first.count);
    SR_REQUIRE(c.counts == first.counts, comm, who,
               c.operation == Operation::split ? " splits into other groups than rank 0"
                                               : " has other counts than rank 0");
    fail(ErrorKind::comm, who, " differs from rank 0 in dtype, reduction or root");
  }
  return reachable;
}

void SharingCommunicator::meet() {
  slot(rank_).meetings = ++meetings_;
  meet_at(meeting(), size_, false, kNames[static_cast<size_t>(call_of(rank_).operation)], bytes_,
          [this] { return missing(); });
}

/// Counts wrap around.
std::vector<int> SharingCommunicator::missing() const {
  std::vector<int> out;
  for (int r = 0; r < size_; ++r) {
    if (static_cast<int32_t>(slot(r).meetings - meetings_) < 0) out.push_back(r);
  }
  return out;
}

void SharingCommunicator::meet_at(Meeting& meeting, int size, bool first,
                                  std::string_view operation, int64_t bytes,
                                  const std::function<std::vector<int>()>& missing) {
  const double limit = first || !bounded_ ? timeout_ : 0;
  const int self = members_.ranks[static_cast<size_t>(rank_)];
  WaitClock clock(members_.job.get(), self, limit);
  const auto wait = [&] {
    LongWait out{bytes > 0 ? str(operation, " of ", bytes, " bytes") : std::string(operation), {}};
    for (const int r : missing()) out.missing.push_back(members_.ranks[static_cast<size_t>(r)]);
    return out;
  };
  const Meeting::Waits look = [&] { clock.look(wait); };
  const Meeting::Outcome outcome =
      first ? meeting.enter(size, limit, polls_, look) : meeting.meet(size, limit, polls_, look);
  if (outcome == Meeting::Outcome::met) return;
  const std::string who =
      call_name(operation, *this, bytes > 0 ? std::optional(bytes) : std::nullopt);
  SR_REQUIRE(outcome != Meeting::Outcome::ended, comm, who, ": another rank ended the job");
  clock.give_up();
  const std::string blamed = blame(*members_.job, self, wait(), timeout_);
  timed_out();
  fail(ErrorKind::comm, who, ": waited ", timeout_, " s for ", blamed);
}

}  // namespace shardrun
