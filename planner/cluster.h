// Cluster: what the cost model knows of the machines.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "graph/mesh.h"

namespace shardrun {

struct Cluster {
  std::string name = "host";
  std::map<DType, double> flops;   // reached by a large matmul, per device, FLOP/s
  double memory_bandwidth = 12e9;  // bytes/s per device
  double kernel_latency = 3e-6;    // s per node
  struct Link {
    double bandwidth = 2e9;  // bytes/s a rank can send
    double latency = 10e-6;  // s per message step
  };
  std::vector<Link> links{Link{}};  // per mesh axis; the last one serves all further axes
  int64_t memory_bytes = 0;         // per device; 0: not limited

  const Link& link(int axis) const {
    return links[std::min(static_cast<size_t>(axis), links.size() - 1)];
  }
  double flops_for(DType dtype) const;
};

/// One core of the machine at hand, ranks connected through shared memory.
Cluster host_cluster();

}  // namespace shardrun
