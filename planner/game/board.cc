// Alphabets of classes, moves, and the strategies that words of ways mean.
#include "planner/game/board.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/at.h"
#include "planner/schedule/demands.h"
#include "planner/space/strategy.h"

namespace shardrun {
namespace {

constexpr int kMostGameAxes = 8;
constexpr size_t kMostResolutions = 64;  // of one group of colours, as moves

/// Does a demand let a node be cut so along an axis?
bool fits(const Way& way, const NodeDemand& demand, size_t axis) {
  for (size_t k = 0; k < way.in.size(); ++k) {
    if ((demand.in[k][axis] & as_mask(way.in[k])) == 0) return false;
  }
  for (size_t r = 0; r < way.out.size(); ++r) {
    if ((demand.out[r][axis] & as_mask(way.out[r])) == 0) return false;
  }
  return true;
}

/// Parts of a sum go in and out, and nothing is cut.
bool passes(const Way& way) {
  const auto partial = [](int side) { return side == Way::kPartial; };
  const auto cut = [](int side) { return side >= 0; };
  return std::any_of(way.in.begin(), way.in.end(), partial) &&
         std::any_of(way.out.begin(), way.out.end(), partial) &&
         std::none_of(way.in.begin(), way.in.end(), cut) &&
         std::none_of(way.out.begin(), way.out.end(), cut);
}

ReduceOp op_of(const SpmdRule::Option& option) {
  for (const Placement& p : option.out) {
    if (p.kind == Placement::Kind::partial) return p.op;
  }
  return ReduceOp::sum;
}

int differing(const std::vector<int>& a, const std::vector<int>& b) {
  int out = 0;
  for (size_t i = 0; i < a.size(); ++i) out += a[i] != b[i];
  return out;
}

}  // namespace

std::string Move::text(const Graph& graph, const std::string& axis) const {
  std::string out;
  if (values.empty()) {
    out = str('#', group, '@', axis);
    for (const int& digit : digits) out += (&digit == &digits[0] ? "/" : "") + str(digit);
    return out;
  }
  for (ValueId id : values) out += str(out.empty() ? "" : "|", "\\Q", graph.value(id).name, "\\E");
  return str(values.size() > 1 ? "(" + out + ")" : out, '.', dim, '@', axis);
}

GameBoard::GameBoard(const Graph& graph, const Mesh& mesh, const Folding& folding,
                     const RuleOf& rule_of, const SearchSpace& space, const JointProblem& problem,
                     const GameOptions& options)
    : graph_(graph),
      mesh_(mesh),
      folding_(folding),
      space_(space),
      problem_(problem),
      options_(options),
      colours_(graph, rule_of),
      classes_(folding.classes.size()) {
  SR_REQUIRE(mesh.axis_count() <= kMostGameAxes, unsupported, "mesh ", mesh.to_string(), " has ",
             mesh.axis_count(), " axes; a tree search takes up to ", kMostGameAxes);
  for (size_t c = 0; c < classes_.size(); ++c) {
    const std::vector<NodeId>& nodes = folding.classes[c].nodes;
    if (nodes.empty()) continue;
    classes_[c].example = nodes[nodes.size() / 2];
    add_letters(classes_[c], rule_of(classes_[c].example));
    index_strategies(c);
  }
  link();
  if (options.arguments_only) {
    add_arguments();
  } else {
    add_moves();
  }
}

void GameBoard::add_letters(Class& one, const SpmdRule& rule) const {
  const Node& node = graph_.node(one.example);
  Letter whole;
  whole.way.in.assign(node.inputs.size(), Way::kWhole);
  whole.way.out.assign(node.outputs.size(), Way::kWhole);
  one.letters.push_back(whole);
  for (const Way& way : colours_.ways(one.example)) {
    Letter letter{way};
    for (const SpmdRule::Option& option : rule.options) {
      const Way its = way_of(option);
      if (its.in == way.in && its.out == way.out) letter.op = op_of(option);
    }
    one.letters.push_back(std::move(letter));
  }
  one.first_passing = one.letters.size();
  for (const SpmdRule::Option& option : rule.options) {
    Way way = way_of(option);
    const auto known = [&](const Letter& l) { return l.way.in == way.in && l.way.out == way.out; };
    if (passes(way) && std::none_of(one.letters.begin(), one.letters.end(), known))
      one.letters.push_back({std::move(way), op_of(option)});
  }
  SR_REQUIRE(one.letters.size() < 256, internal, "node '", node.name, "' has ", one.letters.size(),
             " ways along an axis");
}

uint64_t GameBoard::word(std::span<const uint8_t> by_axis) {
  uint64_t out = 0;
  for (uint8_t letter : by_axis) out = out << 8 | letter;
  return out;
}

int GameBoard::spelled(const Class& one, std::span<const uint8_t> by_axis) {
  const auto it = one.strategy.find(word(by_axis));
  return it == one.strategy.end() ? -1 : it->second;
}

void GameBoard::index_strategies(size_t item_class) {
  Class& one = classes_[item_class];
  const auto axes = at(mesh_.axis_count());
  std::map<std::pair<std::vector<int>, std::vector<int>>, uint8_t> number;
  for (size_t l = 0; l < one.letters.size(); ++l)
    number.emplace(std::pair(one.letters[l].way.in, one.letters[l].way.out),
                   static_cast<uint8_t>(l));
  const std::vector<Strategy>& strategies = space_.strategies[item_class];
  one.words.resize(strategies.size());
  for (size_t s = 0; s < strategies.size(); ++s) {
    std::vector<uint8_t> letters;
    for (int axis = 0; axis < mesh_.axis_count(); ++axis) {
      std::pair<std::vector<int>, std::vector<int>> sides;
      for (const Sharding& in : strategies[s].in) sides.first.push_back(side_along(in, axis));
      for (const Sharding& out : strategies[s].out) sides.second.push_back(side_along(out, axis));
      const auto it = number.find(sides);
      if (it == number.end()) break;
      letters.push_back(it->second);
    }
    if (letters.size() < axes) continue;
    const auto [it, fresh] = one.strategy.emplace(word(letters), static_cast<int>(s));
    if (!fresh && strategies[s].seconds < strategies[at(it->second)].seconds)
      it->second = static_cast<int>(s);
    one.words[s] = std::move(letters);
  }
}

void GameBoard::link() {
  std::vector<int> readers(graph_.values().size(), 0);
  for (const Node& node : graph_.nodes()) {
    for (ValueId in : std::set<ValueId>(node.inputs.begin(), node.inputs.end())) ++readers[at(in)];
  }
  for (const Node& node : graph_.nodes()) {
    std::vector<Operand>& operands = operands_.emplace_back();
    for (ValueId in : node.inputs) {
      Operand operand;
      operand.maker = graph_.value(in).role == Role::computed ? graph_.value(in).producer : -1;
      if (operand.maker >= 0) {
        const std::vector<ValueId>& results = graph_.node(operand.maker).outputs;
        operand.result =
            at(static_cast<int>(std::find(results.begin(), results.end(), in) - results.begin()));
      }
      operand.only_reader = readers[at(in)] == 1;
      operand.zeroed = graph_.zeroed_each_step.count(in) > 0;
      operands.push_back(operand);
    }
  }
}

void GameBoard::add_moves() {
  std::set<ClassWays> known;
  for (size_t g = 0; g < colours_.alike().size(); ++g) {
    int dims = 0;
    for (int colour : colours_.alike()[g]) dims += colours_.dims(colour);
    if (dims < options_.fewest_dims) continue;
    std::vector<size_t> counts;
    for (int digit : colours_.digits_of(static_cast<int>(g)))
      counts.push_back(at(colours_.resolutions(digit)));
    std::vector<size_t> chosen(counts.size(), 0);
    size_t tried = 0;
    do {
      Move move;
      move.group = static_cast<int>(g);
      for (size_t digit : chosen) move.digits.push_back(static_cast<int>(digit));
      Propagation propagation(graph_, colours_);
      for (int colour : colours_.alike()[g]) propagation.cut_colour(colour, move.digits);
      propagation.run(move.digits);
      ClassWays ways = of(propagation);
      const bool cuts = std::any_of(ways.begin(), ways.end(), [](uint8_t way) { return way > 0; });
      if (!cuts || !known.insert(ways).second) continue;
      moves_.push_back(std::move(move));
      alone_.push_back(std::move(ways));
    } while (++tried < kMostResolutions && next_choice(chosen, counts));
  }
}

void GameBoard::add_arguments() {
  for (const Folding::Class& members : folding_.classes) {
    if (members.values.empty()) continue;
    const Value& value = graph_.value(members.values[0]);
    if (value.role != Role::batch && value.role != Role::parameter && value.role != Role::constant)
      continue;
    for (size_t d = 0; d < value.type.shape.size(); ++d) {
      if (value.type.shape[d] < 2) continue;
      Move move;
      move.values = members.values;
      move.dim = static_cast<int>(d);
      Propagation propagation(graph_, colours_);
      for (ValueId id : move.values) propagation.cut(id, move.dim);
      propagation.run();
      ClassWays ways = of(propagation);
      if (std::none_of(ways.begin(), ways.end(), [](uint8_t way) { return way > 0; })) continue;
      moves_.push_back(std::move(move));
      alone_.push_back(std::move(ways));
    }
  }
}

bool GameBoard::usable(int move, int axis) const {
  if (mesh_.axis_size(axis) == 1) return false;
  const ClassWays& ways = alone(move);
  std::vector<uint8_t> by_axis(at(mesh_.axis_count()), 0);
  for (size_t c = 0; c < classes_.size(); ++c) {
    if (ways[c] == 0) continue;
    by_axis[at(axis)] = ways[c];
    if (spelled(classes_[c], by_axis) >= 0) return true;
  }
  return false;
}

ClassWays GameBoard::of(const Propagation& propagation) const {
  ClassWays out(classes_.size(), 0);
  for (size_t c = 0; c < classes_.size(); ++c) {
    if (classes_[c].example < 0) continue;
    const int way = propagation.way(classes_[c].example);
    if (way >= 0) out[c] = static_cast<uint8_t>(way + 1);
  }
  return out;
}

std::vector<ClassWays> GameBoard::of_schedule(const Schedule& schedule,
                                              const RuleOf& rule_of) const {
  std::vector<ClassWays> out(at(mesh_.axis_count()), ClassWays(classes_.size(), 0));
  if (schedule.empty()) return out;
  const Demands demands(graph_, mesh_, schedule, rule_of);
  for (size_t c = 0; c < classes_.size(); ++c) {
    if (classes_[c].example < 0) continue;
    const NodeDemand demand = demands.node(classes_[c].example);
    for (size_t a = 0; a < out.size(); ++a) {
      // What is left to a search is not cut here.
      if (mesh_.axis_size(static_cast<int>(a)) == 1 || demand.out[0][a] == kAnyPlacement) continue;
      for (size_t l = 1; l < classes_[c].first_passing && out[a][c] == 0; ++l) {
        if (fits(classes_[c].letters[l].way, demand, a)) out[a][c] = static_cast<uint8_t>(l);
      }
    }
  }
  return out;
}

ClassWays GameBoard::passing_on(const ClassWays& ways) const {
  std::vector<uint8_t> of_node(graph_.nodes().size());
  for (size_t n = 0; n < of_node.size(); ++n) {
    const Class& one = classes_[at(folding_.class_of_node[n])];
    of_node[n] = ways[at(folding_.class_of_node[n])];
    if (of_node[n] != 0 || one.first_passing == one.letters.size()) continue;
    std::vector<int> in;
    bool any = false, shared = false;
    ReduceOp op = ReduceOp::sum;
    for (const Operand& operand : operands_[n]) {
      in.push_back(Way::kWhole);
      if (operand.maker < 0) continue;
      const Class& maker = classes_[at(folding_.class_of_node[at(operand.maker)])];
      const Letter& letter = maker.letters[of_node[at(operand.maker)]];
      if (letter.way.out[operand.result] != Way::kPartial) continue;
      in.back() = Way::kPartial;
      any = true;
      shared = shared || !operand.only_reader;
      op = letter.op;
    }
    if (!any || shared) continue;
    for (size_t l = one.first_passing; l < one.letters.size() && of_node[n] == 0; ++l) {
      const Letter& letter = one.letters[l];
      bool same = letter.op == op;
      for (size_t k = 0; k < in.size(); ++k) {
        const bool may = letter.way.in[k] == in[k] ||
                         (operands_[n][k].zeroed && letter.way.in[k] == Way::kPartial);
        same = same && may;
      }
      if (same) of_node[n] = static_cast<uint8_t>(l);
    }
  }
  ClassWays out(classes_.size(), 0);
  for (size_t c = 0; c < classes_.size(); ++c) {
    if (classes_[c].example >= 0) out[c] = of_node[at(classes_[c].example)];
  }
  return out;
}

int GameBoard::strategy(size_t item_class, std::span<const uint8_t> by_axis) const {
  const Class& one = classes_[item_class];
  int found = spelled(one, by_axis);
  if (found >= 0) return found;
  std::vector<uint8_t> looser(by_axis.begin(), by_axis.end());
  for (size_t a = 0; a < looser.size(); ++a) {
    const uint8_t letter = std::exchange(looser[a], uint8_t{0});
    found = spelled(one, looser);
    looser[a] = letter;
    if (found >= 0) return found;
  }
  found = spelled(one, std::vector<uint8_t>(by_axis.size(), 0));
  return found >= 0 ? found : nearest(item_class, by_axis);
}

/// Where even what is whole is not allowed: a value is pinned, or tactics say how it is cut.
int GameBoard::nearest(size_t item_class, std::span<const uint8_t> by_axis) const {
  const Class& one = classes_[item_class];
  const std::vector<Strategy>& strategies = space_.strategies[item_class];
  int best = 0;
  std::pair<int, double> least = {std::numeric_limits<int>::max(), 0};
  for (size_t s = 0; s < strategies.size(); ++s) {
    std::pair<int, double> its = {0, strategies[s].seconds};
    for (size_t a = 0; a < by_axis.size(); ++a) {
      const int axis = static_cast<int>(a);
      std::vector<int> in, out;
      for (const Sharding& sharding : strategies[s].in) in.push_back(side_along(sharding, axis));
      for (const Sharding& sharding : strategies[s].out) out.push_back(side_along(sharding, axis));
      const Way& way = one.letters[by_axis[a]].way;
      its.first += differing(way.in, in) + differing(way.out, out);
    }
    if (its >= least) continue;
    least = its;
    best = static_cast<int>(s);
  }
  return best;
}

std::vector<int> GameBoard::strategies(size_t item_class,
                                       const std::vector<std::set<uint8_t>>& by_axis) const {
  const Class& one = classes_[item_class];
  const auto may_stand = [&](size_t axis, uint8_t letter) {
    return letter >= one.first_passing || by_axis[axis].count(letter) > 0;
  };
  std::vector<int> out;
  for (size_t s = 0; s < one.words.size(); ++s) {
    bool all = !one.words[s].empty();
    for (size_t a = 0; all && a < by_axis.size(); ++a) all = may_stand(a, one.words[s][a]);
    if (all) out.push_back(static_cast<int>(s));
  }
  return out;
}

}  // namespace shardrun
