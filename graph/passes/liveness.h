// Liveness: which values are alive when, in bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op_def.h"

namespace shardrun {

/// Of every value, as a rank holds it; 0 for what persists anyway (parameters, state, constants).
using ValueBytes = std::vector<int64_t>;
ValueBytes whole_bytes(const Graph& graph);

/// A node, as far as its operands and results live.
struct LiveStep {
  std::span<const ValueId> in, out;
  const OpDef* op = nullptr;
};

struct LiveValues {
  ValueBytes bytes;
  std::vector<ValueId> given;    // there before the first step: batches
  std::vector<ValueId> kept;     // there after the last: outputs, metrics, and batches
  std::vector<ValueId> becomes;  // by value: the persistent one that it replaces, or kNoValue
};
LiveValues live_values(const Graph& graph, ValueBytes bytes);

/// What is alive while each step runs, besides what persists: its operands, its results, and all
/// that was made before and is read later. A result takes over a dying operand's memory where
/// OpDef::in_place allows, a new parameter its old one's. Kernels' workspaces are not in it.
std::vector<int64_t> bytes_alive(std::span<const LiveStep> steps, const LiveValues& values);
/// Of a Graph's nodes in their order.
std::vector<int64_t> bytes_alive(const Graph& graph, const ValueBytes& bytes);

}  // namespace shardrun
