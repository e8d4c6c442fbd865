// How a mesh lies on nodes, and what a host is taken to be of which nothing was measured.
#include "planner/cost/cluster.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace shardrun {
namespace {

/// AMX-TILE and AMX-BF16: leaf 7, EDX bits 24 and 22 (Intel SDM volume 2A, CPUID).
bool has_amx_bf16() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 24 & 1u) != 0 && (d >> 22 & 1u) != 0;
#else
  return false;
#endif
}

/// Per axis how many of its ranks lie on one node and on how many nodes, if that is the same for
/// all of its groups: from the innermost axis outwards the node fills up. Empty if not.
/// 2x4 on nodes of 4: {1, 2}, {4, 1}; 4x2: {2, 2}, {2, 1}.
std::vector<GroupSpan> axis_spans(const Mesh& mesh, int64_t devices) {
  std::vector<GroupSpan> spans(static_cast<size_t>(mesh.axis_count()));
  int64_t left = devices;
  for (size_t axis = spans.size(); axis-- > 0;) {
    const int64_t size = mesh.axis_size(static_cast<int>(axis));
    if (size <= left && left % size == 0) {
      spans[axis] = {size, size, 1};
      left /= size;
    } else if (size % left == 0) {
      spans[axis] = {size, left, size / left};
      left = 1;
    } else if (mesh.size() <= devices) {
      spans[axis] = {size, size, 1};
    } else {
      return {};
    }
  }
  return spans;
}

double interpolate(const std::map<int64_t, double>& by_ranks, int64_t ranks) {
  const auto above = by_ranks.lower_bound(ranks);
  if (above == by_ranks.end()) return by_ranks.rbegin()->second;
  if (above == by_ranks.begin() || above->first == ranks) return above->second;
  const auto below = std::prev(above);
  const double fraction =
      std::log(static_cast<double>(ranks) / static_cast<double>(below->first)) /
      std::log(static_cast<double>(above->first) / static_cast<double>(below->first));
  return below->second * std::pow(above->second / below->second, fraction);
}

}  // namespace

double Cluster::Link::bandwidth_of(int64_t ranks) const {
  return bandwidth_by_ranks.empty() ? bandwidth : interpolate(bandwidth_by_ranks, ranks);
}

double Cluster::Link::reduce_bandwidth_of(int64_t ranks) const {
  return reduce_bandwidth_by_ranks.empty() ? bandwidth_of(ranks)
                                           : interpolate(reduce_bandwidth_by_ranks, ranks);
}

double Cluster::flops_for(DType dtype) const {
  if (const auto it = flops.find(dtype); it != flops.end()) return it->second.value();
  const auto f32 = flops.find(DType::f32);
  const double value = f32 == flops.end() ? 1e9 : f32->second.value();
  return dtype == DType::f64 ? value / 2 : value;
}

GroupSpan Cluster::span_of(const Mesh& mesh, std::span<const int> axes) const {
  GroupSpan span;
  for (int axis : axes) span.ranks *= mesh.axis_size(axis);
  if (nodes == 1 || mesh.size() <= devices) {
    span.per_node = span.ranks;
    return span;
  }
  if (const std::vector<GroupSpan> spans = axis_spans(mesh, devices); !spans.empty()) {
    for (int axis : axes) {
      span.per_node *= spans[static_cast<size_t>(axis)].per_node;
      span.nodes *= spans[static_cast<size_t>(axis)].nodes;
    }
    return span;
  }
  // The group that spans most nodes, and the most that one has on a node.
  std::vector<int> list(axes.begin(), axes.end());
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int64_t> group = mesh.group(rank, list);
    if (group.front() != rank) continue;
    std::map<int64_t, int64_t> members;
    for (int64_t member : group) ++members[member / devices];
    span.nodes = std::max(span.nodes, static_cast<int64_t>(members.size()));
    for (const auto& [node, count] : members) span.per_node = std::max(span.per_node, count);
  }
  return span;
}

bool Cluster::regular(const Mesh& mesh) const {
  return nodes == 1 || mesh.size() <= devices || mesh.axis_count() == 0 ||
         !axis_spans(mesh, devices).empty();
}

Cluster Cluster::along(const Mesh& mesh, int axis) const {
  const GroupSpan span = span_of(mesh, std::vector{axis});
  Cluster alone = *this;
  alone.nodes = span.nodes;
  if (span.nodes > 1) alone.devices = span.per_node;
  return alone;
}

Cluster Cluster::for_ranks(int64_t ranks, const std::string& backend, int64_t threads) const {
  const size_t factors = std::min(name.find(','), name.size());
  SR_REQUIRE(ranks <= size() || oversubscribes, invalid_input, "cluster '", name, "' has ", size(),
             " devices (", nodes, nodes == 1 ? " node" : " nodes", " of ", devices, "), wanted ",
             ranks, " for as many ranks; take more nodes ('",
             name.substr(0, std::min(name.find(':'), factors)), ":",
             (ranks + devices - 1) / devices, name.substr(factors), "')");
  Cluster shared = *this;
  shared.measured = measured.for_ranks(ranks, size(), backend, threads);
  if (ranks <= size()) return shared;
  const double fraction = static_cast<double>(size()) / static_cast<double>(ranks);
  for (auto& [dtype, rate] : shared.flops) rate.reached *= fraction;
  shared.memory_bandwidth.reached *= fraction;
  shared.tiles.cache_bandwidth.reached *= fraction;
  return shared;
}

Cluster host_cluster() {
  // One core with AVX-512 reaches 60 to 140 GFLOP/s in oneDNN's f32 matmul, about twice that in
  // bf16, and 1.5 TFLOP/s and more where AMX does the bf16. Two cores share some 25 GB/s; an
  // all_reduce of a few MB in shared memory moves 1 to 4 GB/s. How many cores there are is not
  // asked, so that the same call plans the same anywhere.
  Cluster cluster;
  cluster.name = "host";
  cluster.about = "constants for a core of any machine; 'shardrun calibrate' measures this one";
  cluster.nodes = 1;
  cluster.devices = 1 << 20;
  cluster.flops = {
      {DType::f32, {70e9}}, {DType::f64, {35e9}}, {DType::bf16, {has_amx_bf16() ? 1.5e12 : 150e9}}};
  cluster.memory_bandwidth = {12e9};
  cluster.kernel_latency = 3e-6;
  cluster.within = {2e9, 10e-6};
  return cluster;
}

}  // namespace shardrun
