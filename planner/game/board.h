// GameBoard: what cuts along a mesh axis make of a folded Graph's classes, and which strategies
// that is.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "planner/schedule/propagate.h"
#include "planner/schedule/schedule.h"
#include "planner/space/search_space.h"

namespace shardrun {

/// How classes are cut along one mesh axis, by class: 0, not at all; from 1, a way of its example
/// node (Colours::ways); behind these, an option that passes parts of a sum on.
using ClassWays = std::vector<uint8_t>;

struct GameOptions {
  /// Moves cut one dim of arguments (batch, parameters, constants) that look alike, and what
  /// follows is found by propagation without digits, as AutoMap does; else they cut a group of
  /// colours, with a digit for each of its sets of conflicts.
  bool arguments_only = false;
  /// Actions may also stand in front of what is cut already, and then take nodes from it.
  bool in_front = false;
  int fewest_dims = 10;      // groups of colours with fewer are left out
  int64_t memory_limit = 0;  // bytes of claims; 0: not limited
  double penalty = 10;       // of claims that come to twice the limit, in steps that nothing cuts
};

/// What can be cut along any mesh axis.
struct Move {
  int group = 0;                // of colours
  std::vector<int> digits;      // its sets of conflicts, each resolved
  std::vector<ValueId> values;  // or: arguments that look alike,
  int dim = 0;                  // and which dim of theirs
  std::string text(const Graph& graph, const std::string& axis) const;  // as --tactic takes it
};

/// All that games on one SearchSpace share; it does not change while they are played.
class GameBoard {
 public:
  /// `space`: with the strategies of held values; `problem`: of it. All must outlive this.
  GameBoard(const Graph& graph, const Mesh& mesh, const Folding& folding, const RuleOf& rule_of,
            const SearchSpace& space, const JointProblem& problem, const GameOptions& options);

  const Graph& graph() const { return graph_; }
  const Mesh& mesh() const { return mesh_; }
  const Colours& colours() const { return colours_; }
  const GameOptions& options() const { return options_; }
  const FactoredProblem& problem() const { return problem_.problem; }
  const std::vector<Move>& moves() const { return moves_; }
  size_t classes() const { return folding_.classes.size(); }
  bool is_of_nodes(size_t item_class) const { return classes_[item_class].example >= 0; }

  /// What a move makes of classes that nothing else cuts.
  const ClassWays& alone(int move) const { return alone_[static_cast<size_t>(move)]; }
  /// Is there a node that the mesh lets a move cut along this axis?
  bool usable(int move, int axis) const;
  /// What a schedule makes of classes along an axis, one way where it allows several.
  std::vector<ClassWays> of_schedule(const Schedule& schedule, const RuleOf& rule_of) const;
  /// The same of a propagation.
  ClassWays of(const Propagation& propagation) const;
  /// The same with nodes that nothing cuts passing on parts of a sum whose only readers they are.
  ClassWays passing_on(const ClassWays& ways) const;

  /// What stands along each axis, as one number.
  static uint64_t word(std::span<const uint8_t> by_axis);
  /// A class's strategy that is cut so, by axis. Where the mesh allows none, the one that is whole
  /// along one of the axes, or along all; else the one that differs least.
  int strategy(size_t item_class, std::span<const uint8_t> by_axis) const;
  /// How a strategy is cut, by axis; empty: as no way of the class' alphabet says.
  const std::vector<uint8_t>& ways_of(size_t item_class, int strategy) const {
    return classes_[item_class].words[static_cast<size_t>(strategy)];
  }
  /// Strategies that are cut in one of these ways along each axis, or pass parts of sums on.
  std::vector<int> strategies(size_t item_class,
                              const std::vector<std::set<uint8_t>>& by_axis) const;

 private:
  struct Letter {  // of a class's alphabet; the first is whole
    Way way;
    ReduceOp op = ReduceOp::sum;  // of parts that it leaves
  };
  struct Class {
    NodeId example = -1;
    std::vector<Letter> letters;
    size_t first_passing = 0;                    // of letters
    std::unordered_map<uint64_t, int> strategy;  // by word of letters: the fastest
    std::vector<std::vector<uint8_t>> words;     // by strategy; empty: not of this alphabet
  };
  struct Operand {
    NodeId maker = -1;  // -1: held
    size_t result = 0;
    bool only_reader = false, zeroed = false;
  };
  void add_letters(Class& one, const SpmdRule& rule) const;
  void index_strategies(size_t item_class);
  void link();
  void add_moves();
  void add_arguments();
  static int spelled(const Class& one, std::span<const uint8_t> by_axis);  // -1: there is none
  int nearest(size_t item_class, std::span<const uint8_t> by_axis) const;

  const Graph& graph_;
  const Mesh& mesh_;
  const Folding& folding_;
  const SearchSpace& space_;
  const JointProblem& problem_;
  GameOptions options_;
  Colours colours_;
  std::vector<Class> classes_;
  std::vector<std::vector<Operand>> operands_;  // by node
  std::vector<Move> moves_;
  std::vector<ClassWays> alone_;
};

}  // namespace shardrun
