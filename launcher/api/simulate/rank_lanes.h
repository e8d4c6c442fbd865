// RankLanes: ranks that always do the same at the same time, so that one of each kind is simulated.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "graph/mesh.h"

namespace shardrun {

using AxisSet = std::vector<int>;  // of a mesh, ascending

struct RankLanes {
  struct Lane {
    int64_t first = 0, ranks = 0;  // the lowest rank, and how many there are
    /// By the set of axes that a collective is over: the lanes of the ranks of one group, ascending
    /// and each once. The same for every rank of the lane, and for each lane among them.
    std::map<AxisSet, std::vector<int>> groups;
  };
  std::vector<Lane> lanes;
  std::vector<int> of_rank;
};

/// The coarsest lanes of which this holds: ranks of one lane have one colour, and the groups that
/// they communicate with are of the same lanes, each as often. Example: on data=2,model=4 with
/// collectives over either axis and rank 5 of another colour, there are rank 5, those that share an
/// axis with it along `data` (1) or `model` (4, 6, 7), and the others (0, 2, 3).
RankLanes rank_lanes(const Mesh& mesh, std::span<const int> colours,
                     const std::set<AxisSet>& communicate);

}  // namespace shardrun
