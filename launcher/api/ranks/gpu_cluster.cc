// By name, or from what CUDA tells of any GPU.
#include "ranks/gpu_cluster.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "planner/cost/cluster_file.h"

namespace shardrun {
namespace {

/// By how a GPU's name ends. Cards for PCIe are slower, and at most a few are joined: not these.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kKnown = {{
    {"H200", "h200"},
    {"H100 80GB HBM3", "h100"},
    {"A100-SXM4-80GB", "a100-80"},
    {"A100-SXM4-40GB", "a100-40"},
    {"V100-SXM2-32GB", "v100-32"},
}};

/// Exponentials of a multiprocessor in a clock. Source: NVIDIA, CUDA C++ Programming Guide,
/// throughput of arithmetic.
constexpr double kExponentials = 16;
/// FLOPs of a multiprocessor in a clock: f32 units, and matrix units with bf16 (none before
/// compute capability 8). Source: the architectures' white papers.
struct PerClock {
  double f32, bf16;
};
PerClock per_clock(int major, int minor) {
  if (major >= 10) return {256, major == 10 ? 8192.0 : 1024.0};
  if (major == 9) return {256, 4096};
  if (major == 8) return minor == 0 ? PerClock{128, 2048} : PerClock{256, 1024};
  return {128, 128};
}

Cluster from_facts(const GpuFacts& gpu) {
  const PerClock flops = per_clock(gpu.major, gpu.minor);
  const double clocks = gpu.clock * gpu.multiprocessors;
  Cluster out;
  out.name = "gpu";
  out.flops = {{DType::f32, {flops.f32 * clocks, 0.8}}, {DType::bf16, {flops.bf16 * clocks, 0.7}}};
  out.memory_bandwidth = {gpu.memory_bandwidth, 0.85};
  out.kernel_latency = 3e-6;
  // A step along k of a tile of 128 x 128 reads 256 elements and does 128 x 128 x 2 FLOPs.
  const double fed = std::max(flops.f32 * 4, flops.bf16 * 2) / 128;  // bytes in a clock
  out.tiles = {gpu.multiprocessors,
               {{256, 128}, {128, 128}, {256, 64}, {128, 64}, {64, 64}},
               {fed * clocks},
               0.5e-6,
               flops.f32 / kExponentials};
  out.within = {20e9, 5e-6, 15e-6};
  out.between = {10e9, 10e-6, 20e-6};
  const std::string units = str("multiprocessors, clock and compute capability ", gpu.major, ".",
                                gpu.minor, ", as CUDA tells them");
  for (const char* type : {"f32", "bf16"}) {
    out.sources[str("flops.", type, ".peak")] = units;
    out.sources[str("flops.", type, ".reached")] = "assumed";
  }
  out.sources["memory_bandwidth.peak"] = "memory clock and bus width, as CUDA tells them";
  out.sources["memory_bandwidth.reached"] = "assumed";
  out.sources["tiles.multiprocessors"] = "as CUDA tells them";
  out.sources["tiles.shapes"] = "as of A100";
  out.sources["tiles.cache_bandwidth.peak"] = "assumed: as much as tiles of 128 x 128 need";
  out.sources["tiles.latency"] = "as of A100";
  out.sources["tiles.exponential_flops"] =
      "16 exponentials of a multiprocessor in a clock; f32 by its compute capability";
  out.sources["within.bandwidth"] = "assumed: PCIe 4 with 16 lanes";
  return out;
}

}  // namespace

Cluster gpu_cluster(const GpuFacts& gpu, int count) {
  const auto* known = std::find_if(kKnown.begin(), kKnown.end(),
                                   [&](const auto& k) { return gpu.name.ends_with(k.first); });
  Cluster out =
      known == kKnown.end() ? from_facts(gpu) : builtin_cluster(std::string(known->second));
  out.about = str(count, count == 1 ? " GPU, " : " GPUs, ", gpu.name,
                  known == kKnown.end() ? ", by what CUDA tells of it" : ", as data sheets have it",
                  "; 'shardrun calibrate --device cuda' measures it");
  out.nodes = 1;
  out.devices = count;
  out.sources["devices"] = "the GPUs that the process sees";
  out.memory_bytes = gpu.memory_bytes;
  out.sources["memory_bytes"] = "as CUDA tells it";
  out.oversubscribes = true;
  return out;
}

Cluster assumed_gpu_cluster(int64_t ranks) {
  const int64_t nodes = std::max<int64_t>(1, (ranks + 7) / 8);
  Cluster out = builtin_cluster(nodes == 1 ? "h100" : str("h100:", nodes));
  out.about = "assumed, for this machine has no GPU; --cluster names another: " + out.about;
  return out;
}

}  // namespace shardrun
