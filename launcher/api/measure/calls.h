// CalibrationCall: one op, called alone to time it.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "measure/team.h"

namespace shardrun {

/// One op called with these types; the curve that its time belongs to.
struct CalibrationCall {
  Node node;
  std::vector<TensorType> in;
  /// Of each result the operand in whose place it lies, or -1: memory of its own. Empty: all have
  /// their own.
  std::vector<int> places = {};
  bool from_memory = false;  // called once in a step, of what no cache holds by then
};

/// Matmul of m, n and k, where `layout` says which operands lie transposed (nn, nt,
/// tn, tt); attention or attention_grad, causal, of heads, length and width. A weight's gradient is
/// what has layout tn in a step, and is f32 there, of bf16 operands as well.
CalibrationCall matmul_call(DType dtype, const std::string& layout,
                            const std::array<int64_t, 3>& size);
CalibrationCall attention_call(DType dtype, const std::string& op,
                               const std::array<int64_t, 3>& size);

/// Seconds of the call, alone, on every rank of the team at once. Throws Error if there is no
/// kernel for it.
double measure_call(RankTeam& team, const CalibrationCall& call);

/// What measure_call times, with operands from `rotation` bytes in turn.
RankTeam::Work work_of_call(const CalibrationCall& call, double rotation,
                            RankTeam::Scratch& scratch);

}  // namespace shardrun
