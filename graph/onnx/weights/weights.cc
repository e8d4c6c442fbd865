// Weights: metadata, reach of the gradient, ties and merges. FACTS of the exporters behind each
// rule:
//   PyTorch's dynamo exporter marks value_info with InputSpec.kind = PARAMETER | BUFFER |
//   CONSTANT_TENSOR, and the graph with the signature of the whole module, those tensors included
//   of which nothing is left; its optimiser folds Transpose(weight) into a copy (folded_from) and
//   merges equal small initialisers; the legacy exporter in evaluation mode writes transposed
//   copies named onnx::MatMul_278 and merges equal initialisers through Identity nodes whose
//   outputs keep the lost names. tf2onnx, behind TensorFlow's own optimiser, leaves out what adds
//   zero or multiplies by one, merges equal constants, and computes what has no variable input.
#include "graph/onnx/weights/weights.h"

#include <algorithm>
#include <optional>

#include "graph/onnx/exporter/export_doubts.h"
#include "graph/onnx/exporter/export_signature.h"
#include "graph/onnx/exporter/exporter_names.h"
#include "graph/onnx/exporter/gradient_reach.h"
#include "graph/onnx/exporter/moving_averages.h"
#include "graph/onnx/exporter/tied_names.h"
#include "graph/onnx/file/tensor_contents.h"
#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

constexpr const char* kKind = "pkg.torch.export.graph_signature.InputSpec.kind";
constexpr double kComparison = 2000;  // operations: of two tensors, of which files are mapped

struct Match {
  std::string pattern, name;
};

/// The first of the names in which a pattern is found.
std::optional<Match> matching(const std::vector<std::string>& names, Regexes& patterns) {
  for (const std::string& name : names) {
    if (const std::string* pattern = patterns.first_in(name)) return Match{*pattern, name};
  }
  return std::nullopt;
}

std::string shown(const std::string& name, const StoredTensor& tensor) {
  return str("initialiser '", name, "' (", tensor.type, ")");
}

class Decider {
 public:
  Decider(const ModelFile& model, const RestoredWeights& restored,
          const std::map<std::string, std::string>& tied, std::vector<FlatNode>& nodes,
          const std::string& loss, const ImportOptions& options, NamePatterns& patterns,
          ImportReport& report)
      : model_(model),
        restored_(restored),
        tied_(tied),
        nodes_(nodes),
        loss_(loss),
        options_(options),
        patterns_(patterns),
        report_(report),
        from_tf2onnx_(model.proto.producer_name() == "tf2onnx") {}

  Weights run() {
    read_metadata();
    out_.kinds_are_guessed = kinds_.empty();
    for (const auto* list : {&model_.initialisers, &restored_.tensors}) {
      for (const StoredTensor& tensor : *list) add(tensor.name, tensor);
    }
    split_identities();
    find_uses();
    refuse_or_split_merged();
    find_uses();
    for (const auto& [other, name] : tied_) {
      if (is_initialiser(name)) out_.by_name[name].other_names.push_back(other);
    }
    if (options_.training) find_changed();
    std::set<std::string> reached = reached_names(nodes_, loss_, out_.changed.gradient_ends());
    unfold_vectors(reached);
    for (const auto& input : model_.proto.graph().input()) made_.insert(input.name());
    for (const FlatNode& node : nodes_) {
      for (const std::string& name : node.proto.output()) made_.insert(name);
    }
    find_statistics();
    for (const std::string& name : out_.order) {
      if (out_.by_name[name].tied_to.empty()) decide(name, reached);
    }
    find_ties();
    for (const std::string& name : out_.order) choose(name);
    list_constants(reached);
    note_single();
    note_changed();
    drop_unused();
    note_unsure();
    list_unreached(reached);
    note_folding();
    note_left_out();
    return std::move(out_);
  }

 private:
  void add(const std::string& name, const StoredTensor& tensor) {
    Weight weight;
    weight.tensor = tensor;
    weight.tensor.name = name;
    out_.by_name[name] = std::move(weight);
    out_.order.push_back(name);
  }

  void read_metadata() {
    auto take = [&](const std::string& name, const std::string& key, const std::string& value) {
      if (key == kKind) kinds_[name] = value;
      if (key == kFoldedFrom) folded_[name] = value;
      if (key.rfind("pkg.onnxscript.", 0) == 0) optimised_ = true;
    };
    for (const auto& info : model_.proto.graph().value_info()) {
      for (const auto& entry : info.metadata_props()) take(info.name(), entry.key(), entry.value());
    }
    for (const auto* list : {&model_.initialisers, &restored_.tensors}) {
      for (const StoredTensor& tensor : *list) {
        for (const auto& [key, value] : tensor.metadata) take(tensor.name, key, value);
      }
    }
    const auto all = signature_of(model_.proto.graph()).kinds;
    kinds_.insert(all.begin(), all.end());
    is_signed_ = !all.empty();
    forget_lifted();
  }

  /// Where none of the module's parameters is in the file, the exporter lifted as constants what
  /// the call read instead: Keras's PyTorch backend hands its variables over beside the module.
  void forget_lifted() {
    const auto& stored = model_.initialisers;
    auto is_lifted = [&](const StoredTensor& tensor) {
      const auto kind = kinds_.find(tensor.name);
      return kind != kinds_.end() && kind->second == "CONSTANT_TENSOR" &&
             is_float(tensor.type.dtype);
    };
    auto is_of_parameter = [&](const StoredTensor& tensor) {
      const auto kind = kinds_.find(tensor.name);
      return folded_.count(tensor.name) > 0 ||
             (kind != kinds_.end() && kind->second == "PARAMETER");
    };
    if (!options_.training || std::none_of(stored.begin(), stored.end(), is_lifted) ||
        std::any_of(stored.begin(), stored.end(), is_of_parameter))
      return;
    std::erase_if(kinds_, [](const auto& of) { return of.second != "BUFFER"; });
    is_signed_ = false;
    report_.notes.push_back(
        "the export's metadata call every weight a constant: constants are taken for weights, as "
        "from an exporter without metadata");
  }

  using Use = std::pair<size_t, int>;  // node, which of its inputs

  void find_uses() {
    uses_.clear();
    maker_.clear();
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const auto& node = nodes_[n].proto;
      for (int i = 0; i < node.input_size(); ++i) uses_[node.input(i)].emplace_back(n, i);
      for (const std::string& name : node.output()) maker_[name] = n;
    }
  }

  /// Where the numbers of an initialiser arrive, moved or converted on the way. One that is
  /// repeated (Expand) is another tensor: PyTorch's newer exporter writes zeros so where a
  /// convolution has no bias.
  std::vector<Use> final_uses(const std::string& name) const {
    static const std::set<std::string> movers = {"Cast", "Identity", "Reshape", "Squeeze",
                                                 "Unsqueeze"};
    std::vector<Use> out;
    std::vector<std::string> names = {name};
    std::set<std::string> seen = {name};
    while (!names.empty()) {
      const auto found = uses_.find(names.back());
      names.pop_back();
      if (found == uses_.end()) continue;
      for (const Use& use : found->second) {
        const auto& node = nodes_[use.first].proto;
        if (use.second > 0 || movers.count(node.op_type()) == 0) {
          out.push_back(use);
        } else if (seen.insert(node.output(0)).second) {
          names.push_back(node.output(0));
        }
      }
    }
    return out;
  }

  bool is_initialiser(const std::string& name) const { return out_.by_name.count(name) > 0; }

  /// What a layer computes from a weight: x W, a convolution.
  bool is_product_with_weight(const std::string& name) const {
    const auto made = maker_.find(name);
    if (made == maker_.end()) return false;
    const auto& node = nodes_[made->second].proto;
    if (node.op_type() == "Gemm" || node.op_type() == "Conv" || node.op_type() == "ConvTranspose")
      return true;
    if (node.op_type() != "MatMul") return false;
    return std::any_of(node.input().begin(), node.input().end(), [&](const std::string& operand) {
      const auto transpose = maker_.find(operand);
      return is_initialiser(operand) || (transpose != maker_.end() &&
                                         nodes_[transpose->second].proto.op_type() == "Transpose" &&
                                         is_initialiser(nodes_[transpose->second].proto.input(0)));
    });
  }

  /// Does a layer keep its weight, bias or scale there? A scalar that is added is no bias, which
  /// has a dim for its channels.
  bool is_learned_operand(const Use& use, const StoredTensor& tensor) const {
    static const std::map<std::string, std::set<int>> learned = {{"BatchNormalization", {1, 2}},
                                                                 {"Conv", {1, 2}},
                                                                 {"ConvTranspose", {1, 2}},
                                                                 {"Gemm", {1, 2}},
                                                                 {"GroupNormalization", {1, 2}},
                                                                 {"InstanceNormalization", {1, 2}},
                                                                 {"LayerNormalization", {1, 2}},
                                                                 {"MatMul", {0, 1}},
                                                                 {"PRelu", {1}},
                                                                 {"RMSNormalization", {1}}};
    const auto& node = nodes_[use.first].proto;
    if (node.op_type() == "Add") {
      return node.input_size() == 2 && !tensor.type.shape.empty() &&
             is_product_with_weight(node.input(1 - use.second));
    }
    const auto found = learned.find(node.op_type());
    return found != learned.end() && found->second.count(use.second) > 0;
  }
  bool is_learned_operand(const std::vector<Use>& uses, const StoredTensor& tensor) const {
    return std::any_of(uses.begin(), uses.end(),
                       [&](const Use& use) { return is_learned_operand(use, tensor); });
  }

  /// What a use says of a number that nobody trains; empty if it says nothing.
  const char* fixed_as(const Use& use) const {
    static const std::set<std::string> guarded = {"Log", "Pow", "Reciprocal", "Sqrt"};
    const auto& node = nodes_[use.first].proto;
    const std::string& op = node.op_type();
    if (op == "Where" && use.second > 0) return "what a mask fills in";
    if (op == "Pow" && use.second == 1) return "an exponent";
    if (op != "Add" && op != "Max") return "";
    const auto readers = uses_.find(node.output(0));
    const bool guards =
        readers != uses_.end() &&
        std::any_of(readers->second.begin(), readers->second.end(), [&](const Use& reader) {
          return guarded.count(nodes_[reader.first].proto.op_type()) > 0;
        });
    return guards ? "an epsilon" : "";
  }

  bool is_weight_like(const StoredTensor& tensor) const {
    return is_float(tensor.type.dtype) && tensor.count() > 0;
  }

  /// Identity(l1.bias) -> l2.bias of equal numbers was two biases before the export. Where the file
  /// lists all names of tensors, it is a clone().
  void split_identities() {
    if (options_.shared == ImportOptions::Shared::keep || !options_.training || is_signed_) return;
    std::erase_if(nodes_, [&](const FlatNode& node) {
      if (node.proto.op_type() != "Identity" || node.proto.input_size() != 1) return false;
      auto it = out_.by_name.find(node.proto.input(0));
      const std::string name = node.proto.output(0);
      if (it == out_.by_name.end() || is_generated(name) || name.find('/') != std::string::npos)
        return false;
      for (const auto& output : model_.proto.graph().output()) {
        if (output.name() == name) return false;
      }
      const StoredTensor tensor = it->second.tensor;
      if (!is_weight_like(tensor) || tensor.type.shape.size() != 1 || !is_uniform(tensor))
        return false;
      add(name, tensor);
      out_.copied[name] = node.place;
      report_.notes.push_back(str("'", name, "' had been merged with '", tensor.name,
                                  "' by the exporter (equal numbers): they are two weights again"));
      return true;
    });
  }

  /// What a batch normalisation reads there: fresh scales and variances are all ones, fresh biases
  /// and means all zeros, so that weights and running statistics can have been merged.
  std::string kind_in_batch_norm(const Use& use) const {
    if (nodes_[use.first].proto.op_type() != "BatchNormalization" || use.second == 0) return "";
    return use.second < 3 ? "PARAMETER" : "BUFFER";
  }
  std::string kind_after(const Use& use, const std::string& otherwise) const {
    const std::string kind = kind_in_batch_norm(use);
    return kind.empty() ? otherwise : kind;
  }

  /// One vector of equal numbers that feeds several nodes of an optimised export; from TensorFlow
  /// of any rank, and an LSTM's biases have ones and zeros. Running statistics belong to one layer
  /// each, so that of them nothing has to be asked.
  void refuse_or_split_merged() {
    if (options_.shared == ImportOptions::Shared::keep || !options_.training) return;
    if (!optimised_ && !from_tf2onnx_) return;
    const std::vector<std::string> names = out_.order;
    for (const std::string& name : names) {
      const StoredTensor tensor = out_.by_name[name].tensor;
      const auto& users = uses_[name];
      if (users.size() < 2 || restored_.shared.count(name) > 0 || !is_weight_like(tensor) ||
          (from_tf2onnx_ ? !has_two_values(tensor)
                         : tensor.type.shape.size() != 1 || !is_uniform(tensor)) ||
          (tensor.count() == 1 && !is_learned_operand(users, tensor)) ||
          (from_tf2onnx_ && is_tensorflow_constant(name)))
        continue;
      const bool normalises = std::any_of(users.begin(), users.end(), [&](const auto& use) {
        return !kind_in_batch_norm(use).empty();
      });
      if (kinds_.count(name) > 0 && kinds_[name] != "PARAMETER" && !normalises) continue;
      if (is_signed_ && kinds_.count(name) == 0 && own_sources(name).empty()) continue;  // computed
      const bool statistics = std::all_of(users.begin(), users.end(), [&](const auto& use) {
        return kind_in_batch_norm(use) == "BUFFER";
      });
      SR_REQUIRE(statistics || options_.shared == ImportOptions::Shared::split, invalid_input,
                 shown(name, tensor), " feeds ", users.size(), " nodes (",
                 nodes_[users[0].first].label, ", ", nodes_[users[1].first].label,
                 " …) of a graph that ", from_tf2onnx_ ? "tf2onnx" : "PyTorch's exporter",
                 " optimised: it merges weights that are equal before training, and they would "
                 "train as one; ",
                 from_tf2onnx_ ? "give them other values before the export (docs/onnx.md)"
                               : "export with torch.onnx.export(…, dynamo=True, optimize=False)",
                 ", or choose --shared split (a weight for each use) or --shared keep");
      for (size_t i = 1; i < users.size(); ++i) {
        const std::string copy = str(name, ".", i);
        add(copy, tensor);
        if (kinds_.count(name) > 0) kinds_[copy] = kind_after(users[i], kinds_[name]);
        FlatNode& user = nodes_[users[i].first];
        if (user.place >= 0) out_.inputs.push_back({user.place, users[i].second, copy});
        user.proto.set_input(users[i].second, copy);
      }
      if (kinds_.count(name) > 0) kinds_[name] = kind_after(users[0], kinds_[name]);
      if (statistics) continue;
      report_.notes.push_back(
          str(shown(name, tensor), " is split into ", users.size(), " weights, one for each use"));
    }
  }

  /// The initialisers that batch normalisations by the batch's statistics keep as running averages.
  /// For an instance normalisation PyTorch's older exporter repeats them for each sample.
  void find_statistics() {
    static const std::set<std::string> spreads = {"Cast", "Expand", "Identity", "Reshape", "Tile"};
    for (const FlatNode& node : nodes_) {
      if (node.proto.op_type() != "BatchNormalization" || !options_.training ||
          batch_norm_form(node.proto, node.opset, options_) == BatchNormForm::inference)
        continue;
      for (int i = 3; i < node.proto.input_size(); ++i) {
        std::string name = node.proto.input(i);
        for (auto made = maker_.find(name);
             made != maker_.end() && spreads.count(nodes_[made->second].proto.op_type()) > 0;
             made = maker_.find(name))
          name = nodes_[made->second].proto.input(0);
        statistics_.insert(name);
      }
    }
  }

  /// A batch normalisation of buffers, written out: it keeps a running variance, but no
  /// BatchNormalization reads it.
  bool is_of_frozen_norm(const std::string& name) const {
    const std::string variance = name.substr(0, name.rfind('.') + 1) + "running_var";
    const auto uses = uses_.find(variance);
    return uses != uses_.end() &&
           std::none_of(uses->second.begin(), uses->second.end(), [&](const Use& use) {
             return nodes_[use.first].proto.op_type() == "BatchNormalization";
           });
  }

  void decide(const std::string& name, const std::set<std::string>& reached) {
    Weight& w = out_.by_name[name];
    const std::string kind = kinds_.count(name) > 0 ? kinds_[name] : "";
    const bool is_reached = reached.count(name) > 0;
    const auto changed = out_.changed.by_name.find(name);
    if (changed != out_.changed.by_name.end()) {
      w.is_parameter = w.trainable = changed->second.learns;
      w.is_state = !w.is_parameter;
      w.why = w.is_parameter ? "PARAMETER in the export's metadata, which forward() changes, too"
                             : "forward() changes it";
      return;
    }
    if (!is_float(w.tensor.type.dtype)) {
      w.why = "integers or booleans";
      return;
    }
    if (statistics_.count(name) > 0) {
      SR_REQUIRE(
          !is_reached, invalid_input, shown(name, w.tensor),
          " is a running statistic of one batch normalisation and a weight elsewhere; export "
          "with optimize=False, or choose --shared split");
      w.is_state = true;
      w.why = "a running statistic";
      return;
    }
    const std::vector<Use> uses = final_uses(name);
    if (std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
          return is_setting(nodes_[use.first].proto, use.second);
        })) {
      w.why = "what an operator is to do";
    } else if (!kind.empty() && kind != "PARAMETER") {
      w.why = kind + " in the export's metadata";
    } else if (kind == "PARAMETER") {
      w.is_parameter = true;
      w.trainable = is_reached;
      w.why = is_reached ? "PARAMETER in the export's metadata"
                         : "PARAMETER, but no gradient of the loss reaches it";
    } else if (!is_reached) {
      w.why = "no gradient of the loss reaches it";
    } else if (kinds_.empty() && is_running_statistic(name)) {
      w.why = "a running statistic, by its name";
    } else if (kinds_.empty() && has_infinity(w.tensor)) {
      w.why = "it holds infinities, as masks do";
    } else if (from_tf2onnx_ && is_tensorflow_constant(name)) {
      w.why = "a constant of TensorFlow's graph";
    } else if (w.tensor.count() <= 1 && !is_single_weight(name, uses, w)) {
      if (kinds_.empty() && !is_made_up(name)) single_.push_back(name);
    } else {
      w.is_parameter = w.trainable = true;
      w.why = "a float initialiser that the gradient reaches";
    }
    if (kind.empty()) w.lost_names = lost_names(name);
    if (w.is_parameter && kind.empty()) doubt(w, name, is_named(w, name));
  }

  /// Does a --train or --freeze name it?
  bool is_named(const Weight& w, const std::string& name) const {
    return patterns_.train.first_in(name) != nullptr ||
           patterns_.freeze.first_in(name) != nullptr || is_lost_to(w);
  }
  /// Does --freeze match all that was folded into it?
  bool is_lost_to(const Weight& w) const {
    return !w.lost_names.empty() &&
           std::all_of(w.lost_names.begin(), w.lost_names.end(), [&](const std::string& lost) {
             return patterns_.freeze.first_in(lost) != nullptr;
           });
  }

  /// Its own name first.
  std::vector<std::string> names_of(const std::string& name) const {
    const Weight& w = out_.by_name.at(name);
    std::vector<std::string> out = {name};
    out.insert(out.end(), w.other_names.begin(), w.other_names.end());
    return out;
  }

  /// Applies --train, --train-only and --freeze.
  void choose(const std::string& name) {
    Weight& w = out_.by_name[name];
    if (!w.tied_to.empty() || !is_float(w.tensor.type.dtype) || statistics_.count(name) > 0) return;
    const std::string decisive = patterns_.apply(names_of(name), w);
    if (!decisive.empty() && decisive != name) {
      report_.notes.push_back(
          str("'", name, "' ", w.trainable ? "trains" : "does not train", ": it ", w.why));
    }
    if (w.is_parameter && w.trainable && is_lost_to(w)) {
      w.trainable = false;
      w.why = str("was '", w.lost_names[0], "', which --freeze matches");
    }
    const auto changed = out_.changed.by_name.find(name);
    if (changed == out_.changed.by_name.end() || !w.is_parameter) return;
    w.is_state = false;
    changed->second.learns = true;
  }

  /// What the table of parameters has behind them: what looks like some, and what changes by
  /// itself.
  void list_constants(const std::set<std::string>& reached) {
    if (!options_.training) return;
    for (const std::string& name : out_.order) {
      const Weight& w = out_.by_name[name];
      if (w.is_parameter || (reached.count(name) == 0 && out_.changed.by_name.count(name) == 0))
        continue;
      if (w.is_state || is_float(w.tensor.type.dtype))
        report_.constants.push_back({name, w.tensor.type, false, w.why, w.other_names});
    }
  }

  void find_changed() {
    out_.changed = find_changed_tensors(model_, nodes_, tied_, loss_);
    if (!kinds_.empty() || model_.proto.producer_name() != "pytorch") return;
    for (auto& [tensor, values] : find_moving_averages(model_, nodes_)) {
      if (patterns_.train.first_in(tensor) != nullptr) continue;
      const std::string next = values.back();
      values.pop_back();
      out_.changed.by_name[tensor] = {next, std::move(values), true, false};
    }
  }

  void note_changed() {
    if (kinds_.empty() && !out_.changed.by_name.empty()) {
      std::vector<std::string> names;
      for (const auto& [name, change] : out_.changed.by_name) names.push_back(name);
      report_.notes.push_back(
          str(listed(names), names.size() > 1 ? " are" : " is",
              " read for nothing but a moving average or a count, and so taken for state that each "
              "batch moves; this exporter does not tell: --train REGEX trains what it matches"));
      return;
    }
    std::vector<std::string> states, moved, copies;
    for (const auto& [name, change] : out_.changed.by_name) {
      const bool is_parameter = kinds_.count(name) > 0 && kinds_[name] == "PARAMETER";
      if (change.learns) continue;
      (!change.is_read_back ? copies : is_parameter ? moved : states).push_back(name);
    }
    auto note = [&](const std::vector<std::string>& names, const char* what) {
      if (!names.empty()) report_.notes.push_back(str("forward() changes ", listed(names), what));
    };
    note(states, ": state that each batch moves, and validation only reads");
    note(moved,
         ": parameters that each batch moves so, and validation only reads; they are not trained "
         "(--train REGEX trains them, too)");
    note(copies, ": state that keeps a copy of what each batch computes");
    report_.notes.insert(report_.notes.end(), out_.changed.notes.begin(), out_.changed.notes.end());
  }

  /// A name that the exporter made up, or took from one of its steps: '/attn/Constant_output_0',
  /// 'const_5', 'const_fold_opt__12'.
  static bool is_made_up(const std::string& name) {
    static const std::set<std::string> numbered = {"Const", "Constant", "const", "const_fold_opt_",
                                                   "constant"};
    return is_generated(name) || name.find('/') != std::string::npos ||
           numbered.count(op_of(name)) > 0;
  }

  /// Is one number a weight? By its use: a layer's operand is, a fill value, an exponent or an
  /// epsilon is not. Else by its name: PyTorch's legacy exporter writes constants as nodes, so that
  /// its named initialisers are a module's own (a learned temperature); elsewhere those are taken
  /// that are named as a module's. What the other exporter of PyTorch folded is looked at by doubt.
  bool is_single_weight(const std::string& name, const std::vector<Use>& uses, Weight& w) const {
    w.why = "a single number";
    if (!options_.training || w.tensor.count() == 0) return false;
    if (folded_.count(name) > 0 || is_learned_operand(uses, w.tensor)) return true;
    const std::string fixed = uses.empty() ? "" : fixed_as(uses[0]);
    if (!fixed.empty() && std::none_of(uses.begin(), uses.end(), [&](const Use& use) {
          return std::string(fixed_as(use)).empty();
        })) {
      w.why = "a single number, " + fixed;
      return false;
    }
    w.why = "a single number, which neither its use nor its name shows to be a weight";
    if (reads_variable(name)) return true;
    if (!kinds_.empty() || optimised_ || is_made_up(name)) return false;
    return model_.proto.producer_name() == "pytorch" || named_as_weight(name) ||
           named_as_member(name);
  }

  /// What the initialisers that the exporter folded into this one were called.
  std::vector<std::string> own_sources(const std::string& name) const {
    std::vector<std::string> own;
    const auto folded = folded_.find(name);
    if (folded == folded_.end()) return own;
    for (const std::string& source : quoted_names(folded->second)) {
      if (is_signed_ ? kinds_.count(source) > 0 : !is_traced(source) && made_.count(source) == 0)
        own.push_back(source);
    }
    return own;
  }

  /// What a weight was called whose name the exporter lost: its sources, or, from the older
  /// exporter, the weight of the module whose step '/enc/enc.0/MatMul' reads it.
  std::vector<std::string> lost_names(const std::string& name) const {
    std::vector<std::string> out = own_sources(name);
    const auto users = uses_.find(name);
    if (!out.empty() || name.rfind("onnx::", 0) != 0 || users == uses_.end()) return out;
    for (const Use& use : users->second) {
      const std::string module = module_of(nodes_[use.first].proto.name());
      if (module.empty()) return {};
      out.push_back(module + ".weight");
    }
    return out;
  }

  /// A number for each channel, which exporters give dims of 1 and no more: the slopes of a PRelu,
  /// the scale and shift of a group's normalisation.
  bool is_of_channels(const std::string& name) const {
    static const std::set<std::string> calls = {"aten.prelu", "aten._prelu_kernel",
                                                "aten.group_norm", "aten.native_group_norm"};
    const auto users = uses_.find(name);
    const Shape& shape = out_.by_name.at(name).tensor.type.shape;
    return users != uses_.end() &&
           std::count_if(shape.begin(), shape.end(), [](int64_t dim) { return dim != 1; }) <= 1 &&
           std::all_of(users->second.begin(), users->second.end(), [&](const Use& use) {
             const ::onnx::NodeProto& node = nodes_[use.first].proto;
             const std::optional<FxCall> call = fx_call_of(node);
             return (node.op_type() == "PRelu" && use.second == 1) ||
                    (call && calls.count(call->target) > 0);
           });
  }

  /// A vector that the exporter's optimiser gave dims of 1: "view" [1, C, 1, 1] of "gamma".
  bool is_vector_with_dims(const std::string& name) const {
    const Shape& shape = out_.by_name.at(name).tensor.type.shape;
    const std::vector<std::string> sources = quoted_names(folded_.at(name));
    return std::count_if(shape.begin(), shape.end(), [](int64_t dim) { return dim != 1; }) == 1 &&
           reshapes_only(name) && std::all_of(sources.begin(), sources.end(), [](const auto& step) {
             return !is_traced(step) || is_generated(step) || reshapes_only(step);
           });
  }

  /// What an exporter gave dims of 1, [C, 1, 1], is the vector [C] that the module has, which
  /// weight decay leaves alone.
  void unfold_vectors(std::set<std::string>& reached) {
    const std::vector<std::string> names = out_.order;
    for (const std::string& name : names) {
      const std::vector<std::string> sources = own_sources(name);
      if (sources.size() != 1 || is_initialiser(sources[0]) || kinds_.count(sources[0]) == 0 ||
          kinds_[sources[0]] != "PARAMETER" ||
          (!is_of_channels(name) && !is_vector_with_dims(name)))
        continue;
      StoredTensor vector = out_.by_name[name].tensor;
      vector.type.shape = {vector.count()};
      add(sources[0], vector);
      out_.by_name[name].tied_to = sources[0];
      if (reached.count(name) > 0) reached.insert(sources[0]);
    }
  }

  /// What looks like a weight but has no kind: a constant that the exporter computed, a part of a
  /// weight, or, from an exporter that writes no kinds, a buffer.
  void doubt(Weight& w, const std::string& name, bool chosen) {
    auto not_a_weight = [&](const std::string& why) {
      w.is_parameter = chosen;
      w.trainable = false;
      w.why = why;
    };
    const auto folded = folded_.find(name);
    if (folded == folded_.end()) {
      if (!kinds_.empty() && is_generated(name)) {
        not_a_weight("a constant of the exporter, not of the model");
      } else if (is_sinusoid(w.tensor)) {
        not_a_weight("sines or cosines of positions");
        report_.notes.push_back(str("'", name, "' (", w.tensor.type,
                                    ") holds sines or cosines of positions and is not trained; "
                                    "--train '",
                                    name, "' trains it"));
      } else if (from_tf2onnx_
                     ? computed_by_tensorflow(name) && !is_folded_norm(name)
                     : (!named_like_a_layers(name) || is_of_frozen_norm(name)) &&
                           !name.starts_with("onnx::MatMul_") && !name.starts_with("onnx::Conv_")) {
        unsure_.push_back(name);
      }
      return;
    }
    const std::vector<std::string> sources = quoted_names(folded->second);
    const std::vector<std::string> own = own_sources(name);
    if (own.empty()) return not_a_weight("computed by the exporter from constants");
    auto kind_of = [&](const std::string& source) {
      return kinds_.count(source) > 0 ? kinds_[source] : std::string();
    };
    if (std::all_of(own.begin(), own.end(), [&](const std::string& source) {
          return !kind_of(source).empty() && kind_of(source) != "PARAMETER";
        })) {
      return not_a_weight("computed by the exporter from a " + kind_of(own[0]));
    }
    const bool transposed = sources.size() == 1 && moves_only(name) && w.tensor.count() > 1;
    if (transposed) return;  // nearly always a Linear's weight, which find_ties looks at
    const auto found = std::find_if(own.begin(), own.end(), [&](const std::string& source) {
      return kind_of(source) == "PARAMETER" || (kind_of(source).empty() && named_as_weight(source));
    });
    const bool weight = found != own.end();
    const std::string& source = weight ? *found : own[0];
    const std::string start =
        str(shown(name, w.tensor), " was computed by the exporter from '", source, "'");
    const std::string way =
        str("export with torch.onnx.export(…, dynamo=True, optimize=False), or choose --train '",
            name, "' or --freeze '", name, "'");
    SR_REQUIRE(weight || chosen, invalid_input, start,
               ", and the file does not say whether that is a parameter or a buffer; ", way);
    SR_REQUIRE(
        chosen || (moves_only(name) && std::none_of(sources.begin(), sources.end(), computes)),
        invalid_input, start, " by arithmetic, which would no longer be trained through; ", way);
    for (const std::string& other : own) {
      SR_REQUIRE(chosen || kind_of(other) != "PARAMETER" || !is_initialiser(other), invalid_input,
                 shown(name, w.tensor), " was computed by the exporter from '", other,
                 "', which is also used itself: the two would train apart; ", way);
    }
    SR_REQUIRE(!weight || chosen || !repeats_itself(w.tensor), invalid_input, start,
               " and repeats its numbers, which would train apart from each other; ", way);
    if (weight) {
      report_.notes.push_back(str("'", name, "' is what the exporter took of '", source,
                                  "' for these sizes; it trains in its place"));
    }
  }

  void note_unsure() {
    if (!options_.training) return;
    if (from_tf2onnx_ && !unsure_.empty() && kinds_.empty()) {
      report_.notes.push_back(
          str("TensorFlow computed ", listed(unsure_),
              " from variables or constants before the export; the results train in their place; "
              "name what is a constant with --freeze"));
    }
    for (std::string& note : export_doubts(model_, nodes_, out_, unsure_))
      report_.notes.push_back(std::move(note));
  }

  void note_single() {
    std::erase_if(single_, [&](const auto& name) { return out_.by_name[name].is_parameter; });
    if (single_.empty()) return;
    report_.notes.push_back(
        str(listed(single_),
            single_.size() == 1 ? " is a single number that is" : " are single numbers that are",
            " taken for constants and not trained (--verbose says why); --train REGEX trains what "
            "it matches"));
  }

  /// Parameters that do not learn, though nobody asked for that.
  void list_unreached(const std::set<std::string>& reached) {
    if (!options_.training) return;
    for (const std::string& name : out_.order) {
      const Weight& w = out_.by_name[name];
      const auto changed = out_.changed.by_name.find(name);
      const bool is_reached = reached.count(name) > 0 || (changed != out_.changed.by_name.end() &&
                                                          reached.count(changed->second.next) > 0);
      if (is_reached || !w.tied_to.empty() || w.is_state) continue;
      const auto kind = kinds_.find(name);
      const bool is_weight = kind != kinds_.end()
                                 ? kind->second == "PARAMETER"
                                 : kinds_.empty() && named_as_weight(name) &&
                                       w.tensor.count() > 1 && is_float(w.tensor.type.dtype);
      if (is_weight)
        (patterns_.leave_out(names_of(name)) ? report_.gone : report_.unreached).push_back(name);
    }
    report_.gradient_stops = gradient_stops(nodes_, reached, report_.unreached);
  }

  void tie(const std::string& copy, const std::string& original, bool transposed, const char* how) {
    Weight& w = out_.by_name[copy];
    w.tied_to = original;
    w.transposed = transposed;
    std::vector<std::string>& names = out_.by_name[original].other_names;
    names.push_back(copy);
    for (const auto* more : {&w.other_names, &w.lost_names})
      names.insert(names.end(), more->begin(), more->end());
    report_.notes.push_back(str("'", copy, "' is tied to '", original, "'",
                                transposed ? " transposed" : "", " (", how, ")"));
  }

  /// What the module calls a weight, by the export's signature.
  std::string identity(const std::string& name) const {
    const std::vector<std::string> sources = own_sources(name);
    return sources.size() == 1 ? sources[0] : name;
  }

  void find_ties() {
    // The exporter says what it folded: ['h.weight'] for a lone source.
    for (const auto& [copy, sources] : folded_) {
      if (out_.by_name.count(copy) == 0 || !out_.by_name[copy].is_parameter) continue;
      const size_t open = sources.find('\''), close = sources.rfind('\'');
      if (open == std::string::npos || close <= open || sources.find(',') != std::string::npos)
        continue;
      const std::string original = sources.substr(open + 1, close - open - 1);
      if (out_.by_name.count(original) == 0 || !out_.by_name[original].is_parameter ||
          original == copy)
        continue;
      const StoredTensor &a = out_.by_name[original].tensor, &b = out_.by_name[copy].tensor;
      if (transposed_contents(a, b)) {
        tie(copy, original, true, "folded by the exporter");
      } else if (equal_contents(a, b)) {
        tie(copy, original, false, "folded by the exporter");
      } else {
        fail(ErrorKind::invalid_input, shown(copy, b),
             " was computed by the exporter from the weight '", original,
             "', which is also used itself: the two would train apart; export with optimize=False");
      }
    }
    // Matrices of more than equal numbers, one the transpose of the other; or equal, where one has
    // lost its name. Two that are equal under names of their own are two weights: layers that were
    // made as copies of one begin so (nn.TransformerEncoder's), and what is tied is one
    // initialiser.
    std::map<std::pair<Shape, uint64_t>, std::vector<std::string>> groups;
    for (const std::string& name : out_.order) {
      const Weight& w = out_.by_name[name];
      Shape key = w.tensor.type.shape;
      if (!w.is_parameter || !w.tied_to.empty() || key.size() != 2 || w.tensor.count() < 4)
        continue;
      std::sort(key.begin(), key.end());
      groups[{key, diagonal_hash(w.tensor)}].push_back(name);
    }
    for (const auto& [key, names] : groups) {
      for (size_t i = 0; i < names.size(); ++i) {
        for (size_t j = i + 1; j < names.size(); ++j) {
          Weight &a = out_.by_name[names[i]], &b = out_.by_name[names[j]];
          if (!a.tied_to.empty() || !b.tied_to.empty()) continue;
          SR_REQUIRE(model_.budget->spend(kComparison), unsupported, "too many of its ",
                     names.size(), " weights ", to_string(a.tensor.type.shape),
                     " have one diagonal to find which are tied; freeze those that are constants");
          const bool equal =
              a.tensor.type.shape == b.tensor.type.shape && equal_contents(a.tensor, b.tensor);
          if (equal && is_generated(names[i]) == is_generated(names[j])) continue;
          if (is_signed_ && identity(names[i]) != identity(names[j])) continue;
          const bool transposed = !equal && transposed_contents(a.tensor, b.tensor);
          if ((!equal && !transposed) || is_uniform(a.tensor)) continue;
          const bool first_is_copy = is_generated(names[i]) && !is_generated(names[j]);
          tie(first_is_copy ? names[i] : names[j], first_is_copy ? names[j] : names[i], transposed,
              "equal contents");
        }
      }
    }
  }

  /// The legacy exporter folds transposes into weights in evaluation mode only, and there drops
  /// Dropout without a trace; both fold batch normalisations into convolutions when they optimise,
  /// and so do TensorFlow and tf2onnx.
  void note_folding() {
    if (!options_.training) return;
    for (const std::string& name : out_.order) {
      if (restored_.has_folded_norms) break;
      if (!out_.by_name[name].is_parameter || !is_folded_norm(name)) continue;
      const std::string what =
          str("'", name, "' holds a batch normalisation that the exporter folded",
              from_tf2onnx_ ? "" : " into a convolution");
      const char* way =
          from_tf2onnx_ ? "export a call with training=True, or from Keras's JAX backend "
                          "(docs/onnx.md)"
                        : "export with torch.onnx.export(…, dynamo=True, optimize=False), or with "
                          "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False";
      SR_REQUIRE(options_.mode != ImportOptions::Mode::train, invalid_input, what,
                 "; --mode train cannot bring it back; ", way);
      report_.notes.push_back(str(what, ": the model trains without it; ", way));
      return;
    }
    for (const std::string& name : out_.order) {
      if (!out_.by_name[name].is_parameter || name.rfind("onnx::", 0) != 0) continue;
      report_.notes.push_back(
          str("the weight '", name,
              "' has lost its name: the model was exported in evaluation mode with its constants ",
              "folded, which removes Dropout; if it has any, export with "
              "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False"));
      return;
    }
  }

  /// TensorFlow leaves out what adds zero: a fresh layer's bias.
  void note_left_out() {
    if (!from_tf2onnx_ || !options_.training) return;
    size_t products = 0, biased = 0;
    for (const FlatNode& node : nodes_) {
      if (!is_product_with_weight(node.proto.output(0))) continue;
      ++products;
      biased += has_bias(node.proto);
    }
    if (products == biased) return;
    report_.notes.push_back(
        str(products - biased, " of ", products,
            " products with weights have no bias; tf2onnx leaves out biases that are zero and "
            "scales that are one when the model is exported: where a layer has one, give it "
            "another value before (docs/onnx.md)"));
  }
  bool has_bias(const ::onnx::NodeProto& product) const {
    static const std::set<std::string> movers = {"Cast",    "Identity",  "Reshape",
                                                 "Squeeze", "Transpose", "Unsqueeze"};
    if (product.input_size() > 2) return true;
    std::string at = product.output(0);
    for (auto use = uses_.find(at); use != uses_.end() && use->second.size() == 1;
         use = uses_.find(at)) {
      const auto& node = nodes_[use->second[0].first].proto;
      if (node.op_type() == "Add")
        return std::any_of(node.input().begin(), node.input().end(),
                           [&](const std::string& name) { return is_initialiser(name); });
      if (movers.count(node.op_type()) == 0) return false;
      at = node.output(0);
    }
    return false;
  }

  void drop_unused() {
    std::set<std::string> used;
    for (const auto& output : model_.proto.graph().output()) used.insert(output.name());
    for (const auto& [name, change] : out_.changed.by_name) used.insert({name, change.next});
    for (const FlatNode& node : nodes_) {
      for (const std::string& name : names_read(node.proto)) used.insert(name);
    }
    for (const std::string& name : out_.order) {
      const Weight& w = out_.by_name[name];
      if (used.count(name) > 0 && !w.tied_to.empty()) used.insert(w.tied_to);
    }
    std::erase_if(out_.order, [&](const std::string& name) {
      if (used.count(name) > 0) return false;
      out_.by_name.erase(name);
      report_.notes.push_back(str("initialiser '", name, "' is used by nothing and left out"));
      return true;
    });
  }

  const ModelFile& model_;
  const RestoredWeights& restored_;
  const std::map<std::string, std::string>& tied_;
  std::vector<FlatNode>& nodes_;
  const std::string& loss_;
  const ImportOptions& options_;
  NamePatterns& patterns_;
  ImportReport& report_;
  Weights out_;
  std::map<std::string, std::string> kinds_, folded_;
  bool is_signed_ = false;      // kinds_ has all that the module owns
  std::set<std::string> made_;  // by nodes, and what the graph is given
  std::set<std::string> statistics_;
  std::vector<std::string> unsure_;  // trained, though nothing says that they are parameters
  std::vector<std::string> single_;  // single numbers that are not trained
  std::map<std::string, std::vector<Use>> uses_;
  std::map<std::string, size_t> maker_;  // the node that makes a value
  bool optimised_ = false;
  const bool from_tf2onnx_;
};

}  // namespace

std::string NamePatterns::apply(const std::vector<std::string>& names, Training& training) {
  std::string decisive;
  const auto decide = [&](const char* flag, const Match& match, bool trains) {
    training.trainable = trains;
    training.why = str("matches ", flag, " '", match.pattern, "'");
    if (match.name != names[0]) training.why += str(" as '", match.name, "'");
    decisive = match.name;
  };
  if (const auto match = matching(names, train)) {
    training.is_parameter = true;
    decide("--train", *match, true);
  } else if (trains_only && training.trainable) {
    const auto only = matching(names, train_only);
    if (only) {
      decide("--train-only", *only, true);
    } else {
      training.trainable = false;
      training.why = "--train-only does not match it";
    }
  }
  if (!training.is_parameter) return decisive;
  if (const auto match = matching(names, freeze)) {
    training.is_frozen = training.trainable;
    decide("--freeze", *match, false);
  }
  return decisive;
}

bool NamePatterns::leave_out(const std::vector<std::string>& names) {
  return matching(names, freeze) || (trains_only && !matching(names, train_only));
}

Weights decide_weights(const ModelFile& model, const RestoredWeights& restored,
                       const std::map<std::string, std::string>& tied, std::vector<FlatNode>& nodes,
                       const std::string& loss, const ImportOptions& options,
                       NamePatterns& patterns, ImportReport& report) {
  return Decider(model, restored, tied, nodes, loss, options, patterns, report).run();
}

}  // namespace shardrun::importer
