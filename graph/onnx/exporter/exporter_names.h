// What names in an exported file say: an exporter's own, a module's, an op's result, a variable's.
#pragma once

#include <string>
#include <vector>

namespace shardrun::importer {

/// An exporter's own name, which says nothing about the module it came from.
bool is_generated(const std::string& name);

/// 'h.0.weight' or 'bias': what PyTorch's modules call their parameters, as opposed to a 'mask'.
bool named_as_weight(const std::string& name);

/// 'head.temperature': what belongs to a module has its name and the module's; 'Constant.3' has
/// none of its own.
bool named_as_member(const std::string& name);

/// 'norm.running_mean', 'norm.running_var': what PyTorch's normalisations call their averages.
bool is_running_statistic(const std::string& name);

/// "head.decoder.bias" -> "bias", and "head.decoder", the module that it belongs to, or "".
std::string last_name(const std::string& name);
std::string owner_of(const std::string& name);

/// The module whose step PyTorch's older exporter named so: "/enc/enc.0/MatMul" -> "enc.0",
/// "/h.1/attn/Add_2" -> "h.1.attn". Empty for names of another kind.
std::string module_of(const std::string& node_name);

/// "slice_3" -> "slice".
std::string op_of(const std::string& name);

/// A name that PyTorch's tracer gave to a result of an op: "val_12", "arange", "slice_3". Names of
/// a module's own tensors have a dot, or are none of these.
bool is_traced(const std::string& name);

/// Ops that take or move a weight's numbers, so that training the result is training the weight.
/// "val_12" is the exporter's own step, such as a Linear's transposition; "val_12.h.0.weight" is
/// one of several weights that had been merged in it.
bool moves_only(const std::string& name);

/// Of these, ops that keep all numbers in their order.
bool reshapes_only(const std::string& name);

/// Of all that a tensor was computed from, do some of these steps compute rather than move numbers?
/// Sums and comparisons may be of positions, where a look-up with them follows:
/// W[arange(12) + 2].
bool some_compute(const std::vector<std::string>& steps);

/// A variable of TensorFlow, as tf2onnx names it: "model/dense/Cast/ReadVariableOp:0".
bool reads_variable(const std::string& name);

/// A constant of TensorFlow's graph, no variable: "model/Const_1:0", "model/Sub/y:0".
bool is_tensorflow_constant(const std::string& name);

/// What TensorFlow or tf2onnx computed from variables and constants, named like the op:
/// "model/norm/batchnorm/mul:0", "ConstantFolding/model/truediv_recip:0".
bool computed_by_tensorflow(const std::string& name);

/// Of these, what an exporter made of a batch normalisation: PyTorch's of a convolution's bias
/// ('onnx::Conv_194', 'conv1.weight_bias'), TensorFlow of its statistics, scale and shift
/// ("…/batchnorm/sub:0"), TensorFlow or tf2onnx of a convolution's weight.
bool is_folded_norm(const std::string& name);

/// "'a', 'b' and 3 more", for messages.
std::string listed(const std::vector<std::string>& names, size_t shown = 8);

}  // namespace shardrun::importer
