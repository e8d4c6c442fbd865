// Steps of propagation.
#include "planner/schedule/propagate.h"

#include <algorithm>
#include <set>

#include "base/at.h"

namespace shardrun {

std::string to_string(const Unresolved& unresolved, const Graph& graph, const Mesh& mesh) {
  const Node& node = graph.node(unresolved.node);
  std::string out = str("node '", node.name, "' (", node.op, ") along axis ",
                        mesh.axes()[at(unresolved.axis)].name);
  for (const auto& [number, way] : unresolved.ways)
    out += str(&number == &unresolved.ways[0].first ? ": " : "; ", number, ' ', to_string(way));
  return out;
}

Propagation::Propagation(const Graph& graph, const Colours& colours)
    : graph_(graph),
      colours_(colours),
      way_(graph.nodes().size(), kOpen),
      dim_(graph.values().size(), kOpen) {
  Links links{std::vector<std::vector<NodeId>>(graph.values().size()),
              std::vector<ValueId>(graph.values().size(), kNoValue)};
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    for (ValueId in : graph.nodes()[n].inputs)
      links.readers[at(in)].push_back(static_cast<NodeId>(n));
  }
  for (const auto& [held, next] : graph.updates) {
    if (graph.value(next).role != Role::computed) continue;
    links.tied[at(held)] = next;
    links.tied[at(next)] = held;
  }
  links_ = std::make_shared<const Links>(std::move(links));
}

uint64_t Propagation::hash() const {
  uint64_t out = 0xcbf29ce484222325ull;
  const auto add = [&](int number) {
    out = (out ^ static_cast<uint64_t>(static_cast<int64_t>(number))) * 0x100000001b3ull;
  };
  for (int way : way_) add(way);
  for (int dim : dim_) add(dim);
  return out;
}

void Propagation::place(ValueId value, int dim) {
  if (dim_[at(value)] != kOpen) return;
  dim_[at(value)] = dim;
  const auto look = [&](NodeId node) {
    if (node >= 0 && way(node) == kOpen) open_.insert(node);
  };
  look(graph_.value(value).producer);
  for (NodeId reader : links_->readers[at(value)]) look(reader);
  const ValueId tied = links_->tied[at(value)];
  if (tied != kNoValue && dim >= 0) place(tied, dim);
}

void Propagation::settle(NodeId node, int way) {
  way_[at(node)] = way;
  open_.erase(node);
}

bool Propagation::cut(ValueId value, int dim) {
  const NodeId maker = graph_.value(value).producer;
  if (this->dim(value) != kOpen) return this->dim(value) == dim;
  if (maker >= 0) {
    const std::vector<ValueId>& results = graph_.node(maker).outputs;
    const auto r = std::find(results.begin(), results.end(), value) - results.begin();
    const auto leaves = [&](const Way& way) { return way.out[static_cast<size_t>(r)] == dim; };
    const auto ways = colours_.ways(maker);
    if (dim != kWhole && (way(maker) == kWhole || std::none_of(ways.begin(), ways.end(), leaves)))
      return false;
    if (way(maker) >= 0 && !leaves(ways[at(way(maker))])) return false;
  }
  place(value, dim);
  return true;
}

void Propagation::read(NodeId node, size_t operand, int dim) {
  read_[{node, operand}] = dim;
  if (way(node) == kOpen) open_.insert(node);
}

/// As the node has to read it, else as the value lies.
int Propagation::dim_of_operand(NodeId node, size_t operand) const {
  const auto asked = read_.find({node, operand});
  return asked == read_.end() ? dim(graph_.node(node).inputs[operand]) : asked->second;
}

bool Propagation::take(NodeId node, int way) {
  if (this->way(node) != kOpen) return this->way(node) == way;
  settle(node, way);
  if (way == kWhole) return true;
  const Way& taken = colours_.ways(node)[at(way)];
  for (size_t r = 0; r < taken.out.size(); ++r) {
    if (taken.out[r] != Way::kWhole) place(graph_.node(node).outputs[r], taken.out[r]);
  }
  for (size_t k = 0; k < taken.in.size(); ++k) {
    if (taken.in[k] >= 0) place(graph_.node(node).inputs[k], taken.in[k]);
  }
  return true;
}

void Propagation::take_alone(NodeId node, int way) {
  if (this->way(node) == kOpen) settle(node, way);
}

void Propagation::cut_colour(int colour, const std::vector<int>& digits) {
  const std::vector<int> own = colours_.digits_of(colours_.group(colour));
  for (size_t n = 0; n < graph_.nodes().size(); ++n) {
    const auto node = static_cast<NodeId>(n);
    const std::vector<int> ways = colours_.ways(node, colour);
    if (ways.empty() || way(node) != kOpen) continue;
    size_t chosen = 0;
    if (const Conflict* conflict = colours_.conflict(node, colour)) {
      const int digit = colours_.sets()[at(conflict->set)].digit;
      const auto place =
          static_cast<size_t>(std::find(own.begin(), own.end(), digit) - own.begin());
      if (place >= digits.size()) continue;
      chosen = at(conflict->order[at(digits[place])]);
    }
    take(node, ways[chosen]);
  }
}

/// Ways that leave all known results as they are (or as a sum over parts, if that is what is
/// known), of those the ones that fit most, counted by results, then by operands.
std::vector<int> Propagation::fitting(NodeId node, bool by_results) const {
  const Node& n = graph_.node(node);
  const auto ways = colours_.ways(node);
  std::pair<int, int> most = {0, by_results ? 0 : 1};
  if (by_results) most.first = 1;
  std::vector<int> out;
  for (size_t w = 0; w < ways.size(); ++w) {
    std::pair<int, int> fits = {0, 0};
    bool contradicts = false;
    for (size_t r = 0; r < n.outputs.size(); ++r) {
      const int known = dim(n.outputs[r]);
      if (known == kOpen) continue;
      fits.first += known != kWhole && ways[w].out[r] == known;
      contradicts = contradicts || (ways[w].out[r] != known && ways[w].out[r] != Way::kWhole);
    }
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      const int known = dim_of_operand(node, k);
      fits.second += known >= 0 && ways[w].in[k] == known;
      contradicts = contradicts || (ways[w].in[k] != known && read_.count({node, k}) > 0);
    }
    if (contradicts || fits < most) continue;
    if (fits > most) out.clear();
    most = fits;
    out.push_back(static_cast<int>(w));
  }
  return out;
}

/// Nodes whose known results (or, without `by_results`, operands) leave one way take it, all at
/// once. Nodes with several ways of that colour only if `in_conflict`. False if there were none.
bool Propagation::step(bool by_results, bool in_conflict, const std::vector<int>& digits) {
  std::map<NodeId, int> taken;
  for (NodeId node : open_) {
    std::vector<int> fit = fitting(node, by_results);
    if (fit.empty()) continue;
    const Way& first = colours_.ways(node)[at(fit[0])];
    const Conflict* conflict = colours_.conflict(node, first.colour);
    if (conflict != nullptr && !by_results && !in_conflict) continue;
    if (fit.size() > 1) {
      const bool one_colour = std::all_of(fit.begin(), fit.end(), [&](int w) {
        return colours_.ways(node)[at(w)].colour == first.colour;
      });
      if (conflict == nullptr || !one_colour) continue;
      const std::vector<int> own = colours_.digits_of(colours_.group(first.colour));
      const int digit = colours_.sets()[at(conflict->set)].digit;
      const auto place =
          static_cast<size_t>(std::find(own.begin(), own.end(), digit) - own.begin());
      if (place >= digits.size()) continue;
      const int way = colours_.ways(node, first.colour)[at(conflict->order[at(digits[place])])];
      if (std::find(fit.begin(), fit.end(), way) == fit.end()) continue;
      fit = {way};
    }
    taken.emplace(node, fit[0]);
  }
  // Makers before readers, where both would place a value.
  for (const auto& [node, way] : taken) {
    settle(node, way);
    const Way& cut = colours_.ways(node)[at(way)];
    for (size_t r = 0; r < cut.out.size(); ++r) {
      if (cut.out[r] != Way::kWhole) place(graph_.node(node).outputs[r], cut.out[r]);
    }
  }
  std::map<ValueId, int> asked;  // the lowest dim, where readers differ
  for (const auto& [node, way] : taken) {
    const Way& cut = colours_.ways(node)[at(way)];
    for (size_t k = 0; k < cut.in.size(); ++k) {
      if (cut.in[k] < 0) continue;
      const auto [it, fresh] = asked.emplace(graph_.node(node).inputs[k], cut.in[k]);
      it->second = std::min(it->second, cut.in[k]);
    }
  }
  for (const auto& [value, dim] : asked) place(value, dim);
  return !taken.empty();
}

void Propagation::settle_readers() {
  for (const auto& [place, dim] : read_) {
    if (way(place.first) != kOpen) continue;
    const std::vector<int> fit = fitting(place.first, false);
    if (fit.size() == 1) take(place.first, fit[0]);
  }
}

void Propagation::run(const std::vector<int>& digits) {
  settle_readers();
  while (step(true, false, digits) || step(false, false, digits) || step(false, true, digits)) {
  }
}

std::vector<std::pair<NodeId, std::vector<int>>> Propagation::unresolved() const {
  std::vector<std::pair<NodeId, std::vector<int>>> out;
  for (NodeId node : open_) {
    std::vector<int> fit = fitting(node, true);
    if (fit.size() < 2) fit = fitting(node, false);
    if (fit.size() > 1) out.emplace_back(node, std::move(fit));
  }
  return out;
}

}  // namespace shardrun
