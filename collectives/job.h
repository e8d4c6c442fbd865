// The ranks of a job: what errors call them, and who of them waits for whom.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace shardrun {

/// A call in which a rank waits for others, named by their ranks in the job.
struct LongWait {
  std::string call;  // "all_reduce of 4096 bytes"
  std::vector<int> missing;
  /// Where collectives are checked: the call's group and its number there, and how many calls of
  /// each group the rank has entered.
  uint64_t group = 0;
  int64_t number = 0;
  std::vector<std::pair<uint64_t, int64_t>> entered = {};
};

/// A call that is checked (collectives/checked.h), as the rank that enters it says it is.
struct CheckedCall {
  uint64_t group = 0;
  int64_t number = 0;     // from 1, within the group
  const char* kind = "";  // a literal
  int64_t bytes = 0;
  const std::vector<int>* ranks = nullptr;  // of the job; lives as long as the group
};
/// "call 17, all_reduce of 4096 bytes between ranks 0 and 1".
std::string to_string(const CheckedCall& call);

/// One for all communicators of a rank (all ranks, where they are threads of a process).
class Job {
 public:
  explicit Job(int ranks);
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int size() const { return static_cast<int>(hosts_.size()); }
  /// "rank 3", or whatever is known of it: "rank 3 (data=1, model=1; on node7)".
  std::string name(int rank) const;
  /// What they run on, "" where that need not be said; and where they stand on the mesh. By rank.
  void set_hosts(std::vector<std::string> hosts);
  void set_places(std::vector<std::string> places);

  /// `rank` enters a call that is checked. From the first on, long waits say of which call they are
  /// (complete), and ranks that wait in a circle fail (refuse_circle).
  void enters(int rank, const CheckedCall& call);
  bool checks() const { return checks_; }
  void complete(int rank, LongWait& wait) const;

  /// `rank` has waited for a while already. Called again and again by it as long as it waits, so
  /// that others hear of it; then done() once.
  virtual void waits(int rank, const LongWait& wait) = 0;
  virtual void done(int rank) = 0;
  /// For whom these ranks wait, as far as they do: element i is of ranks[i]. A rank that neither
  /// waits nor asks gives no answer within `seconds`: it has stopped, or still computes.
  virtual std::vector<std::optional<LongWait>> ask(std::span<const int> ranks, double seconds) = 0;
  /// Sleeps, and answers meanwhile: what is left for a rank to do that has given up.
  virtual void linger(double seconds) = 0;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> hosts_, places_;
  struct Entered {
    CheckedCall last;
    std::map<uint64_t, int64_t> calls;  // by group
  };
  std::map<int, Entered> entered_;
  std::atomic<bool> checks_ = false;
};

/// The end of a sentence that begins with "waited 5 s for ": who is missing, and where these wait
/// themselves whom they wait for, and so on up to those that wait for nobody. Example, where ranks
/// 1 and 2 wait for rank 3, and rank 0 for rank 1:
///
///   rank 1, which waits in all_gather of 64 bytes for rank 3, which has stopped or makes other
///   calls
/// `timeout`: seconds that were waited; no rank is asked for longer.
std::string blame(Job& job, int self, const LongWait& wait, double timeout);

/// Throws Error(comm) if rank `self` waits, by way of others, for itself: for a rank that has not
/// entered the call yet, and cannot before one that waits, and so on, enters another. Names every
/// call of the circle. Messages that are only slow make none.
void refuse_circle(Job& job, int self, const LongWait& wait);

/// A wait that lasts longer than a tick is reported to the job, again at each tick.
class WaitClock {
 public:
  WaitClock(Job* job, int rank, double timeout) : job_(job), rank_(rank), every_(tick(timeout)) {}
  ~WaitClock() {
    if (reported_ && !given_up_) job_->done(rank_);
  }
  WaitClock(const WaitClock&) = delete;
  WaitClock& operator=(const WaitClock&) = delete;

  /// The wait is over, but not because the others came: who asks hears of it on.
  void give_up() { given_up_ = true; }
  /// Seconds from one look to the next: an eighth of the time limit, at most a quarter.
  static double tick(double timeout);
  /// Calls `wait()`, which makes a LongWait, if it is time to report.
  template <class F>
  void look(const F& wait) {
    const auto now = std::chrono::steady_clock::now();
    if (last_ == std::chrono::steady_clock::time_point{}) last_ = now;
    if (!job_ || std::chrono::duration<double>(now - last_).count() < every_) return;
    last_ = now;
    reported_ = true;
    LongWait now_waits = wait();
    const bool checks = job_->checks();
    if (checks) job_->complete(rank_, now_waits);
    job_->waits(rank_, now_waits);
    if (!checks) return;
    given_up_ = true;  // if that throws, others of the circle are to find it, too
    refuse_circle(*job_, rank_, now_waits);
    given_up_ = false;
  }

 private:
  Job* job_;
  int rank_;
  double every_;
  bool reported_ = false, given_up_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace shardrun
