// Known starts, the search, and the pool.
#include "planner/game/proposal.h"

#include <algorithm>
#include <set>

#include "base/at.h"
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

bool cuts(const ClassWays& ways) {
  return std::any_of(ways.begin(), ways.end(), [](uint8_t way) { return way > 0; });
}

}  // namespace

std::vector<GameStart> known_starts(const GameBoard& board, const RuleOf& rule_of,
                                    const std::vector<std::string>& tactics) {
  const Mesh& mesh = board.mesh();
  Schedule told;
  for (const std::string& text : tactics) told.push_back(parse_tactic(text, mesh));
  std::vector<GameStart> out = {{board.of_schedule(told, rule_of), tactics}};
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
    const bool free = mesh.axis_size(axis) > 1 && !cuts(out[0].ways[at(axis)]);
    counts.push_back(free ? 1 + known.size() : 1);
  }
  while (next_choice(chosen, counts)) {
    GameStart start = out[0];
    for (size_t axis = 0; axis < chosen.size(); ++axis) {
      if (chosen[axis] == 0) continue;
      const size_t kind = chosen[axis] - 1;
      start.ways[axis] = known[kind][axis];
      for (std::string& text :
           texts_of(known_schedule(kBaselines[kind].kind, static_cast<int>(axis)), mesh))
        start.tactics.push_back(std::move(text));
    }
    out.push_back(std::move(start));
  }
  return out;
}

Proposal propose(const GameBoard& board, const RuleOf& rule_of,
                 const std::vector<std::string>& tactics, const MctsOptions& options) {
  const std::vector<GameStart> starts = known_starts(board, rule_of, tactics);
  const MctsResult found = search_schedules(board, starts, options);
  Proposal out;
  out.evaluations = found.evaluations;
  out.exhausted = found.exhausted;
  const FoundState& best = found.best.front();
  out.price = best.price;
  out.tactics = starts[at(best.start)].tactics;
  std::vector<std::set<int>> pool(board.classes());
  const size_t pooled = board.options().arguments_only ? 1 : found.best.size();
  std::vector<std::unique_ptr<PlanGame>> games(starts.size());
  for (size_t i = 0; i < pooled; ++i) {
    const FoundState& state = found.best[i];
    std::unique_ptr<PlanGame>& game = games[at(state.start)];
    if (!game) game = std::make_unique<PlanGame>(board, starts[at(state.start)].ways);
    for (const Action& action : state.actions) {
      if (i == 0) out.tactics.push_back(game->text(action));
      game->apply(action);
    }
    const std::vector<std::vector<int>> its = game->strategies();
    for (size_t c = 0; c < its.size(); ++c) pool[c].insert(its[c].begin(), its[c].end());
    while (!game->applied().empty()) game->undo();
  }
  for (const std::set<int>& strategies : pool)
    out.strategies.emplace_back(strategies.begin(), strategies.end());
  return out;
}

}  // namespace shardrun
