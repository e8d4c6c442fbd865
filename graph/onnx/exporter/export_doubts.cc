#include "graph/onnx/exporter/export_doubts.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "graph/onnx/exporter/exporter_names.h"
#include "graph/onnx/exporter/fx_call.h"
#include "graph/onnx/file/tensor_contents.h"

namespace shardrun::importer {
namespace {

std::string trimmed(const std::string& line) {
  const size_t begin = line.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : line.substr(begin);
}

/// "Round.apply" in "x = Round.apply(x)"; all of a line.
std::set<std::string> applied_in(const std::string& code) {
  constexpr std::string_view kApply = ".apply(";
  std::set<std::string> out;
  for (size_t at = code.find(kApply); at != std::string::npos; at = code.find(kApply, at + 1)) {
    size_t begin = at;
    while (begin > 0 && (std::isalnum(static_cast<unsigned char>(code[begin - 1])) != 0 ||
                         code[begin - 1] == '_' || code[begin - 1] == '.'))
      --begin;
    out.insert(code.substr(begin, at - begin) + ".apply");
  }
  return out;
}

std::string note_of_functions(const std::vector<FlatNode>& nodes) {
  std::set<std::string> functions, calls;
  for (const FlatNode& node : nodes) {
    CustomFunctions of_node = custom_functions(node.proto);
    functions.merge(of_node.applied);
    if (!of_node.call.empty()) calls.insert(of_node.call);
  }
  const std::string rest =
      ": gradients are those of what forward() computes; a straight-through estimator is exported "
      "as x + (f(x) - x).detach()";
  if (!functions.empty()) {
    return str("the export has the forward() of the custom functions ",
               listed({functions.begin(), functions.end()}), ", not their backward()", rest);
  }
  if (calls.empty()) return "";
  return str(listed({calls.begin(), calls.end()}, 4), calls.size() == 1 ? " calls" : " call",
             " a forward() of no module in the export; if it is a custom function's, its "
             "backward() is not there",
             rest);
}

/// x.detach_() changes no value, and so nothing of it is written but the code of what stands in the
/// same line.
std::string note_of_detach_in_place(const std::vector<FlatNode>& nodes) {
  std::set<std::string> lines;
  for (const FlatNode& node : nodes) {
    for (const auto& entry : node.proto.metadata_props()) {
      if (entry.key() != "pkg.torch.onnx.stack_trace") continue;
      std::istringstream trace(entry.value());
      for (std::string line; std::getline(trace, line);) {
        if (line.find(".detach_()") != std::string::npos) lines.insert(trimmed(line));
      }
    }
  }
  if (lines.empty()) return "";
  return str(listed({lines.begin(), lines.end()}, 4), lines.size() == 1 ? " calls" : " call",
             " detach_(), which the export leaves out: gradients flow there; write detach()");
}

/// The modules in "target_encoder.layer.0": all that hold it, itself included.
std::vector<std::string> modules_around(const std::string& module) {
  std::vector<std::string> out;
  for (size_t dot = module.find('.'); dot != std::string::npos; dot = module.find('.', dot + 1))
    out.push_back(module.substr(0, dot));
  if (!module.empty()) out.push_back(module);
  return out;
}

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char ch) { return std::isdigit(ch) != 0; });
}

/// Two modules side by side whose weights have the same names and numbers, as of a teacher that
/// was copied from its student. Layers of a list, which are often made as copies of one, are not
/// meant.
class Copies {
 public:
  explicit Copies(const Weights& weights) : weights_(weights) {
    for (const std::string& name : weights.order) {
      const Weight& w = weights.by_name.at(name);
      if (!w.trainable || !w.tied_to.empty()) continue;
      for (const std::string& module : modules_around(owner_of(name)))
        members_[module].push_back(name);
    }
  }

  /// "'teacher' is a copy of 'student'": of the outermost modules.
  std::vector<std::pair<std::string, std::string>> find() const {
    std::map<std::string, std::vector<std::string>> siblings;
    for (const auto& [module, names] : members_) {
      if (!is_number(last_name(module))) siblings[owner_of(module)].push_back(module);
    }
    std::vector<std::pair<std::string, std::string>> out;
    for (const auto& [parent, modules] : siblings) {
      const bool within = std::any_of(out.begin(), out.end(), [&parent = parent](const auto& pair) {
        return parent == pair.first || parent.starts_with(pair.first + ".") ||
               parent == pair.second || parent.starts_with(pair.second + ".");
      });
      for (size_t i = 1; i < modules.size() && !within && modules.size() <= kMostSiblings; ++i) {
        const auto same = std::find_if(
            modules.begin(), modules.begin() + static_cast<std::ptrdiff_t>(i),
            [&, &one = modules[i]](const std::string& m) { return are_equal(m, one); });
        if (same != modules.begin() + static_cast<std::ptrdiff_t>(i))
          out.emplace_back(*same, modules[i]);
      }
    }
    return out;
  }

 private:
  static constexpr size_t kMostSiblings = 32;

  bool are_equal(const std::string& a, const std::string& b) const {
    const auto &in_a = members_.at(a), &in_b = members_.at(b);
    if (in_a.size() != in_b.size()) return false;
    bool telling = false;  // is there more than fresh scales and biases?
    for (const std::string& name : in_a) {
      const auto other = weights_.by_name.find(b + name.substr(a.size()));
      if (other == weights_.by_name.end()) return false;
      const StoredTensor &x = weights_.by_name.at(name).tensor, &y = other->second.tensor;
      if (x.type != y.type || !equal_contents(x, y)) return false;
      telling = telling || !is_uniform(x);
    }
    return telling;
  }

  const Weights& weights_;
  std::map<std::string, std::vector<std::string>> members_;  // trained weights within a module
};

/// Modules that hold trained weights and are called like what follows another without a gradient.
std::set<std::string> followers(const Weights& weights) {
  static const std::set<std::string> words = {"target", "teacher", "momentum", "ema"};
  std::set<std::string> out;
  for (const std::string& name : weights.order) {
    if (!weights.by_name.at(name).trainable) continue;
    for (const std::string& module : modules_around(owner_of(name))) {
      std::istringstream parts(last_name(module));
      bool follows = false;
      for (std::string part; std::getline(parts, part, '_');)
        follows = follows || words.count(part) > 0;
      if (!follows) continue;
      out.insert(module);
      break;
    }
  }
  return out;
}

std::string note_of_followers(const Weights& weights) {
  std::map<std::string, std::string> copy_of;
  for (const std::string& module : followers(weights)) copy_of[module] = "";
  for (const auto& [a, b] : Copies(weights).find()) {
    const bool first = copy_of.count(a) > 0;
    copy_of[first ? a : b] = first ? b : a;
  }
  if (copy_of.empty()) return "";
  std::string list;
  for (const auto& [module, of] : copy_of) {
    list += str(list.empty() ? "'" : ", '", module, "'");
    if (!of.empty()) list += str(" (a copy of '", of, "')");
  }
  return str("no export keeps requires_grad=False or torch.no_grad(): ", list,
             copy_of.size() == 1 ? " trains" : " train", "; where it stands still or follows ",
             "another as an average, --freeze '^", copy_of.begin()->first, "\\.'");
}

/// Of an exporter that says what a parameter is, and takes what does not learn for one as well.
std::string note_of_positions(const Weights& weights) {
  std::vector<std::string> tables;
  for (const std::string& name : weights.order) {
    const Weight& w = weights.by_name.at(name);
    if (w.trainable && w.tied_to.empty() && is_sinusoid(w.tensor)) tables.push_back(name);
  }
  if (tables.empty()) return "";
  const bool one = tables.size() == 1;
  return str("no export keeps requires_grad=False: ", listed(tables, 12), one ? " holds" : " hold",
             " sines or cosines of positions and ", one ? "trains" : "train",
             "; where PyTorch does not train ", one ? "it" : "them", ", --freeze '^", tables[0],
             "$'");
}

/// What a topk chooses from.
class Scores {
 public:
  Scores(const std::vector<FlatNode>& nodes, const Weights& weights)
      : nodes_(nodes), weights_(weights), makers_(makers_of(nodes)) {}

  /// The zero weight that makes all scores of a token equal; "" if they may differ.
  std::string zero_weight(std::string value) const {
    static const std::set<std::string> keep_ties = {"Cast",    "Clip",    "Exp",      "Identity",
                                                    "Relu",    "Reshape", "Sigmoid",  "Softmax",
                                                    "Squeeze", "Tanh",    "Unsqueeze"};
    static const std::set<std::string> pairs = {"Add", "Div", "Mul", "Sub"};
    for (auto made = makers_.find(value); made != makers_.end(); made = makers_.find(value)) {
      const ::onnx::NodeProto& node = nodes_[made->second].proto;
      const std::string& op = node.op_type();
      if (op == "MatMul" || op == "Gemm") {
        const bool even = node.input_size() < 3 || !stored(node.input(2)).empty();
        const std::string weight = stored(node.input(1));
        return even && !weight.empty() && is_zero(weight) ? weight : "";
      }
      if (keep_ties.count(op) > 0) {
        value = node.input(0);
      } else if (pairs.count(op) > 0 && node.input_size() == 2) {
        const bool first = !stored(node.input(0)).empty();
        if (!first && stored(node.input(1)).empty()) return "";
        value = node.input(first ? 1 : 0);
      } else {
        return "";
      }
    }
    return "";
  }

 private:
  /// The initialiser of equal numbers that a value is, perhaps moved; "" if it is none.
  std::string stored(std::string value) const {
    static const std::set<std::string> moves = {"Cast",    "Expand",    "Identity",
                                                "Reshape", "Transpose", "Unsqueeze"};
    for (auto made = makers_.find(value); made != makers_.end(); made = makers_.find(value)) {
      const ::onnx::NodeProto& node = nodes_[made->second].proto;
      if (moves.count(node.op_type()) == 0) return "";
      value = node.input(0);
    }
    const auto weight = weights_.by_name.find(value);
    return weight != weights_.by_name.end() && is_uniform(weight->second.tensor) ? value : "";
  }

  bool is_zero(const std::string& name) const {
    StoredTensor first = weights_.by_name.at(name).tensor;
    if (first.count() == 0) return false;
    if (first.in_file()) first.type.shape = {1};
    return first.load().at(0) == 0;
  }

  const std::vector<FlatNode>& nodes_;
  const Weights& weights_;
  const std::map<std::string, size_t> makers_;
};

/// Where a TopK chooses among scores that are all equal, being products with a weight that is zero,
/// as a new router's may be: of equal ones ONNX takes the first, PyTorch any.
std::string note_of_tied_scores(const std::vector<FlatNode>& nodes, const Weights& weights) {
  const Scores scores(nodes, weights);
  std::vector<std::string> found, zeros;
  for (const FlatNode& node : nodes) {
    if (node.proto.op_type() != "TopK" || node.proto.input_size() == 0) continue;
    const std::string weight = scores.zero_weight(node.proto.input(0));
    if (weight.empty()) continue;
    found.push_back(node.proto.name());
    zeros.push_back(weight);
  }
  if (found.empty()) return "";
  return str(
      listed(found, 4), found.size() == 1 ? " chooses" : " choose", " among equal scores while ",
      listed(zeros, 4), zeros.size() == 1 ? " is" : " are",
      " zero: here the first are taken, in PyTorch any, so that losses differ from PyTorch's; "
      "give that weight random numbers before the export to compare");
}

/// Of values that a file makes 16 bits wide and that are f32 here.
std::string note_of_rounding(const std::vector<FlatNode>& nodes) {
  std::vector<std::string> casts;
  for (const FlatNode& node : nodes) {
    if (node.proto.op_type() != "Cast") continue;
    const auto& attributes = node.proto.attribute();
    if (std::any_of(attributes.begin(), attributes.end(), [](const auto& attribute) {
          return attribute.name() == "to" && (attribute.i() == ::onnx::TensorProto::FLOAT16 ||
                                              attribute.i() == ::onnx::TensorProto::BFLOAT16);
        }))
      casts.push_back(node.proto.name());
  }
  if (casts.empty()) return "";
  return str(listed(casts, 2), casts.size() == 1 ? " casts" : " cast",
             " to 16-bit floats, which are f32 here: losses are those without the rounding");
}

/// as_strided() reads memory. PyTorch's exporters write it as a Gather of the flattened value,
/// which is the same only of contiguous memory: a view, or what is computed from one element by
/// element, has the strides of what it is a view of.
class Strided {
 public:
  explicit Strided(const std::vector<FlatNode>& nodes) : nodes_(nodes), makers_(makers_of(nodes)) {}

  /// The node that makes a view which a Gather reads so; null if it reads no flattened value, or
  /// one that is contiguous.
  const FlatNode* view_below(const ::onnx::NodeProto& gather) const {
    const FlatNode* flattens = gather.input_size() > 1 ? maker(gather.input(0)) : nullptr;
    if (flattens == nullptr || flattens->proto.op_type() != "Reshape") return nullptr;
    std::vector<std::string> values = {flattens->proto.input(0)};
    std::set<std::string> seen;
    while (!values.empty()) {
      const std::string value = values.back();
      values.pop_back();
      const FlatNode* node = maker(value);
      if (node == nullptr || !seen.insert(value).second || copies(node->proto)) continue;
      const std::string& op = node->proto.op_type();
      if (is_view(node->proto)) return node;
      if (keeps_strides(op)) values.push_back(node->proto.input(0));
      if (is_pair(op))
        values.insert(values.end(), node->proto.input().begin(), node->proto.input().end());
    }
    return nullptr;
  }

  /// Has a Gather's places as the older exporter writes them for as_strided(): a constant of
  /// several dims, or a sum of a dim's places each.
  bool has_places(const ::onnx::NodeProto& gather) const {
    const FlatNode* places = gather.input_size() > 1 ? maker(gather.input(1)) : nullptr;
    if (places == nullptr) return false;
    const ::onnx::NodeProto& node = places->proto;
    return node.op_type() == "Add" || (node.op_type() == "Constant" && node.attribute_size() == 1 &&
                                       node.attribute(0).t().dims_size() > 1);
  }

 private:
  const FlatNode* maker(const std::string& value) const {
    const auto made = makers_.find(value);
    return made == makers_.end() ? nullptr : &nodes_[made->second];
  }

  /// A view whose memory is not contiguous. flip() is a Slice, too, but a copy.
  static bool is_view(const ::onnx::NodeProto& node) {
    static const std::set<std::string> ops = {"Transpose", "Slice", "Expand", "Split"};
    static const std::set<std::string> calls = {
        "aten.transpose", "aten.permute", "aten.t",        "aten.slice",  "aten.select",
        "aten.expand",    "aten.split",   "aten.diagonal", "aten.unfold", "aten.split_with_sizes"};
    const std::optional<FxCall> call = fx_call_of(node);
    return ops.count(node.op_type()) > 0 && (!call || calls.count(call->target) > 0);
  }

  /// contiguous(), as far as the file says so.
  static bool copies(const ::onnx::NodeProto& node) {
    const std::optional<FxCall> call =
        node.op_type() == "Identity" ? fx_call_of(node) : std::nullopt;
    const FxArgument* format = call ? call->find(1, "memory_format") : nullptr;
    return format != nullptr && format->text.ends_with("contiguous_format");
  }

  static bool keeps_strides(const std::string& op) {
    static const std::set<std::string> ops = {"Identity", "Reshape", "Squeeze", "Unsqueeze", "Cast",
                                              "Neg",      "Relu",    "Tanh",    "Sigmoid",   "Exp"};
    return ops.count(op) > 0;
  }
  static bool is_pair(const std::string& op) {
    return op == "Add" || op == "Sub" || op == "Mul" || op == "Div";
  }

  const std::vector<FlatNode>& nodes_;
  const std::map<std::string, size_t> makers_;
};

/// Of the older exporter, of which contiguous() leaves no trace. The newer one's file has the call,
/// and is refused.
std::string note_of_strides(const std::vector<FlatNode>& nodes) {
  const Strided strided(nodes);
  std::vector<std::string> found;
  for (const FlatNode& node : nodes) {
    if (node.proto.op_type() != "Gather") continue;
    const std::optional<FxCall> call = fx_call_of(node.proto);
    if (call ? call->target != "aten.as_strided" : !strided.has_places(node.proto)) continue;
    const FlatNode* view = strided.view_below(node.proto);
    if (view == nullptr) continue;
    SR_REQUIRE(!call, unsupported, node.label, ": as_strided() reads the memory below ",
               view->label,
               ", a view, and the exporter writes it as if that were contiguous; call ",
               "contiguous() before it or use unfold(), and export with optimize=False");
    found.push_back(node.proto.name());
  }
  if (found.empty()) return "";
  return str(listed(found, 4), found.size() == 1 ? " takes" : " take",
             " elements of a view by their places, as as_strided() and take() do; of the former "
             "this exporter writes others than PyTorch reads, unless contiguous() was called "
             "before it");
}

/// Signs of detach(), of which the older exporter leaves no trace.
std::vector<std::string> signs_of_detach(const std::vector<FlatNode>& nodes) {
  std::map<std::string, std::pair<std::string, std::string>> differences;  // a - b by its name
  std::map<std::pair<std::string, std::string>, std::string> of_pair;      // its node
  std::vector<std::string> out;
  for (const FlatNode& node : nodes) {
    const ::onnx::NodeProto& proto = node.proto;
    if (proto.input_size() != 2 || proto.output_size() != 1) continue;
    const std::string &a = proto.input(0), &b = proto.input(1);
    if (proto.op_type() == "Sub") {
      differences[proto.output(0)] = {a, b};
      of_pair.emplace(std::pair(a, b), proto.name());
      if (a != b && of_pair.count({b, a}) > 0)
        out.push_back(str("'", of_pair[{b, a}], "' and '", proto.name(), "', a - b and b - a"));
    }
    if (proto.op_type() != "Add") continue;
    for (const auto& [sum, other] : {std::pair(a, b), std::pair(b, a)}) {
      const auto found = differences.find(other);
      if (found != differences.end() && found->second.second == sum)
        out.push_back(str("'", proto.name(), "', a + (b - a)"));
    }
  }
  return out;
}

/// The node that assigns values where a mask is true, if any: of an index_put_ that adds them the
/// older exporter writes the same nodes.
std::string assignment_at_mask(const std::vector<FlatNode>& nodes) {
  std::set<std::string> found;  // the values of NonZero, as they are and transposed
  for (const FlatNode& node : nodes) {
    const ::onnx::NodeProto& proto = node.proto;
    if (proto.input_size() == 0 || proto.output_size() == 0) continue;
    const bool moves = proto.op_type() == "Transpose" && found.count(proto.input(0)) > 0;
    if (proto.op_type() == "NonZero" || moves) found.insert(proto.output(0));
    const bool assigns = proto.op_type() == "ScatterND" && proto.attribute().empty();
    if (assigns && proto.input_size() == 3 && found.count(proto.input(1)) > 0) return proto.name();
  }
  return "";
}

std::string note_of_older(const std::vector<FlatNode>& nodes,
                          const std::vector<std::string>& unsure) {
  const std::vector<std::string> signs = signs_of_detach(nodes);
  std::string out =
      "this exporter tells neither parameters from buffers nor where detach() was: all that the "
      "loss depends on trains";
  if (!unsure.empty()) {
    out += str("; ", listed(unsure, 12), unsure.size() == 1 ? " trains" : " train",
               "; name what is a buffer with --freeze");
  }
  if (!signs.empty()) {
    out += str("; a gradient flows through ", signs[0],
               signs.size() > 1 ? str(" (and ", signs.size() - 1, " more)") : "",
               ", as straight-through estimators and losses of two sides have it with detach()");
  }
  if (const std::string node = assignment_at_mask(nodes); !node.empty()) {
    out += str("; '", node, "' assigns where a mask is true, also where PyTorch adds ",
               "(index_put_ with accumulate=True)");
  }
  const auto extreme = std::find_if(nodes.begin(), nodes.end(), [](const FlatNode& node) {
    return node.proto.op_type() == "ReduceMax" || node.proto.op_type() == "ReduceMin";
  });
  if (extreme != nodes.end()) {
    out += str("; equal elements share the gradient of '", extreme->proto.name(),
               "', as in amax(), where max() along a dim takes the first");
  }
  return out + "; torch.onnx.export(…, dynamo=True, optimize=False) keeps both";
}

}  // namespace

bool named_like_a_layers(const std::string& name) {
  static const std::set<std::string> names = {
      "weight",        "bias",          "in_proj_weight", "in_proj_bias", "q_proj_weight",
      "k_proj_weight", "v_proj_weight", "bias_k",         "bias_v",       "weight_ih",
      "weight_hh",     "bias_ih",       "bias_hh",        "weight_g",     "weight_v",
      "weight_orig",   "original",      "original0",      "original1"};
  std::string last = last_name(name);
  if (const size_t layer = last.find("_l");
      layer != std::string::npos && layer + 2 < last.size() &&
      std::isdigit(static_cast<unsigned char>(last[layer + 2])))
    last.resize(layer);  // weight_ih_l0_reverse
  return names.count(last) > 0;
}

CustomFunctions custom_functions(const ::onnx::NodeProto& node) {
  CustomFunctions out;
  std::string trace;
  size_t modules = 0, calls = 0;  // of forward(), but for those that name a function
  for (const auto& entry : node.metadata_props()) {
    if (entry.key() == "pkg.torch.onnx.stack_trace") trace = entry.value();
    if (entry.key() == "pkg.torch.onnx.name_scopes") {
      const size_t scopes = quoted_names(entry.value()).size();  // the last is the op
      modules = std::max<size_t>(scopes, 1) - 1;
    }
  }
  std::istringstream lines(trace);
  std::string call;  // the line of the frame before
  for (std::string line; std::getline(lines, line);) {
    line = trimmed(line);
    if (!line.starts_with("File \"")) {
      call = line;
      continue;
    }
    if (!line.ends_with(", in forward")) continue;
    const std::set<std::string> applied = applied_in(call);
    out.applied.insert(applied.begin(), applied.end());
    const bool is_super = call.find(".forward(") != std::string::npos;  // super().forward(x)
    if (!applied.empty() || is_super) continue;
    ++calls;
    const bool is_librarys = line.find("-packages/") != std::string::npos;
    out.call = is_librarys ? "" : call;  // nn.CrossEntropyLoss()(x, y), say
  }
  if (!out.applied.empty() || modules == 0 || calls <= modules) out.call.clear();
  return out;
}

std::vector<std::string> export_doubts(const ModelFile& model, const std::vector<FlatNode>& nodes,
                                       const Weights& weights,
                                       const std::vector<std::string>& unsure) {
  std::vector<std::string> out;
  if (model.proto.producer_name() != "pytorch") return out;
  const bool older =
      weights.kinds_are_guessed &&
      std::any_of(weights.order.begin(), weights.order.end(),
                  [&](const std::string& name) { return weights.by_name.at(name).trainable; }) &&
      std::none_of(model.proto.graph().node().begin(), model.proto.graph().node().end(),
                   [](const ::onnx::NodeProto& node) { return fx_call_of(node).has_value(); });
  for (std::string note :
       {note_of_functions(nodes), note_of_detach_in_place(nodes), note_of_followers(weights),
        weights.kinds_are_guessed ? std::string() : note_of_positions(weights),
        note_of_tied_scores(nodes, weights), note_of_rounding(nodes), note_of_strides(nodes),
        older ? note_of_older(nodes, unsure) : std::string()}) {
    if (!note.empty()) out.push_back(std::move(note));
  }
  return out;
}

}  // namespace shardrun::importer
