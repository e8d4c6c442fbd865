// From a Graph and a Plan to one rank's Program, every buffer at its place.
#pragma once

#include <cstdint>
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

/// What of a backend its Programs depend on. What a kernel takes, joins or needs depends on the
/// call's attributes and shapes in ways that only the kernel knows, and what a collective needs
/// only the executor: so these are functions, which may be null. They answer the same whoever asks,
/// and may be asked by several threads at once.
struct BackendTraits {
  int threads = 0;                         // of its kernels; 0: as many as of whoever asks
  TakesStep takes = nullptr;               // fused steps that it gains by; null: all
  RunsAlike runs_alike = nullptr;          // null: it does
  PackedWeights packed_weights = nullptr;  // null: its kernels read all weights as they lie
  /// Of kernels with so many threads, with which workspaces grow. Null: it runs every step alone.
  std::function<StepFusion(const Program&, const Step&, int threads)> fusion = nullptr;
  /// Null: no memory but operands and results.
  std::function<StepBytes(const Program&, const Step&, int threads)> needs = nullptr;

  FusionOf fusion_of() const;  // with `threads`
  NeedsOf needs_of() const;
};

/// Of a backend with these kernels, which must live as long as the traits: `takes` and `runs_alike`
/// by what they refuse. `packs_products`: do its large products copy their operands, packed, so
/// that they round an f32 weight on the way?
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
  ArenaLimits limits = {};  // a Program that does not fit is only to be looked at (place_memory)
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
