// Ring, tree and pairwise algorithms by latency and bandwidth.
#include "planner/collective_cost.h"

#include <algorithm>
#include <cmath>

namespace shardrun {

/// A ring through several nodes enters and leaves each of them as often as it has members there, so
/// it is as fast as the node's links, or as all of the members' network links together. Latencies
/// are those of NCCL's model (src/graph/tuning.cc): a ring of n ranks on m nodes has m - 1 steps
/// between nodes and n - m within; a tree has the ranks of a node in a chain, and log2(m) levels.
Wire wire_of(std::span<const int> axes, const Mesh& mesh, const Cluster& cluster) {
  Wire w;
  w.span = cluster.span_of(mesh, axes);
  const Cluster::Link &near = cluster.within, &far = cluster.between;
  const auto per_node = static_cast<double>(w.span.per_node);
  const auto ranks = static_cast<double>(w.span.ranks), nodes = static_cast<double>(w.span.nodes);
  w.node_bandwidth = near.bandwidth_of(w.span.per_node);
  w.wide_bandwidth = far.bandwidth_of(w.span.nodes);
  if (w.span.nodes == 1) {
    w.bandwidth = w.node_bandwidth;
    w.reduce_bandwidth = near.reduce_bandwidth_of(w.span.per_node);
    w.call_latency = near.call_latency;
    w.ring_latency = (ranks - 1) * near.latency;
    w.reduce_latency = 2 * w.ring_latency;
    w.step_latency = near.latency;
    return w;
  }
  w.bandwidth = per_node * w.wide_bandwidth;
  w.reduce_bandwidth = per_node * far.reduce_bandwidth_of(w.span.nodes);
  if (w.span.per_node > 1) {
    w.bandwidth = std::min(w.bandwidth, w.node_bandwidth);
    w.reduce_bandwidth = std::min(w.reduce_bandwidth, near.reduce_bandwidth_of(w.span.per_node));
  }
  w.call_latency = std::max(near.call_latency, far.call_latency);
  w.ring_latency = (nodes - 1) * far.latency + (ranks - nodes) * near.latency;
  w.reduce_latency = 2 * std::min(w.ring_latency, std::ceil(std::log2(nodes)) * far.latency +
                                                      (per_node - 1) * near.latency);
  w.step_latency = far.latency;
  return w;
}

double collective_seconds(Collective::Kind kind, double bytes_before, double bytes_after,
                          const Wire& w, const Cluster& cluster) {
  using Kind = Collective::Kind;
  const auto n = static_cast<double>(w.span.ranks), here = static_cast<double>(w.span.per_node);
  const double share = (n - 1) / n;
  const double memory = cluster.memory_bandwidth.value();
  switch (kind) {
    case Kind::all_gather:
      return w.call_latency + w.ring_latency + share * bytes_after / w.bandwidth;
    case Kind::reduce_scatter:
      return w.call_latency + w.ring_latency + share * bytes_before / w.bandwidth;
    case Kind::all_reduce:
      return w.call_latency + w.reduce_latency + 2 * share * bytes_before / w.reduce_bandwidth;
    case Kind::all_to_all: {
      const double near = bytes_before * (here - 1) / n / w.node_bandwidth;
      const double far = bytes_before * (n - here) / n / w.wide_bandwidth;
      return w.call_latency + w.ring_latency + std::max(near, far);
    }
    case Kind::slice: return bytes_after / memory;
    case Kind::keep_first: return bytes_before / memory;
    case Kind::halo_exchange:
    case Kind::halo_add:
    case Kind::block_exchange: break;  // exchange_seconds
  }
  return 0;
}

double collective_seconds(Collective::Kind kind, const TensorType& type, const Sharding& before,
                          const Sharding& after, std::span<const int> axes, const Mesh& mesh,
                          const Cluster& cluster) {
  const auto element = static_cast<double>(size_of(type.dtype));
  return collective_seconds(
      kind, static_cast<double>(max_local_count(type.shape, before, mesh)) * element,
      static_cast<double>(max_local_count(type.shape, after, mesh)) * element,
      wire_of(axes, mesh, cluster), cluster);
}

double exchange_seconds(double bytes_sent, double bytes_received, int64_t messages, const Wire& w) {
  // The slowest pair: neighbours on two nodes, if there are any.
  const double bandwidth = w.span.nodes > 1 ? w.wide_bandwidth : w.node_bandwidth;
  return w.call_latency + static_cast<double>(messages) * w.step_latency +
         std::max(bytes_sent, bytes_received) / bandwidth;
}

}  // namespace shardrun
