// Seconds of a collective, by its kind, bytes and group.
#pragma once

#include <array>
#include <span>

#include "graph/program.h"
#include "graph/sharding.h"
#include "planner/cost/cluster.h"

namespace shardrun {

/// What a group of ranks sends over: how it lies on the nodes, and the links that this makes.
struct Wire {
  GroupSpan span;
  double bandwidth = 1;         // bytes/s that a rank of a ring sends …
  double reduce_bandwidth = 1;  // … in an all_reduce
  double node_bandwidth = 1;    // bytes/s that a rank sends to ranks of its own node …
  double wide_bandwidth = 1;    // … and to others
  double call_latency = 0;      // s
  double ring_latency = 0;      // s of a message's way around the ring, size - 1 steps
  double reduce_latency = 0;    // s of an all_reduce: twice the ring, or up and down a tree
  double step_latency = 0;      // s of the slowest step
  /// By Collective::Kind: what was measured, and by how much it is to be multiplied where that was
  /// with another number of ranks. The cluster outlives the Wire.
  std::array<const Curve*, kCollectives.size()> measured{};
  std::array<double, kCollectives.size()> scale{};
};
Wire wire_of(std::span<const int> axes, const Mesh& mesh, const Cluster& cluster);

/// Bytes that a rank holds before and after, and those that it copies on the way to lay the
/// members' pieces dense one after the other, or to put them in their places.
struct MovedBytes {
  double before = 0, after = 0, packed = 0;
  double call = 0;  // of all that an all_reduce's call sums; 0: of this value alone
};
/// A cut along the outermost dim longer than 1 leaves dense pieces; any other has to be packed, or
/// unpacked: CollectiveTraits says which end along which dim (exec/collective_step.h).
/// `outermost`: has no dim before `dim` (`to_dim`) more than one local element?
double packed_bytes(Collective::Kind kind, double before, double after, bool outermost,
                    bool to_outermost);

/// Time of one collective by CollectiveTraits::Price; an all_reduce is a tree where that has the
/// lower latency. 0 for what belongs to a node's plan (exchange_cost.h).
double collective_seconds(Collective::Kind kind, const MovedBytes& bytes, const Wire& wire,
                          const Cluster& cluster);

/// The same on the largest shard of a value. `call`: as MovedBytes has it.
double collective_seconds(Collective::Kind kind, const TensorType& type, const Sharding& before,
                          const Sharding& after, int dim, int to_dim, std::span<const int> axes,
                          const Mesh& mesh, const Cluster& cluster, double call = 0);

/// Time of an exchange between neighbours in a group (the borders of a halo): every rank sends
/// `messages` messages of together `bytes_sent`, receives `bytes_received`, all at once.
double exchange_seconds(double bytes_sent, double bytes_received, int64_t messages,
                        const Wire& wire);

}  // namespace shardrun
