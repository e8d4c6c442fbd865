// Updates at once, and list scheduling from both ends.
#include "graph/passes/node_order.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "base/at.h"
#include "graph/passes/liveness.h"

namespace shardrun {
namespace {

constexpr int kRounds = 3;

/// Node indices in the order in which they run.
using Order = std::vector<size_t>;
using NodeVisit = std::function<void(size_t node)>;

/// Who makes and who reads what, apart from any order.
class Flow {
 public:
  explicit Flow(const Graph& graph)
      : graph_(graph),
        values_(live_values(graph, whole_bytes(graph))),
        readers_(graph.values().size()),
        kept_(graph.values().size(), false) {
    for (ValueId id : values_.kept) kept_[at(id)] = true;
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      for (ValueId in : graph.nodes()[n].inputs) {
        std::vector<size_t>& readers = readers_[at(in)];
        if (readers.empty() || readers.back() != n) readers.push_back(n);
      }
    }
  }

  const Graph& graph() const { return graph_; }
  int64_t bytes(ValueId id) const { return values_.bytes[at(id)]; }
  const std::vector<size_t>& readers(ValueId id) const { return readers_[at(id)]; }
  bool kept(ValueId id) const { return kept_[at(id)]; }
  bool updates(ValueId id) const { return values_.becomes[at(id)] != kNoValue; }

  /// What has to run before a node: who makes its operands, and who reads what it replaces.
  std::vector<std::vector<size_t>> before() const {
    const size_t nodes = graph_.nodes().size();
    std::vector<std::vector<size_t>> out(nodes);
    const bool apart = graph_.micro_batches > 1;  // the update phase comes once, at the end
    std::vector<size_t> micro;
    for (size_t n = 0; n < nodes; ++n) {
      const Node& node = graph_.nodes()[n];
      std::vector<size_t>& mine = out[n];
      for (ValueId in : node.inputs) {
        const NodeId maker = graph_.value(in).producer;
        if (maker >= 0) mine.push_back(at(maker));
      }
      for (ValueId result : node.outputs) {
        if (!updates(result)) continue;
        for (size_t reader : readers(values_.becomes[at(result)])) {
          if (reader < n) mine.push_back(reader);
        }
      }
      if (apart && node.phase == Phase::micro) micro.push_back(n);
      if (apart && node.phase == Phase::update) mine.insert(mine.end(), micro.begin(), micro.end());
      std::sort(mine.begin(), mine.end());
      mine.erase(std::unique(mine.begin(), mine.end()), mine.end());
    }
    return out;
  }

  int64_t peak(const Order& order) const {
    std::vector<LiveStep> steps;
    for (size_t n : order) {
      const Node& node = graph_.nodes()[n];
      steps.push_back({node.inputs, node.outputs, &op_def(node.op)});
    }
    const std::vector<int64_t> alive = bytes_alive(steps, values_);
    return *std::max_element(alive.begin(), alive.end());
  }

 private:
  const Graph& graph_;
  LiveValues values_;
  std::vector<std::vector<size_t>> readers_;
  std::vector<bool> kept_;  // by value: LiveValues::kept
};

/// Nodes become ready one after the other; of the ready ones the one that shrinks what is alive
/// the most runs, and if none does the first by `rank`. `run` tells of each node whose growth it
/// changes.
Order scheduled(const std::vector<std::vector<size_t>>& before, const std::vector<size_t>& rank,
                const std::function<int64_t(size_t node)>& growth,
                const std::function<void(size_t node, const NodeVisit& changed)>& run) {
  const size_t nodes = before.size();
  std::vector<size_t> waits(nodes, 0);
  std::vector<std::vector<size_t>> behind(nodes);
  for (size_t n = 0; n < nodes; ++n) {
    waits[n] = before[n].size();
    for (size_t m : before[n]) behind[m].push_back(n);
  }
  using Key = std::tuple<int64_t, size_t, size_t>;  // what it shrinks by, negative; rank; node
  std::set<Key> ready;
  std::vector<std::optional<Key>> keys(nodes);  // of the ready ones
  const auto put = [&](size_t n) {
    keys[n] = Key{std::min<int64_t>(growth(n), 0), rank[n], n};
    ready.insert(*keys[n]);
  };
  const auto changed = [&](size_t n) {
    if (!keys[n]) return;
    ready.erase(*keys[n]);
    put(n);
  };
  for (size_t n = 0; n < nodes; ++n) {
    if (waits[n] == 0) put(n);
  }
  Order order;
  while (!ready.empty()) {
    const size_t node = std::get<2>(*ready.begin());
    ready.erase(ready.begin());
    keys[node].reset();
    run(node, changed);
    order.push_back(node);
    for (size_t next : behind[node]) {
      if (--waits[next] == 0) put(next);
    }
  }
  return order;
}

/// Ranks of the nodes in `order`.
std::vector<size_t> ranks_of(const Order& order) {
  std::vector<size_t> out(order.size());
  for (size_t s = 0; s < order.size(); ++s) out[order[s]] = s;
  return out;
}

/// Visits each of the values once.
template <class Visit>
void each_once(const std::vector<ValueId>& ids, Visit&& visit) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (std::find(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(i), ids[i]) ==
        ids.begin() + static_cast<std::ptrdiff_t>(i))
      visit(ids[i]);
  }
}

/// What frees more than it makes goes first.
Order eager(const Flow& flow, const std::vector<std::vector<size_t>>& before, const Order& given) {
  const Graph& graph = flow.graph();
  std::vector<size_t> left(graph.values().size());  // readers that have not run
  for (size_t v = 0; v < left.size(); ++v) {
    const auto id = static_cast<ValueId>(v);
    left[v] = flow.readers(id).size() + (flow.kept(id) ? 1 : 0);
  }
  const auto growth = [&](size_t n) {
    int64_t more = 0;
    const Node& node = graph.nodes()[n];
    each_once(node.inputs, [&](ValueId id) { more -= left[at(id)] == 1 ? flow.bytes(id) : 0; });
    for (ValueId id : node.outputs) {
      if (!flow.updates(id) && left[at(id)] > 0) more += flow.bytes(id);
    }
    return more;
  };
  return scheduled(before, ranks_of(given), growth, [&](size_t n, const NodeVisit& changed) {
    each_once(graph.nodes()[n].inputs, [&](ValueId id) {
      if (--left[at(id)] != 1) return;
      for (size_t reader : flow.readers(id)) changed(reader);
    });
  });
}

/// The same from the end: what makes more than it frees goes last.
Order lazy(const Flow& flow, const std::vector<std::vector<size_t>>& before, const Order& given) {
  const Graph& graph = flow.graph();
  std::vector<std::vector<size_t>> behind(before.size());
  for (size_t n = 0; n < before.size(); ++n) {
    for (size_t m : before[n]) behind[m].push_back(n);
  }
  std::vector<bool> alive(graph.values().size(), false);
  for (size_t v = 0; v < alive.size(); ++v) alive[v] = flow.kept(static_cast<ValueId>(v));
  const auto growth = [&](size_t n) {
    int64_t more = 0;
    const Node& node = graph.nodes()[n];
    each_once(node.inputs, [&](ValueId id) { more += alive[at(id)] ? 0 : flow.bytes(id); });
    for (ValueId id : node.outputs) {
      if (!flow.updates(id) && alive[at(id)]) more -= flow.bytes(id);
    }
    return more;
  };
  std::vector<size_t> rank = ranks_of(given);
  for (size_t& r : rank) r = given.size() - 1 - r;
  Order order = scheduled(behind, rank, growth, [&](size_t n, const NodeVisit& changed) {
    for (ValueId id : graph.nodes()[n].outputs) alive[at(id)] = false;  // all who read it have run
    for (ValueId id : graph.nodes()[n].inputs) {
      if (alive[at(id)]) continue;
      alive[at(id)] = true;
      for (size_t reader : flow.readers(id)) changed(reader);
      if (const NodeId maker = graph.value(id).producer; maker >= 0) changed(at(maker));
    }
  });
  std::reverse(order.begin(), order.end());
  return order;
}

}  // namespace

void order_for_memory(Graph& graph) {
  if (graph.nodes().empty()) return;
  const Flow flow(graph);
  const std::vector<std::vector<size_t>> before = flow.before();
  Order given(graph.nodes().size());
  std::iota(given.begin(), given.end(), size_t{0});
  Order best = given;
  int64_t least = flow.peak(given);
  const auto offer = [&](const Order& order) {
    const int64_t most = flow.peak(order);
    if (most >= least) return;
    least = most;
    best = order;
  };
  Order order = given;
  for (int round = 0; round < kRounds; ++round) {
    order = eager(flow, before, order);
    offer(order);
    order = lazy(flow, before, order);
    offer(order);
  }
  if (best == given) return;
  std::vector<Node> nodes;
  for (size_t n : best) nodes.push_back(graph.nodes()[n]);
  graph.set_nodes(std::move(nodes));
}

}  // namespace shardrun
