// Lowering: the table of ONNX operators and what a lowering function sees of one node.
#pragma once

#include <set>
#include <span>

#include "graph/onnx/exporter/fx_call.h"
#include "graph/onnx/lower/builder.h"
#include "onnx-ml.pb.h"

namespace shardrun::importer {

/// Values by the names that a subgraph reads them by.
using Outer = std::map<std::string, V>;

/// One node being lowered. Attributes and inputs that no getter asked for are
/// refused afterwards.
class NodeContext {
 public:
  NodeContext(Builder& builder, ImportReport& report, const ::onnx::NodeProto& proto, int64_t opset,
              std::vector<V> inputs)
      : b(builder), report(report), proto(proto), opset(opset), inputs_(std::move(inputs)) {}

  Builder& b;
  ImportReport& report;
  const ::onnx::NodeProto& proto;
  const int64_t opset;

  const std::string& op() const { return proto.op_type(); }
  /// The call of PyTorch's that the node was made from, if it notes one, else null.
  const FxCall* call() const;
  /// That call, if it is one of `target` ("aten.embedding"), else null.
  const FxCall* call_of(const std::string& target) const;
  size_t input_count() const { return inputs_.size(); }
  bool has(size_t i) const;
  V in(size_t i) const;  // throws invalid_input if absent
  V in_or(size_t i, V otherwise) const { return has(i) ? inputs_[i] : otherwise; }
  V peek(size_t i) const { return i < inputs_.size() ? inputs_[i] : kNone; }  // not yet used by it
  void replace_input(size_t i, V v) { inputs_[i] = v; }
  const std::vector<V>& inputs() const;  // throws invalid_input if one is absent
  /// Contents that must be known now, such as a shape; `what` names the operand in the message.
  const Tensor& known(size_t i, const char* what) const;
  std::vector<int64_t> ints(size_t i, const char* what) const;  // refuses floats

  bool has_attr(const char* name) const { return find(name) != nullptr; }
  int64_t attr_i(const char* name, int64_t otherwise) const;
  double attr_f(const char* name, double otherwise) const;
  std::string attr_s(const char* name, const std::string& otherwise) const;  // as it may be shown
  std::vector<int64_t> attr_ints(const char* name) const;                    // empty if absent
  std::vector<float> attr_floats(const char* name) const;
  const ::onnx::AttributeProto* find(const char* name) const;  // null if absent
  void ignore(const char* name) const { find(name); }
  /// Throws unsupported: "attribute auto_pad='SAME_UPPER' is not supported; …".
  [[noreturn]] void refuse_attr(const char* name, const std::string& advice) const;
  [[noreturn]] void refuse_input(size_t i) const;  // invalid_input: there is no such operand
  void check_attributes_used() const;
  void check_inputs_used() const;

  /// axis in [-rank, rank) made non-negative. Throws invalid_input.
  static int64_t axis(int64_t axis, int64_t rank);
  static std::vector<int64_t> axes(std::vector<int64_t> axes,
                                   int64_t rank);  // sorted, no duplicates

  bool wants(size_t i) const {
    return static_cast<int>(i) < proto.output_size() && !proto.output(static_cast<int>(i)).empty();
  }
  size_t output_count() const { return static_cast<size_t>(proto.output_size()); }
  void out(V v) { out(0, v); }
  void out(size_t i, V v);
  const std::vector<V>& outputs() const { return outputs_; }
  void note(const std::string& text) { report.notes.push_back(text); }
  /// Notes that `argument` ("label_smoothing=0.1") is read from the node's call.
  void restored(const std::string& argument) { report.restored[argument].push_back(b.node_name); }

  /// Lowers a subgraph in the scope of this node, with values for its inputs (none for a branch of
  /// an If). `scope`: which turn of a loop it is, or which branch. `outer`: what it reads in place
  /// of values around it.
  std::function<std::vector<V>(const ::onnx::GraphProto&, std::span<const V>,
                               const std::string& scope, const Outer& outer)>
      lower_subgraph;
  std::function<V(const std::string&)> named;  // a value that a subgraph reads by name; or kNone
  V counts = kNone;    // of a loss: boolean [N], the samples that count; kNone: all
  std::string stream;  // names random numbers: another for each node, and turn of a loop
  std::function<V()> random_step;  // the scalar that counts micro-batches, for what draws
  std::function<Tensor(const ::onnx::TensorProto&)> load_tensor;
  /// A weight that a node describes; a buffer is not trained.
  std::function<V(const Source&, const TensorType&, bool trained)> add_parameter;
  /// State for a buffer that calls of PyTorch's name `placeholder` and that is not in the file:
  /// each number is `start` at first. The same for the same placeholder.
  std::function<V(const std::string& placeholder, const TensorType&, double start)> add_state;

 private:
  std::vector<V> inputs_, outputs_;
  mutable std::optional<FxCall> call_;
  mutable bool call_is_read_ = false;
  mutable std::set<std::string> used_;
  mutable std::set<size_t> used_inputs_;
};

/// From which opset on, up to the newest, `lower` is right. Where an operator moved an attribute to
/// an input on the way, `lower` accepts both.
struct Lowering {
  const char* op;
  int64_t since;
  void (*lower)(NodeContext&);
};

std::span<const Lowering> elementwise_lowerings();
std::span<const Lowering> reduce_lowerings();
std::span<const Lowering> shape_lowerings();
std::span<const Lowering> index_lowerings();
std::span<const Lowering> matmul_lowerings();
std::span<const Lowering> conv_lowerings();
std::span<const Lowering> pool_lowerings();
std::span<const Lowering> batch_norm_lowerings();
std::span<const Lowering> nn_lowerings();
std::span<const Lowering> loss_lowerings();
std::span<const Lowering> recurrent_lowerings();
std::span<const Lowering> attention_lowerings();
std::span<const Lowering> constant_lowerings();
std::span<const Lowering> random_lowerings();
std::span<const Lowering> grid_lowerings();
std::span<const Lowering> signal_lowerings();
const Lowering* find_lowering(const std::string& op);

/// What a BatchNormalization normalises by: stored statistics (inference), or the batch's own, as
/// it was exported (training) or because the options or the export's metadata ask for it
/// (promoted).
enum class BatchNormForm { inference, training, promoted };
BatchNormForm batch_norm_form(const ::onnx::NodeProto& node, int64_t opset,
                              const ImportOptions& options);

/// x [N, C, …] less the mean of each sample's channel, over its deviation, scaled and shifted by
/// numbers a channel, [C], where the call of PyTorch's keeps running averages for validation.
/// Returns false, and does nothing, where it keeps none.
bool lower_tracked_instance_norm(NodeContext& c, V x, V scale, V bias);

/// Of a node whose result is a weight, described instead of stored (models/onnx_writer.h):
/// parameter, which is trained, or buffer, which is not. Empty for any other node.
std::string described_weight(const ::onnx::NodeProto& proto);

/// `x` under dropout of the node's own mask; `x` itself where nothing is dropped: outside training.
V dropped(NodeContext& c, V x, double ratio);

/// A user's op under its registered name: attributes and inputs as they are in the file.
void lower_user_op(NodeContext& c);

/// Where a Loop makes a bag of embeddings in each turn, all bags at once, whose bounds may depend
/// on data; false if it is another loop.
bool lower_bags(NodeContext& c);

/// Of a ScatterND or a ScatterElements along `axis`, input 0 with inputs 2 added to it where inputs
/// 1 say.
V scattered_sum(NodeContext& c, int64_t axis);

/// f32 in [0, 1), other numbers for each node, turn of a loop, `use` and micro-batch.
V uniform(NodeContext& c, const Shape& shape, const char* use = "");

/// Indices in [-size, size) made non-negative. Constants are checked and changed in place; indices
/// that come straight from a batch input are non-negative when training: data sources refuse
/// others.
V normalise_indices(NodeContext& c, V indices, int64_t size);

}  // namespace shardrun::importer
