// What names in an exported file say: an exporter's own, a module's, an op's result.
#pragma once

#include <string>

namespace shardrun::importer {

/// An exporter's own name, which says nothing about the module it came from.
bool is_generated(const std::string& name);

/// 'h.0.weight' or 'bias': what PyTorch's modules call their parameters, as opposed to a 'mask'.
bool named_as_weight(const std::string& name);

/// 'head.temperature': what belongs to a module has its name and the module's; 'Constant.3' has
/// none of its own.
bool named_as_member(const std::string& name);

/// The module whose step PyTorch's older exporter named so: "/enc/enc.0/MatMul" -> "enc.0",
/// "/h.1/attn/Add_2" -> "h.1.attn". Empty for names of another kind.
std::string module_of(const std::string& node_name);

/// "slice_3" -> "slice".
std::string op_of(const std::string& name);

/// A name that PyTorch's tracer gave to a result of an op: "val_12", "arange", "slice_3". Names of
/// a module's own tensors have a dot, or are none of these.
bool is_traced(const std::string& name);

/// Ops that take or move a weight's numbers, so that training the result is training the weight.
/// "val_12" is the exporter's own step, such as a Linear's transposition.
bool moves_only(const std::string& name);

/// Ops of numbers, never of indices.
bool computes(const std::string& name);

}  // namespace shardrun::importer
