// Boxes, and all that follows from them.
#include "program/partition/local_program.h"

#include <memory>
#include <unordered_map>

#include "graph/node_exchanges.h"
#include "graph/op_def.h"

namespace shardrun {
namespace {

class Localiser {
 public:
  Localiser(const Skeleton& skeleton, int64_t rank)
      : skeleton_(skeleton),
        graph_(skeleton.graph),
        mesh_(skeleton.plan.mesh),
        coordinates_(mesh_.coordinates(rank)),
        program_(skeleton.program) {
    program_.rank = rank;
  }

  Program run() {
    for (auto* list : {&program_.bindings, &program_.outputs}) {
      for (Binding& b : *list) b.box = local_box(b.global.shape, b.sharding, mesh_, coordinates_);
    }
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const BufferForm& form = skeleton_.buffers[b];
      if (!form.exchanged)
        program_.buffers[b].type.shape = shard_shape(graph_.type(form.value).shape, *form.sharding);
    }
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      Step& step = program_.steps[s];
      const StepForm& form = skeleton_.steps[s];
      if (form.kernel >= 0) fill_kernel(step, form.kernel);
      if (form.move != nullptr) fill_reshard(step, form);
      if (form.exchange) {
        step.collective = std::make_shared<const Collective>(
            *skeleton_.exchange_of(*form.exchange, program_.rank));
        if (step.collective->kind == Collective::Kind::row_route)
          local_type(step.out[1]).shape = {routing_size(*step.collective)};
      }
    }
    return std::move(program_);
  }

 private:
  TensorType& local_type(BufferId id) { return program_.buffers[static_cast<size_t>(id)].type; }

  Shape shard_shape(const Shape& shape, const Sharding& sharding) const {
    Shape out = shape;
    for (size_t d = 0; d < shape.size(); ++d) {
      for (int axis : sharding.dims[d])
        out[d] = shard_range(out[d], mesh_.axis_size(axis), coordinates_[static_cast<size_t>(axis)])
                     .size;
    }
    return out;
  }

  void fill_kernel(Step& step, NodeId id) {
    const Node& node = graph_.node(id);
    const NodePlan& np = *skeleton_.node_plans[static_cast<size_t>(id)];
    const OpDef& def = op_def(node.op);
    NodeBoxes boxes;
    if (np.exchanges() || def.localise) {
      const NodeShapes shapes = skeleton_.shapes_of(id);
      boxes = node_boxes(np, shapes.in, shapes.out, mesh_, coordinates_);
    }
    const auto types = [&](const std::vector<BufferId>& ids, const std::vector<Box>& parts) {
      std::vector<TensorType> out;
      for (size_t i = 0; i < ids.size(); ++i) {
        if (skeleton_.buffers[static_cast<size_t>(ids[i])].exchanged)
          local_type(ids[i]).shape = box_shape(parts[i]);
        out.push_back(local_type(ids[i]));
      }
      return out;
    };
    const std::vector<TensorType> in = types(step.in, boxes.in), out = types(step.out, boxes.out);
    try {
      if (def.localise)
        step.node.attrs = def.localise(node, graph_.types(node.inputs), {boxes.in, boxes.out});
      const std::vector<TensorType> got = infer_types(step.node, in);
      for (size_t i = 0; i < out.size(); ++i) {
        SR_REQUIRE(got.at(i) == out[i], internal, "on rank ", program_.rank, " result ", i, " is ",
                   got[i], " by the shape rule, the plan says ", out[i], " (",
                   to_string(np.out[i], mesh_), ")");
      }
    } catch (const Error& e) {
      throw e.with_context(str("node '", node.name, "' cut over ", mesh_.to_string()));
    }
  }

  void fill_reshard(Step& step, const StepForm& form) {
    std::shared_ptr<const Collective>& collective = collectives_[form.move];
    if (!collective) {
      collective = std::make_shared<const Collective>(collective_of(
          *form.move, graph_.type(form.value).shape, *form.before, mesh_, program_.rank));
    }
    step.collective = collective;
  }

  const Skeleton& skeleton_;
  const Graph& graph_;
  const Mesh& mesh_;
  std::vector<int64_t> coordinates_;
  Program program_;
  std::unordered_map<const ReshardStep*, std::shared_ptr<const Collective>> collectives_;
};

}  // namespace

Program local_program(const Skeleton& skeleton, int64_t rank) {
  return Localiser(skeleton, rank).run();
}

}  // namespace shardrun
