// From a Graph and a Plan to one rank's Program, every buffer at its place.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "program/fusion/chains.h"
#include "program/fusion/patterns.h"
#include "program/keep_packed.h"
#include "program/memory.h"
#include "program/partition.h"

namespace shardrun {

/// What of a backend its Programs depend on. A function may be null, and may remember its answers;
/// those of traits_of do, and may be asked by several threads at once.
struct BackendTraits {
  TakesStep takes = nullptr;               // fused steps that it gains by; null: all
  RunsAlike runs_alike = nullptr;          // null: it does
  PackedWeights packed_weights = nullptr;  // null: its kernels read all weights as they lie
  FusionOf fusion = nullptr;               // null: it runs every step alone
  NeedsOf needs = nullptr;                 // null: no memory but operands and results
};

/// Of a backend with these kernels, which must live as long as the traits. `packs_products`: do its
/// large products copy their operands, packed, so that they round an f32 weight on the way?
BackendTraits traits_of(std::span<const KernelList* const> kernels, bool packs_products);

/// A pass of `compile`: its name, what it does, and how long it took.
struct PassReport {
  std::string_view name, does;
  double milliseconds = 0;
  const Program& program;  // after it
};

/// `all`: as the Graph's nodes are, each a step of its own. A replay shows what each makes.
enum class Steps { fused, all };

struct CompileOptions {
  Steps steps = Steps::fused;
  /// Lay persistent buffers out as that Program did: for the evaluation of a training step.
  const Program* persistent_like = nullptr;
  std::string stop_after = {};  // the last pass that runs; "": all of them
  std::function<void(const PassReport&)> after = nullptr;  // called behind each
};

/// Names of the passes, in order.
std::vector<std::string_view> compile_passes();

/// One rank's Program under a plan. Throws invalid_input if `stop_after` names no pass.
///
///   const Program program = compile(graph, plan, cluster, rank, traits);
///   Executor executor(program, kernels, world, seed);
Program compile(const Graph& graph, const Plan& plan, const Cluster& cluster, int64_t rank,
                const BackendTraits& traits, const CompileOptions& options = {});
/// The same of several ranks, for which the Graph is cut once.
Program compile(const Partition& partition, const Plan& plan, int64_t rank,
                const BackendTraits& traits, const CompileOptions& options = {});

}  // namespace shardrun
