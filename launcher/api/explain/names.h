// Names of layers and of values in them, read from the names of nodes.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "graph/graph.h"
#include "graph/mesh.h"

namespace shardrun {

/// Where a rank stands: "data=0, model=1"; "" on a mesh of one rank.
std::string place_of(const Mesh& mesh, int64_t rank);
/// On a mesh of several axes errors say it, too, of the ranks of `comm`, all of the mesh's.
void name_places(Communicator& comm, const Mesh& mesh);

/// "h.3.MatMul_2" -> "h.*.MatMul_*": equal for the same thing in every layer.
std::string folded(const std::string& name);

/// "%update/h.3.mlp.weight" -> "h.3"; "" if no part of the name is a number.
std::string layer_in(std::string name);

/// "h.3.mlp.weight" in layer "h.3" -> "mlp.weight".
std::string within(const std::string& name, const std::string& layer);

/// The layer of every node: its own name's; else that of a parameter that it reads ("" for one
/// outside all layers); else that of its last operand that has one (a gradient's operands are those
/// of its layer).
std::vector<std::string> layers_of(const Graph& graph);

/// What every node is about, for people: the parameter that it reads or updates, "d " and the
/// parameter whose gradient it makes, else "".
std::vector<std::string> subjects_of(const Graph& graph);

/// The module of every node: that of the parameter that it is about ("h.0.mlp.c_fc" of
/// "h.0.mlp.c_fc.weight"); else what its own name says before its last part; else its layer.
std::vector<std::string> modules_of(const Graph& graph);

/// Values that the loss is computed from, gathered copies of parameters too: activations. All else
/// that is computed is gradients and what the update makes of them.
std::set<ValueId> forward_values(const Graph& graph);

/// What part of a step a node belongs to; of a step that updates nothing all is forward.
enum class StepPart { forward, backward, update };
const char* to_string(StepPart part);  // "forward"
std::vector<StepPart> parts_of(const Graph& graph);

}  // namespace shardrun
