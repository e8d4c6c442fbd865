// A graph as a game: all that PlanSearch makes of it.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "planner/game/proposal.h"
#include "planner/plan_search.h"

namespace shardrun::test {

/// `graph` and `cluster` must outlive it.
struct Played {
  Played(const Graph& graph, const std::string& mesh_text, const Cluster& cluster,
         const GameOptions& rules = {}, PlanOptions asked = {})
      : mesh(Mesh::parse(mesh_text)), tables(mesh, cluster), options(std::move(asked)) {
    search.emplace(graph, tables, options, cache);
    table = search->table(rules);
  }
  const GameBoard& board() const { return table->board; }
  PlanGame game() const { return {board(), {}}; }
  std::vector<GameStart> starts() const { return known_starts(board(), search->rule_of(), {}); }

  Mesh mesh;
  MeshTables tables;
  PlanOptions options;
  RuleCache cache;
  std::optional<PlanSearch> search;
  std::unique_ptr<GameTable> table;
};

/// Random actions, `most` or as many as there are; where the game is afterwards.
inline std::vector<Action> play(PlanGame& game, std::mt19937_64& random, size_t most) {
  std::vector<Action> out;
  while (out.size() < most) {
    const std::vector<Action> legal = game.legal();
    if (legal.empty()) break;
    out.push_back(legal[random() % legal.size()]);
    EXPECT_TRUE(game.apply(out.back()));
  }
  return out;
}

}  // namespace shardrun::test
