// States of the game, and their prices.
#include "planner/game/plan_game.h"

#include <algorithm>

#include "base/at.h"
#include "base/error.h"

namespace shardrun {
namespace {

uint64_t mix(uint64_t a, uint64_t b) {
  // splitmix64's finaliser
  uint64_t z = a * 0x9E3779B97F4A7C15ull + b + 0x632BE59BD9B4E019ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
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

PlanGame::PlanGame(const GameBoard& board, const std::vector<ClassWays>& begin)
    : board_(&board),
      strategy_(board.classes()),
      costs_(board.problem(), given_nodes(board), board.classes(),
             board.options().memory_limit > 0) {
  const int axes = board.mesh().axis_count();
  for (int move = 0; move < static_cast<int>(board.moves().size()); ++move) {
    for (int axis = 0; axis < axes; ++axis) usable_.push_back(board.usable(move, axis));
  }
  Line whole{ClassWays(board.classes(), 0), 0, {}, nullptr, {}};
  if (board.options().arguments_only)
    whole.cut = std::make_shared<Propagation>(board.graph(), board.colours());
  at_axis_.assign(at(axes), line_of(whole));
  place();
  whole_seconds_ = costs_.seconds();
  for (size_t a = 0; a < begin.size(); ++a) {
    Line line = whole;
    line.ways = begin[a];
    at_axis_[a] = line_of(std::move(line));
  }
}

/// The line that is cut so, once.
int PlanGame::line_of(Line line) {
  line.hash = 0;
  for (uint8_t way : line.ways) line.hash = mix(line.hash, way);
  if (line.cut != nullptr) line.hash = mix(line.hash, line.cut->hash());
  const auto [it, fresh] = known_lines_.emplace(line.hash, static_cast<int>(lines_.size()));
  if (!fresh) return it->second;
  line.next.assign(board_->moves().size(), -1);
  lines_.push_back(std::move(line));
  return it->second;
}

int PlanGame::with(int line, int move) {
  if (const int known = lines_[at(line)].next[at(move)]; known >= 0) return known;
  Line more{lines_[at(line)].ways, 0, {}, nullptr, {}};
  if (lines_[at(line)].cut != nullptr) {
    auto cut = std::make_shared<Propagation>(*lines_[at(line)].cut);
    for (ValueId id : board_->moves()[at(move)].values) cut->cut(id, board_->moves()[at(move)].dim);
    cut->run();
    const ClassWays found = board_->of(*cut);
    for (size_t c = 0; c < found.size(); ++c) {
      if (more.ways[c] == 0) more.ways[c] = found[c];
    }
    more.cut = std::move(cut);
  } else {
    const ClassWays& alone = board_->alone(move);
    for (size_t c = 0; c < alone.size(); ++c) {
      if (more.ways[c] == 0) more.ways[c] = alone[c];
    }
  }
  const bool changes = more.ways != lines_[at(line)].ways;
  const int next = changes ? line_of(std::move(more)) : line;
  lines_[at(line)].next[at(move)] = next;
  return next;
}

const ClassWays& PlanGame::passing(int line) {
  ClassWays& out = lines_[at(line)].passing;
  if (out.empty()) out = board_->passing_on(lines_[at(line)].ways);
  return out;
}

std::vector<Action> PlanGame::legal() {
  std::vector<Action> out;
  const int axes = board_->mesh().axis_count();
  for (int axis = 0; axis < axes; ++axis) {
    for (int move = 0; move < static_cast<int>(board_->moves().size()); ++move) {
      if (usable_[at(move * axes + axis)] && with(at_axis_[at(axis)], move) != at_axis_[at(axis)])
        out.push_back({move, axis});
    }
  }
  return out;
}

bool PlanGame::apply(const Action& action) {
  int& line = at_axis_[at(action.axis)];
  if (!usable_[at(action.move * board_->mesh().axis_count() + action.axis)]) return false;
  const int next = with(line, action.move);
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

std::string PlanGame::text(const Action& action) const {
  return board_->moves()[at(action.move)].text(board_->graph(),
                                               board_->mesh().axes()[at(action.axis)].name);
}

std::optional<Action> PlanGame::action_of(const std::string& text) const {
  for (int move = 0; move < static_cast<int>(board_->moves().size()); ++move) {
    for (int axis = 0; axis < board_->mesh().axis_count(); ++axis) {
      if (this->text({move, axis}) == text) return Action{move, axis};
    }
  }
  return std::nullopt;
}

uint64_t PlanGame::state() const {
  uint64_t out = 0;
  for (int line : at_axis_) out = mix(out, lines_[at(line)].hash);
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
  for (int line : at_axis_) passing(line);
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

std::vector<std::vector<int>> PlanGame::strategies() {
  for (int line : at_axis_) passing(line);
  std::vector<std::vector<int>> out(board_->classes());
  std::vector<uint8_t> by_axis(at_axis_.size());
  for (size_t c = 0; c < out.size(); ++c) {
    if (!board_->is_of_nodes(c)) continue;
    for (size_t a = 0; a < at_axis_.size(); ++a) by_axis[a] = passing(at_axis_[a])[c];
    out[c] = board_->strategies(c, by_axis);
  }
  return out;
}

}  // namespace shardrun
