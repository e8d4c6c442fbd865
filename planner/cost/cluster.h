// Cluster: what the cost model knows of the machines.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "graph/mesh.h"
#include "planner/cost/measured.h"

namespace shardrun {

/// How a group of ranks lies on the nodes: it has `ranks` members on `nodes` nodes, at most
/// `per_node` of them on one.
struct GroupSpan {
  int64_t ranks = 1, per_node = 1, nodes = 1;
  friend auto operator<=>(const GroupSpan&, const GroupSpan&) = default;
};

/// Nodes of equal devices. Rank r is device r % devices of node r / devices, so a mesh's last axes
/// stay within a node and its first ones go between nodes: on h100:4, four nodes of eight,
/// data=4,model=8 sends `model` over NVLink and `data` over the network.
/// How ranks make collectives, and where these stand in a Program.
///   apart     while kernels run: just before the first reader of their result (a partial sum that
///             shrinks: just behind what made it)
///   together  they wait for each: side by side (runtime/program/collective_order.h), and one call
///             for several sums (runtime/program/combine_collectives.h)
enum class Collectives { apart, together };

struct Cluster {
  std::string name = "host";
  std::string about;  // in words

  int64_t nodes = 1, devices = 1;  // devices of one node
  /// More ranks than devices may run, and then share them (processes on cores).
  bool oversubscribes = true;
  Collectives collectives = Collectives::together;
  int64_t memory_bytes = 0;  // of one device; 0: not known
  /// Of a GPU's memory, what a rank's libraries take after it has been opened, besides the arena:
  /// kernels' code, handles, noted work; and, of several ranks, what they are connected by. Assumed
  /// where `shardrun calibrate` has not measured it.
  int64_t library_bytes = int64_t{1} << 30, communicator_bytes = int64_t{1} << 30;

  struct Rate {
    double peak = 0;     // FLOP/s or bytes/s, as the vendor says
    double reached = 1;  // fraction of it that a large kernel reaches
    double value() const { return peak * reached; }
    friend bool operator==(const Rate&, const Rate&) = default;
  };
  std::map<DType, Rate> flops;  // of one device, for large matmuls
  Rate memory_bandwidth{12e9};  // of one device, bytes/s
  /// Of a GPU: how its library divides a product's result (planner/cost/tile_cost.h), and what
  /// attention takes besides its products (planner/cost/attention_cost.h).
  struct Tiles {
    int64_t multiprocessors = 0;  // that take a tile at a time; 0: a product takes its FLOPs
    /// Rows and columns, the largest first, and at most so many; also the other way round.
    std::vector<std::pair<int64_t, int64_t>> shapes;
    static constexpr int64_t kMostShapes = 16;
    Rate cache_bandwidth;           // bytes/s at which operands come to all multiprocessors
    double latency = 0;             // s until the first of them have come
    double exponential_flops = 16;  // of f32, in the time of an exponential
    friend bool operator==(const Tiles&, const Tiles&) = default;
  };
  Tiles tiles{};
  double kernel_latency = 3e-6;  // s from one kernel's end to the next one's work

  struct Link {
    double bandwidth = 2e9;   // bytes/s that a rank sends in a collective, each direction
    double latency = 10e-6;   // s of one message step
    double call_latency = 0;  // s of a collective besides its steps
    /// Where the bandwidth depends on how many ranks there are: bytes/s by ranks, between two of
    /// them in proportion to their logarithms, outside of them that of the nearest.
    std::map<int64_t, double> bandwidth_by_ranks = {};
    /// The same for all_reduce, where the switch does the adding; empty: as everything else.
    std::map<int64_t, double> reduce_bandwidth_by_ranks = {};
    double bandwidth_of(int64_t ranks) const;
    double reduce_bandwidth_of(int64_t ranks) const;
    friend bool operator==(const Link&, const Link&) = default;
  };
  Link within{};   // between devices of one node
  Link between{};  // of one device to those of other nodes

  /// By field ("memory_bandwidth", "within.latency"): where the figure is from.
  std::map<std::string, std::string> sources;

  /// Of devices like these, by `shardrun calibrate`: preferred to what the figures above say.
  Measured measured;

  int64_t size() const { return nodes * devices; }
  /// Of a type without a figure: f32's; f64 half of it.
  double flops_for(DType dtype) const;

  GroupSpan span_of(const Mesh& mesh, std::span<const int> axes) const;
  /// Do all groups over one axis, and over any set of axes, span alike? 4x8 on nodes of 8: yes;
  /// 3x4: the second of the rows of four lies on two nodes, the others on one.
  bool regular(const Mesh& mesh) const;
  /// For planning one axis as if it were the mesh: a cluster on which the mesh of that axis alone
  /// spans nodes as the axis does here.
  Cluster along(const Mesh& mesh, int axis) const;
  /// What a job of so many ranks sees, whose collectives are by `backend` (threads, mpi): where
  /// several ranks share a device, their fraction of it; of what was measured, what holds for them,
  /// each with so many threads (0: as many as it likes).
  /// Throws invalid_input if the cluster has fewer devices and does not share them.
  Cluster for_ranks(int64_t ranks, const std::string& backend = "threads",
                    int64_t threads = 0) const;
  friend bool operator==(const Cluster&, const Cluster&) = default;
};

/// A machine of which nothing was measured, ranks connected through shared memory: constants.
Cluster host_cluster();

}  // namespace shardrun
