// From annotations of a file to requests of a plan, and back.
#include "annotations/annotated.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/at.h"
#include "choices.h"
#include "graph/onnx/file/model_copy.h"
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

/// The one that is asked for, or the only one; nullptr: neither.
const Configuration* chosen(const Annotations& annotations, const std::string& name) {
  const std::vector<Configuration>& all = annotations.configurations;
  if (name.empty()) return all.size() == 1 ? &all[0] : nullptr;
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const Configuration& one) { return one.name == name; });
  SR_REQUIRE(found != all.end(), invalid_input, "--configuration ", name,
             ": the model has no such device configuration; it has ", list_of(all));
  return &*found;
}

const std::string* find_name(const Names& names, const std::string& name) {
  const auto found =
      std::find_if(names.begin(), names.end(), [&](const auto& one) { return one.first == name; });
  return found == names.end() ? nullptr : &found->second;
}

/// What the annotations of one configuration ask of the step.
class Reading {
 public:
  Reading(const Model::Impl& model, const Mesh& mesh, bool required)
      : graph_(model.train), mesh_(mesh), required_(required), moved_(moved_channels(model.train)) {
    for (const PlacedNode& node : model.placed) placed_[node.node] = &node;
    for (size_t n = 0; n < graph_.nodes().size(); ++n) nodes_[graph_.nodes()[n].name] = n;
  }

  AnnotationRequests run(const std::vector<NodeAnnotation>& nodes, const Configuration& of) {
    for (const NodeAnnotation& node : nodes) {
      if (node.configuration != of.name) continue;
      SR_REQUIRE(!node.pipeline_stage, unsupported, node.label, " is of pipeline stage ",
                 node.pipeline_stage.value_or(0), " in configuration '", of.name,
                 "', and every rank runs all nodes here; leave the stages out, or plan with "
                 "--annotations ignore");
      for (const auto& [tensor, spec] : node.tensors) read(node, tensor, spec);
    }
    return std::move(out_);
  }

 private:
  void read(const NodeAnnotation& node, const std::string& tensor, const DeviceSharding& spec) {
    try {
      ask(node, tensor, spec);
    } catch (const Error& error) {
      const std::string where = str("annotation of '", tensor, "' at ", node.label);
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
    Shape in_file = value.type.shape;
    const std::vector<int64_t>& moved = moved_[at(id)];
    for (size_t d = 0; d < moved.size(); ++d) in_file[at(moved[d])] = value.type.shape[d];
    const std::string as = to_string(sharding_on(mesh_, spec, in_file), mesh_);
    const auto add = [&](const std::string& names) {
      out_.requests.push_back(str(required_ ? "" : "?", names, '=', as));
    };
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
    if (!required && annotations.nodes.empty()) return {};
    return none("the model has no device configuration");
  }
  if (of == nullptr)
    return none("the model has several device configurations, " +
                list_of(annotations.configurations) + "; choose one with --configuration");
  if (mesh == nullptr)
    return none(str("configuration '", of->name, "' is for ", of->devices,
                    " devices of some mesh; give it, as --mesh data=2,model=4"));
  if (mesh->size() != of->devices)
    return none(str("configuration '", of->name, "' is for ", of->devices, " devices, mesh ",
                    mesh->to_string(), " has ", mesh->size()));
  AnnotationRequests out = Reading(model, *mesh, required).run(annotations.nodes, *of);
  for (const NodeAnnotation& node : annotations.nodes) {
    if (std::any_of(annotations.configurations.begin(), annotations.configurations.end(),
                    [&](const Configuration& one) { return one.name == node.configuration; }))
      continue;
    const std::string unknown =
        str("annotations of ", node.label, " are of configuration '", node.configuration,
            "', which the model does not have; it has ", list_of(annotations.configurations));
    SR_REQUIRE(!required, invalid_input, unknown);
    out.notes.push_back(unknown);
  }
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
  NodeAnnotation of(const PlacedNode& node) const {
    NodeAnnotation out;
    out.node = node.node;
    std::set<std::string> known;
    const auto add = [&](const std::string& tensor, ValueId id, const Sharding& sharding) {
      // Parts of a sum have no annotation.
      if (!sharding.partial.empty() || !known.insert(tensor).second) return;
      out.tensors.emplace_back(tensor, device_sharding(in_file(id, sharding), plan_.mesh));
    };
    for (const auto& [tensor, name] : node.inputs) {
      const ValueId id = graph_.find(name);
      if (id == kNoValue) continue;
      const std::set<Sharding> read = read_as(node, id);
      if (read.size() == 1) add(tensor, id, *read.begin());
    }
    for (const auto& [tensor, name] : node.outputs) {
      const auto lies = plan_.values.find(name);
      const ValueId id = graph_.find(name);
      if (id != kNoValue && lies != plan_.values.end()) add(tensor, id, lies->second);
    }
    return out;
  }

 private:
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
};

}  // namespace

std::vector<std::string> annotate_model(const Model& model, const TrainingPlan& plan,
                                        const std::string& output,
                                        const std::string& configuration) {
  return at_boundary([&] {
    require_made_for(model.impl(), plan.impl());
    const Plan& train = plan.impl().train;
    importer::ModelCopy copy(model.impl().onnx.file());
    copy.set_configuration(
        {configuration.empty() ? train.mesh.to_string() : configuration, train.mesh.size()});
    const Writing writing(train, step_of(model.impl(), plan.impl()));
    for (const PlacedNode& node : model.impl().placed) {
      NodeAnnotation annotation = writing.of(node);
      if (!annotation.tensors.empty())
        copy.annotate(static_cast<size_t>(node.node), std::move(annotation));
    }
    copy.write(output);
    return copy.outputs(output);
  });
}

}  // namespace shardrun
