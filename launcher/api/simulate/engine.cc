// What runs, each at its rate, and a heap of when it will be done.
#include "simulate/engine.h"

#include <algorithm>
#include <queue>

#include "base/error.h"

namespace shardrun {

int Simulation::add_stream(int lane) {
  lanes_ = std::max(lanes_, lane + 1);
  lanes_of_.push_back(lane);
  last_.push_back(-1);
  return static_cast<int>(lanes_of_.size()) - 1;
}

int Simulation::add_meeting() {
  meetings_.emplace_back();
  return static_cast<int>(meetings_.size()) - 1;
}

int Simulation::add(const SimTask& task, std::span<const int> after) {
  const int number = static_cast<int>(tasks_.size());
  tasks_.push_back(task);
  after_.insert(after_.end(), after.begin(), after.end());
  int& last = last_[at(task.stream)];
  if (last >= 0) after_.push_back(last);
  last = number;
  after_end_.push_back(static_cast<int>(after_.size()));
  if (task.meeting >= 0) meetings_[at(task.meeting)].push_back(number);
  return number;
}

/// A run's state. Work is a task of one lane, or all tasks of a meeting.
struct Simulation::Run {
  struct Work {
    double left = 0, rate = 1, since = 0;  // seconds at rate 1, as of `since`
    int version = 0;                       // of its place in the heap; 0: it does not run
  };
  struct End {
    double at;
    int work, version;
    bool operator>(const End& other) const {
      return at != other.at ? at > other.at : work > other.work;
    }
  };

  explicit Run(Simulation& of)
      : sim(of),
        work(of.tasks_.size() + of.meetings_.size()),
        arrived(of.meetings_.size(), 0),
        kernel_of(at(of.lanes_), -1),
        communication_of(at(of.lanes_)) {
    const size_t count = sim.tasks_.size();
    pending.resize(count);
    first.assign(count + 1, 0);
    for (int task : sim.after_) ++first[at(task) + 1];
    for (size_t t = 0; t < count; ++t) first[t + 1] += first[t];
    next.resize(sim.after_.size());
    std::vector<int> filled(first.begin(), first.end() - 1);
    for (size_t t = 0, a = 0; t < count; ++t) {
      pending[t] = sim.after_end_[t] - static_cast<int>(a);
      for (; a < at(sim.after_end_[t]); ++a)
        next[at(filled[at(sim.after_[a])]++)] = static_cast<int>(t);
    }
  }

  std::span<const int> tasks_of(int w) const {
    const size_t count = sim.tasks_.size();
    if (at(w) >= count) return sim.meetings_[at(w) - count];
    return {&numbers[at(w)], 1};
  }

  double rate_of(int w) const {
    const std::span<const int> tasks = tasks_of(w);
    const TaskKind kind = sim.tasks_[at(tasks[0])].kind;
    if (kind == TaskKind::host) return 1;
    double rate = 1;
    for (int task : tasks) {
      const std::vector<int>& concurrent = communication_of[at(sim.lane_of(task))];
      if (kind == TaskKind::kernel) return concurrent.empty() ? 1 : 1 / sim.overlap_slowdown_;
      const TaskLink link = sim.tasks_[at(task)].link;
      if (link == TaskLink::none) continue;
      const auto sharing = std::count_if(concurrent.begin(), concurrent.end(), [&](int other) {
        return sim.tasks_[at(tasks_of(other)[0])].link == link;
      });
      rate = std::min(rate, 1 / static_cast<double>(sharing));
    }
    return rate;
  }

  void set_rate(int w, bool fresh) {
    Work& one = work[at(w)];
    const double rate = rate_of(w);
    if (!fresh && rate == one.rate) return;
    if (!fresh) one.left = std::max(0.0, one.left - (now - one.since) * one.rate);
    one.rate = rate;
    one.since = now;
    ends.push({now + one.left / rate, w, ++one.version});
  }

  /// After a communication began or ended on these tasks' lanes.
  void set_rates_of_lanes(std::span<const int> tasks, int except) {
    for (int task : tasks) {
      const auto lane = at(sim.lane_of(task));
      if (sim.overlap_slowdown_ > 1 && kernel_of[lane] >= 0) set_rate(kernel_of[lane], false);
      if (communication_of[lane].size() < (except >= 0 ? 2u : 1u)) continue;
      for (int other : std::vector<int>(communication_of[lane])) {
        if (other != except) set_rate(other, false);
      }
    }
  }

  void begin(int w) {
    const std::span<const int> tasks = tasks_of(w);
    double longest = 0;
    for (int task : tasks) {
      sim.spans_[at(task)].begin = now;
      longest = std::max(longest, sim.tasks_[at(task)].seconds);
      const auto lane = at(sim.lane_of(task));
      if (sim.tasks_[at(task)].kind == TaskKind::kernel) kernel_of[lane] = w;
      if (sim.tasks_[at(task)].kind == TaskKind::communication) communication_of[lane].push_back(w);
    }
    work[at(w)].left = longest;
    set_rate(w, true);
    if (sim.tasks_[at(tasks[0])].kind == TaskKind::communication) set_rates_of_lanes(tasks, w);
  }

  void end(int w) {
    work[at(w)].version = 0;
    const std::span<const int> tasks = tasks_of(w);
    for (int task : tasks) {
      sim.spans_[at(task)].end = now;
      const auto lane = at(sim.lane_of(task));
      if (sim.tasks_[at(task)].kind == TaskKind::kernel) kernel_of[lane] = -1;
      if (sim.tasks_[at(task)].kind == TaskKind::communication)
        std::erase(communication_of[lane], w);
      ++ended;
    }
    if (sim.tasks_[at(tasks[0])].kind == TaskKind::communication) set_rates_of_lanes(tasks, -1);
    for (int task : tasks) {
      for (int n = first[at(task)]; n < first[at(task) + 1]; ++n) {
        if (--pending[at(next[at(n)])] == 0) arrive(next[at(n)]);
      }
    }
  }

  void arrive(int task) {
    sim.spans_[at(task)].ready = now;
    const int meeting = sim.tasks_[at(task)].meeting;
    if (meeting < 0) {
      begin(task);
    } else if (++arrived[at(meeting)] == sim.meetings_[at(meeting)].size()) {
      begin(static_cast<int>(sim.tasks_.size()) + meeting);
    }
  }

  void all() {
    const auto count = static_cast<int>(sim.tasks_.size());
    for (int t = 0; t < count; ++t) numbers.push_back(t);
    for (int t = 0; t < count; ++t) {
      if (pending[at(t)] == 0) arrive(t);
    }
    while (!ends.empty()) {
      const End next_end = ends.top();
      ends.pop();
      if (work[at(next_end.work)].version != next_end.version) continue;
      now = next_end.at;
      end(next_end.work);
    }
    SR_REQUIRE(ended == count, internal, "simulation: ", count - ended, " of ", count,
               " tasks wait for each other for ever");
  }

  Simulation& sim;
  std::vector<Work> work;                          // of tasks, then of meetings
  std::vector<size_t> arrived;                     // by meeting
  std::vector<int> kernel_of;                      // by lane: the work that is its kernel, or -1
  std::vector<std::vector<int>> communication_of;  // by lane
  std::vector<int> pending, first, next, numbers;  // tasks that wait for task t: next[first[t]] …
  std::priority_queue<End, std::vector<End>, std::greater<>> ends;
  double now = 0;
  int ended = 0;
};

void Simulation::run() {
  spans_.assign(tasks_.size(), {});
  Run(*this).all();
  for (const SimSpan& span : spans_) makespan_ = std::max(makespan_, span.end);
}

LaneTimes Simulation::times(int lane) const {
  enum { kKernel, kCommunication, kWait, kHost, kKinds };
  struct Edge {
    double at;
    int what, change;
  };
  std::vector<Edge> edges;
  const auto add = [&](double from, double to, int what) {
    if (from >= to) return;
    edges.push_back({from, what, 1});
    edges.push_back({to, what, -1});
  };
  for (size_t t = 0; t < tasks_.size(); ++t) {
    if (lanes_of_[at(tasks_[t].stream)] != lane) continue;
    const SimSpan& span = spans_[t];
    const TaskKind kind = tasks_[t].kind;
    add(span.begin, span.end,
        kind == TaskKind::kernel ? kKernel
        : kind == TaskKind::host ? kHost
                                 : kCommunication);
    add(span.ready, span.begin, kWait);
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  LaneTimes out;
  int running[kKinds] = {};
  double before = 0;
  const auto pass = [&](double to) {
    double& time = running[kKernel] > 0          ? out.compute
                   : running[kCommunication] > 0 ? out.exposed
                   : running[kWait] > 0          ? out.waiting
                   : running[kHost] > 0          ? out.host
                                                 : out.bubble;
    time += to - before;
    before = to;
  };
  for (const Edge& edge : edges) {
    pass(edge.at);
    running[edge.what] += edge.change;
  }
  pass(makespan_);
  return out;
}

double Simulation::busiest_stream() const {
  std::vector<double> sums(lanes_of_.size(), 0);
  for (const SimTask& task : tasks_) sums[at(task.stream)] += task.seconds;
  return sums.empty() ? 0 : *std::max_element(sums.begin(), sums.end());
}

double Simulation::serial_sum() const {
  std::vector<double> sums(at(lanes_), 0);
  for (const SimTask& task : tasks_) sums[at(lanes_of_[at(task.stream)])] += task.seconds;
  return sums.empty() ? 0 : *std::max_element(sums.begin(), sums.end());
}

}  // namespace shardrun
