// The local backend: ranks are threads of one process, which reach all of each other's memory.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <string>

#include "base/process/processors.h"
#include "collectives/reduce.h"
#include "collectives/sharing.h"

namespace shardrun {
namespace {

class Group;

/// What all groups of one make_local_communicators call share: whether the job was ended, and who
/// waits for whom.
class LocalJob final : public Job {
 public:
  explicit LocalJob(int ranks) : Job(ranks), polls_(ranks <= usable_cores()) {}
  bool polls() const { return polls_; }  // has each rank a core?
  std::shared_ptr<Group> make_group(std::vector<int> members);
  void abort() noexcept;

  void waits(int rank, const LongWait& wait) override {
    const std::lock_guard lock(mutex_);
    waits_[rank] = wait;
  }
  void done(int rank) override {
    const std::lock_guard lock(mutex_);
    waits_.erase(rank);
  }
  std::vector<std::optional<LongWait>> ask(std::span<const int> ranks, double) override {
    const std::lock_guard lock(mutex_);
    std::vector<std::optional<LongWait>> out;
    for (const int rank : ranks) {
      const auto found = waits_.find(rank);
      out.push_back(found == waits_.end() ? std::nullopt : std::optional(found->second));
    }
    return out;
  }
  void linger(double) override {}  // everybody can look

 private:
  const bool polls_;
  std::mutex mutex_;
  bool ended_ = false;
  std::vector<std::weak_ptr<Group>> groups_;
  std::map<int, LongWait> waits_;
};

/// Point to point is a meeting of two: the sender shows its pointer, and waits until the receiver
/// has copied.
struct Channel {
  Meeting meeting;
  const void* data = nullptr;
  int64_t bytes = 0, wanted = 0;
};

/// What the ranks of a communicator share.
class Group {
 public:
  explicit Group(std::vector<int> members)
      : members_(std::move(members)),
        bytes_(SharingCommunicator::slot_bytes(size())),
        memory_(static_cast<char*>(std::aligned_alloc(64, static_cast<size_t>(bytes_ * size()))),
                std::free) {
    SR_REQUIRE(memory_ != nullptr, out_of_memory, "a communicator of ", size(),
               " ranks could not be allocated");
    for (int rank = 0; rank < size(); ++rank) {
      slots_.push_back(memory_.get() + rank * bytes_);
      SharingCommunicator::make_slot(slots_.back());
    }
  }

  std::vector<std::shared_ptr<Group>> split_result;

  const std::vector<char*>& slots() const { return slots_; }
  const std::vector<int>& members() const { return members_; }  // of the job
  int size() const { return static_cast<int>(members_.size()); }
  Channel& channel(int from, int to) {
    const std::lock_guard lock(mutex_);
    Channel& channel = channels_[{from, to}];
    if (ended_) channel.meeting.end();
    return channel;
  }
  void end() noexcept {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    SharingCommunicator::end_meetings(slots_[0]);
    for (auto& [ranks, channel] : channels_) channel.meeting.end();
  }

 private:
  const std::vector<int> members_;
  const int64_t bytes_;
  const std::unique_ptr<char, decltype(&std::free)> memory_;
  std::vector<char*> slots_;
  std::mutex mutex_;
  bool ended_ = false;
  std::map<std::pair<int, int>, Channel> channels_;
};

std::shared_ptr<Group> LocalJob::make_group(std::vector<int> members) {
  auto group = std::make_shared<Group>(std::move(members));
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& g) { return g.expired(); });
  groups_.push_back(group);
  if (ended_) group->end();
  return group;
}

void LocalJob::abort() noexcept {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  for (const auto& weak : groups_) {
    if (const auto group = weak.lock()) group->end();
  }
}

class LocalCommunicator : public SharingCommunicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalJob> job, std::shared_ptr<Group> group, int rank,
                    double timeout)
      : SharingCommunicator(group->slots(), {job, group->members()}, rank, timeout, job->polls(),
                            nullptr, true),
        job_(std::move(job)),
        group_(std::move(group)) {}

  void send(const void* data, int64_t bytes, int to) override {
    check_peer("send", to, *this);
    Channel& channel = group_->channel(rank(), to);
    channel.data = data;
    channel.bytes = bytes;
    meet_at(channel.meeting, 2, true, "send", bytes, [to] { return std::vector{to}; });
    const int64_t wanted = channel.wanted;
    SR_REQUIRE(wanted == bytes, comm, call_name("send", *this), ": sends ", bytes, " bytes to ",
               peer_name(*this, to), ", which expects ", wanted);
    channel.meeting.meet(2, 0, polls());
  }

  void recv(void* data, int64_t bytes, int from) override {
    check_peer("recv", from, *this);
    Channel& channel = group_->channel(from, rank());
    channel.wanted = bytes;
    meet_at(channel.meeting, 2, true, "recv", bytes, [from] { return std::vector{from}; });
    SR_REQUIRE(channel.bytes == bytes, comm, call_name("recv", *this), ": expects ", bytes,
               " bytes from ", peer_name(*this, from), ", which sends ", channel.bytes);
    if (bytes > 0) std::memcpy(data, channel.data, static_cast<size_t>(bytes));
    channel.meeting.meet(2, 0, polls());
  }

  Memory allocate(int64_t bytes) override { return {private_memory(bytes), ""}; }

  std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>& groups) override {
    check_groups(groups, *this);
    enter_split(groups);
    if (rank() == 0) {
      for (const std::vector<int>& group : groups) {
        std::vector<int> of_job;
        for (const int r : group) of_job.push_back(members().ranks[static_cast<size_t>(r)]);
        group_->split_result.push_back(job_->make_group(std::move(of_job)));
      }
    }
    meet();
    std::unique_ptr<Communicator> mine;
    for (size_t g = 0; g < groups.size(); ++g) {
      const auto it = std::find(groups[g].begin(), groups[g].end(), rank());
      if (it == groups[g].end()) continue;
      mine = std::make_unique<LocalCommunicator>(
          job_, group_->split_result[g], static_cast<int>(it - groups[g].begin()), timeout());
    }
    meet();
    if (rank() == 0) group_->split_result.clear();
    return mine;
  }

  void abort() noexcept override { job_->abort(); }

 protected:
  std::optional<Place> find(const void* data, int64_t bytes) const override {
    return Place{0, bytes == 0 ? 0 : reinterpret_cast<intptr_t>(data)};
  }
  char* at(int, Place place) const override { return reinterpret_cast<char*>(place.offset); }
  void timed_out() override { job_->abort(); }

 private:
  std::shared_ptr<LocalJob> job_;
  std::shared_ptr<Group> group_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_communicators(int n) {
  SR_REQUIRE(n >= 1, invalid_input, "local ranks: got ", n, ", wanted at least 1");
  const auto job = std::make_shared<LocalJob>(n);
  std::vector<int> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  const auto group = job->make_group(std::move(all));
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < n; ++r) {
    ranks.push_back(
        std::make_unique<LocalCommunicator>(job, group, r, Communicator::kDefaultTimeout));
  }
  return ranks;
}

}  // namespace shardrun
