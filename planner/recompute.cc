// Greedy choice among reruns that save values, each judged by the bytes alive.
#include "planner/recompute.h"

#include <algorithm>
#include <map>
#include <span>
#include <tuple>

#include "base/at.h"
#include "graph/passes/recompute.h"

namespace shardrun {
namespace {

constexpr size_t kLongestRerun = 64;    // nodes that run again for one value
constexpr size_t kJudged = 8;           // reruns of which the best is taken
constexpr int kRefresh = 16;            // reruns taken, after which all are judged anew
constexpr double kLeastSeconds = 1e-9;  // of a node, so that ratios exist

/// Nodes that run again together.
using Rerun = std::vector<NodeId>;

class Chooser {
 public:
  Chooser(const Graph& graph, const ValueBytes& bytes, const std::vector<double>& seconds,
          int64_t capacity)
      : graph_(graph),
        recomputation_(graph),
        seconds_(seconds),
        capacity_(capacity),
        values_(live_values(graph, bytes)),
        saved_(graph.values().size(), false),
        again_(graph.nodes().size(), false) {
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      const Node& node = graph.nodes()[n];
      first_.push_back(values_of_.size());
      results_.push_back(first_.back() + node.inputs.size());
      ops_.push_back(&op_def(node.op));
      for (ValueId in : node.inputs) makers_.push_back(graph.value(in).producer);
      makers_.insert(makers_.end(), node.outputs.size(), static_cast<NodeId>(n));
      values_of_.insert(values_of_.end(), node.inputs.begin(), node.inputs.end());
      values_of_.insert(values_of_.end(), node.outputs.begin(), node.outputs.end());
      if (!recomputation_.is_late(static_cast<NodeId>(n))) continue;
      for (ValueId in : node.inputs) saved_[at(in)] = true;
    }
    first_.push_back(values_of_.size());
    operands_.resize(values_of_.size());
    // Behind the values their second ones.
    const size_t count = graph.values().size();
    values_.bytes.insert(values_.bytes.end(), bytes.begin(), bytes.end());
    values_.becomes.resize(2 * count, kNoValue);
  }

  Recomputed run() {
    double above = excess();
    std::vector<Rerun> taken;
    std::map<Key, double> known;  // by group: bytes saved a second, when last judged
    for (int picks = 0; above > 0; ++picks) {
      if (picks % kRefresh == 0) known.clear();
      Pick best = pick(above, known);
      if (best.reruns.empty() && !known.empty()) {
        known.clear();
        best = pick(above, known);
      }
      if (best.reruns.empty()) break;
      for (const Rerun& rerun : best.reruns) {
        for (NodeId node : rerun) again_[at(node)] = true;
      }
      taken.insert(taken.end(), best.reruns.begin(), best.reruns.end());
      above = best.above;
    }
    if (above == 0) drop_needless(taken);
    Recomputed out{{}, above == 0};
    for (size_t n = 0; n < again_.size(); ++n) {
      if (again_[n]) out.nodes.insert(graph_.nodes()[n].name);
    }
    return out;
  }

 private:
  /// The ops of a rerun, the bytes that it saves and the seconds that it takes.
  using Key = std::tuple<std::string, int64_t, float>;
  /// Reruns that are alike: in every layer the same.
  struct Group {
    Key key;
    double ratio = 0;
    std::vector<Rerun> reruns;
  };

  struct Pick {
    std::vector<Rerun> reruns;  // none: nothing saves anything
    double ratio = 0, above = 0;
  };
  /// The best of the first groups. One that was known to be worse is not judged again: what a group
  /// saves changes little by what the others do.
  Pick pick(double above, std::map<Key, double>& known) {
    Pick best;
    size_t judged = 0;
    for (Group& group : groups()) {
      const auto [before, fresh] = known.try_emplace(group.key, 0);
      if (fresh || before->second > best.ratio) {
        const auto [now, cost] = judge(group);
        before->second = (above - now) / cost;
        if (before->second > best.ratio) best = {std::move(group.reruns), before->second, now};
      }
      judged += before->second > 0;
      if (judged == kJudged) break;
    }
    return best;
  }
  /// The excess with a group that runs again, and the seconds that it takes.
  std::pair<double, double> judge(const Group& group) {
    const std::vector<bool> before = again_;
    double cost = 0;
    for (const Rerun& rerun : group.reruns) {
      for (NodeId node : rerun) {
        if (!again_[at(node)]) cost += seconds(node);
        again_[at(node)] = true;
      }
    }
    const double now = excess();
    again_ = before;
    return {now, cost};
  }

  double seconds(NodeId node) const { return std::max(seconds_[at(node)], kLeastSeconds); }

  /// What a node reads, and what it makes.
  std::span<const ValueId> inputs(NodeId node) const {
    return {values_of_.data() + first_[at(node)], results_[at(node)] - first_[at(node)]};
  }
  std::span<const ValueId> outputs(NodeId node) const {
    return {values_of_.data() + results_[at(node)], first_[at(node) + 1] - results_[at(node)]};
  }

  /// Bytes above the capacity, added up over all nodes.
  double excess() {
    const auto count = static_cast<ValueId>(graph_.values().size());
    steps_.clear();
    ValueId* next = operands_.data();  // enough: a node is late or runs again
    for (const auto& [n, again] : recomputation_.order(again_)) {
      if (!again && !recomputation_.is_late(n)) {
        steps_.push_back({inputs(n), outputs(n), ops_[at(n)]});
        continue;
      }
      const size_t first = first_[at(n)], results = results_[at(n)], end = first_[at(n) + 1];
      for (size_t i = first; i < results; ++i) {
        const bool second = makers_[i] >= 0 && again_[at(makers_[i])];
        next[i - first] = values_of_[i] + (second ? count : 0);
      }
      for (size_t i = results; i < end; ++i) next[i - first] = values_of_[i] + (again ? count : 0);
      steps_.push_back(
          {{next, results - first}, {next + (results - first), end - results}, ops_[at(n)]});
      next += end - first;
    }
    double out = 0;
    for (int64_t alive : bytes_alive(steps_, values_))
      out += static_cast<double>(std::max<int64_t>(0, alive - capacity_));
    return out;
  }

  /// What a rerun takes that would have to be kept for it: made by nodes that do not run again, and
  /// read by nobody late.
  std::vector<ValueId> kept_for(const Rerun& rerun) const {
    std::vector<ValueId> out;
    for (NodeId node : rerun) {
      for (size_t i = first_[at(node)]; i < results_[at(node)]; ++i) {
        const ValueId in = values_of_[i];
        const NodeId maker = makers_[i];
        if (maker < 0 || saved_[at(in)] || again_[at(maker)] ||
            std::find(rerun.begin(), rerun.end(), maker) != rerun.end() ||
            std::find(out.begin(), out.end(), in) != out.end())
          continue;
        out.push_back(in);
      }
    }
    return out;
  }

  std::vector<Group> groups() const {
    std::map<Key, Group> alike;
    for (size_t n = 0; n < again_.size(); ++n) {
      const auto node = static_cast<NodeId>(n);
      const std::span<const ValueId> results = outputs(node);
      if (again_[n] || !recomputation_.may_run_again(node) ||
          std::none_of(results.begin(), results.end(), [&](ValueId id) { return saved_[at(id)]; }))
        continue;
      Rerun rerun{node};
      std::string ops = graph_.nodes()[n].op;
      while (rerun.size() <= kLongestRerun) {
        int64_t gain = 0;
        double cost = 0;
        for (NodeId member : rerun) {
          cost += seconds(member);
          for (ValueId id : outputs(member)) gain += saved_[at(id)] ? values_.bytes[at(id)] : 0;
        }
        const std::vector<ValueId> kept = kept_for(rerun);
        for (ValueId id : kept) gain -= values_.bytes[at(id)];
        if (gain > 0) {
          Group& group = alike[{ops, gain, static_cast<float>(cost)}];
          group.ratio = static_cast<double>(gain) / cost;
          group.reruns.push_back(rerun);
        }
        bool further = !kept.empty();
        for (ValueId id : kept) {
          const NodeId maker = graph_.value(id).producer;
          further = further && recomputation_.may_run_again(maker);
          if (std::find(rerun.begin(), rerun.end(), maker) == rerun.end()) rerun.push_back(maker);
        }
        if (!further) break;
        ops += "," + graph_.node(rerun.back()).op;
      }
    }
    std::vector<Group> out;
    for (auto& [key, group] : alike) {
      group.key = key;
      out.push_back(std::move(group));
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Group& a, const Group& b) { return a.ratio > b.ratio; });
    return out;
  }

  /// The last taken first: they saved the least per second, and of equal layers the last run again
  /// when the most is alive.
  void drop_needless(const std::vector<Rerun>& taken) {
    std::vector<int> uses(again_.size(), 0);
    for (const Rerun& rerun : taken) {
      for (NodeId node : rerun) ++uses[at(node)];
    }
    for (size_t w = taken.size(); w-- > 0;) {
      for (NodeId node : taken[w]) again_[at(node)] = --uses[at(node)] > 0;
      if (excess() == 0) continue;
      for (NodeId node : taken[w]) {
        ++uses[at(node)];
        again_[at(node)] = true;
      }
    }
  }

  const Graph& graph_;
  Recomputation recomputation_;
  const std::vector<double>& seconds_;
  int64_t capacity_;
  LiveValues values_;
  std::vector<bool> saved_;  // by value: somebody reads it late
  std::vector<bool> again_;  // by node
  // By node, and one behind the last: where its operands begin, and its results.
  std::vector<size_t> first_, results_;
  std::vector<ValueId> values_of_;  // operands and results, one node behind the other
  std::vector<NodeId> makers_;      // of these
  std::vector<const OpDef*> ops_;   // by node
  std::vector<ValueId> operands_;   // of steps, where second values are read or made
  std::vector<LiveStep> steps_;
};

}  // namespace

ValueBytes local_bytes(const Graph& graph, const Plan& plan) {
  ValueBytes out = whole_bytes(graph);
  for (size_t v = 0; v < out.size(); ++v) {
    const Value& value = graph.values()[v];
    const auto lies = plan.values.find(value.name);
    if (out[v] == 0 || lies == plan.values.end()) continue;
    out[v] = max_local_bytes(value.type, lies->second, plan.mesh);
  }
  return out;
}

Recomputed choose_recomputed(const Graph& graph, const ValueBytes& bytes,
                             const std::vector<double>& seconds, int64_t capacity) {
  return Chooser(graph, bytes, seconds, capacity).run();
}

}  // namespace shardrun
