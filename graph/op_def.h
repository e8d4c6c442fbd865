// OpDef: what there is to know of an op in one place, and the registry of all ops.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace shardrun {

/// What a gradient rule sees. It appends nodes to `graph` and returns one gradient per input;
/// kNoValue for an input that has none (indices, masks, scalars that are not differentiated).
struct GradientContext {
  Graph& graph;
  Node node;                           // the forward node (a copy: the graph grows)
  std::span<const ValueId> out_grads;  // one per result; kNoValue where nothing flows back
  std::vector<bool> needs;             // per input: is its gradient wanted at all?

  const Shape& in_shape(size_t i) const { return graph.type(node.inputs[i]).shape; }
  const TensorType& in_type(size_t i) const { return graph.type(node.inputs[i]); }
};

/// Global boxes of one rank's shard of every operand and result of a node.
struct LocalBoxes {
  std::span<const Box> in;
  std::span<const Box> out;
};

/// In which type an op computes in a bf16 model: which casts in_bf16 (passes/training.h) puts
/// before its floating operands. Three rules come first and make any op f32: it moves running
/// statistics, it takes random numbers (OpDef::draws), or it is a user's and its shape rule refuses
/// bf16. The loss's own arithmetic (OpDef::model_body) is f32 as well, except for bf16 and
/// conversion.
enum class Precision {
  unstated,    // only in what register_op is given: it becomes follows
  follows,     // all operands bf16 if one of them is: element-wise ops, data movement
  lookup,      // as follows, and an f32 result is rounded: rows of an f32 table become activations
  bf16,        // all operands bf16: products, whose kernels add up in f32
  f32,         // all operands f32: rounding would add up over the elements or steps
  mixed,       // operands as they come: x may be bf16, its parameters and statistics are f32
  conversion,  // operands as they come, in the loss too: the op itself says what it makes
};

/// What a kernel's time depends on (planner/cost/kernel_cost.h) besides its FLOPs and the bytes
/// that it reads and writes.
enum class CostClass {
  unstated,             // only in what register_op is given: it becomes streamed
  streamed,             // nothing else: all operands are read and all results written
  transpose,            // does the last dim stay the last, and how long are its rows
  reduction,            // which dims the attribute axes sums; without it as streamed
  conversion,           // the result's type
  lookup,               // as many bytes of operand 0 are read as are written
  row_update,           // operand 1 is added to rows of operand 0; the other rows are not touched
  product,              // the matrices' sizes and layout (MatmulWork), by a grid
  convolution,          // is the kernel 3 x 3, with channels in sixteens; weights: operand 1
  convolution_weights,  // the same; weights: result 0
  attention,            // heads, length and width, by a grid; q, k and v: operands 0 to 2
  attention_grad,       // the same; q, k and v: operands 1 to 3
  fused,                // what it is made of, and the bytes of what else it takes and makes
};

/// Where an op's results have their elements from, of ops that a graph's inputs may go through
/// before they are used.
enum class Elements {
  unstated,  // computed, or nothing is said
  all,       // operand 0, each element once: in another order, shape or type
  some,      // operand 0, where some are left out or repeated
  among,     // operand 0 and elsewhere
};

/// Function pointers in an aggregate: an op family's file is a list of these.
struct OpDef {
  std::string name;

  /// Result types from attributes and operand types. Throws invalid_input (without naming the node;
  /// the caller adds it). Must accept empty (0-sized) dims, since a shard may be empty.
  std::function<std::vector<TensorType>(const Node&, std::span<const TensorType> in)> infer;

  /// Null: not differentiable (comparisons, indices); the gradient stops here.
  std::function<std::vector<ValueId>(GradientContext&)> gradient = nullptr;

  /// Floating-point operations on these operand types. Null: one per result element.
  std::function<double(const Node&, std::span<const TensorType> in,
                       std::span<const TensorType> out)>
      flops = nullptr;

  /// Its result is operand 0's elements in their order, in the shape of the attribute shape. So it
  /// takes the operand's place and nothing is moved, and its rule follows from the two shapes.
  bool reshapes = false;

  /// Read by what follows labels and indices back to a batch input, and by PlanOptions::whole_sums:
  /// of what is all or some of an operand, a rank that does not hold it adds zeros.
  Elements elements = Elements::unstated;

  CostClass cost = CostClass::unstated;
  Precision precision = Precision::unstated;

  /// A product, a norm or the like: never the loss's own arithmetic, which begins behind the last
  /// of these. In mean((W x + b - y)^2) that is W x; subtraction, square and mean are the loss's.
  bool model_body = false;

  /// Operands that in a bf16 model become of another's type: {operand, other}. What batch_norm
  /// adds, its operand 5, is of the type of x; its scale and statistics stay f32. Read by in_bf16.
  std::vector<std::pair<int, int>> typed_like = {};

  /// A sum of its operands: of a parameter and something else it is a layer with a bias, and in a
  /// bf16 model not the loss's own arithmetic, even behind the last model_body. Read by in_bf16.
  bool adds = false;

  /// Its results are random numbers, and what reads them is f32 in a bf16 model: rounded, a number
  /// below 1 could be 1, and what it is compared with another. Read by in_bf16.
  bool draws = false;

  /// What a node is where nothing is trained. Read by evaluation_form.
  struct Evaluation {
    /// {result, operand}: the result is that operand, and nothing runs. Of a dropout, x.
    std::vector<std::pair<int, int>> passes = {};
    /// The attribute with which a node drops: it becomes 0, and the node loses the operand that is
    /// there if it is above 0, the last. "": none.
    std::string drops = {};
    /// {operand, operand}: a statistic of the batch and the average that the node keeps of it.
    std::vector<std::pair<int, int>> averages = {};
    /// Operands in whose place the averages are read that some node keeps of them.
    std::vector<int> statistics = {};
  };
  Evaluation evaluation = {};

  /// Takes the attribute out_dtype="f32": a result of bf16 operands is added up in f32 and then not
  /// rounded. A cast behind the op becomes that attribute (fold_casts).
  bool widens = false;

  /// For ops whose attributes carry shapes or positions: the attributes with which one rank runs
  /// its shards. Null: attributes do not depend on how the node is cut. Whether a cut is *right* is
  /// not said here: ShardCombine finds out by running it. Example: iota{shape=[8]} with out box
  /// [4,4) -> {shape=[4], start=4}.
  std::function<Attrs(const Node&, std::span<const TensorType> in, LocalBoxes)> localise = nullptr;

  /// The node with small operand shapes for discovery. `in` holds proposed small types (equal sizes
  /// stayed equal, 1 stayed 1); the hook may change them and must return attributes that fit them.
  /// Null: attributes hold for any shape. Only ops whose attributes carry sizes need it.
  std::function<Attrs(const Node&, std::span<const TensorType> original,
                      std::vector<TensorType>& in)>
      shrink = nullptr;

  /// For an integer operand that indexes: valid values are [0, bound). Null or nullopt: any small
  /// integer. Used for synthetic batches, for discovery and for tests' random data.
  std::function<std::optional<int64_t>(const Node&, std::span<const TensorType> in, size_t operand)>
      index_bound = nullptr;

  /// Of an op that finds rows by their numbers: the operand that holds the numbers, and the dims of
  /// operands and results that they count. The op then does the same with any rows in any places,
  /// as long as all that it names are there: it gives the same rows if those that are not named are
  /// taken out and the others numbered anew, and a number outside names nothing. Gather reads the
  /// rows of operand 0 that operand 1 numbers. Null or nullopt: none. A test of all ops holds them
  /// to it.
  struct NumberedRows {
    struct Dim {
      bool result = false;
      int index = 0, dim = 0;
    };
    int numbers = 1;
    std::vector<Dim> of;
  };
  std::function<std::optional<NumberedRows>(const Node&, std::span<const TensorType> in)>
      numbered_rows = nullptr;

  /// Makes random operands into ones that occur, where an operand is what another op makes of the
  /// rest: a user's gradient is given the forward results, which random numbers would never be.
  /// Called on the operands of discovery and of tests. Null: any operands may occur.
  std::function<void(const Node&, std::span<Tensor> operands)> settle = nullptr;

  /// A user's op: nothing is known of it but what it does. Discovery then wants more evidence, the
  /// planner asks the shape rule about every cut, and no rule outlives the process.
  bool foreign = false;

  /// {result, operand} pairs that a kernel may compute in place when the operand dies here: every
  /// kernel of the op reads element i of the operand before it writes element i of the result.
  std::vector<std::pair<int, int>> in_place = {};

  /// Sample calls that registry-wide tests (gradient, kernels, strategies) run: small even and
  /// uneven shapes covering each attribute. Every op has at least one.
  struct Sample {
    std::vector<TensorType> in;
    Attrs attrs = {};
    double low = -1, high = 1;  // random floating operands lie here: where the op is smooth
  };
  std::vector<Sample> samples = {};
};

/// All ops: those of Graphs (graph/ops), of Programs where linked (runtime/program/ops), of users.
const OpDef& op_def(std::string_view name);   // throws unsupported if there is none
const OpDef* find_op(std::string_view name);  // null if there is none
std::vector<const OpDef*> all_ops();          // sorted by name
/// Adds an op before any graph has it: a user's, a Program's. What it leaves unstated becomes, of
/// precision follows, of cost streamed. Throws invalid_input: the name is taken, or infer null.
void register_op(OpDef def);

std::vector<TensorType> infer_types(const Node& node, std::span<const TensorType> in);
double node_flops(const Node& node, std::span<const TensorType> in,
                  std::span<const TensorType> out);

}  // namespace shardrun
