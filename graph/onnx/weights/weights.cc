// The steps that decide on weights, in order. FACTS of the exporters behind each rule:
//   PyTorch's dynamo exporter marks value_info with InputSpec.kind = PARAMETER | BUFFER |
//   CONSTANT_TENSOR, and the graph with the signature of the whole module, those tensors included
//   of which nothing is left; its optimiser folds Transpose(weight) into a copy (folded_from) and
//   merges equal small initialisers; the legacy exporter in evaluation mode writes transposed
//   copies named onnx::MatMul_278 and merges equal initialisers through Identity nodes whose
//   outputs keep the lost names. tf2onnx, behind TensorFlow's own optimiser, leaves out what adds
//   zero or multiplies by one, merges equal constants, and computes what has no variable input.
#include "graph/onnx/weights/weights.h"

#include <optional>

#include "graph/onnx/exporter/exporter_names.h"
#include "graph/onnx/exporter/gradient_reach.h"
#include "graph/onnx/exporter/moving_averages.h"
#include "graph/onnx/exporter/tied_names.h"
#include "graph/onnx/lower/lowering.h"
#include "graph/onnx/weights/deciding.h"
#include "graph/onnx/weights/merged_weights.h"
#include "graph/onnx/weights/weight_notes.h"
#include "graph/onnx/weights/weight_roles.h"

namespace shardrun::importer {
namespace {

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

void find_changed(Deciding& d) {
  d.out.changed = find_changed_tensors(d.model, d.nodes, d.tied, d.loss);
  if (!d.said.kinds.empty() || d.model.proto.producer_name() != "pytorch") return;
  for (auto& [tensor, values] : find_moving_averages(d.model, d.nodes)) {
    if (d.patterns.train.first_in(tensor) != nullptr) continue;
    const std::string next = values.back();
    values.pop_back();
    d.out.changed.by_name[tensor] = {next, std::move(values), true, false};
  }
}

void drop_unused(Deciding& d) {
  std::set<std::string> used;
  for (const auto& output : d.model.proto.graph().output()) used.insert(output.name());
  for (const auto& [name, change] : d.out.changed.by_name) used.insert({name, change.next});
  for (const FlatNode& node : d.nodes) {
    for (const std::string& name : names_read(node.proto)) used.insert(name);
  }
  for (const std::string& name : d.out.order) {
    const Weight& w = d.out.by_name[name];
    if (used.count(name) > 0 && !w.tied_to.empty()) used.insert(w.tied_to);
  }
  std::erase_if(d.out.order, [&](const std::string& name) {
    if (used.count(name) > 0) return false;
    d.out.by_name.erase(name);
    d.report.notes.push_back(str("initialiser '", name, "' is used by nothing and left out"));
    return true;
  });
}

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
  Deciding d{model, restored, tied, nodes, loss, options, patterns, report};
  d.read_metadata();
  d.out.kinds_are_guessed = d.said.kinds.empty();
  for (const auto* list : {&d.model.initialisers, &d.restored.tensors}) {
    for (const StoredTensor& tensor : *list) d.add(tensor.name, tensor);
  }
  split_identities(d);
  d.find_uses();
  refuse_or_split_merged(d);
  d.find_uses();
  for (const auto& [other, name] : d.tied) {
    if (d.is_initialiser(name)) d.out.by_name[name].other_names.push_back(other);
  }
  if (d.options.training) find_changed(d);
  std::set<std::string> reached = reached_names(d.nodes, d.loss, d.out.changed.gradient_ends());
  unfold_vectors(d, reached);
  for (const auto& input : d.model.proto.graph().input()) d.made.insert(input.name());
  for (const FlatNode& node : d.nodes) {
    for (const std::string& name : node.proto.output()) d.made.insert(name);
  }
  find_statistics(d);
  for (const std::string& name : d.out.order) {
    if (d.out.by_name[name].tied_to.empty()) decide_role(d, name, reached);
  }
  find_ties(d);
  for (const std::string& name : d.out.order) apply_patterns(d, name);
  list_constants(d, reached);
  note_single(d);
  note_changed(d);
  drop_unused(d);
  note_unsure(d);
  list_unreached(d, reached);
  note_regions(d, reached);
  note_folding(d);
  note_left_out(d);
  return std::move(d.out);
}

}  // namespace shardrun::importer
