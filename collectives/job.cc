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

}  // namespace

std::string blame(Job& job, int self, const LongWait& wait, double timeout) {
  const double patience = std::clamp(timeout, 0.5, 3.0);  // who waits looks four times a second
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
