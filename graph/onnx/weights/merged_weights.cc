// What was merged is split, what was copied is tied; what would train wrongly is refused.
#include "graph/onnx/weights/merged_weights.h"

#include <algorithm>
#include <optional>

#include "graph/onnx/exporter/export_signature.h"
#include "graph/onnx/exporter/exporter_names.h"
#include "graph/onnx/file/tensor_contents.h"
#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

constexpr double kComparison = 2000;  // operations: of two tensors, of which files are mapped

bool is_weight_like(const StoredTensor& tensor) {
  return is_float(tensor.type.dtype) && tensor.count() > 0;
}

std::string kind_after(const Deciding& d, const Use& use, const std::string& otherwise) {
  const std::string kind = kind_in_batch_norm(d, use);
  return kind.empty() ? otherwise : kind;
}

/// A number for each channel, which exporters give dims of 1 and no more: the slopes of a PRelu,
/// the scale and shift of a group's normalisation.
bool is_of_channels(const Deciding& d, const std::string& name) {
  static const std::set<std::string> calls = {"aten.prelu", "aten._prelu_kernel", "aten.group_norm",
                                              "aten.native_group_norm"};
  const auto users = d.readers.find(name);
  const Shape& shape = d.out.by_name.at(name).tensor.type.shape;
  return users != d.readers.end() &&
         std::count_if(shape.begin(), shape.end(), [](int64_t dim) { return dim != 1; }) <= 1 &&
         std::all_of(users->second.begin(), users->second.end(), [&](const Use& use) {
           const ::onnx::NodeProto& node = d.nodes[use.first].proto;
           const std::optional<FxCall> call = fx_call_of(node);
           return (node.op_type() == "PRelu" && use.second == 1) ||
                  (call && calls.count(call->target) > 0);
         });
}

/// A vector that the exporter's optimiser gave dims of 1: "view" [1, C, 1, 1] of "gamma".
bool is_vector_with_dims(const Deciding& d, const std::string& name) {
  const Shape& shape = d.out.by_name.at(name).tensor.type.shape;
  const std::vector<std::string> sources = quoted_names(d.said.folded.at(name));
  return std::count_if(shape.begin(), shape.end(), [](int64_t dim) { return dim != 1; }) == 1 &&
         reshapes_only(name) && std::all_of(sources.begin(), sources.end(), [](const auto& step) {
           return !is_traced(step) || is_generated(step) || reshapes_only(step);
         });
}

void tie(Deciding& d, const std::string& copy, const std::string& original, bool transposed,
         const char* how) {
  Weight& w = d.out.by_name[copy];
  w.tied_to = original;
  w.transposed = transposed;
  std::vector<std::string>& names = d.out.by_name[original].other_names;
  names.push_back(copy);
  for (const auto* more : {&w.other_names, &w.lost_names})
    names.insert(names.end(), more->begin(), more->end());
  d.report.notes.push_back(str("'", copy, "' is tied to '", original, "'",
                               transposed ? " transposed" : "", " (", how, ")"));
}

/// What the module calls a weight, by the export's signature.
std::string identity(const Deciding& d, const std::string& name) {
  const std::vector<std::string> sources = d.own_sources(name);
  return sources.size() == 1 ? sources[0] : name;
}

/// Ties what the exporter computed from one parameter and holds the same numbers, as W[None] and
/// W.view(-1) do. Refuses parts that overlap, as W[:8] and W[:4] do: each would be trained for
/// itself.
void tie_or_refuse_parts(Deciding& d) {
  std::map<std::string, std::vector<std::string>> parts;  // by what they were computed from
  for (const std::string& name : d.out.order) {
    const Weight& w = d.out.by_name[name];
    if (!w.is_parameter || !w.trainable || !w.tied_to.empty() || w.tensor.count() == 0 ||
        d.patterns.train.first_in(name) != nullptr || d.patterns.freeze.first_in(name) != nullptr)
      continue;
    for (const std::string& source : d.own_sources(name)) parts[source].push_back(name);
  }
  for (auto& [source, names] : parts) {
    for (size_t i = 0; i < names.size(); ++i) {
      for (size_t j = i + 1; j < names.size();) {
        const StoredTensor &a = d.out.by_name[names[i]].tensor, &b = d.out.by_name[names[j]].tensor;
        SR_REQUIRE(d.model.budget->spend(kComparison), unsupported,
                   "too many of its initialisers, ", names.size(),
                   ", were computed by the exporter from '", source,
                   "' to find which are the same; export with optimize=False");
        if (!equal_contents(a, b) || is_uniform(a)) {
          ++j;
          continue;
        }
        tie(d, names[j], names[i], false, "both of them computed from one weight by the exporter");
        names.erase(names.begin() + static_cast<std::ptrdiff_t>(j));
      }
    }
    std::vector<const StoredTensor*> tensors;
    for (const std::string& name : names) tensors.push_back(&d.out.by_name[name].tensor);
    SR_REQUIRE(!have_common_numbers(tensors), invalid_input, listed(names),
               " were computed by the exporter from '", source,
               "' and have numbers in common: they would train apart; export with "
               "torch.onnx.export(…, dynamo=True, optimize=False)");
  }
}

}  // namespace

void split_identities(Deciding& d) {
  if (d.options.shared == ImportOptions::Shared::keep || !d.options.training || d.said.is_signed)
    return;
  std::erase_if(d.nodes, [&](const FlatNode& node) {
    if (node.proto.op_type() != "Identity" || node.proto.input_size() != 1) return false;
    auto it = d.out.by_name.find(node.proto.input(0));
    const std::string name = node.proto.output(0);
    if (it == d.out.by_name.end() || is_generated(name) || name.find('/') != std::string::npos)
      return false;
    for (const auto& output : d.model.proto.graph().output()) {
      if (output.name() == name) return false;
    }
    const StoredTensor tensor = it->second.tensor;
    if (!is_weight_like(tensor) || tensor.type.shape.size() != 1 || !is_uniform(tensor))
      return false;
    d.add(name, tensor);
    d.out.copied[name] = node.place;
    d.report.notes.push_back(str("'", name, "' had been merged with '", tensor.name,
                                 "' by the exporter (equal numbers): they are two weights again"));
    return true;
  });
}

void refuse_or_split_merged(Deciding& d) {
  if (d.options.shared == ImportOptions::Shared::keep || !d.options.training) return;
  if (!d.said.optimised && !d.said.from_tf2onnx) return;
  const std::vector<std::string> names = d.out.order;
  for (const std::string& name : names) {
    const StoredTensor tensor = d.out.by_name[name].tensor;
    const auto& users = d.readers[name];
    if (users.size() < 2 || d.restored.shared.count(name) > 0 || !is_weight_like(tensor) ||
        (d.said.from_tf2onnx ? !has_two_values(tensor)
                             : tensor.type.shape.size() != 1 || !is_uniform(tensor)) ||
        (tensor.count() == 1 && !is_learned_operand(d, users, tensor)) ||
        (d.said.from_tf2onnx && is_tensorflow_constant(name)))
      continue;
    const bool normalises = std::any_of(users.begin(), users.end(), [&](const auto& use) {
      return !kind_in_batch_norm(d, use).empty();
    });
    if (d.said.kinds.count(name) > 0 && d.said.kinds[name] != "PARAMETER" && !normalises) continue;
    if (d.said.is_signed && d.said.kinds.count(name) == 0 && d.own_sources(name).empty())
      continue;  // computed
    const bool statistics = std::all_of(users.begin(), users.end(), [&](const auto& use) {
      return kind_in_batch_norm(d, use) == "BUFFER";
    });
    SR_REQUIRE(statistics || d.options.shared == ImportOptions::Shared::split, invalid_input,
               shown(name, tensor), " feeds ", users.size(), " nodes (",
               d.nodes[users[0].first].label, ", ", d.nodes[users[1].first].label,
               " …) of a graph that ", d.said.from_tf2onnx ? "tf2onnx" : "PyTorch's exporter",
               " optimised: it merges weights that are equal before training, and they would "
               "train as one; ",
               d.said.from_tf2onnx
                   ? "give them other values before the export (docs/onnx.md)"
                   : "export with torch.onnx.export(…, dynamo=True, optimize=False)",
               ", or choose --shared split (a weight for each use) or --shared keep");
    for (size_t i = 1; i < users.size(); ++i) {
      const std::string copy = str(name, ".", i);
      d.add(copy, tensor);
      if (d.said.kinds.count(name) > 0)
        d.said.kinds[copy] = kind_after(d, users[i], d.said.kinds[name]);
      FlatNode& user = d.nodes[users[i].first];
      if (user.place >= 0) d.out.inputs.push_back({user.place, users[i].second, copy});
      user.proto.set_input(users[i].second, copy);
    }
    if (d.said.kinds.count(name) > 0)
      d.said.kinds[name] = kind_after(d, users[0], d.said.kinds[name]);
    if (statistics) continue;
    d.report.notes.push_back(
        str(shown(name, tensor), " is split into ", users.size(), " weights, one for each use"));
  }
}

void unfold_vectors(Deciding& d, std::set<std::string>& reached) {
  const std::vector<std::string> names = d.out.order;
  for (const std::string& name : names) {
    const std::vector<std::string> sources = d.own_sources(name);
    if (sources.size() != 1 || d.is_initialiser(sources[0]) ||
        d.said.kinds.count(sources[0]) == 0 || d.said.kinds[sources[0]] != "PARAMETER" ||
        (!is_of_channels(d, name) && !is_vector_with_dims(d, name)))
      continue;
    StoredTensor vector = d.out.by_name[name].tensor;
    vector.type.shape = {vector.count()};
    d.add(sources[0], vector);
    d.out.by_name[name].tied_to = sources[0];
    if (reached.count(name) > 0) reached.insert(sources[0]);
  }
}

void find_ties(Deciding& d) {
  // The exporter says what it folded: ['h.weight'] for a lone source.
  for (const auto& [copy, sources] : d.said.folded) {
    if (d.out.by_name.count(copy) == 0 || !d.out.by_name[copy].is_parameter) continue;
    const size_t open = sources.find('\''), close = sources.rfind('\'');
    if (open == std::string::npos || close <= open || sources.find(',') != std::string::npos)
      continue;
    const std::string original = sources.substr(open + 1, close - open - 1);
    if (d.out.by_name.count(original) == 0 || !d.out.by_name[original].is_parameter ||
        original == copy)
      continue;
    const StoredTensor &a = d.out.by_name[original].tensor, &b = d.out.by_name[copy].tensor;
    if (transposed_contents(a, b)) {
      tie(d, copy, original, true, "folded by the exporter");
    } else if (equal_contents(a, b)) {
      tie(d, copy, original, false, "folded by the exporter");
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
  for (const std::string& name : d.out.order) {
    const Weight& w = d.out.by_name[name];
    Shape key = w.tensor.type.shape;
    if (!w.is_parameter || !w.tied_to.empty() || key.size() != 2 || w.tensor.count() < 4) continue;
    std::sort(key.begin(), key.end());
    groups[{key, diagonal_hash(w.tensor)}].push_back(name);
  }
  for (const auto& [key, names] : groups) {
    for (size_t i = 0; i < names.size(); ++i) {
      for (size_t j = i + 1; j < names.size(); ++j) {
        Weight &a = d.out.by_name[names[i]], &b = d.out.by_name[names[j]];
        if (!a.tied_to.empty() || !b.tied_to.empty()) continue;
        SR_REQUIRE(d.model.budget->spend(kComparison), unsupported, "too many of its ",
                   names.size(), " weights ", to_string(a.tensor.type.shape),
                   " have one diagonal to find which are tied; freeze those that are constants");
        const bool equal =
            a.tensor.type.shape == b.tensor.type.shape && equal_contents(a.tensor, b.tensor);
        if (equal && is_generated(names[i]) == is_generated(names[j])) continue;
        if (d.said.is_signed && identity(d, names[i]) != identity(d, names[j])) continue;
        const bool transposed = !equal && transposed_contents(a.tensor, b.tensor);
        if ((!equal && !transposed) || is_uniform(a.tensor)) continue;
        const bool first_is_copy = is_generated(names[i]) && !is_generated(names[j]);
        tie(d, first_is_copy ? names[i] : names[j], first_is_copy ? names[j] : names[i], transposed,
            "equal contents");
      }
    }
  }
  if (d.options.training) tie_or_refuse_parts(d);
}

}  // namespace shardrun::importer
