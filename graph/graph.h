// Graph: one SSA tensor program. A training step is one Graph: forward, loss, backward, update.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/files/input_file.h"
#include "base/tensor.h"
#include "graph/attrs.h"

namespace shardrun {

using ValueId = int32_t;
using NodeId = int32_t;
inline constexpr ValueId kNoValue = -1;

/// Where a value comes from.
///   computed   a node makes it
///   batch      a slice of the global batch, new each micro-batch (tokens, images, targets)
///   scalar     one number that the host sets before each step (lr, step …); always replicated
///   parameter  persistent, trained or frozen
///   state      persistent, moved by the step (momentum, accumulated gradients, running averages)
///   constant   persistent, never changes (masks, tables)
enum class Role { computed, batch, scalar, parameter, state, constant };
/// Is it there from step to step?
inline bool is_persistent(Role role) {
  return role == Role::parameter || role == Role::state || role == Role::constant;
}

/// A training step with gradient accumulation runs its micro nodes once per micro-batch, then its
/// update nodes once; in Graph::nodes every micro node then stands before every update node.
enum class Phase { micro, update };

struct Value {
  std::string name;
  TensorType type;
  Role role = Role::computed;
  NodeId producer = -1;
};

/// `inputs` never holds kNoValue: an op with optional operands has fewer inputs instead.
struct Node {
  std::string op;    // a name in the op registry
  std::string name;  // for people: 'blk3/qk'; unique in the graph
  Attrs attrs;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  Phase phase = Phase::micro;
};

struct SourcePart;

/// What a parameter, state or constant holds before the first step. Read or made shard by shard.
struct Source {
  enum class Kind { zeros, constant, normal, uniform, data, file, parts };
  Kind kind = Kind::zeros;
  double a = 0, b = 0;  // constant: a. normal: mean a, standard deviation b. uniform: [a, b)
  std::string stream;   // normal, uniform: names the random stream (the parameter's name)
  Tensor data;          // data: the whole (small) tensor
  std::shared_ptr<const InputFile> file;  // elements of `dtype`, dense row-major from `offset`
  int64_t offset = 0;
  DType dtype = DType::f32;
  Shape shape;  // file: shape of what is stored
  std::vector<int64_t>
      perm;  // file, data: stored tensor is transposed by this on reading (empty: not)
  std::vector<SourcePart> parts;  // parts: which make up the tensor, each element once
};
/// `box` of a tensor, dense.
struct SourcePart {
  Box box;
  Source source;
};

/// Reads or makes the part `box` of a tensor of `type` into dense memory `out` (elements of
/// type.dtype). `seed` drives normal and uniform. The dims of `type` may divide those of what the
/// source has, transposed or put together. Throws invalid_input if a file is too short.
void read_source(const Source& source, const TensorType& type, const Box& box, uint64_t seed,
                 void* out);

/// Nodes are always in an executable order (an input is made before it is used).
class Graph {
 public:
  std::string name;  // the model's file or a builder's name, for messages

  ValueId add_input(std::string name, TensorType type, Role role);
  ValueId add_persistent(std::string name, TensorType type, Role role, Source source);
  ValueId add_constant(std::string name, Tensor data);

  /// Appends a node; result types come from the op's shape rule, result names from `name`.
  /// Throws Error with the node named if the shape rule refuses.
  std::vector<ValueId> add_node(const std::string& op, std::vector<ValueId> inputs,
                                Attrs attrs = {}, std::string name = "");
  /// The same for an op with one result.
  ValueId add(const std::string& op, std::vector<ValueId> inputs, Attrs attrs = {},
              std::string name = "");

  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Value>& values() const { return values_; }
  const Node& node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }
  const Value& value(ValueId id) const { return values_[static_cast<size_t>(id)]; }
  Node& node(NodeId id) { return nodes_[static_cast<size_t>(id)]; }
  Value& value(ValueId id) { return values_[static_cast<size_t>(id)]; }
  const TensorType& type(ValueId id) const { return value(id).type; }
  std::vector<TensorType> types(std::span<const ValueId> ids) const;
  /// The first value of that name, or kNoValue.
  ValueId find(std::string_view value_name) const;
  std::vector<ValueId> with_role(Role role) const;

  /// Nodes added from now on get this phase and this prefix on their names.
  Phase phase = Phase::micro;

  /// How often the micro nodes run in a step, each time with other samples; update nodes run once.
  int64_t micro_batches = 1;
  /// How often what is of this phase runs in a step: times, counts and bytes of a step follow from
  /// it.
  int64_t runs(Phase of) const { return of == Phase::micro ? micro_batches : 1; }
  /// In which a node runs: in a step of one micro-batch all is one phase.
  Phase phase_of(const Node& of) const { return micro_batches == 1 ? Phase::micro : of.phase; }
  /// In which a value is made; what no node makes is there in each micro-batch.
  Phase phase_of(ValueId id) const {
    const NodeId maker = value(id).producer;
    return maker < 0 ? Phase::micro : phase_of(node(maker));
  }
  /// The phase that a step ends with: what is reported of a step is brought together in it.
  Phase last_phase() const { return nodes_.empty() ? Phase::micro : phase_of(nodes_.back()); }

  /// Replaces the node list: passes rebuild it. Producers are recomputed; values keep their ids.
  void set_nodes(std::vector<Node> nodes);
  /// Every use of `from` (inputs, outputs, loss, updates) becomes a use of `to`.
  void replace_uses(ValueId from, ValueId to);

  std::vector<ValueId> outputs;        // what the caller wants back, in order
  bool outputs_stay_cut = false;       // as a plan has them; false: they end whole on every rank
  ValueId loss = kNoValue;             // f32 scalar
  std::map<ValueId, Source> sources;   // parameter, state, constant
  std::map<ValueId, ValueId> updates;  // persistent value -> what replaces it after the step
  std::map<ValueId, bool> trainable;   // parameters only
  std::map<std::string, ValueId> metrics;  // scalars reported each step: "loss", "grad_norm"
  std::set<ValueId>
      zeroed_each_step;  // state that starts every step at zero (accumulated gradients)
  /// Persistent values whose dims a pass has divided, a bias [3 C] into [3, C]: the shape that they
  /// have in the model's file, and in checkpoints. All others have their own.
  std::map<ValueId, Shape> file_shapes;
  const Shape& file_shape(ValueId id) const;

 private:
  std::vector<Node> nodes_;
  std::vector<Value> values_;
  std::map<std::string, int> used_names_;
  std::string unique_name(std::string base);
};

/// Throws internal, naming the node, if an invariant is broken: order, types against shape rules,
/// unique names, updates of the same type, micro nodes first where there are several
/// micro-batches. Tests call it on what passes leave; the program itself does not.
void check_graph(const Graph& graph);

/// Removes nodes whose results nothing needs (outputs, loss, updates, metrics), and values' dead
/// sources.
void remove_dead_nodes(Graph& graph);

/// One line a node, for people and tests.
std::string to_string(const Graph& graph);

}  // namespace shardrun
