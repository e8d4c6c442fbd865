// Weisfeiler-Leman refinement of a Graph's nodes and input values.
#include "planner/space/folding.h"

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_map>

namespace shardrun {
namespace {

constexpr int kMostRounds = 6;
constexpr int kFewestRounds = 2;
constexpr size_t kManyClasses = 300;

using Colour = uint64_t;

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

}  // namespace

Folding fold(const Graph& graph, const std::map<std::string, Sharding>& pinned) {
  const size_t node_count = graph.nodes().size();
  std::vector<ValueId> inputs;
  Folding folding;
  folding.class_of_node.assign(node_count, -1);
  folding.class_of_value.assign(graph.values().size(), -1);
  std::vector<size_t> item_of(graph.values().size(), 0), result_of(graph.values().size(), 0);
  for (size_t v = 0; v < graph.values().size(); ++v) {
    if (graph.values()[v].role == Role::computed) continue;
    item_of[v] = node_count + inputs.size();
    inputs.push_back(static_cast<ValueId>(v));
  }
  for (size_t n = 0; n < node_count; ++n) {
    const Node& node = graph.nodes()[n];
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      item_of[static_cast<size_t>(node.outputs[r])] = n;
      result_of[static_cast<size_t>(node.outputs[r])] = r;
    }
  }
  const size_t count = node_count + inputs.size();

  std::set<ValueId> wanted(graph.outputs.begin(), graph.outputs.end());
  for (const auto& [name, value] : graph.metrics) wanted.insert(value);
  const auto describe = [&](ValueId id) {
    const Value& value = graph.value(id);
    std::string text = to_string(value.type) + (wanted.count(id) > 0 ? "!" : "");
    const auto pin = pinned.find(value.name);
    if (pin != pinned.end()) {
      for (const std::vector<int>& axes : pin->second.dims) {
        text += '|';
        for (int axis : axes) text += std::to_string(axis) + ",";
      }
      for (const auto& p : pin->second.partial) text += "p" + std::to_string(p.axis);
    }
    return text;
  };
  std::vector<Colour> colour(count);
  for (size_t n = 0; n < node_count; ++n) {
    const Node& node = graph.nodes()[n];
    Attrs attrs;
    for (const auto& [name, attr] : node.attrs.all()) {
      if (name != "key" && name != "seed") attrs.set(name, attr);
    }
    std::string text =
        node.op + "{" + to_string(attrs) + "}" + (node.phase == Phase::update ? "u" : "m");
    for (ValueId in : node.inputs) text += " " + to_string(graph.type(in));
    for (ValueId out : node.outputs) text += ">" + describe(out);
    colour[n] = of_text(text);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    colour[node_count + i] = of_text(describe(inputs[i]) + "#" +
                                     std::to_string(static_cast<int>(graph.value(inputs[i]).role)));
  }

  std::vector<std::vector<Link>> reads(count), read_by(count);
  for (size_t n = 0; n < node_count; ++n) {
    const Node& node = graph.nodes()[n];
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const size_t v = static_cast<size_t>(node.inputs[k]);
      const Colour place = k * 64 + result_of[v];
      reads[n].push_back({item_of[v], place});
      read_by[item_of[v]].push_back({n, place});
    }
  }
  for (const auto& [held, next] : graph.updates) {
    const size_t from = item_of[static_cast<size_t>(next)], to = item_of[static_cast<size_t>(held)];
    const Colour place = 100000 + result_of[static_cast<size_t>(next)];
    reads[to].push_back({from, place});
    read_by[from].push_back({to, place});
  }

  std::vector<std::vector<Colour>> history{colour};
  for (int round = 0; round < kMostRounds; ++round) {
    std::vector<Colour> next(count);
    for (size_t i = 0; i < count; ++i) {
      Colour h = mix(colour[i], 1);
      for (const Link& link : reads[i]) h = mix(h, mix(colour[link.item], link.place));
      std::vector<Colour> users;
      for (const Link& link : read_by[i]) users.push_back(mix(colour[link.item], link.place + 7));
      std::sort(users.begin(), users.end());
      for (Colour user : users) h = mix(h, user);
      next[i] = h;
    }
    colour = std::move(next);
    history.push_back(colour);
  }
  int rounds = kMostRounds;
  const auto distinct = [&](int r) {
    const std::vector<Colour>& c = history[static_cast<size_t>(r)];
    return std::set<Colour>(c.begin(), c.end()).size();
  };
  while (rounds > kFewestRounds && distinct(rounds) > kManyClasses) --rounds;
  folding.rounds = rounds;

  std::unordered_map<Colour, int> known;
  for (size_t i = 0; i < count; ++i) {
    const auto [it, fresh] = known.emplace(history[static_cast<size_t>(rounds)][i],
                                           static_cast<int>(folding.classes.size()));
    if (fresh) folding.classes.emplace_back();
    Folding::Class& members = folding.classes[static_cast<size_t>(it->second)];
    if (i < node_count) {
      members.nodes.push_back(static_cast<NodeId>(i));
      folding.class_of_node[i] = it->second;
    } else {
      members.values.push_back(inputs[i - node_count]);
      folding.class_of_value[static_cast<size_t>(inputs[i - node_count])] = it->second;
    }
  }
  return folding;
}

std::pair<int, int> Folding::origin(const Graph& graph, ValueId id) const {
  const Value& value = graph.value(id);
  if (value.role != Role::computed) return {class_of_value[static_cast<size_t>(id)], 0};
  const std::vector<ValueId>& results = graph.node(value.producer).outputs;
  return {class_of_node[static_cast<size_t>(value.producer)],
          static_cast<int>(std::find(results.begin(), results.end(), id) - results.begin())};
}

}  // namespace shardrun
