// Growing a forest by union-find, and rooting its trees.
#include "planner/solver/descent/forest.h"

#include <utility>

#include "base/at.h"

namespace shardrun {
namespace {

std::vector<bool> members(const std::vector<std::vector<int>>& neighbours,
                          const std::vector<int>& order) {
  std::vector<int> root(order.size(), -1);  // union-find over members; -1: not a member
  const auto find = [&](int i) {
    while (root[at(i)] != i) i = root[at(i)] = root[at(root[at(i)])];  // half of the path next time
    return i;
  };
  std::vector<int> met(order.size(),
                       -1);  // by root: the last node that has a neighbour in its tree
  std::vector<int> trees;
  for (int i : order) {
    trees.clear();
    bool cycle = false;
    for (int other : neighbours[at(i)]) {
      if (root[at(other)] < 0) continue;
      trees.push_back(find(other));
      cycle = std::exchange(met[at(trees.back())], i) == i;
      if (cycle) break;
    }
    if (cycle) continue;
    root[at(i)] = i;
    for (int tree : trees) root[at(tree)] = i;
  }
  std::vector<bool> out;
  for (int r : root) out.push_back(r >= 0);
  return out;
}

}  // namespace

Forest induced_forest(const std::vector<std::vector<int>>& neighbours,
                      const std::vector<int>& order) {
  Forest out{members(neighbours, order), std::vector<int>(order.size(), -1), {}};
  std::vector<bool> seen(order.size(), false);
  for (int start : order) {
    if (!out.member[at(start)] || seen[at(start)]) continue;
    seen[at(start)] = true;
    size_t next = out.visit.size();
    out.visit.push_back(start);
    for (; next < out.visit.size(); ++next) {
      const int above = out.visit[next];
      for (int other : neighbours[at(above)]) {
        if (!out.member[at(other)] || seen[at(other)]) continue;
        seen[at(other)] = true;
        out.parent[at(other)] = above;
        out.visit.push_back(other);
      }
    }
  }
  return out;
}

void shuffle(std::vector<int>& order, std::mt19937_64& random) {
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
}

}  // namespace shardrun
