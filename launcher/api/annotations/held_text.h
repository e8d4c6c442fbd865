// What annotations have no place for, as the model's metadata has it (graph/onnx/annotations.h).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/mesh.h"

namespace shardrun {

/// Values that lie so, nodes that read values so, and values of which copies are made from one that
/// lies so. Dims are those of the file.
struct LiesSo {
  std::string lies;  // a Sharding on the text's mesh
  std::vector<std::string> values;
  std::vector<std::pair<std::string, std::string>> reads;  // value, node
  std::vector<std::string> copied;
};

/// What no node of the file stands for: gradients, updates, parts of sums.
struct StepText {
  std::string of;  // wiring_of the step
  std::vector<LiesSo> lies;
  /// Values of which readers' copies are made anew, and such that share copies as they are nearest.
  std::vector<std::string> anew, shared;
};

struct HeldText {
  Mesh mesh;
  std::vector<LiesSo> held;  // parameters, constants, the optimizer's state; values alone
  std::optional<StepText> step;
};

std::string to_text(const HeldText& held);
/// Throws invalid_input, with what was wanted.
HeldText parse_held(const std::string& text);

/// A hash of what nodes and values are called, in which order they run and what they read: names of
/// one step say the same of another one where it is equal, whatever sizes are.
std::string wiring_of(const Graph& graph);

}  // namespace shardrun
