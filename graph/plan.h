// Plan: the chosen Sharding of every value of a Graph on a Mesh.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/node_plan.h"

namespace shardrun {

struct Plan {
  Mesh mesh;
  std::map<std::string, Sharding>
      values;  // as produced (computed) or held (batch, parameter, state, constant)
  std::map<std::string, NodePlan> nodes;  // by node name
  /// A value with several readers is brought into this Sharding first, and the readers' copies are
  /// made from it: a partial gradient that one reader wants cut and another whole is all-reduced,
  /// then sliced. Absent: each copy from the one there is that is the nearest. Older plan
  /// files call it "handed".
  std::map<std::string, Sharding> redistributed;
  /// Values whose readers' copies serve one node only and are made anew for the next: weights that
  /// are gathered forward and again backward.
  std::set<std::string> regathered;
  /// Nodes of the model's step that run again in the backward pass (graph/passes/recompute.h). All
  /// else here is of the step with these.
  std::set<std::string> recompute;
  /// The step keeps bf16 copies of weights from one step to the next
  /// (runtime/program/fusion/patterns.h).
  bool keep_casts = false;
  /// It keeps them in the layouts that kernels read, too (runtime/program/keep_packed.h).
  bool keep_packed = false;
  /// Memory of collectives that overlap with kernels is held longer, for up to this fraction more
  /// of temporary bytes (runtime/program/memory.h). 0 to 1.
  double hold_fraction = 0;
  std::string planner;      // which planner made it
  uint64_t model_hash = 0;  // structural hash of the Graph it is for
  double seconds = 0;       // predicted time of a step
  double compute_seconds = 0, comm_seconds = 0;
  double hidden_seconds = 0;  // of both: the streams of a device run at once; `seconds` is the rest
  int64_t bytes = 0;          // arena bytes of the fullest rank
};

/// What is read of values when all nodes are done: outputs that may not stay cut, and metrics,
/// whole; what replaces a parameter or state as that is held. `plan` has the Shardings of values.
void each_end(const Graph& graph, const Plan& plan,
              const std::function<void(ValueId, const Sharding&, Phase)>& want);

uint64_t structural_hash(
    const Graph& graph);  // ops, attributes, shapes, wiring; not names of files or weights
std::string to_json(const Plan& plan);
Plan plan_from_json(const std::string& text,
                    const std::string& origin);  // invalid_input names origin and field
/// Throws invalid_input naming the field if the plan is not for this graph (hash, values, nodes,
/// ranks).
void check_plan(const Plan& plan, const Graph& graph);

}  // namespace shardrun
