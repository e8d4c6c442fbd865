// What a host with no cluster file is taken to be.
#include "planner/cluster.h"

#include <algorithm>

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

}  // namespace

double Cluster::flops_for(DType dtype) const {
  auto it = flops.find(dtype);
  if (it == flops.end()) it = flops.find(DType::f32);
  return it == flops.end() ? 1e9 : it->second;
}

Cluster host_cluster() {
  // One core with AVX-512 reaches 60 to 140 GFLOP/s in oneDNN's f32 matmul, about twice that in
  // bf16, and 1.5 TFLOP/s and more where AMX does the bf16. Two cores share some 25 GB/s; an
  // all_reduce of a few MB in shared memory moves 1 to 4 GB/s. Only ratios matter to the planner.
  Cluster cluster;
  cluster.name = "host";
  cluster.flops = {
      {DType::f32, 70e9}, {DType::f64, 35e9}, {DType::bf16, has_amx_bf16() ? 1.5e12 : 150e9}};
  cluster.memory_bandwidth = 12e9;
  cluster.kernel_latency = 3e-6;
  cluster.links = {Cluster::Link{2e9, 10e-6}};
  return cluster;
}

}  // namespace shardrun
