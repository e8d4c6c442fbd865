// The local backend: ranks are threads of one process, which reach all of each other's memory.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "base/processors.h"
#include "collectives/reduce.h"
#include "collectives/sharing.h"

namespace shardrun {
namespace {

class Group;

/// What all groups of one make_local_communicators call share: whether the job was ended.
class Job {
 public:
  explicit Job(bool polls) : polls_(polls) {}
  bool polls() const { return polls_; }  // has each rank a core?
  std::shared_ptr<Group> make_group(int size);
  void abort() noexcept;

 private:
  const bool polls_;
  std::mutex mutex_;
  bool ended_ = false;
  std::vector<std::weak_ptr<Group>> groups_;
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
  explicit Group(int size)
      : bytes_(SharingCommunicator::slot_bytes(size)),
        memory_(static_cast<char*>(std::aligned_alloc(64, static_cast<size_t>(bytes_ * size))),
                std::free) {
    SR_REQUIRE(memory_ != nullptr, out_of_memory, "a communicator of ", size,
               " ranks could not be allocated");
    for (int rank = 0; rank < size; ++rank) {
      slots_.push_back(memory_.get() + rank * bytes_);
      SharingCommunicator::make_slot(slots_.back());
    }
  }

  std::vector<std::shared_ptr<Group>> split_result;

  const std::vector<char*>& slots() const { return slots_; }
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
  const int64_t bytes_;
  const std::unique_ptr<char, decltype(&std::free)> memory_;
  std::vector<char*> slots_;
  std::mutex mutex_;
  bool ended_ = false;
  std::map<std::pair<int, int>, Channel> channels_;
};

std::shared_ptr<Group> Job::make_group(int size) {
  auto group = std::make_shared<Group>(size);
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& g) { return g.expired(); });
  groups_.push_back(group);
  if (ended_) group->end();
  return group;
}

void Job::abort() noexcept {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  for (const auto& weak : groups_) {
    if (const auto group = weak.lock()) group->end();
  }
}

class LocalCommunicator : public SharingCommunicator {
 public:
  LocalCommunicator(std::shared_ptr<Job> job, std::shared_ptr<Group> group, int rank,
                    double timeout)
      : SharingCommunicator(group->slots(), rank, timeout, job->polls(), nullptr, true),
        job_(std::move(job)),
        group_(std::move(group)) {}

  void send(const void* data, int64_t bytes, int to) override {
    check_peer("send", to, rank(), size());
    Channel& channel = group_->channel(rank(), to);
    channel.data = data;
    channel.bytes = bytes;
    require(channel.meeting.enter(2, timeout(), polls()), "send", std::to_string(to));
    const int64_t wanted = channel.wanted;
    SR_REQUIRE(wanted == bytes, comm, call_name("send", rank(), size()), ": sends ", bytes,
               " bytes to rank ", to, ", which expects ", wanted);
    channel.meeting.meet(2, 0, polls());
  }

  void recv(void* data, int64_t bytes, int from) override {
    check_peer("recv", from, rank(), size());
    Channel& channel = group_->channel(from, rank());
    channel.wanted = bytes;
    require(channel.meeting.enter(2, timeout(), polls()), "recv", std::to_string(from));
    SR_REQUIRE(channel.bytes == bytes, comm, call_name("recv", rank(), size()), ": expects ", bytes,
               " bytes from rank ", from, ", which sends ", channel.bytes);
    if (bytes > 0) std::memcpy(data, channel.data, static_cast<size_t>(bytes));
    channel.meeting.meet(2, 0, polls());
  }

  Memory allocate(int64_t bytes) override { return {private_memory(bytes), ""}; }

  std::unique_ptr<Communicator> split(const std::vector<std::vector<int>>& groups) override {
    check_groups(groups, rank(), size());
    enter_split(groups);
    if (rank() == 0) {
      for (const std::vector<int>& members : groups)
        group_->split_result.push_back(job_->make_group(static_cast<int>(members.size())));
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
  std::shared_ptr<Job> job_;
  std::shared_ptr<Group> group_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_communicators(int n) {
  SR_REQUIRE(n >= 1, invalid_input, "local ranks: got ", n, ", wanted at least 1");
  const auto job = std::make_shared<Job>(n <= usable_cores());
  const auto group = job->make_group(n);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < n; ++r) {
    ranks.push_back(
        std::make_unique<LocalCommunicator>(job, group, r, Communicator::kDefaultTimeout));
  }
  return ranks;
}

}  // namespace shardrun
