// Forest: nodes of a graph among which there is no cycle, so that dynamic programming is exact.
#pragma once

#include <random>
#include <vector>

namespace shardrun {

struct Forest {
  std::vector<bool> member;  // by node
  std::vector<int> parent;   // by node; -1: a root or no member
  std::vector<int> visit;    // members, parents first
};

/// Nodes join in this order where that closes no cycle; of each tree the first of them is the root.
/// `neighbours`: by node; of two edges between the same nodes, named twice, both ends do not join.
Forest induced_forest(const std::vector<std::vector<int>>& neighbours,
                      const std::vector<int>& order);

/// An order at random: by Fisher-Yates with plain modulo, so the same with every standard library.
void shuffle(std::vector<int>& order, std::mt19937_64& random);

}  // namespace shardrun
