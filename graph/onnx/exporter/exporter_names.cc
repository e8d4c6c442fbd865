// Names as PyTorch's exporters and tf2onnx make them.
#include "graph/onnx/exporter/exporter_names.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>

#include "base/error.h"

namespace shardrun::importer {

bool is_generated(const std::string& name) {
  return name.rfind("onnx::", 0) == 0 || name.rfind("val_", 0) == 0 ||
         std::all_of(name.begin(), name.end(),
                     [](unsigned char ch) { return std::isdigit(ch) != 0; });
}

bool named_as_weight(const std::string& name) {
  const std::string last = name.substr(name.rfind('.') + 1);
  return last.find("weight") != std::string::npos || last.find("bias") != std::string::npos;
}

bool named_as_member(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot != std::string::npos && !is_generated(name.substr(dot + 1));
}

bool is_running_statistic(const std::string& name) {
  const std::string last = name.substr(name.rfind('.') + 1);
  return last == "running_mean" || last == "running_var";
}

std::string last_name(const std::string& name) { return name.substr(name.rfind('.') + 1); }

std::string owner_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

std::string module_of(const std::string& node_name) {
  if (node_name.empty() || node_name[0] != '/') return "";
  std::string out, last;
  for (size_t at = 1, end = node_name.find('/', at); end != std::string::npos;
       at = end + 1, end = node_name.find('/', at)) {
    const std::string part = node_name.substr(at, end - at);  // a child repeats its parent's name
    const bool repeats = !last.empty() && part.rfind(last + ".", 0) == 0;
    out += repeats ? part.substr(last.size()) : (out.empty() ? "" : ".") + part;
    last = part;
  }
  return out;
}

std::string op_of(const std::string& name) {
  const size_t end = name.find_last_not_of("0123456789");
  return end != std::string::npos && end + 1 < name.size() && name[end] == '_' ? name.substr(0, end)
                                                                               : name;
}

namespace {

/// The functions that steps of a trace are called after.
constexpr const char* kTracedOps =
    "abs acos add addmm alias all any arange asin atan atan2 baddbmm bmm cat ceil chunk clamp "
    "clamp_max clamp_min clone constant contiguous copy cos cumsum detach diagonal div einsum "
    "embedding empty empty_like eq exp expand expand_as eye fill flatten flip floor "
    "floor_divide fmod full full_like gather ge getitem gt index index_select isinf isnan le "
    "lift_fresh_copy linspace log lt masked_fill matmul maximum mean minimum mm mul ne neg "
    "new_full new_ones new_zeros ones ones_like outer permute pow reciprocal remainder repeat "
    "repeat_interleave reshape roll round rsqrt rsub scalar_tensor select sigmoid sign sin "
    "slice split sqrt squeeze stack sub sum t tanh tensor transpose tril triu type_as unbind "
    "unsqueeze val view view_as where zeros zeros_like _to_copy to unsafe_view _unsafe_view "
    "logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not sym_size "
    "softmax softplus";

std::set<std::string> words_of(const char* text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), std::istream_iterator<std::string>()};
}

}  // namespace

bool is_traced(const std::string& name) {
  static const std::set<std::string> ops = words_of(kTracedOps);
  std::string op = op_of(name.substr(0, name.find('/')));
  constexpr std::string_view kOverload = "_default";  // "scalar_tensor_default_2"
  if (op.ends_with(kOverload)) op.resize(op.size() - kOverload.size());
  return ops.count(op) > 0;
}

bool moves_only(const std::string& name) {
  static const std::set<std::string> ops = words_of(
      "alias chunk clone contiguous detach embedding expand flatten gather getitem index "
      "index_select narrow permute reshape select slice split split_with_sizes _to_copy squeeze t "
      "transpose unbind unsqueeze val view view_as view_as_complex view_as_real unsafe_view "
      "_unsafe_view unsafe_chunk unsafe_split unsafe_split_with_sizes");
  return ops.count(op_of(name.substr(0, name.find('.')))) > 0;
}

bool reshapes_only(const std::string& name) {
  static const std::set<std::string> ops = {"flatten", "reshape",     "squeeze",     "unsqueeze",
                                            "view",    "unsafe_view", "_unsafe_view"};
  return ops.count(op_of(name)) > 0;
}

bool some_compute(const std::vector<std::string>& steps) {
  static const std::set<std::string> makers = words_of(
      "arange constant empty eye fill full full_like lift_fresh_copy lifted_tensor "
      "new_full new_ones new_zeros ones ones_like scalar_tensor scalar_tensor_default sym_size "
      "sym_size_int tensor_constant _tensor_constant zeros zeros_like");
  static const std::set<std::string> of_positions = words_of(
      "abs add bitwise_and bitwise_not bitwise_or clamp clamp_max clamp_min cumsum eq "
      "floor_divide ge gt le logical_and logical_not logical_or logical_xor lt masked_fill "
      "maximum minimum mul ne remainder rsub sub to where");
  static const std::set<std::string> lookups = {"embedding", "gather", "index", "index_select"};
  const bool looks_up = std::any_of(steps.begin(), steps.end(), [](const std::string& step) {
    return lookups.count(op_of(step)) > 0;
  });
  return std::any_of(steps.begin(), steps.end(), [&](const std::string& step) {
    return !moves_only(step) && makers.count(op_of(step)) == 0 &&
           !(looks_up && of_positions.count(op_of(step)) > 0);
  });
}

bool reads_variable(const std::string& name) {
  return name.find("/ReadVariableOp") != std::string::npos;
}

namespace {

/// The op of TensorFlow's that made "model/norm/batchnorm/mul_1:0": "mul". Empty for other names.
std::string tensorflow_op(const std::string& name) {
  const size_t slash = name.rfind('/'), colon = name.rfind(':');
  if (slash == std::string::npos || colon == std::string::npos || colon < slash) return "";
  return op_of(name.substr(slash + 1, colon - slash - 1));
}

}  // namespace

bool is_tensorflow_constant(const std::string& name) {
  const std::string op = tensorflow_op(name);
  return op == "Const" || op == "x" || op == "y";
}

bool computed_by_tensorflow(const std::string& name) {
  static const std::set<std::string> ops = {
      "Add", "Mul", "Neg", "Sub", "add", "mul", "sub", "truediv", "merged_input", "truediv_recip"};
  return ops.count(tensorflow_op(name)) > 0;
}

bool is_folded_norm(const std::string& name) {
  return name.rfind("onnx::Conv_", 0) == 0 || name.ends_with(".weight_bias") ||
         name.ends_with("_fused_bn") || name.ends_with("/merged_input:0") ||
         (name.find("/batchnorm/") != std::string::npos && computed_by_tensorflow(name));
}

std::string listed(const std::vector<std::string>& names, size_t shown) {
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), shown); ++i)
    out += (i == 0 ? "'" : ", '") + names[i] + "'";
  return names.size() > shown ? str(out, " and ", names.size() - shown, " more") : out;
}

}  // namespace shardrun::importer
