// Mesh choice: plans for the mesh shapes that a number of ranks allows, one after the other.
#pragma once

#include <vector>

#include "planner/planner.h"

namespace shardrun {

/// All meshes of `ranks` ranks with one axis, then two, then three, none of size 1; within a number
/// of axes the most even first. Meshes that differ only in the order of axes are one unless they
/// lie on the nodes otherwise: within a node 12 ranks give 12; 3x4, 2x6; 2x2x3; on nodes of 8, 16
/// ranks give 16; 4x4, 2x8, 8x2; 2x2x4, 4x2x2. One rank has one mesh, without axes.
/// `names`: of baselines; 0 for a search; 1 leaves out what differs only in how many axes share
/// the work over equal links; more wants meshes with so many axes, in every order.
std::vector<Mesh> candidate_meshes(int64_t ranks, const Cluster& cluster, int names = 0);

struct MeshTrial {
  Mesh mesh;
  bool fits = false;   // else `why`
  double seconds = 0;  // predicted step time
  int64_t bytes = 0;   // of the fullest rank
  std::string why;
};

/// The plan with the least predicted step time, over the candidates; of equal ones the first. One
/// axis is always tried; meshes with more, in order, for as long as the seconds that they take on a
/// usual core, a fixed number for each folded node, sum up to at most `total_seconds`. So the same
/// call tries the same meshes wherever and whenever it is made; only on a machine three times
/// slower the clock ends it. `report` is the chosen plan's, with runs and seconds of all trials.
/// Throws out_of_memory if no plan on any mesh tried fits.
Plan plan_best_mesh(const Graph& graph, int64_t ranks, const Cluster& cluster,
                    const PlanOptions& options, double total_seconds, RuleCache& rules,
                    PlanReport* report = nullptr, std::vector<MeshTrial>* trials = nullptr);

}  // namespace shardrun
