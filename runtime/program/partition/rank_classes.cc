// Grouping ranks by what the memory of their Programs depends on.
#include "program/partition/rank_classes.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/node_exchanges.h"
#include "graph/op_def.h"

namespace shardrun {
namespace {

class Classifier {
 public:
  Classifier(const Graph& graph, const Plan& plan, const NeedsOf& needs)
      : graph_(graph), plan_(plan), mesh_(plan.mesh), needs_(needs) {
    for (int64_t rank = 0; rank < mesh_.size(); ++rank)
      coordinates_.push_back(mesh_.coordinates(rank));
    signatures_.resize(coordinates_.size());
  }

  RankClasses run(const Cuts& cuts) {
    for (const auto& [extent, axes] : cuts) add_cut(extent, axes);
    add_needs();
    add_exchanges();
    RankClasses out;
    std::map<std::vector<int64_t>, int> known;
    for (size_t rank = 0; rank < signatures_.size(); ++rank) {
      const auto [it, fresh] =
          known.emplace(std::move(signatures_[rank]), static_cast<int>(out.first.size()));
      if (fresh) out.first.push_back(static_cast<int64_t>(rank));
      out.of_rank.push_back(it->second);
    }
    return out;
  }

 private:
  /// 10 over axes of 4 and 2: shards of 3, 3, 3, 1, and of those 2, 1 or 1, 0. What a rank holds,
  /// and its peers along the inner axes, follow from the shard after each axis.
  void add_cut(int64_t extent, const Axes& axes) {
    int64_t parts = 1;
    for (int axis : axes) parts *= mesh_.axis_size(axis);
    if (extent % parts == 0) return;
    for (size_t rank = 0; rank < signatures_.size(); ++rank) {
      int64_t left = extent;
      for (int axis : axes) {
        left =
            shard_range(left, mesh_.axis_size(axis), coordinates_[rank][static_cast<size_t>(axis)])
                .size;
        signatures_[rank].push_back(left);
      }
    }
  }

  /// Of kernels whose attributes depend on the rank's place.
  void add_needs() {
    if (!needs_) return;
    std::set<std::string> seen;
    for (const Node& node : graph_.nodes()) {
      if (op_def(node.op).localise && seen.insert(description(node)).second) add_needs_of(node);
    }
  }

  /// Equal for nodes of which a rank runs equal shards, in all that matters here.
  std::string description(const Node& node) const {
    Attrs attrs;
    for (const auto& [name, attr] : node.attrs.all()) {
      if (name != "key" && name != "seed") attrs.set(name, attr);
    }
    std::string text = node.op + "{" + to_string(attrs) + "}";
    const NodePlan& plan = plan_.nodes.at(node.name);
    for (size_t i = 0; i < node.inputs.size(); ++i)
      text += to_string(graph_.type(node.inputs[i])) +
              to_string(plan, false, static_cast<int>(i), mesh_);
    for (size_t i = 0; i < node.outputs.size(); ++i)
      text += to_string(graph_.type(node.outputs[i])) +
              to_string(plan, true, static_cast<int>(i), mesh_);
    return text;
  }

  void add_needs_of(const Node& node) {
    const NodePlan& plan = plan_.nodes.at(node.name);
    std::set<int> axes;
    for (const auto* shardings : {&plan.in, &plan.out}) {
      for (const Sharding& s : *shardings) {
        for (const Axes& cuts : s.dims) axes.insert(cuts.begin(), cuts.end());
      }
    }
    // Places by their coordinates along these axes alone.
    std::map<std::vector<int64_t>, StepBytes> bytes;
    const auto place = [&](const std::vector<int64_t>& at) {
      std::vector<int64_t> out;
      for (int axis : axes) out.push_back(at[static_cast<size_t>(axis)]);
      return out;
    };
    const auto measure = [&](const std::vector<int64_t>& at) {
      const auto [it, fresh] = bytes.emplace(place(at), StepBytes());
      if (fresh) it->second = needs_of(node, plan, at);
      return it->second;
    };
    bool any = false;
    for (uint32_t corner = 0; corner < 1u << axes.size(); ++corner) {
      std::vector<int64_t> at(static_cast<size_t>(mesh_.axis_count()), 0);
      size_t i = 0;
      for (int axis : axes) {
        if (corner >> i++ & 1) at[static_cast<size_t>(axis)] = mesh_.axis_size(axis) - 1;
      }
      any = any || measure(at) != StepBytes();
    }
    if (!any) return;
    for (size_t rank = 0; rank < signatures_.size(); ++rank) {
      const StepBytes needs = measure(coordinates_[rank]);
      signatures_[rank].insert(signatures_[rank].end(), {needs.workspace, needs.kept});
    }
  }

  StepBytes needs_of(const Node& node, const NodePlan& plan, const std::vector<int64_t>& at) const {
    Program program;
    Step step;
    step.node = node;
    const NodeBoxes boxes = node_boxes(plan, shapes(node.inputs), shapes(node.outputs), mesh_, at);
    const auto add = [&](const std::vector<ValueId>& values, const std::vector<Box>& parts,
                         std::vector<BufferId>& ids) {
      for (size_t i = 0; i < values.size(); ++i) {
        ids.push_back(static_cast<BufferId>(program.buffers.size()));
        program.buffers.push_back({"", {graph_.type(values[i]).dtype, box_shape(parts[i])}});
      }
    };
    add(node.inputs, boxes.in, step.in);
    add(node.outputs, boxes.out, step.out);
    step.node.attrs =
        op_def(node.op).localise(node, graph_.types(node.inputs), {boxes.in, boxes.out});
    step.node.inputs = step.in;
    step.node.outputs = step.out;
    return needs_(program, step);
  }

  std::vector<Shape> shapes(const std::vector<ValueId>& values) const {
    std::vector<Shape> out;
    for (ValueId id : values) out.push_back(graph_.type(id).shape);
    return out;
  }

  /// Windows are clipped at an image's border, and what is sent to whom depends on the place.
  void add_exchanges() {
    std::set<std::string> seen;
    for (const Node& node : graph_.nodes()) {
      const NodePlan& plan = plan_.nodes.at(node.name);
      if (!plan.exchanges() || !seen.insert(description(node)).second) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i)
        add_exchange(node, plan, false, static_cast<int>(i));
      for (size_t r = 0; r < node.outputs.size(); ++r)
        add_exchange(node, plan, true, static_cast<int>(r));
    }
  }

  void add_exchange(const Node& node, const NodePlan& plan, bool result, int index) {
    const std::vector<int> axes = exchange_axes(plan, result, index);
    if (axes.empty()) return;
    const std::vector<Shape> in = shapes(node.inputs), out = shapes(node.outputs);
    const ValueId value = (result ? node.outputs : node.inputs)[static_cast<size_t>(index)];
    Program program;
    program.buffers.push_back({"", {graph_.type(value).dtype, {}}});
    Step step;
    step.kind = Step::Kind::collective;
    step.in = step.out = {0};
    for (int64_t first = 0; first < mesh_.size(); ++first) {
      if (mesh_.group(first, axes).front() != first) continue;
      auto exchange = exchange_of(plan, in, out, result, index, mesh_, first);
      if (!exchange) return;
      step.collective = std::make_shared<const Collective>(std::move(*exchange));
      const Collective& c = *step.collective;
      for (size_t m = 0; m < c.group.size(); ++m) {
        program.rank = c.group[m];
        std::vector<int64_t>& signature = signatures_[static_cast<size_t>(program.rank)];
        for (const Range& range : (result ? c.in_boxes : c.out_boxes)[m])
          signature.push_back(range.size);
        if (needs_) signature.push_back(needs_(program, step).workspace);
      }
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const Mesh& mesh_;
  const NeedsOf& needs_;
  std::vector<std::vector<int64_t>> coordinates_, signatures_;  // by rank
};

}  // namespace

RankClasses rank_classes(const Graph& graph, const Plan& plan, const Cuts& cuts,
                         const NeedsOf& needs) {
  return Classifier(graph, plan, needs).run(cuts);
}

RankClasses joined(const RankClasses& a, const RankClasses& b) {
  RankClasses out;
  std::map<std::pair<int, int>, int> known;
  for (size_t rank = 0; rank < a.of_rank.size(); ++rank) {
    const auto [it, fresh] = known.emplace(std::pair(a.of_rank[rank], b.of_rank[rank]),
                                           static_cast<int>(out.first.size()));
    if (fresh) out.first.push_back(static_cast<int64_t>(rank));
    out.of_rank.push_back(it->second);
  }
  return out;
}

}  // namespace shardrun
