// The call of PyTorch's that an ONNX node was made from, as the newer exporter notes it with the
// node: arguments that have no place in the operator, such as a loss's label_smoothing, are there.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "onnx-ml.pb.h"

namespace shardrun::importer {

/// An argument as it is written: "%linear" (a value), "0.1", "None", "mean", "[%i]" (a list).
struct FxArgument {
  std::string text;
  std::vector<FxArgument> items = {};  // of a list or a tuple

  bool is_none() const { return text == "None"; }
  std::optional<bool> flag() const;      // True, False
  std::optional<double> number() const;  // 0.1, -100, 1e-05, inf
  std::string value() const;             // "linear" of %linear; empty for what is no value
};

struct FxCall {
  std::string result;  // "cross_entropy_loss"
  std::string target;  // "aten.cross_entropy_loss", without torch.ops and the overload
  std::vector<FxArgument> positional;
  std::map<std::string, FxArgument> named;

  /// The argument that the op's schema has at `position` and calls `name`; null if the call leaves
  /// it out.
  const FxArgument* find(size_t position, const std::string& name) const;
  double number(size_t position, const std::string& name, double otherwise) const;
  bool flag(size_t position, const std::string& name, bool otherwise) const;
  /// Values among the arguments, also those in lists, in their order.
  std::vector<std::string> values() const;
};

/// Reads what torch.fx.Node.format_node() writes of a call:
///   %loss : [num_users=1] = call_function[target=torch.ops.aten.cross_entropy_loss.default](
///     args = (%linear, %y, None, 1, -100, 0.1), kwargs = {})
/// Nothing for other kinds of nodes and for text of another form.
std::optional<FxCall> parse_fx_call(std::string_view text);

/// The key under which a node's metadata note its call.
inline constexpr const char* kFxNode = "pkg.torch.onnx.fx_node";

/// The call that a node notes, if any.
std::optional<FxCall> fx_call_of(const ::onnx::NodeProto& node);

/// Of a batch normalisation, whether it was called to normalise by the batch's own statistics.
/// Nothing for other calls.
std::optional<bool> batch_norm_trains(const FxCall& call);

/// dropout_p of scaled_dot_product_attention, in any of its forms; 0 for other calls.
double attention_dropout(const FxCall& call);

}  // namespace shardrun::importer
