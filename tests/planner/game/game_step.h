// A training step as a game: all that PlanSearch makes of it.
#pragma once

#include <gtest/gtest.h>

#include "planner/game/proposal.h"
#include "planner/plan_search.h"

namespace shardrun::testing {

/// `graph` and `cluster` must outlive it.
struct Played {
  Played(const Graph& graph, const std::string& mesh_text, const Cluster& cluster,
         PlanOptions asked = {})
      : mesh(Mesh::parse(mesh_text)), options(std::move(asked)) {
    if (options.planner == "auto") options.planner = "mcts";
    search.emplace(graph, mesh, cluster, options, rules);
    table = search->table();
  }
  const GameBoard& board() const { return table->board; }
  PlanGame game() const { return {board(), board().of_schedule({}, search->rule_of())}; }

  Mesh mesh;
  PlanOptions options;
  RuleCache rules;
  std::optional<PlanSearch> search;
  std::unique_ptr<GameTable> table;
};

}  // namespace shardrun::testing
