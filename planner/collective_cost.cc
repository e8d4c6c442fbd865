// Ring and pairwise algorithms by latency and bandwidth.
#include "planner/collective_cost.h"

#include <algorithm>

namespace shardrun {
namespace {

struct Wire {
  double latency = 0, bandwidth = 1;
  int64_t ranks = 1;
};

Wire wire_of(std::span<const int> axes, const Mesh& mesh, const Cluster& cluster) {
  Wire w{0, 1e300, 1};
  for (int axis : axes) {
    const Cluster::Link& link = cluster.link(axis);
    w.latency = std::max(w.latency, link.latency);
    w.bandwidth = std::min(w.bandwidth, link.bandwidth);
    w.ranks *= mesh.axis_size(axis);
  }
  return w;
}

}  // namespace

/// Ring (all_gather, reduce_scatter; all_reduce is one after the other) and pairwise (all_to_all)
/// algorithms: n - 1 messages, (n - 1) / n of the bytes sent by each rank.
double collective_seconds(Collective::Kind kind, double bytes_before, double bytes_after,
                          std::span<const int> axes, const Mesh& mesh, const Cluster& cluster) {
  using Kind = Collective::Kind;
  const Wire w = wire_of(axes, mesh, cluster);
  const double n = static_cast<double>(w.ranks);
  const double share = (n - 1) / n;
  switch (kind) {
    case Kind::all_gather: return (n - 1) * w.latency + share * bytes_after / w.bandwidth;
    case Kind::reduce_scatter: return (n - 1) * w.latency + share * bytes_before / w.bandwidth;
    case Kind::all_reduce: return 2 * ((n - 1) * w.latency + share * bytes_before / w.bandwidth);
    case Kind::all_to_all: return (n - 1) * w.latency + share * bytes_before / w.bandwidth;
    case Kind::slice: return bytes_after / cluster.memory_bandwidth;
    case Kind::keep_first: return bytes_before / cluster.memory_bandwidth;
  }
  return 0;
}

double collective_seconds(Collective::Kind kind, const TensorType& type, const Sharding& before,
                          const Sharding& after, std::span<const int> axes, const Mesh& mesh,
                          const Cluster& cluster) {
  const auto element = static_cast<double>(size_of(type.dtype));
  return collective_seconds(
      kind, static_cast<double>(max_local_count(type.shape, before, mesh)) * element,
      static_cast<double>(max_local_count(type.shape, after, mesh)) * element, axes, mesh, cluster);
}

}  // namespace shardrun
