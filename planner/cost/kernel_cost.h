// Seconds of a kernel, by its op, types and FLOPs.
#pragma once

#include <span>
#include <string>

#include "graph/graph.h"
#include "planner/cost/cluster.h"

namespace shardrun {

/// What there is to do in a call, as far as its time depends on it.
struct KernelWork {
  double bytes = 0, flops = 0;  // read and written; of a table, the rows that are taken or added to
  DType dtype = DType::f32;     // of the first floating operand
  std::string variant;          // MeasuredKernels::ops; by CostClass
};
KernelWork work_of(const Node& node, std::span<const TensorType> in,
                   std::span<const TensorType> out);

/// A matmul as `batch` products c[m, n] = a[m, k] b[k, n]. Example: "amk,amn->kn" has m = k's size,
/// k = a times m's, and layout tn.
struct MatmulWork {
  std::string layout;  // nn, nt, tn, tt: the variant
  double batch = 1, m = 1, n = 1, k = 1;
};
MatmulWork matmul_work(const Node& node, std::span<const TensorType> in);

/// On local types: as measured, if the cluster has measurements of the op; otherwise the roofline,
/// max(arithmetic, bytes / bandwidth) + latency.
double kernel_seconds(const Node& node, std::span<const TensorType> in,
                      std::span<const TensorType> out, const Cluster& cluster);

/// The arithmetic alone, measured or not: of a product by product_seconds (tile_cost.h), with what
/// follows it in the same kernel for nothing; of attention on a GPU by attention_seconds
/// (attention_cost.h); of anything else FLOPs / peak.
double arithmetic_seconds(const Node& node, std::span<const TensorType> in,
                          std::span<const TensorType> out, const Cluster& cluster);

}  // namespace shardrun
