// Conflicts of a graph's colours, and which of them are resolved alike.
#include <algorithm>
#include <map>
#include <set>

#include "base/at.h"
#include "planner/schedule/colours.h"

namespace shardrun {
namespace {

/// The dimension graph: a vertex for each way of a node, and for each dim of an input in conflict.
class DimensionGraph {
 public:
  DimensionGraph(const Graph& graph, const Colours& colours)
      : graph_(graph), colours_(colours), readers_(graph.values().size()) {
    int vertices = 0;
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      first_.push_back(vertices);
      vertices += static_cast<int>(colours.ways(static_cast<NodeId>(n)).size());
      for (size_t k = 0; k < graph.nodes()[n].inputs.size(); ++k)
        readers_[at(graph.nodes()[n].inputs[k])].emplace_back(static_cast<NodeId>(n), k);
    }
    node_.resize(at(vertices));
    next_.resize(at(vertices));
    seen_.assign(at(vertices), 0);
    for (size_t n = 0; n < graph.nodes().size(); ++n) add_edges(static_cast<NodeId>(n));
  }

  int vertex(NodeId node, int way) const { return first_[at(node)] + way; }
  NodeId node(int vertex) const { return node_[at(vertex)]; }
  int way(int vertex) const { return vertex - first_[at(node(vertex))]; }
  const std::vector<int>& next(int vertex) const { return next_[at(vertex)]; }

  /// Vertices where `value` is taken cut along `dim`.
  std::vector<int> users(ValueId value, int dim) const {
    std::vector<int> out;
    for (const auto& [reader, k] : readers_[at(value)]) {
      const auto ways = colours_.ways(reader);
      for (size_t w = 0; w < ways.size(); ++w) {
        if (ways[w].in[k] == dim) out.push_back(vertex(reader, static_cast<int>(w)));
      }
    }
    return out;
  }

  /// Ways of `to` that a path from one of `begin` reaches. Paths do not go on behind `to`, which
  /// no path to it does: nodes are in order.
  std::set<int> reached(const std::vector<int>& begin, NodeId to) {
    ++round_;
    std::set<int> out;
    std::vector<int> open = begin;
    while (!open.empty()) {
      const int v = open.back();
      open.pop_back();
      if (node(v) > to || seen_[at(v)] == round_) continue;
      seen_[at(v)] = round_;
      if (node(v) == to) out.insert(way(v));
      open.insert(open.end(), next(v).begin(), next(v).end());
    }
    return out;
  }

 private:
  void add_edges(NodeId n) {
    const auto ways = colours_.ways(n);
    for (size_t w = 0; w < ways.size(); ++w) {
      const int from = vertex(n, static_cast<int>(w));
      node_[at(from)] = n;
      for (size_t r = 0; r < ways[w].out.size(); ++r) {
        if (ways[w].out[r] < 0) continue;
        const std::vector<int> to = users(graph_.node(n).outputs[r], ways[w].out[r]);
        next_[at(from)].insert(next_[at(from)].end(), to.begin(), to.end());
      }
    }
  }

  const Graph& graph_;
  const Colours& colours_;
  std::vector<std::vector<std::pair<NodeId, size_t>>> readers_;  // by value
  std::vector<int> first_;                                       // by node
  std::vector<NodeId> node_;                                     // by vertex
  std::vector<std::vector<int>> next_;
  std::vector<int> seen_;
  int round_ = 0;
};

/// Conflicts joined with which way of one goes with which of another.
class Compatible {
 public:
  explicit Compatible(const std::vector<Conflict>& conflicts) {
    for (const Conflict& conflict : conflicts) {
      parent_.push_back(static_cast<int>(parent_.size()));
      of_root_.emplace_back();
      for (int w = 0; w < conflict.ways; ++w) of_root_.back().push_back(w);
    }
  }
  int root(int c) const {
    while (parent_[at(c)] != c) c = parent_[at(c)];
    return c;
  }
  /// Per way of the root: this one's.
  std::vector<int> order(int c) const {
    std::vector<int> out = of_root_[at(c)];
    while (parent_[at(c)] != c) {
      c = parent_[at(c)];
      std::vector<int> further;
      for (int w : of_root_[at(c)]) further.push_back(out[at(w)]);
      out = std::move(further);
    }
    return out;
  }
  /// `match`: per way of a, b's. Nothing, if what is joined already says otherwise.
  void join(int a, int b, const std::vector<int>& match) {
    const int x = root(a), y = root(b);
    if (x == y) return;
    const std::vector<int> of_a = order(a), of_b = order(b);  // by the roots' ways
    std::vector<int> back(of_b.size());
    for (size_t w = 0; w < of_b.size(); ++w) back[at(of_b[w])] = static_cast<int>(w);
    std::vector<int> y_by_x;
    for (int w : of_a) y_by_x.push_back(back[at(match[at(w)])]);
    if (x < y) {
      parent_[at(y)] = x;
      of_root_[at(y)] = y_by_x;
    } else {
      parent_[at(x)] = y;
      for (size_t w = 0; w < y_by_x.size(); ++w)
        of_root_[at(x)][at(y_by_x[w])] = static_cast<int>(w);
    }
  }

 private:
  std::vector<int> parent_;
  std::vector<std::vector<int>> of_root_;  // per way of the parent: this one's
};

/// Which ways of `to` the edges lead to, per way of `from`; empty unless that is one to one.
std::vector<int> one_to_one(const std::vector<std::set<int>>& edges, int ways) {
  std::vector<int> match;
  std::set<int> taken;
  for (const std::set<int>& to : edges) {
    if (to.size() != 1 || !taken.insert(*to.begin()).second) return {};
    match.push_back(*to.begin());
  }
  return static_cast<int>(match.size()) == ways ? match : std::vector<int>();
}

}  // namespace

void Colours::find_conflicts(const Graph& graph) {
  for (size_t v = 0; v < graph.values().size(); ++v) {
    if (graph.values()[v].role == Role::computed) continue;
    std::map<int, int> dims;
    const auto id = static_cast<ValueId>(v);
    for (size_t d = 0; d < graph.type(id).shape.size(); ++d) {
      if (graph.type(id).shape[d] > 1) ++dims[of(id, d)];
    }
    for (const auto& [colour, count] : dims) {
      if (count > 1) conflicts_.push_back({-1, id, colour, count, 0, {}});
    }
  }
  for (size_t n = 0; n < ways_.size(); ++n) {
    std::map<int, int> count;
    for (const Way& way : ways_[n]) ++count[way.colour];
    for (const auto& [colour, ways] : count) {
      if (ways > 1) conflicts_.push_back({static_cast<NodeId>(n), kNoValue, colour, ways, 0, {}});
    }
  }
}

void Colours::find_sets(const Graph& graph) {
  if (conflicts_.empty()) return;
  DimensionGraph dimensions(graph, *this);
  Compatible compatible(conflicts_);
  for (size_t c = 0; c < conflicts_.size(); ++c)
    at_node_.emplace(std::pair(conflicts_[c].node, conflicts_[c].colour), static_cast<int>(c));
  // Where each way of a conflict leads directly.
  const auto next_of = [&](const Conflict& conflict) {
    std::vector<std::vector<int>> out;
    if (conflict.node >= 0) {
      for (int w : ways(conflict.node, conflict.colour))
        out.push_back(dimensions.next(dimensions.vertex(conflict.node, w)));
      return out;
    }
    const Shape& shape = graph.type(conflict.input).shape;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] > 1 && of(conflict.input, d) == conflict.colour)
        out.push_back(dimensions.users(conflict.input, static_cast<int>(d)));
    }
    return out;
  };
  for (size_t c = 0; c < conflicts_.size(); ++c) {
    const Conflict& from = conflicts_[c];
    const std::vector<std::vector<int>> next = next_of(from);
    std::set<NodeId> neighbours;
    for (const std::vector<int>& vertices : next) {
      for (int v : vertices) neighbours.insert(dimensions.node(v));
    }
    for (NodeId neighbour : neighbours) {
      const auto other = at_node_.find({neighbour, from.colour});
      if (other == at_node_.end()) continue;
      const std::vector<int> own = ways(neighbour, from.colour);
      const auto place = [&](int way) {
        return static_cast<int>(std::find(own.begin(), own.end(), way) - own.begin());
      };
      std::vector<std::set<int>> edges(next.size()), paths(next.size());
      for (size_t w = 0; w < next.size(); ++w) {
        for (int v : next[w]) {
          if (dimensions.node(v) == neighbour) edges[w].insert(place(dimensions.way(v)));
        }
      }
      const std::vector<int> match = one_to_one(edges, conflicts_[at(other->second)].ways);
      if (match.empty()) continue;
      for (size_t w = 0; w < next.size(); ++w) {
        for (int way : dimensions.reached(next[w], neighbour)) paths[w].insert(place(way));
      }
      if (paths == edges) compatible.join(static_cast<int>(c), other->second, match);
    }
  }
  // Resolutions are numbered by the ways of a set's first conflict.
  std::map<int, int> set_of_root;
  for (size_t c = 0; c < conflicts_.size(); ++c) {
    const int i = static_cast<int>(c), root = compatible.root(i);
    const auto [it, fresh] = set_of_root.emplace(root, static_cast<int>(sets_.size()));
    if (fresh) sets_.push_back({conflicts_[c].colour, conflicts_[c].ways, 0, {}});
    sets_[at(it->second)].conflicts.push_back(i);
    conflicts_[c].set = it->second;
    conflicts_[c].order = compatible.order(i);
  }
  number_digits(graph);
}

/// Sets of equal conflicts get the same digit.
void Colours::number_digits(const Graph& graph) {
  using Member = std::tuple<std::string, std::vector<Way>>;  // ways by resolution, uncoloured
  std::map<std::vector<Member>, int> known;
  for (Set& set : sets_) {
    std::vector<Member> members;
    for (int c : set.conflicts) {
      const Conflict& conflict = conflicts_[at(c)];
      Member member;
      std::get<0>(member) = conflict.node < 0 ? "" : graph.node(conflict.node).op;
      const std::vector<int> own =
          conflict.node < 0 ? conflict.order : ways(conflict.node, conflict.colour);
      for (int w : conflict.order) {
        Way way{0, {own[at(w)]}, {}};
        if (conflict.node >= 0) way = ways_[at(conflict.node)][at(own[at(w)])];
        way.colour = 0;
        std::get<1>(member).push_back(std::move(way));
      }
      members.push_back(std::move(member));
    }
    const auto [it, fresh] = known.emplace(std::move(members), digits_);
    if (fresh) ++digits_;
    set.digit = it->second;
  }
}

const Conflict* Colours::conflict(NodeId node, int colour) const {
  const auto it = at_node_.find({node, colour});
  return it == at_node_.end() ? nullptr : &conflicts_[at(it->second)];
}

int Colours::resolutions(int digit) const {
  int out = 0;
  for (const Set& set : sets_) {
    if (set.digit == digit) out = set.resolutions;
  }
  return out;
}

std::vector<int> Colours::digits_of(int group) const {
  std::set<int> out;
  for (const Set& set : sets_) {
    if (this->group(set.colour) == group) out.insert(set.digit);
  }
  return {out.begin(), out.end()};
}

}  // namespace shardrun
