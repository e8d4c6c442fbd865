// Notes and lists of the report.
#include "graph/onnx/weights/weight_notes.h"

#include "graph/onnx/exporter/export_doubts.h"
#include "graph/onnx/exporter/exporter_names.h"
#include "graph/onnx/exporter/gradient_reach.h"
#include "graph/onnx/file/tensor_contents.h"
#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {

void list_constants(Deciding& d, const std::set<std::string>& reached) {
  if (!d.options.training) return;
  for (const std::string& name : d.out.order) {
    const Weight& w = d.out.by_name[name];
    if (w.is_parameter || (reached.count(name) == 0 && d.out.changed.by_name.count(name) == 0))
      continue;
    if (w.is_state || is_float(w.tensor.type.dtype))
      d.report.constants.push_back({name, w.tensor.type, false, w.why, w.other_names});
  }
}

void note_single(Deciding& d) {
  std::erase_if(d.single, [&](const auto& name) { return d.out.by_name[name].is_parameter; });
  if (d.single.empty()) return;
  d.report.notes.push_back(
      str(listed(d.single),
          d.single.size() == 1 ? " is a single number that is" : " are single numbers that are",
          " taken for constants and not trained (--verbose says why); --train REGEX trains what "
          "it matches"));
}

void note_changed(Deciding& d) {
  if (d.said.kinds.empty() && !d.out.changed.by_name.empty()) {
    std::vector<std::string> names;
    for (const auto& [name, change] : d.out.changed.by_name) names.push_back(name);
    d.report.notes.push_back(
        str(listed(names), names.size() > 1 ? " are" : " is",
            " read for nothing but a moving average or a count, and so taken for state that each "
            "batch moves; this exporter does not tell: --train REGEX trains what it matches"));
    return;
  }
  std::vector<std::string> states, moved, copies;
  for (const auto& [name, change] : d.out.changed.by_name) {
    const bool is_parameter = d.said.kinds.count(name) > 0 && d.said.kinds[name] == "PARAMETER";
    if (change.learns) continue;
    (!change.is_read_back ? copies : is_parameter ? moved : states).push_back(name);
  }
  auto note = [&](const std::vector<std::string>& names, const char* what) {
    if (!names.empty()) d.report.notes.push_back(str("forward() changes ", listed(names), what));
  };
  note(states, ": state that each batch moves, and validation only reads");
  note(moved,
       ": parameters that each batch moves so, and validation only reads; they are not trained "
       "(--train REGEX trains them, too)");
  note(copies, ": state that keeps a copy of what each batch computes");
  d.report.notes.insert(d.report.notes.end(), d.out.changed.notes.begin(),
                        d.out.changed.notes.end());
}

void note_unsure(Deciding& d) {
  if (!d.options.training) return;
  if (d.said.from_tf2onnx && !d.unsure.empty() && d.said.kinds.empty()) {
    d.report.notes.push_back(
        str("TensorFlow computed ", listed(d.unsure),
            " from variables or constants before the export; the results train in their place; "
            "name what is a constant with --freeze"));
  }
  for (std::string& note : export_doubts(d.model, d.nodes, d.out, d.unsure))
    d.report.notes.push_back(std::move(note));
}

void list_unreached(Deciding& d, const std::set<std::string>& reached) {
  if (!d.options.training) return;
  for (const std::string& name : d.out.order) {
    const Weight& w = d.out.by_name[name];
    const auto changed = d.out.changed.by_name.find(name);
    const bool is_reached = reached.count(name) > 0 || (changed != d.out.changed.by_name.end() &&
                                                        reached.count(changed->second.next) > 0);
    if (is_reached || !w.tied_to.empty() || w.is_state) continue;
    const auto kind = d.said.kinds.find(name);
    const bool is_weight = kind != d.said.kinds.end()
                               ? kind->second == "PARAMETER"
                               : d.said.kinds.empty() && named_as_weight(name) &&
                                     w.tensor.count() > 1 && is_float(w.tensor.type.dtype);
    if (is_weight)
      (d.patterns.leave_out(d.names_of(name)) ? d.report.gone : d.report.unreached).push_back(name);
  }
  d.report.gradient_stops = gradient_stops(d.nodes, reached, d.report.unreached);
}

void note_regions(Deciding& d, const std::set<std::string>& reached) {
  if (!d.options.training) return;
  std::vector<std::string> trained;
  for (const std::string& name : d.out.order) {
    if (d.out.by_name[name].trainable) trained.push_back(name);
  }
  const std::vector<std::string> found = region_results(d.nodes, reached, trained);
  if (found.empty()) return;
  const bool one = found.size() == 1;
  d.report.notes.push_back(
      str(listed(found, 4), one ? " comes" : " come",
          " out of a region of torch.no_grad() or torch.autocast(), which the export does not tell "
          "apart: gradients flow through ",
          one ? "it" : "them", "; where it is no_grad(), detach() what comes out of it, too"));
}

void note_folding(Deciding& d) {
  if (!d.options.training) return;
  for (const std::string& name : d.out.order) {
    if (d.restored.has_folded_norms) break;
    if (!d.out.by_name[name].is_parameter || !is_folded_norm(name)) continue;
    const std::string what =
        str("'", name, "' holds a batch normalisation that the exporter folded",
            d.said.from_tf2onnx ? "" : " into a convolution");
    const char* way =
        d.said.from_tf2onnx
            ? "export a call with training=True, or from Keras's JAX backend "
              "(docs/onnx.md)"
            : "export with torch.onnx.export(…, dynamo=True, optimize=False), or with "
              "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False";
    SR_REQUIRE(d.options.mode != ImportOptions::Mode::train, invalid_input, what,
               "; --mode train cannot bring it back; ", way);
    d.report.notes.push_back(str(what, ": the model trains without it; ", way));
    return;
  }
  for (const std::string& name : d.out.order) {
    if (!d.out.by_name[name].is_parameter || name.rfind("onnx::", 0) != 0) continue;
    d.report.notes.push_back(
        str("the weight '", name,
            "' has lost its name: the model was exported in evaluation mode with its constants ",
            "folded, which removes Dropout; if it has any, export with "
            "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False"));
    return;
  }
}

void note_left_out(Deciding& d) {
  if (!d.said.from_tf2onnx || !d.options.training) return;
  size_t products = 0, biased = 0;
  for (const FlatNode& node : d.nodes) {
    if (!is_product_with_weight(d, node.proto.output(0))) continue;
    ++products;
    biased += has_bias(d, node.proto);
  }
  if (products == biased) return;
  d.report.notes.push_back(
      str(products - biased, " of ", products,
          " products with weights have no bias; tf2onnx leaves out biases that are zero and "
          "scales that are one when the model is exported: where a layer has one, give it "
          "another value before (docs/onnx.md)"));
}

}  // namespace shardrun::importer
