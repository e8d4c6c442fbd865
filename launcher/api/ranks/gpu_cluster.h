// The Cluster of a machine's GPUs of which nothing was measured.
#pragma once

#include <string>

#include "planner/cost/cluster.h"

namespace shardrun {

struct GpuFacts {
  std::string name;          // "NVIDIA H100 80GB HBM3"
  int64_t memory_bytes = 0;  // of one
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  double clock = 0;             // Hz
  double memory_bandwidth = 0;  // bytes/s
};

/// `count` of them: what is built in for GPUs of that name, else from the facts. More ranks than
/// GPUs share them.
Cluster gpu_cluster(const GpuFacts& gpu, int count);

/// For a plan on a machine without a GPU: nodes of eight H100, and `about` says so.
Cluster assumed_gpu_cluster(int64_t ranks);

}  // namespace shardrun
