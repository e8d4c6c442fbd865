// Weisfeiler-Leman refinement of a Graph's nodes and input values.
#include "planner/space/folding.h"

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_map>

namespace shardrun {
namespace {

// Rounds of refinement: fewer than the most where these would leave too many classes.
constexpr int kMostRounds = 6;
constexpr int kFewestRounds = 2;
constexpr size_t kManyClasses = 300;

using Colour = uint64_t;
// Places by number: what operand k reads of result r is k * kMostResults + r.
constexpr Colour kMostResults = 64;
constexpr Colour kUpdate = 100'000;  // + r: what replaces a held value
constexpr Colour kReader = 7;        // + the place, as what is read sees it

Colour mix(Colour a, Colour b) {
  // splitmix64's finaliser
  Colour z = a * 0x9E3779B97F4A7C15ull + b + 0x632BE59BD9B4E019ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

Colour of_text(const std::string& text) {
  Colour h = 0xcbf29ce484222325ull;
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

/// One place where an item reads or is read: {item, which of its operands or results, of ours}.
struct Link {
  size_t item;
  Colour place;
};

/// A Graph's nodes, then its input values, and their colours.
class Items {
 public:
  Items(const Graph& graph, const std::map<std::string, Sharding>& pinned,
        const std::map<NodeId, std::string>& marked)
      : graph_(graph),
        pinned_(pinned),
        marked_(marked),
        node_count_(graph.nodes().size()),
        item_of_(graph.values().size(), 0),
        result_of_(graph.values().size(), 0),
        wanted_(graph.outputs.begin(), graph.outputs.end()) {
    for (const auto& [name, value] : graph.metrics) wanted_.insert(value);
    number();
    link();
  }

  Folding fold() const {
    std::vector<std::vector<Colour>> history{first_colours()};
    for (int round = 0; round < kMostRounds; ++round) history.push_back(refined(history.back()));
    int rounds = kMostRounds;
    const auto distinct = [&](int r) {
      const std::vector<Colour>& c = history[static_cast<size_t>(r)];
      return std::set<Colour>(c.begin(), c.end()).size();
    };
    while (rounds > kFewestRounds && distinct(rounds) > kManyClasses) --rounds;
    Folding folding = classes(history[static_cast<size_t>(rounds)]);
    folding.rounds = rounds;
    return folding;
  }

 private:
  void number() {
    for (size_t v = 0; v < graph_.values().size(); ++v) {
      if (graph_.values()[v].role == Role::computed) continue;
      item_of_[v] = node_count_ + inputs_.size();
      inputs_.push_back(static_cast<ValueId>(v));
    }
    for (size_t n = 0; n < node_count_; ++n) {
      const Node& node = graph_.nodes()[n];
      for (size_t r = 0; r < node.outputs.size(); ++r) {
        item_of_[static_cast<size_t>(node.outputs[r])] = n;
        result_of_[static_cast<size_t>(node.outputs[r])] = r;
      }
    }
  }

  void link() {
    reads_.resize(node_count_ + inputs_.size());
    read_by_.resize(reads_.size());
    for (size_t n = 0; n < node_count_; ++n) {
      const Node& node = graph_.nodes()[n];
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        const size_t v = static_cast<size_t>(node.inputs[k]);
        const Colour place = k * kMostResults + result_of_[v];
        reads_[n].push_back({item_of_[v], place});
        read_by_[item_of_[v]].push_back({n, place});
      }
    }
    for (const auto& [held, next] : graph_.updates) {
      const size_t from = item_of_[static_cast<size_t>(next)],
                   to = item_of_[static_cast<size_t>(held)];
      const Colour place = kUpdate + result_of_[static_cast<size_t>(next)];
      reads_[to].push_back({from, place});
      read_by_[from].push_back({to, place});
    }
  }

  std::string describe(ValueId id) const {
    const Value& value = graph_.value(id);
    std::string text = to_string(value.type) + (wanted_.count(id) > 0 ? "!" : "");
    const auto pin = pinned_.find(value.name);
    if (pin != pinned_.end()) {
      for (const Axes& axes : pin->second.dims) {
        text += '|';
        for (int axis : axes) text += std::to_string(axis) + ",";
      }
      for (const auto& p : pin->second.partial) text += "p" + std::to_string(p.axis);
    }
    return text;
  }
  std::string describe(const Node& node) const {
    Attrs attrs;
    for (const auto& [name, attr] : node.attrs.all()) {
      if (name != "key" && name != "seed") attrs.set(name, attr);
    }
    std::string text =
        node.op + "{" + to_string(attrs) + "}" + (node.phase == Phase::update ? "u" : "m");
    for (ValueId in : node.inputs) text += " " + to_string(graph_.type(in));
    for (ValueId out : node.outputs) text += ">" + describe(out);
    return text;
  }

  std::vector<Colour> first_colours() const {
    std::vector<Colour> colour;
    for (size_t n = 0; n < node_count_; ++n) {
      const auto mark = marked_.find(static_cast<NodeId>(n));
      colour.push_back(
          of_text(describe(graph_.nodes()[n]) + (mark == marked_.end() ? "" : "@" + mark->second)));
    }
    for (ValueId input : inputs_) {
      colour.push_back(of_text(describe(input) + "#" +
                               std::to_string(static_cast<int>(graph_.value(input).role))));
    }
    return colour;
  }

  std::vector<Colour> refined(const std::vector<Colour>& colour) const {
    std::vector<Colour> next(colour.size());
    for (size_t i = 0; i < colour.size(); ++i) {
      Colour h = mix(colour[i], 1);
      for (const Link& link : reads_[i]) h = mix(h, mix(colour[link.item], link.place));
      std::vector<Colour> users;
      for (const Link& link : read_by_[i])
        users.push_back(mix(colour[link.item], link.place + kReader));
      std::sort(users.begin(), users.end());
      for (Colour user : users) h = mix(h, user);
      next[i] = h;
    }
    return next;
  }

  Folding classes(const std::vector<Colour>& colour) const {
    Folding folding;
    folding.class_of_node.assign(node_count_, -1);
    folding.class_of_value.assign(graph_.values().size(), -1);
    std::unordered_map<Colour, int> known;
    for (size_t i = 0; i < colour.size(); ++i) {
      const auto [it, fresh] = known.emplace(colour[i], static_cast<int>(folding.classes.size()));
      if (fresh) folding.classes.emplace_back();
      Folding::Class& members = folding.classes[static_cast<size_t>(it->second)];
      if (i < node_count_) {
        members.nodes.push_back(static_cast<NodeId>(i));
        folding.class_of_node[i] = it->second;
      } else {
        members.values.push_back(inputs_[i - node_count_]);
        folding.class_of_value[static_cast<size_t>(inputs_[i - node_count_])] = it->second;
      }
    }
    return folding;
  }

  const Graph& graph_;
  const std::map<std::string, Sharding>& pinned_;
  const std::map<NodeId, std::string>& marked_;
  size_t node_count_;
  std::vector<ValueId> inputs_;
  std::vector<size_t> item_of_, result_of_;  // by value: what holds or makes it, which result
  std::set<ValueId> wanted_;                 // outputs and metrics
  std::vector<std::vector<Link>> reads_, read_by_;  // by item
};

}  // namespace

Folding fold(const Graph& graph, const std::map<std::string, Sharding>& pinned,
             const std::map<NodeId, std::string>& marked) {
  return Items(graph, pinned, marked).fold();
}

std::pair<int, int> Folding::origin(const Graph& graph, ValueId id) const {
  const Value& value = graph.value(id);
  if (value.role != Role::computed) return {class_of_value[static_cast<size_t>(id)], 0};
  const std::vector<ValueId>& results = graph.node(value.producer).outputs;
  return {class_of_node[static_cast<size_t>(value.producer)],
          static_cast<int>(std::find(results.begin(), results.end(), id) - results.begin())};
}

}  // namespace shardrun
