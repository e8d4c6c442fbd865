// Joining dims into colours by the options of nodes' rules, and the ways that these leave.
#include "planner/schedule/colours.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/at.h"

namespace shardrun {
namespace {

/// Items that belong together.
class Groups {
 public:
  explicit Groups(size_t items) : parent_(items) {
    std::iota(parent_.begin(), parent_.end(), size_t{0});
  }
  size_t root(size_t item) {
    while (parent_[item] != item) item = parent_[item] = parent_[parent_[item]];
    return item;
  }
  void join(size_t a, size_t b) {
    a = root(a), b = root(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<size_t> parent_;
};

bool cuts(const Placement& p) { return p.kind == Placement::Kind::shard; }

/// Does `more` cut all that `less` does?
bool covers(const Way& more, const Way& less) {
  const auto all = [](const std::vector<int>& a, const std::vector<int>& b) {
    for (size_t i = 0; i < b.size(); ++i) {
      if (b[i] >= 0 && a[i] != b[i]) return false;
    }
    return true;
  };
  return all(more.in, less.in) && all(more.out, less.out);
}

/// The node's operand or result that a way cuts first, as value and dim; {kNoValue, 0}: none.
std::pair<ValueId, size_t> first_cut(const Node& node, const Way& way) {
  for (size_t k = 0; k < way.in.size(); ++k) {
    if (way.in[k] >= 0) return {node.inputs[k], at(way.in[k])};
  }
  for (size_t r = 0; r < way.out.size(); ++r) {
    if (way.out[r] >= 0) return {node.outputs[r], at(way.out[r])};
  }
  return {kNoValue, 0};
}

}  // namespace

Way way_of(const SpmdRule::Option& option) {
  const auto as_int = [](const Placement& p) {
    return cuts(p) ? p.dim : p.kind == Placement::Kind::partial ? Way::kPartial : Way::kWhole;
  };
  Way way;
  for (const Placement& p : option.in) way.in.push_back(as_int(p));
  for (const Placement& p : option.out) way.out.push_back(as_int(p));
  return way;
}

RuleOf rules_of(const Graph& graph, RuleCache& cache) {
  return [&](NodeId n) -> const SpmdRule& {
    const Node& node = graph.node(n);
    return cache.rule(node, graph.types(node.inputs));
  };
}

Colours::Colours(const Graph& graph, const RuleOf& rule_of) {
  join_dims(graph, rule_of);
  find_ways(graph, rule_of);
  find_conflicts(graph);
  find_sets(graph);
  group_alike(graph);
}

void Colours::join_dims(const Graph& graph, const RuleOf& rule_of) {
  size_t items = 0;
  for (const Value& value : graph.values()) {
    first_.push_back(items);
    items += value.type.shape.size();
  }
  Groups groups(items);
  const auto item = [&](ValueId value, size_t dim) { return first_[at(value)] + dim; };
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    const SpmdRule& rule = rule_of(static_cast<NodeId>(n));
    std::set<std::pair<size_t, size_t>> in, out;  // that some option cuts
    for (const SpmdRule::Option& option : rule.options) {
      const auto [first, dim] = first_cut(node, way_of(option));
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        if (!cuts(option.in[k])) continue;
        groups.join(item(first, dim), item(node.inputs[k], at(option.in[k].dim)));
        in.emplace(k, option.in[k].dim);
      }
      for (size_t r = 0; r < node.outputs.size(); ++r) {
        if (!cuts(option.out[r])) continue;
        groups.join(item(first, dim), item(node.outputs[r], at(option.out[r].dim)));
        out.emplace(r, option.out[r].dim);
      }
    }
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      const Shape& shape = graph.type(node.outputs[r]).shape;
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        if (graph.type(node.inputs[k]).shape != shape) continue;
        for (size_t d = 0; d < shape.size(); ++d) {
          if (in.count({k, d}) == 0 && out.count({r, d}) == 0)
            groups.join(item(node.inputs[k], d), item(node.outputs[r], d));
        }
      }
    }
  }
  std::map<size_t, int> number;  // in order of their first dims
  for (size_t i = 0; i < items; ++i) {
    const auto [it, fresh] = number.emplace(groups.root(i), static_cast<int>(sizes_.size()));
    if (fresh) sizes_.push_back(0);
    ++sizes_[at(it->second)];
    colour_.push_back(it->second);
  }
}

void Colours::find_ways(const Graph& graph, const RuleOf& rule_of) {
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    std::vector<Way> all;
    for (const SpmdRule::Option& option : rule_of(static_cast<NodeId>(n)).options) {
      Way way = way_of(option);
      const auto [value, dim] = first_cut(node, way);
      if (value == kNoValue) continue;  // parts of a sum that pass through
      way.colour = of(value, dim);
      all.push_back(std::move(way));
    }
    std::vector<Way> most;
    for (const Way& way : all) {
      const auto beats = [&](const Way& other) {
        return other.colour == way.colour && covers(other, way) && !covers(way, other);
      };
      const auto same = [&](const Way& other) {
        return other.colour == way.colour && covers(other, way) && covers(way, other);
      };
      if (std::none_of(all.begin(), all.end(), beats) &&
          std::none_of(most.begin(), most.end(), same))
        most.push_back(way);
    }
    std::sort(most.begin(), most.end());
    ways_.push_back(std::move(most));
  }
}

std::vector<int> Colours::ways(NodeId node, int colour) const {
  std::vector<int> out;
  const std::vector<Way>& all = ways_[at(node)];
  for (size_t w = 0; w < all.size(); ++w) {
    if (all[w].colour == colour) out.push_back(static_cast<int>(w));
  }
  return out;
}

/// By what its dims are to the nodes that can cut them, and by their sizes.
void Colours::group_alike(const Graph& graph) {
  using Use = std::tuple<std::string, std::vector<int>, std::vector<int>>;
  std::map<Use, int> number;
  std::vector<std::vector<int>> uses(sizes_.size());
  for (size_t n = 0; n < ways_.size(); ++n) {
    for (const Way& way : ways_[n]) {
      const int use =
          number.emplace(Use{graph.nodes()[n].op, way.in, way.out}, static_cast<int>(number.size()))
              .first->second;
      uses[at(way.colour)].push_back(use);
    }
  }
  std::vector<std::set<int64_t>> sizes(sizes_.size());
  for (size_t v = 0; v < graph.values().size(); ++v) {
    const Shape& shape = graph.values()[v].type.shape;
    for (size_t d = 0; d < shape.size(); ++d)
      sizes[at(of(static_cast<ValueId>(v), d))].insert(shape[d]);
  }
  std::map<std::pair<std::vector<int>, std::set<int64_t>>, int> known;
  group_.assign(sizes_.size(), -1);
  for (int c = 0; c < static_cast<int>(sizes_.size()); ++c) {
    if (uses[at(c)].empty()) continue;
    std::sort(uses[at(c)].begin(), uses[at(c)].end());
    const auto [it, fresh] = known.emplace(std::pair(std::move(uses[at(c)]), sizes[at(c)]),
                                           static_cast<int>(alike_.size()));
    if (fresh) alike_.emplace_back();
    alike_[at(it->second)].push_back(c);
    group_[at(c)] = it->second;
  }
}

}  // namespace shardrun
