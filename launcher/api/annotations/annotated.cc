// From annotations of a file to requests of a plan, and back.
#include "annotations/annotated.h"

#include <algorithm>
#include <map>
#include <set>

#include "annotations/held_text.h"
#include "base/at.h"
#include "base/printable.h"
#include "choices.h"
#include "graph/onnx/file/model_copy.h"
#include "graph/optimizer.h"
#include "graph/passes/channels_last.h"
#include "plan/plan.h"
#include "planner/space/requests.h"
#include "ranks/world.h"

namespace shardrun {
namespace {

using Configuration = Annotations::Configuration;
using Names = std::vector<std::pair<std::string, std::string>>;

std::string list_of(const std::vector<Configuration>& configurations) {
  std::string out;
  for (const Configuration& one : configurations)
    out += str(out.empty() ? "'" : ", '", one.name, "' (", one.devices, " devices)");
  return out.empty() ? "none" : out;
}

/// The one that is asked for, or the only one; nullptr: there is none.
const Configuration* chosen(const Annotations& annotations, const std::string& name) {
  const std::vector<Configuration>& all = annotations.configurations;
  if (name.empty()) return all.size() == 1 ? &all[0] : nullptr;
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Configuration& one) { return one.name == name; });
  return found == all.end() ? nullptr : &*found;
}

const std::string* find_name(const Names& names, const std::string& name) {
  const auto found =
      std::find_if(names.begin(), names.end(), [&](const auto& one) { return one.first == name; });
  return found == names.end() ? nullptr : &found->second;
}

/// "gpt.onnx: metadata 'shardrun.held.eight'"
std::string held_place(const Model::Impl& model, const Annotations::Held& held) {
  return str(model.path, ": metadata '", held_key(held.configuration), "'");
}

/// What the annotations of one configuration ask of the step.
class Reading {
 public:
  Reading(const Model::Impl& model, const Mesh& mesh, bool required)
      : model_(model),
        graph_(model.train),
        mesh_(mesh),
        required_(required),
        moved_(moved_channels(model.train)) {
    for (const PlacedNode& node : model.placed) placed_[node.node] = &node;
    for (size_t n = 0; n < graph_.nodes().size(); ++n) nodes_[graph_.nodes()[n].name] = n;
  }

  AnnotationRequests run(const Annotations& annotations, const Configuration& of) {
    for (const NodeAnnotation& node : annotations.nodes) {
      if (node.configuration != of.name) continue;
      SR_REQUIRE(!node.pipeline_stage, unsupported, node.label, " is of pipeline stage ",
                 node.pipeline_stage.value_or(0), " in configuration '", of.name,
                 "', and every rank runs all nodes here; leave the stages out, or plan with "
                 "--annotations ignore");
      for (const auto& [tensor, spec] : node.tensors)
        read(str("annotation of '", tensor, "' at ", node.label), [&] { ask(node, tensor, spec); });
    }
    for (const Annotations::Held& held : annotations.held) {
      if (held.configuration == of.name) read_held(held);
    }
    return std::move(out_);
  }

 private:
  /// What cannot be asked is an error or a note.
  template <class F>
  void read(const std::string& where, F ask) {
    try {
      ask();
    } catch (const Error& error) {
      if (required_) throw error.with_context(where);
      out_.notes.push_back(str(where, ": ", error.what()));
    }
  }

  void ask(const NodeAnnotation& node, const std::string& tensor, const DeviceSharding& spec) {
    const auto placed = placed_.find(node.node);
    SR_REQUIRE(placed != placed_.end(), invalid_input,
               "the step does without this node, which import computed or left out");
    const std::string* made = find_name(placed->second->outputs, tensor);
    const std::string* read = find_name(placed->second->inputs, tensor);
    const std::string* name = made != nullptr ? made : read;
    const ValueId id = name == nullptr ? kNoValue : graph_.find(*name);
    SR_REQUIRE(id != kNoValue, invalid_input,
               "no value of the step stands for it; it was computed by import, fused into its "
               "neighbours, or is none of the node's");
    const Value& value = graph_.value(id);
    SR_REQUIRE(value.role != Role::computed || value.producer >= 0, invalid_input,
               "no value of the step stands for it; it was fused into its neighbours");
    const Sharding sharding = sharding_on(mesh_, spec, shape_in_file(id));
    const auto add = [&](const std::string& names) { request(names, sharding); };
    if (made != nullptr) return add(quoted_name(*name));
    bool any = false;
    for (const std::string& reader : placed->second->made) {
      const auto known = nodes_.find(reader);
      if (known == nodes_.end()) continue;
      const std::vector<ValueId>& inputs = graph_.nodes()[known->second].inputs;
      if (std::find(inputs.begin(), inputs.end(), id) == inputs.end()) continue;
      add(quoted_name(*name) + ">" + quoted_name(reader));
      any = true;
    }
    SR_REQUIRE(any, invalid_input,
               "no node of the step reads it for this one; it was fused into its neighbours");
  }

  void read_held(const Annotations::Held& held) {
    const std::string where = held_place(model_, held);
    HeldText text;
    read(where, [&] {
      HeldText all = parse_held(held.text);
      SR_REQUIRE(all.mesh.size() == mesh_.size(), invalid_input, "mesh ", all.mesh.to_string(),
                 " has ", all.mesh.size(), " ranks, configuration '", held.configuration, "' has ",
                 mesh_.size());
      text = std::move(all);
    });
    std::vector<std::string> passed;
    for (const LiesSo& group : text.held) {
      for (const std::string& name : group.values) {
        if (is_other_state(name)) {
          passed.push_back(name);
          continue;
        }
        read(str(where, ": value '", name, "'"), [&] { ask_held(name, group.lies, text.mesh); });
      }
    }
    if (!passed.empty())
      out_.notes.push_back(str(where, ": the step keeps no '", passed[0], "'",
                               passed.size() > 1 ? str(" and ", passed.size() - 1, " more") : "",
                               ", as another optimizer or other micro-batches do; passed over"));
    // What propagation comes to anyway, and of gradients and updates, which no hint is worth.
    if (required_ && text.step) read(where, [&] { read_step(where, *text.step, text.mesh); });
  }

  /// State of a parameter that the step has, which another optimizer keeps, or other micro-batches.
  bool is_other_state(const std::string& name) const {
    if (graph_.find(name) != kNoValue) return false;
    const std::string_view sum = kAccumulatedPrefix;
    const std::string of =
        name.starts_with(sum) ? name.substr(sum.size()) : parameter_of_state(name);
    const ValueId id = of.empty() ? kNoValue : graph_.find(of);
    return id != kNoValue && is_persistent(graph_.value(id).role);
  }

  /// `lies`: on the mesh of the text.
  void ask_held(const std::string& name, const std::string& lies, const Mesh& own) {
    const ValueId id = graph_.find(name);
    SR_REQUIRE(id != kNoValue && is_persistent(graph_.value(id).role), invalid_input,
               "the step holds no value of this name");
    const Shape shape = shape_in_file(id);
    const Sharding sharding = parse_sharding(lies, own);
    check_sharding(sharding, own, shape.size());
    SR_REQUIRE(sharding.partial.empty(), invalid_input, lies,
               " is a partial sum, what is held is none");
    request(quoted_name(name), sharding_on(mesh_, device_sharding(sharding, own), shape));
  }

  void read_step(const std::string& where, const StepText& step, const Mesh& own) {
    const auto pass_over = [&](const std::string& why) {
      out_.notes.push_back(str(where,
                               ": what 'step' says of gradients and updates is passed over, ",
                               "and follows by propagation: ", why));
    };
    if (step.of != wiring_of(graph_))
      return pass_over("it is of a step with other nodes, as another optimizer's is");
    const auto same_size = [](const Mesh::Axis& a, const Mesh::Axis& b) {
      return a.size == b.size;
    };
    if (!std::equal(own.axes().begin(), own.axes().end(), mesh_.axes().begin(), mesh_.axes().end(),
                    same_size))
      return pass_over(str("it is of mesh ", own.to_string(), ", not ", mesh_.to_string()));
    for (const LiesSo& group : step.lies) {
      const Sharding sharding = parse_sharding(group.lies, own);
      for (const std::string& name : group.values) request(quoted_name(name), sharding);
      for (const auto& [value, node] : group.reads)
        request(quoted_name(value) + ">" + quoted_name(node), sharding);
      for (const std::string& name : group.copied)
        out_.requests.push_back(quoted_name(name) + "=shared " + to_string(sharding, mesh_));
    }
    for (const std::string& name : step.anew) out_.requests.push_back(quoted_name(name) + "=anew");
    for (const std::string& name : step.shared)
      out_.requests.push_back(quoted_name(name) + "=shared");
  }

  void request(const std::string& names, const Sharding& sharding) {
    out_.requests.push_back(str(required_ ? "" : "?", names, '=', to_string(sharding, mesh_)));
  }

  Shape shape_in_file(ValueId id) const {
    const Shape& inside = graph_.type(id).shape;
    Shape out = inside;
    const std::vector<int64_t>& moved = moved_[at(id)];
    for (size_t d = 0; d < moved.size(); ++d) out[at(moved[d])] = inside[d];
    return out;
  }

  const Model::Impl& model_;
  const Graph& graph_;
  const Mesh& mesh_;
  const bool required_;
  const std::vector<std::vector<int64_t>> moved_;
  std::map<int64_t, const PlacedNode*> placed_;
  std::map<std::string, size_t> nodes_;
  AnnotationRequests out_;
};

}  // namespace

AnnotationRequests annotation_requests(const Model::Impl& model, const PlanRequest& request,
                                       const Mesh* mesh) {
  const AnnotationUse use = parse_choice("annotations", kAnnotationUses, request.annotations);
  const Annotations& annotations = model.annotations;
  if (use == AnnotationUse::ignore) return {};
  const Configuration* of = chosen(annotations, request.configuration);
  const bool required = use == AnnotationUse::required;
  const auto none = [&](const std::string& why) -> AnnotationRequests {
    SR_REQUIRE(!required, invalid_input, "--annotations required: ", why);
    return {{}, {"annotations are not followed: " + why}};
  };
  if (of == nullptr && annotations.configurations.empty()) {
    if (!required && request.configuration.empty() && annotations.nodes.empty() &&
        annotations.held.empty())
      return {};
    if (request.configuration.empty()) return none("the model has no device configuration");
  }
  if (of == nullptr && !request.configuration.empty())
    return none(str("the model has no device configuration '", request.configuration, "'; it has ",
                    list_of(annotations.configurations)));
  if (of == nullptr)
    return none("the model has several device configurations, " +
                list_of(annotations.configurations) + "; choose one with --configuration");
  if (mesh == nullptr)
    return none(str("configuration '", of->name, "' is for ", of->devices,
                    " devices of some mesh; give it, as --mesh data=2,model=4"));
  if (mesh->size() != of->devices)
    return none(str("configuration '", of->name, "' is for ", of->devices, " devices, mesh ",
                    mesh->to_string(), " has ", mesh->size()));
  AnnotationRequests out = Reading(model, *mesh, required).run(annotations, *of);
  const auto check_known = [&](const std::string& what, const std::string& name) {
    if (std::any_of(annotations.configurations.begin(), annotations.configurations.end(),
                    [&](const Configuration& one) { return one.name == name; }))
      return;
    const std::string unknown =
        str(what, " of configuration '", name, "', which the model does not have; it has ",
            list_of(annotations.configurations));
    SR_REQUIRE(!required, invalid_input, unknown);
    out.notes.push_back(unknown);
  };
  for (const NodeAnnotation& node : annotations.nodes)
    check_known(str("annotations of ", node.label, " are"), node.configuration);
  for (const Annotations::Held& held : annotations.held)
    check_known(held_place(model, held) + " is", held.configuration);
  for (std::string& note : out.notes) note = printable(note);
  return out;
}

namespace {

/// The Shardings of a plan, as annotations of the file's nodes.
class Writing {
 public:
  Writing(const Plan& plan, const Graph& step)
      : graph_(step), plan_(plan), moved_(moved_channels(step)) {
    for (size_t n = 0; n < graph_.nodes().size(); ++n) nodes_[graph_.nodes()[n].name] = n;
  }

  /// What the plan does where it stands for this node; no tensors: nowhere.
  NodeAnnotation of(const PlacedNode& node) {
    NodeAnnotation out;
    out.node = node.node;
    std::set<std::string> known;
    const auto add = [&](const std::string& tensor, ValueId id, const Sharding& sharding) {
      // Parts of a sum have no annotation.
      if (!sharding.partial.empty() || !known.insert(tensor).second) return false;
      out.tensors.emplace_back(tensor, device_sharding(in_file(id, sharding), plan_.mesh));
      return true;
    };
    for (const auto& [tensor, name] : node.inputs) {
      const ValueId id = graph_.find(name);
      if (id == kNoValue) continue;
      const std::set<Sharding> read = read_as(node, id);
      if (read.size() != 1 || !add(tensor, id, *read.begin())) continue;
      for (const std::string& made : node.made) read_.emplace(made, name);
    }
    for (const auto& [tensor, name] : node.outputs) {
      const auto lies = plan_.values.find(name);
      const ValueId id = graph_.find(name);
      if (id != kNoValue && lies != plan_.values.end() && add(tensor, id, lies->second))
        said_.insert(name);
    }
    return out;
  }

  /// What annotations have no place for (held_text.h); "": nothing is held. After all nodes.
  /// `train`: the step where nothing is computed again.
  std::string rest(const Graph& train) const {
    std::map<std::string, LiesSo> held;
    for (const Value& value : graph_.values()) {
      const auto lies = plan_.values.find(value.name);
      if (!is_persistent(value.role) || value.type.shape.empty() || lies == plan_.values.end())
        continue;
      // Gradients that add up over micro-batches may be parts of a sum, too.
      if (!lies->second.partial.empty()) continue;
      said(held, graph_.find(value.name), lies->second).values.push_back(value.name);
    }
    if (held.empty()) return "";
    HeldText out;
    out.mesh = plan_.mesh;
    for (auto& [lies, group] : held) out.held.push_back(std::move(group));
    out.step = step(train);
    return to_text(out);
  }

 private:
  /// Those that lie so.
  LiesSo& said(std::map<std::string, LiesSo>& groups, ValueId id, const Sharding& sharding) const {
    LiesSo& out = groups[to_string(in_file(id, sharding), plan_.mesh)];
    if (out.lies.empty()) out.lies = to_string(in_file(id, sharding), plan_.mesh);
    return out;
  }

  /// What is said neither of the file's nodes nor as held.
  StepText step(const Graph& train) const {
    StepText out;
    out.of = wiring_of(train);
    std::map<std::string, LiesSo> groups;
    for (size_t v = 0; v < train.values().size(); ++v) {
      const Value& value = train.values()[v];
      const auto lies = plan_.values.find(value.name);
      const bool is_held = is_persistent(value.role) && !value.type.shape.empty() &&
                           lies != plan_.values.end() && lies->second.partial.empty();
      if (lies == plan_.values.end() || is_held || value.role == Role::scalar ||
          (value.role == Role::computed && value.producer < 0) || said_.count(value.name) > 0)
        continue;
      said(groups, static_cast<ValueId>(v), lies->second).values.push_back(value.name);
    }
    std::map<ValueId, int> readers;
    std::set<std::string> shared;  // values of which several nodes may share copies
    for (const Node& node : train.nodes()) {
      const auto planned = plan_.nodes.find(node.name);
      if (planned == plan_.nodes.end()) continue;
      std::map<ValueId, std::set<Sharding>> reads;
      for (size_t k = 0; k < node.inputs.size(); ++k)
        reads[node.inputs[k]].insert(planned->second.in[k]);
      for (const auto& [id, as] : reads) {
        const Value& value = train.value(id);
        const auto lies = plan_.values.find(value.name);
        if (lies != plan_.values.end() && as != std::set{lies->second}) shared.insert(value.name);
        ++readers[id];
        if (as.size() == 1 && value.role != Role::scalar &&
            read_.count({node.name, value.name}) == 0)
          said(groups, id, *as.begin()).reads.emplace_back(value.name, node.name);
      }
    }
    for (const std::string& name : plan_.regathered) {
      if (train.find(name) != kNoValue) out.anew.push_back(name);
      shared.erase(name);
    }
    for (const auto& [name, from] : plan_.redistributed) {
      if (shared.erase(name) > 0) said(groups, train.find(name), from).copied.push_back(name);
    }
    for (const std::string& name : shared) {
      if (readers[train.find(name)] > 1) out.shared.push_back(name);
    }
    for (auto& [lies, group] : groups) out.lies.push_back(std::move(group));
    return out;
  }

  /// How the nodes that stand for a node read a value.
  std::set<Sharding> read_as(const PlacedNode& node, ValueId id) const {
    std::set<Sharding> out;
    for (const std::string& made : node.made) {
      const auto known = nodes_.find(made);
      const auto planned = plan_.nodes.find(made);
      if (known == nodes_.end() || planned == plan_.nodes.end()) continue;
      const std::vector<ValueId>& inputs = graph_.nodes()[known->second].inputs;
      for (size_t k = 0; k < inputs.size(); ++k) {
        if (inputs[k] == id) out.insert(planned->second.in[k]);
      }
    }
    return out;
  }

  /// Dims in the file's order.
  Sharding in_file(ValueId id, const Sharding& sharding) const {
    Sharding out = sharding;
    const std::vector<int64_t>& moved = moved_[at(id)];
    for (size_t d = 0; d < moved.size(); ++d) out.dims[at(moved[d])] = sharding.dims[d];
    return out;
  }

  const Graph& graph_;
  const Plan& plan_;
  const std::vector<std::vector<int64_t>> moved_;
  std::map<std::string, size_t> nodes_;
  std::set<std::string> said_;                          // values, by annotations
  std::set<std::pair<std::string, std::string>> read_;  // by node and value, too
};

}  // namespace

std::vector<std::string> annotate_model(const Model& model, const TrainingPlan& plan,
                                        const std::string& output,
                                        const std::string& configuration) {
  return at_boundary([&] {
    require_made_for(model.impl(), plan.impl());
    const Plan& train = plan.impl().train;
    importer::ModelCopy copy(model.impl().onnx.file());
    Writing writing(train, step_of(model.impl(), plan.impl()));
    std::vector<NodeAnnotation> nodes;
    for (const PlacedNode& node : model.impl().placed) {
      NodeAnnotation annotation = writing.of(node);
      if (!annotation.tensors.empty()) nodes.push_back(std::move(annotation));
    }
    copy.set_configuration(
        {configuration.empty() ? train.mesh.to_string() : configuration, train.mesh.size()},
        writing.rest(model.impl().train));
    for (NodeAnnotation& annotation : nodes)
      copy.annotate(static_cast<size_t>(annotation.node), std::move(annotation));
    copy.write(output);
    return copy.outputs(output);
  });
}

}  // namespace shardrun
