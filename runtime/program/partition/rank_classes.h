// Ranks whose Programs need the same bytes, so that one of each kind is laid out and not a
// thousand.
#pragma once

#include <cstdint>
#include <vector>

#include "program/memory.h"
#include "program/partition.h"

namespace shardrun {

struct RankClasses {
  std::vector<int> of_rank;
  std::vector<int64_t> first;  // of each class, its lowest rank
};

/// Two ranks are of one class if they hold equally much of every value in every Sharding that the
/// plan gives it and of every window and block that its nodes take or make, among peers who do too,
/// and their kernels and exchanges ask for the same memory. On a mesh
/// that divides everything there is one class. What of an op depends on a rank's place otherwise
/// (the attributes that it localises) matters to memory through what kernels need; where one
/// needs nothing at the ends of all axes, it is taken to need nothing between. `cuts`: the
/// Partition's.
RankClasses rank_classes(const Graph& graph, const Plan& plan, const Cuts& cuts,
                         const NeedsOf& needs);

/// Ranks that are alike in both.
RankClasses joined(const RankClasses& a, const RankClasses& b);

}  // namespace shardrun
