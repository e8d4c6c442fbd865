// Names, and following who waits for whom.
#include "collectives/job.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"

namespace shardrun {

Job::Job(int ranks) : hosts_(static_cast<size_t>(ranks)), places_(static_cast<size_t>(ranks)) {}

std::string Job::name(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto r = static_cast<size_t>(rank);
  if (r >= hosts_.size()) return str("rank ", rank);
  std::string where = places_[r];
  if (!hosts_[r].empty()) where += (where.empty() ? "on " : "; on ") + hosts_[r];
  return where.empty() ? str("rank ", rank) : str("rank ", rank, " (", where, ")");
}

void Job::set_hosts(std::vector<std::string> hosts) {
  const std::lock_guard lock(mutex_);
  hosts_ = std::move(hosts);
}

void Job::set_places(std::vector<std::string> places) {
  const std::lock_guard lock(mutex_);
  places_ = std::move(places);
}

void Job::enters(int rank, const CheckedCall& call) {
  checks_ = true;
  const std::lock_guard lock(mutex_);
  Entered& of = entered_[rank];
  of.last = call;
  of.calls[call.group] = call.number;
}

void Job::complete(int rank, LongWait& wait) const {
  const std::lock_guard lock(mutex_);
  const auto of = entered_.find(rank);
  if (of == entered_.end()) return;
  wait.call = to_string(of->second.last);
  wait.group = of->second.last.group;
  wait.number = of->second.last.number;
  wait.entered.assign(of->second.calls.begin(), of->second.calls.end());
}

double WaitClock::tick(double timeout) { return timeout > 0 ? std::min(0.25, timeout / 8) : 0.25; }

namespace {

std::string names_of(const Job& job, const std::vector<int>& ranks) {
  constexpr size_t kMost = 8;
  std::string out;
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) {
    const bool last = i + 1 == ranks.size();
    out += (i == 0 ? "" : last ? " and " : ", ") + job.name(ranks[i]);
  }
  if (ranks.size() > kMost) out += str(" and ", ranks.size() - kMost, " more");
  return out;
}

/// Has the rank that waits so entered call `number` of `group`? Then what comes from it is under
/// way.
bool has_entered(const LongWait& of, uint64_t group, int64_t number) {
  return std::any_of(of.entered.begin(), of.entered.end(), [&](const auto& calls) {
    return calls.first == group && calls.second >= number;
  });
}

}  // namespace

std::string to_string(const CheckedCall& call) {
  constexpr size_t kMost = 8;
  std::string out = str("call ", call.number, ", ", call.kind);
  if (call.bytes > 0) out += str(" of ", call.bytes, " bytes");
  if (call.ranks == nullptr) return out;
  out += call.ranks->size() == 1 ? " of rank " : " between ranks ";
  for (size_t i = 0; i < std::min(call.ranks->size(), kMost); ++i)
    out += str(i == 0 ? "" : i + 1 == call.ranks->size() ? " and " : ", ", (*call.ranks)[i]);
  if (call.ranks->size() > kMost) out += str(" and ", call.ranks->size() - kMost, " more");
  return out;
}

void refuse_circle(Job& job, int self, const LongWait& wait) {
  constexpr double kPatience = 0.2;  // who waits looks four times a second, and while it asks
  struct Reached {
    int rank;
    size_t from;  // who waits for it
    LongWait wait;
  };
  std::vector<Reached> all = {{self, 0, wait}};
  std::set<int> asked = {self};
  for (size_t at = 0; at < all.size(); ++at) {
    std::vector<int> next;
    for (const int rank : all[at].wait.missing) {
      if (asked.insert(rank).second) next.push_back(rank);
    }
    const std::vector<std::optional<LongWait>> answers = job.ask(next, kPatience);
    for (size_t i = 0; i < next.size(); ++i) {
      const LongWait& waiter = all[at].wait;
      if (!answers[i] || has_entered(*answers[i], waiter.group, waiter.number)) continue;
      all.push_back({next[i], at, *answers[i]});
      const std::vector<int>& missing = answers[i]->missing;
      if (std::find(missing.begin(), missing.end(), self) == missing.end() ||
          has_entered(wait, answers[i]->group, answers[i]->number))
        continue;
      std::string circle;
      for (size_t place = all.size() - 1;; place = all[place].from) {
        circle = str(job.name(all[place].rank), " waits in ", all[place].wait.call,
                     circle.empty() ? "" : "; ", circle);
        if (place == 0) break;
      }
      fail(ErrorKind::comm, "ranks wait for each other in different calls: ", circle);
    }
  }
}

std::string blame(Job& job, int self, const LongWait& wait, double timeout) {
  const double patience = std::clamp(timeout, 0.5, 1.25);  // who waits looks four times a second
  // Whom nobody who answers waits for any more.
  std::vector<int> next = wait.missing, silent;
  std::optional<std::pair<int, LongWait>> first;  // of the missing, one that waits itself
  std::set<int> asked(next.begin(), next.end());
  asked.insert(self);
  while (!next.empty()) {
    const std::vector<std::optional<LongWait>> answers = job.ask(next, patience);
    std::vector<int> further;
    for (size_t i = 0; i < next.size(); ++i) {
      if (!answers[i]) {
        silent.push_back(next[i]);
        continue;
      }
      if (!first) first.emplace(next[i], *answers[i]);
      for (const int rank : answers[i]->missing) {
        if (asked.insert(rank).second) further.push_back(rank);
      }
    }
    next = std::move(further);
  }
  std::sort(silent.begin(), silent.end());
  const std::string stopped =
      silent.size() == 1 ? "has stopped or makes other calls" : "have stopped or make other calls";
  if (!first) return str(names_of(job, silent), ", which ", stopped);
  const std::string waits = str(names_of(job, {first->first}), ", which waits in ",
                                first->second.call, " for ", names_of(job, first->second.missing));
  if (silent.empty()) return waits + ": they make different calls";
  if (first->second.missing == silent) return str(waits, ", which ", stopped);
  return str(waits, "; ", names_of(job, silent), " ", stopped);
}

}  // namespace shardrun
