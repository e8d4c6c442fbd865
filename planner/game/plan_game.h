// PlanGame: plans as a game: a state is what is cut along each mesh axis, an action cuts more.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "planner/game/board.h"
#include "planner/game/choice_costs.h"

namespace shardrun {

/// What a state's plan is predicted to take, without a search: nodes do what the cuts say, nothing
/// else is cut, and parts of a sum pass through nodes that let them.
struct Price {
  double seconds = 0;
  int64_t bytes = 0;    // of claims at their peak; 0 where memory is not limited
  double relative = 0;  // seconds of those where nothing is cut, and a penalty for bytes too many
};

/// A move along an axis: behind what is cut already, or in front of it.
struct Action {
  int move = 0, axis = 0;
  bool in_front = false;
  friend auto operator<=>(const Action&, const Action&) = default;
};

///     PlanGame game(board, board.of_schedule({}, rule_of));
///     game.apply(game.legal()[0]);
///     game.price().relative ... game.undo();
///
/// Along one axis a node does what the first cut says that has a way there; what is cut along
/// another axis is no matter. So cuts of different axes commute, and so do those that meet in no
/// node: such orders are one state. Copies play on their own.
class PlanGame {
 public:
  /// `first`: by axis, what is cut in front of all actions. `start`: what is cut behind that;
  /// empty: nothing. `board` must outlive this.
  PlanGame(const GameBoard& board, const std::vector<ClassWays>& first,
           const std::vector<ClassWays>& start = {});

  const GameBoard& board() const { return *board_; }
  /// Actions that change the state, ascending by axis and move.
  std::vector<Action> legal();
  /// Of those that a state may have; false, and nothing happens, if it changes nothing.
  bool apply(const Action& action);
  void undo();  // the last apply(); throws internal if there was none
  const std::vector<Action>& applied() const { return applied_; }
  /// What was applied, around `start` as it stands in the order of a schedule.
  std::vector<std::string> schedule(const std::vector<std::string>& start) const;
  /// As --tactic takes it.
  std::string text(const Action& action) const;
  /// What an --tactic text of this game means; nullopt: none of its actions.
  std::optional<Action> action_of(const std::string& text) const;

  /// Of what is cut, the same in every order and in every game on the board.
  uint64_t state() const;
  /// Remembered by state.
  Price price();
  /// Of a step in which nothing is cut.
  double whole_seconds() const { return whole_seconds_; }
  /// The choices behind price(): of classes, and of hubs what is cheapest given these.
  Solution solution();
  /// How classes are cut along an axis, parts of sums passed on included.
  const ClassWays& ways(int axis) { return passing(at_axis_[static_cast<size_t>(axis)]); }

 private:
  /// What an ordered list of cuts makes along one axis, whatever axis that is.
  struct Line {
    ClassWays ways;
    uint64_t hash = 0;
    std::vector<int> next;  // by move, behind or in front: the line with it; -1: not asked yet
    std::shared_ptr<const Propagation> cut;  // where moves are arguments
    ClassWays passing;                       // with passing on; empty: not asked yet
  };
  int line_of(Line line);
  bool is_usable(const Action& action) const;
  int with(const Action& action);
  const ClassWays& passing(int line);
  void place();
  int strategy(size_t item_class, std::span<const uint8_t> by_axis);

  const GameBoard* board_;
  std::deque<Line> lines_;  // that grow while one is looked at
  std::unordered_map<uint64_t, int> known_lines_;
  std::vector<int> at_axis_;      // the state: a line for each axis
  std::vector<ClassWays> first_;  // by axis
  std::vector<Action> applied_;
  std::vector<int> before_;   // per action applied, its axis' line before
  std::vector<bool> usable_;  // by move, axis
  std::vector<std::unordered_map<uint64_t, int>> strategy_;  // by class, word
  ChoiceCosts costs_;
  double whole_seconds_ = 0;
  std::unordered_map<uint64_t, Price> prices_;
};

}  // namespace shardrun
