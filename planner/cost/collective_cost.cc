// Ring, tree and pairwise algorithms by latency and bandwidth.
#include "planner/cost/collective_cost.h"

#include <algorithm>
#include <cmath>

namespace shardrun {
namespace {

using Kind = Collective::Kind;
using Price = CollectiveTraits::Price;
using Along = CollectiveTraits::Along;

/// By the formulas. `size`: bytes of a rank's shard on the side that CollectiveTraits says.
double formula(Price price, double size, const Wire& w) {
  const auto n = static_cast<double>(w.span.ranks), here = static_cast<double>(w.span.per_node);
  const double fraction = (n - 1) / n;
  switch (price) {
    case Price::ring: return w.call_latency + w.ring_latency + fraction * size / w.bandwidth;
    case Price::all_reduce:
      return w.call_latency + w.reduce_latency + 2 * fraction * size / w.reduce_bandwidth;
    case Price::pairwise: {
      const double near = size * (here - 1) / n / w.node_bandwidth;
      const double far = size * (n - here) / n / w.wide_bandwidth;
      return w.call_latency + w.ring_latency + std::max(near, far);
    }
    case Price::copy:
    case Price::exchange:
    case Price::route: break;  // not over a Wire alone
  }
  return 0;
}

/// Of the groups that were measured the one of the most similar size.
void add_measured(Wire& w, const Cluster& cluster) {
  if (w.span.nodes > 1) return;
  const auto distance = [&](const MeasuredCollective& c) {
    return std::abs(std::log(static_cast<double>(c.group) / static_cast<double>(w.span.ranks)));
  };
  for (const CollectiveTraits& traits : kCollectives) {
    if (!traits.is_measured()) continue;
    const MeasuredCollective* best = nullptr;
    for (const MeasuredCollective& c : cluster.measured.collectives) {
      if (c.kind == traits.kind && (best == nullptr || distance(c) < distance(*best))) best = &c;
    }
    if (best == nullptr) continue;
    const auto at = static_cast<size_t>(traits.kind);
    w.measured[at] = &best->curve;
    // Steps and what each rank sends grow with the group: (n - 1) steps, (n - 1) / n of the bytes.
    w.scale[at] = static_cast<double>(w.span.ranks - 1) / static_cast<double>(best->group - 1);
  }
}

/// A copy within a rank, read and written.
double copy_seconds(double bytes, const Cluster& cluster) {
  if (const MeasuredKernels* measured = cluster.measured.kernels_now()) {
    if (const auto op = measured->ops.find({"slice", "", DType::f32}); op != measured->ops.end())
      return op->second.curve.at(2 * bytes);
  }
  return cluster.kernel_latency + 2 * bytes / cluster.memory_bandwidth.value();
}

}  // namespace

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
    add_measured(w, cluster);
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

double packed_bytes(Collective::Kind kind, double before, double after, bool outermost,
                    bool to_outermost) {
  const auto dense = [&](Along along) {
    return along == Along::none || (along == Along::dim ? outermost : to_outermost);
  };
  const CollectiveTraits& traits = traits_of(kind);
  return (dense(traits.packs) ? 0 : before) + (dense(traits.unpacks) ? 0 : after);
}

double collective_seconds(Collective::Kind kind, const MovedBytes& bytes, const Wire& w,
                          const Cluster& cluster) {
  const CollectiveTraits& traits = traits_of(kind);
  const double size = traits.sized == CollectiveTraits::Side::after ? bytes.after : bytes.before;
  if (traits.price == Price::copy) return copy_seconds(size, cluster);
  if (!traits.is_measured()) return 0;  // exchange_cost.h
  if (traits.price == Price::all_reduce && bytes.call > size)
    return size / bytes.call * collective_seconds(kind, {bytes.call, bytes.call, 0}, w, cluster);
  const auto at = static_cast<size_t>(kind);
  const double packing = bytes.packed > 0 ? copy_seconds(bytes.packed, cluster) : 0;
  return packing + (w.measured[at] != nullptr ? w.scale[at] * w.measured[at]->at(size)
                                              : formula(traits.price, size, w));
}

double collective_seconds(Collective::Kind kind, const TensorType& type, const Sharding& before,
                          const Sharding& after, int dim, int to_dim, std::span<const int> axes,
                          const Mesh& mesh, const Cluster& cluster, double call) {
  MovedBytes bytes{static_cast<double>(max_local_bytes(type, before, mesh)),
                   static_cast<double>(max_local_bytes(type, after, mesh)), 0, call};
  // In front of the last dim that is gathered, others may have come together.
  const Box box = local_box(type.shape, kind == Kind::all_gather ? after : before, mesh,
                            std::vector<int64_t>(static_cast<size_t>(mesh.axis_count()), 0));
  const auto outermost = [&](int d) {
    return std::all_of(box.begin(), box.begin() + std::min<int64_t>(d, std::ssize(box)),
                       [](const Range& range) { return range.size <= 1; });
  };
  bytes.packed = packed_bytes(kind, bytes.before, bytes.after, outermost(dim), outermost(to_dim));
  return collective_seconds(kind, bytes, wire_of(axes, mesh, cluster), cluster);
}

double exchange_seconds(double bytes_sent, double bytes_received, int64_t messages, const Wire& w) {
  // What is sent goes out as in an all_to_all, of which a rank keeps a part.
  const auto at = static_cast<size_t>(Kind::all_to_all);
  if (w.measured[at] != nullptr && w.span.ranks > 1) {
    const auto n = static_cast<double>(w.span.ranks);
    return w.measured[at]->at(std::max(bytes_sent, bytes_received) * n / (n - 1));
  }
  // The slowest pair: neighbours on two nodes, if there are any.
  const double bandwidth = w.span.nodes > 1 ? w.wide_bandwidth : w.node_bandwidth;
  return w.call_latency + static_cast<double>(messages) * w.step_latency +
         std::max(bytes_sent, bytes_received) / bandwidth;
}

}  // namespace shardrun
