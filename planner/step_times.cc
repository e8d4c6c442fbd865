// Two streams: kernels, and what communicates.
#include "planner/step_times.h"

#include <algorithm>
#include <map>

#include "base/at.h"
#include "graph/collective.h"

namespace shardrun {

StepTimes::StepTimes(const PlanContext& posed) : posed_(posed) {
  const Graph& graph = posed.graph;
  std::map<std::pair<int, int>, int> hub_of;
  for (size_t h = 0; h < posed.joint.hubs.size(); ++h)
    hub_of[posed.folding.origin(graph, posed.joint.hubs[h].value)] = static_cast<int>(h);
  sources_.resize(graph.values().size());
  for (size_t v = 0; v < sources_.size(); ++v) {
    const Value& value = graph.values()[v];
    if (value.role == Role::computed && value.producer < 0) continue;
    Source& source = sources_[v];
    const std::pair<int, int> origin = posed.folding.origin(graph, static_cast<ValueId>(v));
    std::tie(source.node, source.result) = origin;
    if (value.role != Role::computed && posed.joint.lies_as[at(origin.first)].first >= 0)
      std::tie(source.node, source.result) = posed.joint.lies_as[at(origin.first)];
    const auto hub = hub_of.find(origin);
    if (hub != hub_of.end()) source.hub = hub->second;
    source.type = posed.times.number_of(value.type);
    source.shared = posed.space.regathered.empty() || !posed.space.regathered[v];
  }
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const shardrun::Node& node = graph.nodes()[n];
    Node& own = nodes_.emplace_back();
    own.item_class = posed.folding.class_of_node[n];
    own.runs = static_cast<double>(graph.runs(node.phase));
    own.updates = graph.phase_of(node) == Phase::update;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      own.in.push_back({node.inputs[k], k});
      Source& source = sources_[at(node.inputs[k])];
      if (source.reader >= 0) continue;
      source.reader = own.item_class;
      source.operand = k;
    }
    own.out.assign(node.outputs.begin(), node.outputs.end());
  }
  for (const auto& [held, next] : graph.updates) {
    const int holder = posed.folding.class_of_value[at(held)];
    if (graph.value(next).role == Role::computed && posed.joint.lies_as[at(holder)].first < 0)
      sources_[at(next)].holder = holder;
  }
  for (const auto& strategies : posed.space.strategies) {
    std::vector<Numbers>& numbers = numbers_.emplace_back();
    for (const Strategy& s : strategies) {
      Numbers& own = numbers.emplace_back();
      for (const Sharding& sharding : s.in) own.in.push_back(posed.times.number_of(sharding));
      for (const Sharding& sharding : s.out) own.out.push_back(posed.times.number_of(sharding));
    }
  }
}

const StepTimes::Seconds& StepTimes::of(int type, int from, int to) {
  constexpr int kBits = 20;  // of a Sharding's number
  const uint64_t key = (static_cast<uint64_t>(type) << kBits | static_cast<uint64_t>(from))
                           << kBits |
                       static_cast<uint64_t>(to);
  const auto [it, fresh] = seconds_.try_emplace(key);
  if (fresh) {
    for (const ReshardStep& step : posed_.times.steps(type, from, to))
      (traits_of(step.kind).local ? it->second.local : it->second.links) += step.seconds;
  }
  return it->second;
}

/// One step of one solution.
class StepRun {
 public:
  StepRun(StepTimes& times, const Solution& solution)
      : times_(times),
        solution_(solution),
        hubs_(times.posed_.joint.hubs),
        first_copy_(times.sources_.size(), -1),
        maker_(times.sources_.size(), -1) {
    tasks_.reserve(2 * times.nodes_.size());
  }

  double run() {
    for (const StepTimes::Node& node : times_.nodes_) {
      if (node.updates && !updates_) {
        updates_ = true;
        kernels_ = links_ = later(kernels_, links_);
        micro_ = end_of(kernels_);
      }
      run(node);
    }
    const double more = updates_ ? (times_.nodes_.front().runs - 1) * micro_ : 0;
    return end_of(later(kernels_, links_)) + more;
  }

  ChainFractions chain() const {
    const size_t nodes = times_.posed_.joint.problem.nodes.size();
    std::vector<double> chain[2], all[2];  // seconds of kernels, and of resharding
    for (const int resharding : {0, 1}) {
      chain[resharding].resize(nodes);
      all[resharding].resize(nodes);
    }
    for (const Task& task : tasks_) all[task.resharding][at(task.node)] += task.runs * task.seconds;
    for (int t = later(kernels_, links_); t >= 0; t = tasks_[at(t)].after) {
      const Task& task = tasks_[at(t)];
      chain[task.resharding][at(task.node)] += task.runs * task.seconds;
    }
    ChainFractions out{std::vector<double>(nodes, 0), std::vector<double>(nodes, 0)};
    for (size_t i = 0; i < nodes; ++i) {
      if (all[0][i] > 0) out.kernels[i] = chain[0][i] / all[0][i];
      if (all[1][i] > 0) out.reshardings[i] = chain[1][i] / all[1][i];
    }
    return out;
  }

 private:
  struct Task {
    double end = 0, seconds = 0, runs = 1;
    int after = -1;  // the task that it begins behind; -1: the step's beginning
    int node = 0;    // of the problem
    bool resharding = false;
  };
  /// A value in another Sharding than its maker's. What is local is done for the first reader.
  struct Copy {
    int sharding = 0, task = -1, next = -1;
    double local = 0;
    int node = 0;
  };

  double end_of(int task) const { return task < 0 ? 0 : tasks_[at(task)].end; }
  int later(int a, int b) const { return end_of(a) >= end_of(b) ? a : b; }
  int add(double seconds, int after, int node, bool resharding) {
    tasks_.push_back({end_of(after) + seconds, seconds, runs_, after, node, resharding});
    return static_cast<int>(tasks_.size()) - 1;
  }
  int made(const StepTimes::Source& source) const {
    return times_.numbers_[at(source.node)][at(solution_[at(source.node)])].out[at(source.result)];
  }

  void run(const StepTimes::Node& node) {
    runs_ = node.runs;
    const int choice = solution_[at(node.item_class)];
    const Strategy& strategy = times_.posed_.chosen(node.item_class, solution_);
    const std::vector<int>& wanted = times_.numbers_[at(node.item_class)][at(choice)].in;
    int ready = -1;
    for (const StepTimes::Use& use : node.in)
      ready = later(ready, obtain(use.value, wanted[use.operand], ahead_[0], true));
    if (strategy.exchange_seconds > 0) {
      links_ = add(strategy.exchange_seconds, later(links_, ready), node.item_class, false);
      ready = links_;
    }
    ahead_[0] = ahead_[1];
    ahead_[1] = kernels_;
    kernels_ = add(strategy.seconds - strategy.exchange_seconds, later(kernels_, ready),
                   node.item_class, false);
    const int own = kernels_;
    for (int value : node.out) {
      maker_[at(value)] = own;
      const StepTimes::Source& source = times_.sources_[at(value)];
      if (source.holder >= 0) hold(value, source, own);
      if (source.reader < 0) continue;
      const int have = made(source);
      if (times_.posed_.times.sharding(have).partial.empty()) continue;
      const int reads = solution_[at(source.reader)];
      (void)obtain(value, times_.numbers_[at(source.reader)][at(reads)].in[source.operand], own,
                   false);
    }
  }

  /// The task behind which a value is there as it is wanted. `asked`: behind which it is asked for.
  /// `now`: by its reader, else only what communicates begins.
  int obtain(int value, int wanted, int asked, bool now) {
    const StepTimes::Source& source = times_.sources_[at(value)];
    const int have = made(source);
    if (wanted == have) return maker_[at(value)];
    const int copy = source.shared ? find(value, wanted) : -1;
    if (copy >= 0) return finish(copy, now);
    int from = have, behind = maker_[at(value)], node = source.node;
    if (source.hub >= 0) {
      const Hub& hub = hubs_[at(source.hub)];
      const int common = hub.shardings[at(solution_[at(hub.node)])];
      if (common != have) {
        int at_hub = find(value, common);
        if (at_hub < 0) at_hub = reshard(value, have, common, behind, node, asked);
        behind = finish(at_hub, now);
        if (!now || common == wanted) return behind;
        from = common;
        node = hub.node;
      }
    }
    return finish(reshard(value, from, wanted, behind, node, asked), now);
  }

  /// Brings what an update made to where the next step begins with it.
  void hold(int value, const StepTimes::Source& source, int own) {
    const int have = made(source),
              held = times_.numbers_[at(source.holder)][at(solution_[at(source.holder)])].out[0];
    if (held != have) (void)finish(reshard(value, have, held, own, source.node, own), true);
  }

  int find(int value, int sharding) const {
    int copy = first_copy_[at(value)];
    while (copy >= 0 && copies_[at(copy)].sharding != sharding) copy = copies_[at(copy)].next;
    return copy;
  }
  int reshard(int value, int from, int to, int behind, int node, int asked) {
    const StepTimes::Seconds& seconds = times_.of(times_.sources_[at(value)].type, from, to);
    if (seconds.links > 0)
      behind = links_ = add(seconds.links, later(later(links_, behind), asked), node, true);
    copies_.push_back({to, behind, first_copy_[at(value)], seconds.local, node});
    return first_copy_[at(value)] = static_cast<int>(copies_.size()) - 1;
  }
  int finish(int number, bool now) {
    Copy& copy = copies_[at(number)];
    if (now && copy.local > 0) {
      copy.task = kernels_ = add(copy.local, later(kernels_, copy.task), copy.node, true);
      copy.local = 0;
    }
    return copy.task;
  }

  StepTimes& times_;
  const Solution& solution_;
  const std::vector<Hub>& hubs_;
  std::vector<Task> tasks_;
  std::vector<Copy> copies_;
  std::vector<int> first_copy_, maker_;  // by value
  int kernels_ = -1, links_ = -1;        // the last task of either stream
  int ahead_[2] = {-1, -1};              // the kernels in front of the last two
  bool updates_ = false;
  double micro_ = 0, runs_ = 1;
};

double StepTimes::seconds(const Solution& solution) { return StepRun(*this, solution).run(); }

std::pair<double, ChainFractions> StepTimes::chain(const Solution& solution) {
  StepRun run(*this, solution);
  const double seconds = run.run();
  return {seconds, run.chain()};
}

}  // namespace shardrun
