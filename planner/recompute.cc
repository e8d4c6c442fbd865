// Greedy choice among reruns that save values, each judged by the bytes alive.
#include "planner/recompute.h"

#include <algorithm>
#include <map>

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
      ops_.push_back(&op_def(graph.nodes()[n].op));
      if (!recomputation_.is_late(static_cast<NodeId>(n))) continue;
      for (ValueId in : graph.nodes()[n].inputs) saved_[at(in)] = true;
    }
    // Behind the values their second ones.
    const size_t count = graph.values().size();
    values_.bytes.insert(values_.bytes.end(), bytes.begin(), bytes.end());
    values_.given.resize(2 * count, false);
    values_.kept.resize(2 * count, false);
    values_.becomes.resize(2 * count, kNoValue);
  }

  std::set<std::string> run() {
    double above = excess();
    std::vector<Rerun> taken;
    std::map<std::string, double> known;  // by group: bytes saved a second, when last judged
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
    std::set<std::string> names;
    for (size_t n = 0; n < again_.size(); ++n) {
      if (again_[n]) names.insert(graph_.nodes()[n].name);
    }
    return names;
  }

 private:
  /// Reruns that are alike: in every layer the same.
  struct Group {
    std::string key;
    double ratio = 0;
    std::vector<Rerun> reruns;
  };

  struct Pick {
    std::vector<Rerun> reruns;  // none: nothing saves anything
    double ratio = 0, above = 0;
  };
  /// The best of the first groups. One that was known to be worse is not judged again: what a group
  /// saves changes little by what the others do.
  Pick pick(double above, std::map<std::string, double>& known) {
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

  /// Bytes above the capacity, added up over all nodes.
  double excess() {
    const std::vector<Recomputation::Run> runs = recomputation_.order(again_);
    const auto count = static_cast<ValueId>(graph_.values().size());
    operands_.clear();
    for (const auto& [n, again] : runs) {
      const Node& node = graph_.node(n);
      const bool second = again || recomputation_.is_late(n);
      for (ValueId in : node.inputs) {
        const NodeId maker = graph_.value(in).producer;
        operands_.push_back(second && maker >= 0 && again_[at(maker)] ? in + count : in);
      }
      for (ValueId out : node.outputs) operands_.push_back(again ? out + count : out);
    }
    steps_.clear();
    size_t next = 0;
    for (const auto& [n, again] : runs) {
      const Node& node = graph_.node(n);
      const std::span<const ValueId> all(operands_);
      steps_.push_back({all.subspan(next, node.inputs.size()),
                        all.subspan(next + node.inputs.size(), node.outputs.size()), ops_[at(n)]});
      next += node.inputs.size() + node.outputs.size();
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
      for (ValueId in : graph_.node(node).inputs) {
        const NodeId maker = graph_.value(in).producer;
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
    std::map<std::string, Group> alike;
    for (size_t n = 0; n < again_.size(); ++n) {
      const auto node = static_cast<NodeId>(n);
      const std::vector<ValueId>& results = graph_.nodes()[n].outputs;
      if (again_[n] || !recomputation_.may_run_again(node) ||
          std::none_of(results.begin(), results.end(), [&](ValueId id) { return saved_[at(id)]; }))
        continue;
      Rerun rerun{node};
      std::string key = graph_.nodes()[n].op;
      while (rerun.size() <= kLongestRerun) {
        int64_t gain = 0;
        double cost = 0;
        for (NodeId member : rerun) {
          cost += seconds(member);
          for (ValueId id : graph_.node(member).outputs)
            gain += saved_[at(id)] ? values_.bytes[at(id)] : 0;
        }
        const std::vector<ValueId> kept = kept_for(rerun);
        for (ValueId id : kept) gain -= values_.bytes[at(id)];
        if (gain > 0) {
          Group& group = alike[str(key, " ", gain, " ", cost)];
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
        key += "," + graph_.node(rerun.back()).op;
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
  std::vector<const OpDef*> ops_;
  std::vector<ValueId> operands_;
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

std::set<std::string> choose_recomputed(const Graph& graph, const ValueBytes& bytes,
                                        const std::vector<double>& seconds, int64_t capacity) {
  return Chooser(graph, bytes, seconds, capacity).run();
}

}  // namespace shardrun
