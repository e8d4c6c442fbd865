// The local backend: ranks are threads of one process.
//
// A collective is a few barriers with work between them. Each rank publishes its pointers in its
// slot and arrives; once all have arrived, everybody reads its peers' memory directly; a last
// barrier makes sure that nobody returns (and frees its buffers) while a peer still reads.
// Only the first barrier of a call can be interrupted by abort() or the timeout: it lets either all
// ranks through or none, and what follows it is bounded work that every rank finishes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "base/shape.h"
#include "collectives/communicator.h"
#include "collectives/reduce.h"
#include "collectives/wait.h"

namespace shardrun {
namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point deadline_after(double seconds) {
  if (seconds <= 0 || seconds > 1e8) return Clock::time_point::max();
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

class Group;

/// What all groups of one make_local_communicators call share: whether the job was ended.
class Job {
 public:
  std::atomic<bool> aborted{false};

  void add(const std::shared_ptr<Group>& group) {
    std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& g) { return g.expired(); });
    groups_.push_back(group);
  }
  void abort() noexcept;

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Group>> groups_;
};

/// What a rank shows its peers during a call.
struct Slot {
  std::string_view operation;
  const void* send = nullptr;
  void* data = nullptr;
  std::span<const int64_t> counts = {}, other_counts = {};
  int64_t count = 0;
  int root = 0;
  DType dtype = DType::u8;
  Reduction op = Reduction::sum;
  const std::vector<std::vector<int>>* groups = nullptr;
};

enum class Wake { done, aborted, timed_out };

class Group {
 public:
  Group(int size, std::shared_ptr<Job> shared_job)
      : slots(static_cast<size_t>(size)),
        job(std::move(shared_job)),
        size_(size),
        oversubscribed_(size > static_cast<int>(std::thread::hardware_concurrency())),
        here_(static_cast<size_t>(size), 0) {}

  std::vector<Slot> slots;
  std::vector<std::shared_ptr<Group>> split_result;
  std::shared_ptr<Job> job;

  /// The first barrier of a call. On timed_out the job is already aborted and `missing` lists the
  /// ranks that had not come.
  Wake enter(int rank, double timeout, std::vector<int>* missing) {
    std::unique_lock lock(mutex_);
    // Checked before this rank counts as arrived: once somebody has left here with `aborted`,
    // nobody completes this barrier.
    if (job->aborted) return Wake::aborted;
    here_[static_cast<size_t>(rank)] = 1;
    const uint64_t generation = generation_;
    if (arrive()) return Wake::done;
    stay_awake(lock, generation);
    const Clock::time_point deadline = deadline_after(timeout);
    while (generation_ == generation) {
      if (job->aborted) return Wake::aborted;
      if (Clock::now() >= deadline) {
        job->aborted = true;  // under the mutex: from here on nobody can complete this barrier
        for (int r = 0; r < size_; ++r) {
          if (!here_[static_cast<size_t>(r)]) missing->push_back(r);
        }
        lock.unlock();
        job->abort();
        return Wake::timed_out;
      }
      wait(changed_, lock, deadline);
    }
    return Wake::done;
  }

  /// A later barrier of the same call: every rank that entered comes here.
  void meet() {
    std::unique_lock lock(mutex_);
    const uint64_t generation = generation_;
    if (arrive()) return;
    stay_awake(lock, generation);
    changed_.wait(lock, [&] { return generation_ != generation; });
  }

  /// Point to point: the sender offers its pointer and waits until the receiver has copied.
  struct Channel {
    enum class State { empty, offered, taking, done, wrong_size } state = State::empty;
    const void* data = nullptr;
    int64_t bytes = 0;
    int64_t wanted = 0;
  };
  /// Waits until the channel is in a state for which `ready` holds. Runs `then` under the lock.
  template <class Ready, class Then, class Withdraw>
  Wake channel_wait(int from, int to, double timeout, bool interruptible, const Ready& ready,
                    const Then& then, const Withdraw& withdraw) {
    std::unique_lock lock(channel_mutex_);
    Channel& channel = channels_[{from, to}];
    const Clock::time_point deadline = deadline_after(timeout);
    while (!ready(channel)) {
      if (interruptible && channel.state != Channel::State::taking) {
        const bool late = Clock::now() >= deadline;
        if (job->aborted || late) {
          withdraw(channel);
          const bool was_aborted = job->aborted;
          lock.unlock();
          if (was_aborted) return Wake::aborted;
          job->abort();
          return Wake::timed_out;
        }
      }
      wait(channel_changed_, lock, deadline);
    }
    then(channel);
    lock.unlock();
    channel_changed_.notify_all();
    return Wake::done;
  }

  void wake_all() {
    { std::lock_guard lock(mutex_); }
    changed_.notify_all();
    { std::lock_guard lock(channel_mutex_); }
    channel_changed_.notify_all();
  }

 private:
  /// Counts this rank in, under the mutex; true if it was the last.
  bool arrive() {
    if (++arrived_ < size_) return false;
    arrived_ = 0;
    std::fill(here_.begin(), here_.end(), 0);
    ++generation_;
    changed_.notify_all();
    return true;
  }
  /// Before sleeping, where each thread has a core.
  void stay_awake(std::unique_lock<std::mutex>& lock, uint64_t generation) {
    if (oversubscribed_) return;
    lock.unlock();
    Wait wait;
    while (generation_ == generation && !job->aborted && wait.stay_awake()) {
    }
    lock.lock();
  }
  static void wait(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                   Clock::time_point deadline) {
    if (deadline == Clock::time_point::max()) {
      changed.wait(lock);
    } else {
      changed.wait_until(lock, deadline);
    }
  }

  const int size_;
  const bool oversubscribed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<uint64_t> generation_{0};
  int arrived_ = 0;
  std::vector<char> here_;  // who has entered the call that is gathering
  std::mutex channel_mutex_;
  std::condition_variable channel_changed_;
  std::map<std::pair<int, int>, Channel> channels_;
};

void Job::abort() noexcept {
  aborted = true;
  std::vector<std::shared_ptr<Group>> live;
  {
    std::lock_guard lock(mutex_);
    for (const auto& weak : groups_) {
      if (auto group = weak.lock()) live.push_back(std::move(group));
    }
  }
  for (const auto& group : live) group->wake_all();
}

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Group> group, int rank, int size, double timeout)
      : group_(std::move(group)),
        rank_(rank),
        size_(size),
        parts_(static_cast<size_t>(size)),
        timeout_(timeout) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_gather(const void* send, void* recv, std::span<const int64_t> counts,
                  DType dtype) override {
    check_counts("all_gather", counts, rank_, size_);
    enter({.operation = "all_gather", .send = send, .counts = counts, .dtype = dtype});
    const int64_t element = size_of(dtype);
    char* to = static_cast<char*>(recv);
    for (int r = 0; r < size_; ++r) {
      const int64_t bytes = counts[static_cast<size_t>(r)] * element;
      const void* from = slot(r).send;
      if (bytes > 0 && from != to) std::memmove(to, from, static_cast<size_t>(bytes));
      to += bytes;
    }
    group_->meet();
  }

  void reduce_scatter(const void* send, void* recv, std::span<const int64_t> counts, DType dtype,
                      Reduction op, void*) override {
    check_counts("reduce_scatter", counts, rank_, size_);
    check_reducible("reduce_scatter", dtype, rank_, size_);
    enter(
        {.operation = "reduce_scatter", .send = send, .counts = counts, .dtype = dtype, .op = op});
    const int64_t offset = offset_of(counts, rank_) * size_of(dtype);
    reduce_slice([](const Slot& s) { return s.send; }, offset, recv,
                 counts[static_cast<size_t>(rank_)], dtype, op);
    group_->meet();
  }

  void all_reduce(void* data, int64_t count, DType dtype, Reduction op, void* staging) override {
    check_reducible("all_reduce", dtype, rank_, size_);
    enter({.operation = "all_reduce", .data = data, .count = count, .dtype = dtype, .op = op});
    const int64_t element = size_of(dtype);
    const auto data_of = [](const Slot& s) -> const void* { return s.data; };
    if (size_ == 1) {
      // One contribution is its own reduction.
    } else if (count * element <= kSmallAllReduceBytes) {
      reduce_slice(data_of, 0, staging, count, dtype, op);
      group_->meet();
      if (count > 0) std::memcpy(data, staging, static_cast<size_t>(count * element));
      return;  // nobody reads a peer's memory after the meeting
    } else {
      // Rank r reduces slice r in place: no other rank reads or writes slice r until the meeting.
      const Range mine = chunk(count, size_, rank_);
      reduce_slice(data_of, mine.begin * element, static_cast<char*>(data) + mine.begin * element,
                   mine.size, dtype, op);
      group_->meet();
      for (int r = 0; r < size_; ++r) {
        const Range theirs = chunk(count, size_, r);
        if (r == rank_ || theirs.size == 0) continue;
        std::memcpy(static_cast<char*>(data) + theirs.begin * element,
                    static_cast<const char*>(slot(r).data) + theirs.begin * element,
                    static_cast<size_t>(theirs.size * element));
      }
    }
    group_->meet();
  }

  void all_to_all(const void* send, std::span<const int64_t> send_counts, void* recv,
                  std::span<const int64_t> recv_counts, DType dtype) override {
    check_counts("all_to_all", send_counts, rank_, size_);
    check_counts("all_to_all", recv_counts, rank_, size_);
    enter({.operation = "all_to_all",
           .send = send,
           .counts = send_counts,
           .other_counts = recv_counts,
           .dtype = dtype});
    const int64_t element = size_of(dtype);
    char* to = static_cast<char*>(recv);
    for (int r = 0; r < size_; ++r) {
      const int64_t bytes = recv_counts[static_cast<size_t>(r)] * element;
      const char* from =
          static_cast<const char*>(slot(r).send) + offset_of(slot(r).counts, rank_) * element;
      if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
      to += bytes;
    }
    group_->meet();
  }

  void broadcast(void* data, int64_t bytes, int root) override {
    check_peer("broadcast", root, rank_, size_);
    enter({.operation = "broadcast", .data = data, .count = bytes, .root = root});
    if (rank_ != root && bytes > 0) std::memcpy(data, slot(root).data, static_cast<size_t>(bytes));
    group_->meet();
  }

  void barrier() override {
    enter({.operation = "barrier"});
    group_->meet();
  }

  void send(const void* data, int64_t bytes, int to) override {
    using State = Group::Channel::State;
    check_peer("send", to, rank_, size_);
    require(group_->channel_wait(
                rank_, to, timeout_, true, [](const auto& c) { return c.state == State::empty; },
                [&](auto& c) {
                  c = {State::offered, data, bytes, 0};
                },
                keep),
            "send", std::span(&to, 1));
    bool wrong_size = false;
    int64_t wanted = 0;
    require(
        group_->channel_wait(
            rank_, to, timeout_, true,
            [](const auto& c) { return c.state == State::done || c.state == State::wrong_size; },
            [&](auto& c) {
              wrong_size = c.state == State::wrong_size;
              wanted = c.wanted;
              c = {};
            },
            [](auto& c) { c = {}; }),
        "send", std::span(&to, 1));
    SR_REQUIRE(!wrong_size, comm, call_name("send", rank_, size_), ": sends ", bytes,
               " bytes to rank ", to, ", which expects ", wanted);
  }

  void recv(void* data, int64_t bytes, int from) override {
    using State = Group::Channel::State;
    check_peer("recv", from, rank_, size_);
    const void* source = nullptr;
    int64_t offered = 0;
    require(
        group_->channel_wait(
            from, rank_, timeout_, true, [](const auto& c) { return c.state == State::offered; },
            [&](auto& c) {
              source = c.data;
              offered = c.bytes;
              c.wanted = bytes;
              c.state = offered == bytes ? State::taking : State::wrong_size;
            },
            keep),
        "recv", std::span(&from, 1));
    SR_REQUIRE(offered == bytes, comm, call_name("recv", rank_, size_), ": expects ", bytes,
               " bytes from rank ", from, ", which sends ", offered);
    if (bytes > 0) std::memcpy(data, source, static_cast<size_t>(bytes));
    group_->channel_wait(
        from, rank_, 0, false, [](const auto&) { return true; },
        [](auto& c) { c.state = State::done; }, keep);
  }

  Memory allocate(int64_t bytes) override { return {private_memory(bytes), ""}; }

  std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>& groups) override {
    check_groups(groups, rank_, size_);
    enter({.operation = "split", .groups = &groups});
    if (rank_ == 0) {
      for (const std::vector<int>& members : groups) {
        auto group = std::make_shared<Group>(static_cast<int>(members.size()), group_->job);
        group_->job->add(group);
        group_->split_result.push_back(std::move(group));
      }
    }
    group_->meet();
    std::unique_ptr<Communicator> mine;
    for (size_t g = 0; g < groups.size(); ++g) {
      const auto it = std::find(groups[g].begin(), groups[g].end(), rank_);
      if (it == groups[g].end()) continue;
      mine = std::make_unique<LocalCommunicator>(group_->split_result[g],
                                                 static_cast<int>(it - groups[g].begin()),
                                                 static_cast<int>(groups[g].size()), timeout_);
    }
    group_->meet();
    if (rank_ == 0) group_->split_result.clear();
    return mine;
  }

  void set_timeout(double seconds) override { timeout_ = seconds; }

  void abort() noexcept override { group_->job->abort(); }

 private:
  /// Leaves a channel as it is.
  static constexpr auto keep = [](Group::Channel&) {};

  const Slot& slot(int r) const { return group_->slots[static_cast<size_t>(r)]; }

  void require(Wake wake, std::string_view operation, std::span<const int> missing) const {
    SR_REQUIRE(wake != Wake::aborted, comm, call_name(operation, rank_, size_),
               ": another rank ended the job");
    if (wake == Wake::done) return;
    std::string names;
    for (int r : missing) names += (names.empty() ? "" : ", ") + std::to_string(r);
    fail(ErrorKind::comm, call_name(operation, rank_, size_), ": waited ", timeout_, " s for rank ",
         names, ", which has stopped or makes other calls");
  }

  /// Publishes this rank's part of the call and waits for the others'. Throws where they do not
  /// make the same call; every rank of the group then throws.
  void enter(const Slot& call) {
    group_->slots[static_cast<size_t>(rank_)] = call;
    std::vector<int> missing;
    const Wake wake = group_->enter(rank_, timeout_, &missing);
    require(wake, call.operation, missing);
    const std::string wrong = disagreement();
    if (wrong.empty()) return;
    group_->meet();
    fail(ErrorKind::comm, call_name(call.operation, rank_, size_), ": ", wrong);
  }

  /// Every rank compares all with rank 0, so that all come to the same verdict.
  std::string disagreement() const {
    const Slot& first = slot(0);
    for (int r = 0; r < size_; ++r) {
      const Slot& s = slot(r);
      const auto who = [&] { return str("rank ", r, " of ", size_); };
      if (s.operation != first.operation) {
        return str(who(), " calls ", s.operation, " where rank 0 calls ", first.operation);
      }
      if (s.dtype != first.dtype || s.op != first.op || s.root != first.root) {
        return str(who(), " differs from rank 0 in dtype, reduction or root");
      }
      if (s.count != first.count) {
        return str(who(), " has count ", s.count, " where rank 0 has ", first.count);
      }
      if (s.groups != nullptr && *s.groups != *first.groups) {
        return str(who(), " splits into other groups than rank 0");
      }
      if (s.operation == "all_to_all") {
        for (int p = 0; p < size_; ++p) {
          const int64_t sent = s.counts[static_cast<size_t>(p)];
          const int64_t wanted = slot(p).other_counts[static_cast<size_t>(r)];
          if (sent != wanted)
            return str(who(), " sends ", sent, " to rank ", p, ", which expects ", wanted);
        }
      } else if (!std::equal(s.counts.begin(), s.counts.end(), first.counts.begin(),
                             first.counts.end())) {
        return str(who(), " has other counts than rank 0");
      }
    }
    return "";
  }

  template <class Pointer>
  void reduce_slice(Pointer pointer, int64_t byte_offset, void* out, int64_t count, DType dtype,
                    Reduction op) {
    for (int r = 0; r < size_; ++r) {
      parts_[static_cast<size_t>(r)] = static_cast<const char*>(pointer(slot(r))) + byte_offset;
    }
    reduce_in_rank_order(parts_, out, count, dtype, op);
  }

  std::shared_ptr<Group> group_;
  const int rank_;
  const int size_;
  std::vector<const void*> parts_;  // of the call in progress, by rank
  double timeout_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_communicators(int n) {
  SR_REQUIRE(n >= 1, invalid_input, "local ranks: got ", n, ", wanted at least 1");
  auto job = std::make_shared<Job>();
  auto group = std::make_shared<Group>(n, job);
  job->add(group);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < n; ++r) {
    ranks.push_back(
        std::make_unique<LocalCommunicator>(group, r, n, Communicator::kDefaultTimeout));
  }
  return ranks;
}

}  // namespace shardrun
