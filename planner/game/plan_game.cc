// States of the game, and their prices.
#include "planner/game/plan_game.h"

#include <algorithm>

#include "base/at.h"
#include "base/error.h"

namespace shardrun {
namespace {

uint64_t mixed(uint64_t a, uint64_t b) {
  // splitmix64's finaliser
  uint64_t z = a * 0x9E3779B97F4A7C15ull + b + 0x632BE59BD9B4E019ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/// What `more` says of classes of which nothing is said yet.
void add_behind(ClassWays& ways, const ClassWays& more) {
  for (size_t c = 0; c < ways.size(); ++c) {
    if (ways[c] == 0) ways[c] = more[c];
  }
}

/// Choices that the game makes: of classes of nodes, and where there is one choice only.
std::vector<bool> given_nodes(const GameBoard& board) {
  std::vector<bool> out;
  for (size_t i = 0; i < board.problem().nodes.size(); ++i)
    out.push_back(board.problem().nodes[i].cost.size() == 1 ||
                  (i < board.classes() && board.is_of_nodes(i)));
  return out;
}

}  // namespace

PlanGame::PlanGame(const GameBoard& board, const std::vector<ClassWays>& first,
                   const std::vector<ClassWays>& start)
    : board_(&board),
      strategy_(board.classes()),
      costs_(board.problem(), given_nodes(board), board.classes(),
             board.options().memory_limit > 0) {
  const auto axes = at(board.mesh().axis_count());
  for (int move = 0; move < static_cast<int>(board.moves().size()); ++move) {
    for (size_t axis = 0; axis < axes; ++axis)
      usable_.push_back(board.usable(move, static_cast<int>(axis)));
  }
  Line whole{ClassWays(board.classes(), 0), 0, {}, nullptr, {}};
  if (board.options().arguments_only)
    whole.cut = std::make_shared<Propagation>(board.graph(), board.colours());
  at_axis_.assign(axes, line_of(whole));
  place();
  whole_seconds_ = costs_.seconds();
  first_.assign(axes, whole.ways);
  for (size_t a = 0; a < axes; ++a) {
    Line line = whole;
    if (!first.empty()) first_[a] = line.ways = first[a];
    if (!start.empty()) add_behind(line.ways, start[a]);
    at_axis_[a] = line_of(std::move(line));
  }
}

/// The line that is cut so, once.
int PlanGame::line_of(Line line) {
  line.hash = 0;
  for (uint8_t way : line.ways) line.hash = mixed(line.hash, way);
  if (line.cut != nullptr) line.hash = mixed(line.hash, line.cut->hash());
  const auto [it, fresh] = known_lines_.emplace(line.hash, static_cast<int>(lines_.size()));
  if (!fresh) return it->second;
  line.next.assign(2 * board_->moves().size(), -1);
  lines_.push_back(std::move(line));
  return it->second;
}

/// The line of the action's axis with it.
int PlanGame::with(const Action& action) {
  const int line = at_axis_[at(action.axis)];
  const size_t place = at(2 * action.move) + action.in_front;
  if (const int known = lines_[at(line)].next[place]; known >= 0) return known;
  Line more{lines_[at(line)].ways, 0, {}, nullptr, {}};
  if (lines_[at(line)].cut != nullptr) {
    auto cut = std::make_shared<Propagation>(*lines_[at(line)].cut);
    const Move& move = board_->moves()[at(action.move)];
    // A tactic that some of its values cannot follow would be refused: it changes nothing here.
    const bool follows = std::all_of(move.values.begin(), move.values.end(),
                                     [&](ValueId id) { return cut->cut(id, move.dim); });
    if (follows) {
      cut->run();
      add_behind(more.ways, board_->of(*cut));
      more.cut = std::move(cut);
    }
  } else if (action.in_front) {
    more.ways = first_[at(action.axis)];
    add_behind(more.ways, board_->alone(action.move));
    add_behind(more.ways, lines_[at(line)].ways);
  } else {
    add_behind(more.ways, board_->alone(action.move));
  }
  const bool changes = more.ways != lines_[at(line)].ways;
  const int next = changes ? line_of(std::move(more)) : line;
  lines_[at(line)].next[place] = next;
  return next;
}

const ClassWays& PlanGame::passing(int line) {
  ClassWays& out = lines_[at(line)].passing;
  if (out.empty()) out = board_->passing_on(lines_[at(line)].ways);
  return out;
}

bool PlanGame::is_usable(const Action& action) const {
  return usable_[at(action.move * board_->mesh().axis_count() + action.axis)];
}

std::vector<Action> PlanGame::legal() {
  std::vector<Action> out;
  for (int axis = 0; axis < board_->mesh().axis_count(); ++axis) {
    for (int move = 0; move < static_cast<int>(board_->moves().size()); ++move) {
      const Action behind{move, axis, false}, in_front{move, axis, true};
      if (!is_usable(behind)) continue;
      const int after = with(behind);
      if (after != at_axis_[at(axis)]) out.push_back(behind);
      if (!board_->options().in_front) continue;
      const int other = with(in_front);
      if (other != at_axis_[at(axis)] && other != after) out.push_back(in_front);
    }
  }
  return out;
}

bool PlanGame::apply(const Action& action) {
  if (!is_usable(action)) return false;
  int& line = at_axis_[at(action.axis)];
  const int next = with(action);
  if (next == line) return false;
  before_.push_back(std::exchange(line, next));
  applied_.push_back(action);
  return true;
}

void PlanGame::undo() {
  SR_REQUIRE(!applied_.empty(), internal, "there is no action to undo");
  at_axis_[at(applied_.back().axis)] = before_.back();
  applied_.pop_back();
  before_.pop_back();
}

std::vector<std::string> PlanGame::schedule(const std::vector<std::string>& start) const {
  std::vector<std::string> out = start;
  for (const Action& action : applied_)
    out.insert(action.in_front ? out.begin() : out.end(), text(action));
  return out;
}

std::string PlanGame::text(const Action& action) const {
  return board_->moves()[at(action.move)].text(board_->graph(),
                                               board_->mesh().axes()[at(action.axis)].name);
}

std::optional<Action> PlanGame::action_of(const std::string& text) const {
  for (int move = 0; move < static_cast<int>(board_->moves().size()); ++move) {
    for (int axis = 0; axis < board_->mesh().axis_count(); ++axis) {
      if (this->text({move, axis, false}) == text) return Action{move, axis, false};
    }
  }
  return std::nullopt;
}

uint64_t PlanGame::state() const {
  uint64_t out = 0;
  for (int line : at_axis_) out = mixed(out, lines_[at(line)].hash);
  return out;
}

int PlanGame::strategy(size_t item_class, std::span<const uint8_t> by_axis) {
  const auto [it, fresh] = strategy_[item_class].emplace(GameBoard::word(by_axis), 0);
  if (fresh) it->second = board_->strategy(item_class, by_axis);
  return it->second;
}

/// Chooses each class's strategy as the state says.
void PlanGame::place() {
  std::vector<const ClassWays*> ways;
  for (int line : at_axis_) ways.push_back(&passing(line));
  std::vector<uint8_t> by_axis(ways.size());
  for (size_t c = 0; c < board_->classes(); ++c) {
    if (!board_->is_of_nodes(c)) continue;
    for (size_t a = 0; a < ways.size(); ++a) by_axis[a] = (*ways[a])[c];
    costs_.choose(static_cast<int>(c), strategy(c, by_axis));
  }
}

Price PlanGame::price() {
  const auto [it, fresh] = prices_.emplace(state(), Price{});
  if (!fresh) return it->second;
  place();
  Price& out = it->second;
  out.seconds = costs_.seconds();
  out.bytes = costs_.peak_bytes();
  out.relative = out.seconds / whole_seconds_;
  const GameOptions& options = board_->options();
  if (options.memory_limit > 0 && out.bytes > options.memory_limit) {
    const auto limit = static_cast<double>(options.memory_limit);
    out.relative += options.penalty * (static_cast<double>(out.bytes) - limit) / limit;
  }
  return out;
}

Solution PlanGame::solution() {
  place();
  costs_.seconds();
  return costs_.solution();
}

}  // namespace shardrun
