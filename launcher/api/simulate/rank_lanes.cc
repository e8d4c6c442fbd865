// Colour refinement: ranks are split by their groups' colours until no more are.
#include "simulate/rank_lanes.h"

#include <algorithm>

namespace shardrun {
namespace {

using Colours = std::vector<int>;

/// Of every rank's group over `axes` the colours of its members, sorted.
std::vector<Colours> colours_of_groups(const Mesh& mesh, const AxisSet& axes,
                                       std::span<const int> colours) {
  std::vector<Colours> out(colours.size());
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    if (!out[static_cast<size_t>(rank)].empty()) continue;
    const std::vector<int64_t> group = mesh.group(rank, axes);
    Colours in_group;
    for (int64_t member : group) in_group.push_back(colours[static_cast<size_t>(member)]);
    std::sort(in_group.begin(), in_group.end());
    for (int64_t member : group) out[static_cast<size_t>(member)] = in_group;
  }
  return out;
}

}  // namespace

RankLanes rank_lanes(const Mesh& mesh, std::span<const int> colours,
                     const std::set<AxisSet>& communicate) {
  RankLanes out;
  const auto number = [&](std::vector<Colours> signatures) {
    std::map<Colours, int> known;
    out.of_rank.clear();
    for (Colours& signature : signatures)
      out.of_rank.push_back(
          known.emplace(std::move(signature), static_cast<int>(known.size())).first->second);
    return known.size();
  };
  std::vector<Colours> signatures;
  for (int colour : colours) signatures.push_back({colour});
  for (size_t before = 0, count = number(signatures); count != before;) {
    before = count;
    if (count == 1 || count == colours.size()) break;
    for (size_t r = 0; r < signatures.size(); ++r) signatures[r] = {out.of_rank[r]};
    for (const AxisSet& axes : communicate) {
      const std::vector<Colours> groups = colours_of_groups(mesh, axes, out.of_rank);
      for (size_t r = 0; r < signatures.size(); ++r)
        signatures[r].insert(signatures[r].end(), groups[r].begin(), groups[r].end());
    }
    count = number(signatures);
  }
  for (size_t r = 0; r < out.of_rank.size(); ++r) {
    const auto lane = static_cast<size_t>(out.of_rank[r]);
    if (lane == out.lanes.size()) out.lanes.push_back({static_cast<int64_t>(r), 0, {}});
    ++out.lanes[lane].ranks;
  }
  for (RankLanes::Lane& lane : out.lanes) {
    for (const AxisSet& axes : communicate) {
      std::set<int> members;
      for (int64_t rank : mesh.group(lane.first, axes))
        members.insert(out.of_rank[static_cast<size_t>(rank)]);
      lane.groups[axes] = {members.begin(), members.end()};
    }
  }
  return out;
}

}  // namespace shardrun
