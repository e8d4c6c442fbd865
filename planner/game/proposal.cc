// Known starts, the search, and the pool.
#include "planner/game/proposal.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/at.h"
#include "planner/game/descents.h"
#include "planner/space/strategy.h"

namespace shardrun {
namespace {

std::vector<std::string> texts_of(const Schedule& schedule, const Mesh& mesh) {
  std::vector<std::string> out;
  for (const Cut& cut : schedule) {
    for (const Named<Target>& one : kTargets) {
      if (one.kind == cut.target) out.push_back(str(one.name, '@', mesh.axes()[at(cut.axis)].name));
    }
  }
  return out;
}

bool cuts_any(const ClassWays& ways) {
  return std::any_of(ways.begin(), ways.end(), [](uint8_t way) { return way > 0; });
}

}  // namespace

std::vector<GameStart> known_starts(const GameBoard& board, const RuleOf& rule_of,
                                    const std::vector<std::string>& tactics) {
  const Mesh& mesh = board.mesh();
  const Schedule schedule = parse_tactics(tactics, mesh);
  std::vector<GameStart> out = {{board.of_schedule(schedule, rule_of), {}, {}}};
  if (board.options().arguments_only) return out;
  // By kind: what it makes along each axis, if it holds along all of them.
  std::vector<std::vector<ClassWays>> known;
  for (const Named<Baseline>& one : kBaselines) {
    Schedule everywhere;
    for (int axis = 0; axis < mesh.axis_count(); ++axis) {
      for (Cut& cut : known_schedule(one.kind, axis)) everywhere.push_back(std::move(cut));
    }
    known.push_back(board.of_schedule(everywhere, rule_of));
  }
  std::vector<size_t> chosen(at(mesh.axis_count()), 0), counts;
  for (int axis = 0; axis < mesh.axis_count(); ++axis) {
    const bool free = mesh.axis_size(axis) > 1 && !cuts_any(out[0].first[at(axis)]);
    counts.push_back(free ? 1 + known.size() : 1);
  }
  while (next_choice(chosen, counts)) {
    GameStart start = out[0];
    start.start.assign(chosen.size(), ClassWays(board.classes(), 0));
    for (size_t axis = 0; axis < chosen.size(); ++axis) {
      if (chosen[axis] == 0) continue;
      const size_t kind = chosen[axis] - 1;
      start.start[axis] = known[kind][axis];
      for (std::string& text :
           texts_of(known_schedule(kBaselines[kind].kind, static_cast<int>(axis)), mesh))
        start.tactics.push_back(std::move(text));
    }
    out.push_back(std::move(start));
  }
  return out;
}

namespace {

/// Ways of classes that some states have, by axis, and the strategies that they take.
class Pool {
 public:
  explicit Pool(const GameBoard& board)
      : board_(board),
        ways_(board.classes(), std::vector<std::set<uint8_t>>(at(board.mesh().axis_count()))),
        taken_(board.classes()) {}

  void add(PlanGame& game) {
    const Solution solution = game.solution();
    for (size_t c = 0; c < ways_.size(); ++c) {
      if (!board_.is_of_nodes(c)) continue;
      taken_[c].insert(solution[c]);
      for (size_t a = 0; a < ways_[c].size(); ++a)
        ways_[c][a].insert(game.ways(static_cast<int>(a))[c]);
    }
  }
  void add(const Solution& solution) {
    for (size_t c = 0; c < ways_.size(); ++c) {
      if (!board_.is_of_nodes(c)) continue;
      taken_[c].insert(solution[c]);
      const std::vector<uint8_t>& word = board_.ways_of(c, solution[c]);
      for (size_t a = 0; a < word.size(); ++a) ways_[c][a].insert(word[a]);
    }
  }
  /// With each way along one axis combined with each along another.
  std::vector<std::vector<int>> strategies() const {
    std::vector<std::vector<int>> out(ways_.size());
    for (size_t c = 0; c < ways_.size(); ++c) {
      if (!board_.is_of_nodes(c)) continue;
      std::set<int> all = taken_[c];
      for (int s : board_.strategies(c, ways_[c])) all.insert(s);
      out[c].assign(all.begin(), all.end());
    }
    return out;
  }

 private:
  const GameBoard& board_;
  std::vector<std::vector<std::set<uint8_t>>> ways_;  // by class, axis
  std::vector<std::set<int>> taken_;                  // by class
};

/// Games by start, in which states are looked at once more.
class Games {
 public:
  Games(const GameBoard& board, const std::vector<GameStart>& starts)
      : board_(board), starts_(starts) {}
  /// In a found state, until the next call.
  PlanGame& at_state(const FoundState& state) {
    const GameStart& start = starts_[at(state.start)];
    PlanGame& game =
        games_.try_emplace(state.start, board_, start.first, start.start).first->second;
    while (!game.applied().empty()) game.undo();
    for (const Action& action : state.actions) game.apply(action);
    return game;
  }

 private:
  const GameBoard& board_;
  const std::vector<GameStart>& starts_;
  std::map<int, PlanGame> games_;
};

}  // namespace

Proposal propose(const GameBoard& board, const RuleOf& rule_of,
                 const std::vector<std::string>& tactics, const MctsOptions& options) {
  const std::vector<GameStart> starts = known_starts(board, rule_of, tactics);
  const MctsResult found = search_schedules(board, starts, options);
  const FoundState& best = found.best.front();
  Games games(board, starts);
  Proposal out{{},
               games.at_state(best).solution(),
               tactics,
               best.price,
               best.price,
               found.evaluations,
               found.exhausted,
               found.other_seconds};
  for (std::string& text : games.at_state(best).schedule(starts[at(best.start)].tactics))
    out.tactics.push_back(std::move(text));
  Pool pool(board);
  pool.add(games.at_state(best));
  if (!board.options().arguments_only) {
    std::map<int, const FoundState*> best_of;  // by start
    for (const auto* states : {&found.best, &found.behind}) {
      for (const FoundState& state : *states) {
        pool.add(games.at_state(state));
        const auto [it, fresh] = best_of.emplace(state.start, &state);
        if (!fresh && state.price.relative < it->second->price.relative) it->second = &state;
      }
    }
    std::vector<Solution> from;
    for (const auto& [start, state] : best_of) from.push_back(games.at_state(*state).solution());
    for (int start : found.starts) {
      if (from.size() >= at(most_descents(board) / 2)) break;
      FoundState begin;
      begin.start = start;
      from.push_back(games.at_state(begin).solution());
    }
    const double whole_seconds = games.at_state(best).whole_seconds();
    for (const Descended& one :
         descended(board, std::move(from), whole_seconds, options, out.other_seconds)) {
      pool.add(one.solution);
      if (one.price.relative >= out.descended.relative) continue;
      out.descended = one.price;
      out.cheapest = one.solution;
    }
  }
  out.strategies = pool.strategies();
  return out;
}

}  // namespace shardrun
