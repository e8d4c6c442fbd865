// A role by the export's metadata, else by the gradient, by use and by name.
#include "graph/onnx/weights/weight_roles.h"

#include <algorithm>
#include <iterator>

#include "graph/onnx/exporter/export_doubts.h"
#include "graph/onnx/exporter/export_signature.h"
#include "graph/onnx/exporter/exporter_names.h"
#include "graph/onnx/exporter/gradient_reach.h"
#include "graph/onnx/file/tensor_contents.h"
#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

/// A batch normalisation of buffers, written out: it keeps a running variance, but no
/// BatchNormalization reads it.
bool is_of_frozen_norm(const Deciding& d, const std::string& name) {
  const std::string variance = name.substr(0, name.rfind('.') + 1) + "running_var";
  const auto uses = d.readers.find(variance);
  return uses != d.readers.end() &&
         std::none_of(uses->second.begin(), uses->second.end(), [&](const Use& use) {
           return d.nodes[use.first].proto.op_type() == "BatchNormalization";
         });
}

/// Does --freeze match all that was folded into it?
bool is_lost_to(const Deciding& d, const Weight& w) {
  return !w.lost_names.empty() &&
         std::all_of(w.lost_names.begin(), w.lost_names.end(), [&](const std::string& lost) {
           return d.patterns.freeze.first_in(lost) != nullptr;
         });
}

/// Does a --train or --freeze name it?
bool is_named(const Deciding& d, const Weight& w, const std::string& name) {
  return d.patterns.train.first_in(name) != nullptr ||
         d.patterns.freeze.first_in(name) != nullptr || is_lost_to(d, w);
}

/// A name that the exporter made up, or took from one of its steps: '/attn/Constant_output_0',
/// 'const_5', 'const_fold_opt__12'.
bool is_made_up(const std::string& name) {
  static const std::set<std::string> numbered = {"Const", "Constant", "const", "const_fold_opt_",
                                                 "constant"};
  return is_generated(name) || name.find('/') != std::string::npos ||
         numbered.count(op_of(name)) > 0;
}

/// Is one number a weight? By its use: a layer's operand is, a fill value, an exponent or an
/// epsilon is not. Else by its name: PyTorch's legacy exporter writes constants as nodes, so that
/// its named initialisers are a module's own (a learned temperature); elsewhere those are taken
/// that are named as a module's. What the other exporter of PyTorch folded is looked at by doubt.
bool is_single_weight(const Deciding& d, const std::string& name, const std::vector<Use>& uses,
                      Weight& w) {
  w.why = "a single number";
  if (!d.options.training || w.tensor.count() == 0) return false;
  if (d.said.folded.count(name) > 0 || is_learned_operand(d, uses, w.tensor)) return true;
  const std::string fixed = uses.empty() ? "" : fixed_as(d, uses[0]);
  if (!fixed.empty() && std::none_of(uses.begin(), uses.end(), [&](const Use& use) {
        return std::string(fixed_as(d, use)).empty();
      })) {
    w.why = "a single number, " + fixed;
    return false;
  }
  w.why = "a single number, which neither its use nor its name shows to be a weight";
  if (reads_variable(name)) return true;
  if (!d.said.kinds.empty() || d.said.optimised || is_made_up(name)) return false;
  return d.model.proto.producer_name() == "pytorch" || named_as_weight(name) ||
         named_as_member(name);
}

/// What a weight was called whose name the exporter lost: its sources, or, from the older
/// exporter, the weight of the module whose step '/enc/enc.0/MatMul' reads it. Of a table's rows at
/// the places in a buffer, the table.
std::vector<std::string> lost_names(const Deciding& d, const std::string& name) {
  std::vector<std::string> out = d.own_sources(name);
  const auto is_parameter = [&](const std::string& source) {
    const auto kind = d.said.kinds.find(source);
    return kind != d.said.kinds.end() && kind->second == "PARAMETER";
  };
  if (std::any_of(out.begin(), out.end(), is_parameter))
    std::erase_if(out, [&](const std::string& source) { return !is_parameter(source); });
  const auto users = d.readers.find(name);
  if (!out.empty() || name.rfind("onnx::", 0) != 0 || users == d.readers.end()) return out;
  for (const Use& use : users->second) {
    const std::string module = module_of(d.nodes[use.first].proto.name());
    if (module.empty()) return {};
    out.push_back(module + ".weight");
  }
  return out;
}

/// What looks like a weight but has no kind: a constant that the exporter computed, a part of a
/// weight, or, from an exporter that writes no kinds, a buffer.
void doubt(Deciding& d, Weight& w, const std::string& name, bool chosen) {
  auto not_a_weight = [&](const std::string& why) {
    w.is_parameter = chosen;
    w.trainable = false;
    w.why = why;
  };
  const auto folded = d.said.folded.find(name);
  if (folded == d.said.folded.end()) {
    if (!d.said.kinds.empty() && is_generated(name)) {
      not_a_weight("a constant of the exporter, not of the model");
    } else if (is_sinusoid(w.tensor)) {
      not_a_weight("sines or cosines of positions");
      d.report.notes.push_back(str("'", name, "' (", w.tensor.type,
                                   ") holds sines or cosines of positions and is not trained; "
                                   "--train '",
                                   name, "' trains it"));
    } else if (d.said.from_tf2onnx
                   ? computed_by_tensorflow(name) && !is_folded_norm(name)
                   : (!named_like_a_layers(name) || is_of_frozen_norm(d, name)) &&
                         !name.starts_with("onnx::MatMul_") && !name.starts_with("onnx::Conv_")) {
      d.unsure.push_back(name);
    }
    return;
  }
  const std::vector<std::string> sources = quoted_names(folded->second);
  const std::vector<std::string> own = d.own_sources(name);
  if (own.empty()) return not_a_weight("computed by the exporter from constants");
  auto kind_of = [&](const std::string& source) {
    return d.said.kinds.count(source) > 0 ? d.said.kinds[source] : std::string();
  };
  if (std::all_of(own.begin(), own.end(), [&](const std::string& source) {
        return !kind_of(source).empty() && kind_of(source) != "PARAMETER";
      })) {
    return not_a_weight("computed by the exporter from a " + kind_of(own[0]));
  }
  std::vector<std::string> steps = {name};
  std::copy_if(sources.begin(), sources.end(), std::back_inserter(steps), [&](const auto& source) {
    return d.made.count(source) == 0 &&  // of what nodes make, the shape alone is known
           std::find(own.begin(), own.end(), source) == own.end();
  });
  const bool transposed = sources.size() == 1 && moves_only(name) && w.tensor.count() > 1;
  if (transposed) return;           // nearly always a Linear's weight, which find_ties looks at
  if (!d.options.training) return;  // all numbers are the file's: none trains apart from another
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
  SR_REQUIRE(chosen || (moves_only(name) && !is_normalised(w.tensor) && !some_compute(steps)),
             invalid_input, start, " by arithmetic, which would no longer be trained through; ",
             way);
  for (const std::string& other : own) {
    SR_REQUIRE(chosen || kind_of(other) != "PARAMETER" || !d.is_initialiser(other), invalid_input,
               shown(name, w.tensor), " was computed by the exporter from '", other,
               "', which is also used itself: the two would train apart; ", way);
  }
  SR_REQUIRE(!weight || chosen || !repeats_itself(w.tensor), invalid_input, start,
             " and repeats its numbers, which would train apart from each other; ", way);
  if (weight) {
    d.report.notes.push_back(str("'", name, "' is what the exporter took of '", source,
                                 "' for these sizes; it trains in its place"));
  }
}

}  // namespace

void find_statistics(Deciding& d) {
  static const std::set<std::string> spreads = {"Cast", "Expand", "Identity", "Reshape", "Tile"};
  for (const FlatNode& node : d.nodes) {
    if (node.proto.op_type() != "BatchNormalization" || !d.options.training ||
        batch_norm_form(node.proto, node.opset, d.options) == BatchNormForm::inference)
      continue;
    for (int i = 3; i < node.proto.input_size(); ++i) {
      std::string name = node.proto.input(i);
      for (auto made = d.makers.find(name);
           made != d.makers.end() && spreads.count(d.nodes[made->second].proto.op_type()) > 0;
           made = d.makers.find(name))
        name = d.nodes[made->second].proto.input(0);
      d.statistics.insert(name);
    }
  }
}

void decide_role(Deciding& d, const std::string& name, const std::set<std::string>& reached) {
  Weight& w = d.out.by_name[name];
  const std::string kind = d.said.kinds.count(name) > 0 ? d.said.kinds[name] : "";
  const bool is_reached = reached.count(name) > 0;
  const auto changed = d.out.changed.by_name.find(name);
  if (changed != d.out.changed.by_name.end()) {
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
  if (d.statistics.count(name) > 0) {
    SR_REQUIRE(!is_reached, invalid_input, shown(name, w.tensor),
               " is a running statistic of one batch normalisation and a weight elsewhere; export "
               "with optimize=False, or choose --shared split");
    w.is_state = true;
    w.why = "a running statistic";
    return;
  }
  const std::vector<Use> uses = final_uses(d, name);
  if (std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
        const ::onnx::NodeProto& node = d.nodes[use.first].proto;
        const bool is_learned =
            is_reached && is_learnable_bound(node, use.second, node.input(use.second) != name);
        return is_setting(node, use.second) && !is_learned;
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
  } else if (d.said.kinds.empty() && is_running_statistic(name)) {
    w.why = "a running statistic, by its name";
  } else if (d.said.kinds.empty() && has_infinity(w.tensor)) {
    w.why = "it holds infinities, as masks do";
  } else if (d.said.from_tf2onnx && is_tensorflow_constant(name)) {
    w.why = "a constant of TensorFlow's graph";
  } else if (w.tensor.count() <= 1 && !is_single_weight(d, name, uses, w)) {
    if (d.said.kinds.empty() && !is_made_up(name)) d.single.push_back(name);
  } else {
    w.is_parameter = w.trainable = true;
    w.why = "a float initialiser that the gradient reaches";
  }
  if (kind.empty()) w.lost_names = lost_names(d, name);
  if (w.is_parameter && kind.empty()) doubt(d, w, name, is_named(d, w, name));
}

void apply_patterns(Deciding& d, const std::string& name) {
  Weight& w = d.out.by_name[name];
  if (!w.tied_to.empty() || !is_float(w.tensor.type.dtype) || d.statistics.count(name) > 0) return;
  const std::string decisive = d.patterns.apply(d.names_of(name), w);
  if (!decisive.empty() && decisive != name) {
    d.report.notes.push_back(
        str("'", name, "' ", w.trainable ? "trains" : "does not train", ": it ", w.why));
  }
  if (w.is_parameter && w.trainable && is_lost_to(d, w)) {
    w.trainable = false;
    w.why = str("was '", w.lost_names[0], "', which --freeze matches");
  }
  const auto changed = d.out.changed.by_name.find(name);
  if (changed == d.out.changed.by_name.end() || !w.is_parameter) return;
  w.is_state = false;
  changed->second.learns = true;
}

}  // namespace shardrun::importer
