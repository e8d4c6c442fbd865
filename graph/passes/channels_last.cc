// One rebuild of the graph that keeps, for each image, its stand-in with the channels last.
#include "graph/passes/channels_last.h"

#include <algorithm>
#include <set>

#include "graph/ops/elementwise.h"
#include "graph/ops/window.h"
#include "graph/passes/movement.h"
#include "graph/passes/rebuild.h"

namespace shardrun {
namespace {

using Ints = std::vector<int64_t>;

/// A value of the old graph with its dims moved: [N, C, …] -> [N, …, C] (`moved` 1), with groups
/// [N, G, C, …] -> [N, …, G, C] (2).
struct StandIn {
  ValueId id = kNoValue;
  size_t moved = 1;
};

/// Dim d of what stands in is dim perm[d] of the original.
Ints perm_of(size_t rank, size_t moved) {
  Ints perm(rank);
  for (size_t d = 0; d < rank; ++d) {
    const size_t from = d == 0 ? 0 : d < rank - moved ? d + moved : d - (rank - moved) + 1;
    perm[d] = static_cast<int64_t>(from);
  }
  return perm;
}

Ints inverse(const Ints& perm) {
  Ints out(perm.size());
  for (size_t d = 0; d < perm.size(); ++d)
    out[static_cast<size_t>(perm[d])] = static_cast<int64_t>(d);
  return out;
}

template <class T>
std::vector<T> permuted(const std::vector<T>& list, const Ints& perm) {
  std::vector<T> out;
  for (int64_t d : perm) out.push_back(list[static_cast<size_t>(d)]);
  return out;
}

/// A transpose, or a reshape where it would move nothing but dims of 1.
ValueId transposed(Graph& g, ValueId id, const Ints& perm, const std::string& name) {
  const Shape shape = g.type(id).shape;
  if (moves_only_ones(shape, perm))
    return g.add("reshape", {id}, {{"shape", permuted(shape, perm)}}, name);
  return g.add("transpose", {id}, {{"perm", perm}}, name);
}

class Pass {
 public:
  explicit Pass(const Graph& from) : from_(from) {
    wanted_.insert(from.outputs.begin(), from.outputs.end());
    wanted_.insert(from.loss);
    for (const auto& [persistent, next] : from.updates) wanted_.insert(next);
    for (const auto& [name, id] : from.metrics) wanted_.insert(id);
  }

  Graph run() {
    return rebuild(from_, [this](Rebuild& r, const Node& node) {
      r_ = &r;
      r.to.phase = node.phase;
      if (!moves(node)) {
        for (ValueId id : node.inputs) as_it_was(id);
        r.copy(node);
      }
      r.to.phase = node.phase;
      for (ValueId id : node.outputs) {
        if (wanted_.count(id)) as_it_was(id);
      }
      r.to.phase = Phase::micro;
    });
  }

  int convolutions() const { return convolutions_; }

 private:
  const Shape& shape(ValueId old) const { return from_.type(old).shape; }
  const StandIn* stand_in(ValueId old) const {
    const auto it = stand_ins_.find(old);
    return it == stand_ins_.end() ? nullptr : &it->second;
  }

  ValueId as_it_was(ValueId old) {
    if (const auto it = r_->copied.find(old); it != r_->copied.end()) return it->second;
    const StandIn& from = stand_ins_.at(old);
    return r_->copied[old] =
               transposed(r_->to, from.id, inverse(perm_of(shape(old).size(), from.moved)),
                          from_.value(old).name + "/channels_first");
  }

  ValueId channels_last(ValueId old, size_t moved) {
    if (const StandIn* known = stand_in(old); known != nullptr && known->moved == moved)
      return known->id;
    const ValueId id = transposed(r_->to, as_it_was(old), perm_of(shape(old).size(), moved),
                                  from_.value(old).name + "/channels_last");
    stand_ins_.try_emplace(old, StandIn{id, moved});
    return id;
  }

  /// Adds the node with these operands and attributes; its results stand in for the old ones.
  bool made(const Node& node, std::vector<ValueId> inputs, Attrs attrs, size_t moved) {
    const std::vector<ValueId> out = r_->to.add_node(node.op, std::move(inputs), attrs, node.name);
    for (size_t r = 0; r < out.size(); ++r) stand_ins_[node.outputs[r]] = {out[r], moved};
    return true;
  }

  static Attrs with_flag(Attrs attrs) {
    attrs.set("channels_last", int64_t{1});
    return attrs;
  }

  /// Emits the node with channels last where that is a gain: convolutions always, anything else if
  /// what it reads lies so already.
  bool moves(const Node& node) {
    if (node.op == "conv" || node.op == "conv_data_grad") return convolution(node);
    if (node.inputs.empty()) return false;
    const StandIn* first = stand_in(node.inputs[0]);
    if (is_elementwise(node.op) || node.op == "dropout") return elementwise(node);
    if (first == nullptr) return false;
    const size_t rank = shape(node.inputs[0]).size(), moved = first->moved;
    const Ints perm = perm_of(rank, moved);
    if (node.op == "batch_moments" || node.op == "batch_norm") {
      if (moved != 1) return false;
      std::vector<ValueId> inputs = {first->id};
      for (size_t i = 1; i < node.inputs.size(); ++i)
        inputs.push_back(i < 5 ? as_it_was(node.inputs[i]) : channels_last(node.inputs[i], 1));
      if (node.op == "batch_norm") return made(node, inputs, with_flag(node.attrs), 1);
      Rebuild& r = *r_;
      r.copied[node.outputs[0]] = r.to.add(node.op, inputs, with_flag(node.attrs), node.name);
      return true;
    }
    if (node.op == "max_pool" || node.op == "sum_pool") {
      if (moved != 1 || node.attrs.ints("kernel").size() + 2 != rank) return false;
      return made(node, {first->id}, with_flag(node.attrs), 1);
    }
    if (node.op == "reshape") return groups(node, *first);
    if (node.attrs.has("axes") && node.attrs.has("keepdims")) return reduction(node, *first, perm);
    if (node.op == "concat") {
      const auto same = [&](ValueId id) { return stand_in(id) && stand_in(id)->moved == moved; };
      if (!std::all_of(node.inputs.begin(), node.inputs.end(), same)) return false;
      std::vector<ValueId> inputs;
      for (ValueId id : node.inputs) inputs.push_back(stand_in(id)->id);
      Attrs attrs = node.attrs;
      attrs.set("axis", inverse(perm)[static_cast<size_t>(attrs.i("axis"))]);
      return made(node, inputs, attrs, moved);
    }
    if (node.op == "slice" || node.op == "pad") {
      Attrs attrs = node.attrs;
      for (const char* list : {"starts", "ends", "steps", "before", "after"}) {
        if (attrs.has(list)) attrs.set(list, permuted(attrs.ints(list), perm));
      }
      std::vector<ValueId> inputs = {first->id};
      for (size_t i = 1; i < node.inputs.size(); ++i) inputs.push_back(as_it_was(node.inputs[i]));
      return made(node, inputs, attrs, moved);
    }
    if (node.op == "gather" && shape(node.inputs[1]).size() == 1) {
      Attrs attrs = node.attrs;
      attrs.set("axis", inverse(perm)[static_cast<size_t>(attrs.i("axis"))]);
      return made(node, {first->id, as_it_was(node.inputs[1])}, attrs, moved);
    }
    return false;
  }

  bool convolution(const Node& node) {
    const size_t moved = shape(node.inputs[0]).size() - node.attrs.ints("strides").size() - 1;
    ++convolutions_;
    return made(node, {channels_last(node.inputs[0], moved), as_it_was(node.inputs[1])},
                with_flag(node.attrs), moved);
  }

  /// Operands of the result's rank or below it, which broadcast.
  bool elementwise(const Node& node) {
    const Shape& out = shape(node.outputs[0]);
    const StandIn* image = nullptr;
    for (ValueId id : node.inputs) {
      if (image == nullptr && shape(id) == out) image = stand_in(id);
    }
    if (image == nullptr) return false;
    const size_t moved = image->moved;
    const Ints perm = perm_of(out.size(), moved);
    std::vector<ValueId> inputs;
    for (ValueId id : node.inputs) {
      Shape full = shape(id);
      if (element_count(full) == 1 && full.empty()) {
        inputs.push_back(as_it_was(id));
      } else if (full.size() == out.size()) {
        inputs.push_back(channels_last(id, moved));
      } else {
        full.insert(full.begin(), out.size() - full.size(), 1);
        const std::string& name = from_.value(id).name;
        const ValueId whole =
            r_->to.add("reshape", {as_it_was(id)}, {{"shape", full}}, name + "/dims");
        inputs.push_back(transposed(r_->to, whole, perm, name + "/channels_last"));
      }
    }
    Attrs attrs = node.attrs;
    for (const char* list : {"global_shape", "start"}) {
      if (attrs.has(list)) attrs.set(list, permuted(attrs.ints(list), perm));
    }
    return made(node, inputs, attrs, moved);
  }

  /// Channels taken apart into groups, or put together: [N, C, …] to [N, G, C / G, …] and back.
  bool groups(const Node& node, const StandIn& image) {
    const Shape &in = shape(node.inputs[0]), &out = shape(node.outputs[0]);
    const size_t moved = image.moved == 1 ? 2 : 1;
    if (in.size() + moved != out.size() + image.moved || in[0] != out[0]) return false;
    const auto spatial = static_cast<std::ptrdiff_t>(in.size() - image.moved - 1);
    if (spatial < 1 || !std::equal(in.end() - spatial, in.end(), out.end() - spatial)) return false;
    return made(node, {image.id}, {{"shape", permuted(out, perm_of(out.size(), moved))}}, moved);
  }

  /// Over dims that stay in place as 1, or over all spatial ones: the others keep their order.
  bool reduction(const Node& node, const StandIn& image, const Ints& perm) {
    const bool kept = node.attrs.i("keepdims") != 0;
    const Ints places = inverse(perm), &old = node.attrs.ints("axes");
    std::set<int64_t> axes;
    for (int64_t axis : old) axes.insert(places[static_cast<size_t>(axis)]);
    for (size_t d = 1; !kept && d < perm.size() - image.moved; ++d) {
      if (axes.count(static_cast<int64_t>(d)) == 0) return false;
    }
    Attrs attrs = node.attrs;
    attrs.set("axes", Ints(axes.begin(), axes.end()));
    if (kept) return made(node, {image.id}, attrs, image.moved);
    r_->copied[node.outputs[0]] = r_->to.add(node.op, {image.id}, attrs, node.name);
    return true;
  }

  const Graph& from_;
  Rebuild* r_ = nullptr;
  std::set<ValueId> wanted_;  // as they were, when all is done
  std::map<ValueId, StandIn> stand_ins_;
  int convolutions_ = 0;
};

}  // namespace

int put_channels_last(Graph& graph) {
  Pass pass(graph);
  Graph made = pass.run();
  if (pass.convolutions() == 0) return 0;
  remove_dead_nodes(made);
  graph = std::move(made);
  return pass.convolutions();
}

std::vector<std::vector<int64_t>> moved_channels(const Graph& graph) {
  std::vector<Ints> perms(graph.values().size());
  for (const Node& node : graph.nodes()) {
    if (node.op == "transpose" || node.op == "reshape" || node.op == "conv_weight_grad") continue;
    size_t moved = channels_last(node) ? 1 : 0;
    if (moved > 0 && node.op.starts_with("conv"))
      moved = graph.type(node.inputs[0]).shape.size() - node.attrs.ints("strides").size() - 1;
    for (ValueId out : node.outputs) {
      const size_t rank = graph.type(out).shape.size();
      Ints& perm = perms[static_cast<size_t>(out)];
      if (moved > 0 && rank > 2) perm = perm_of(rank, moved);
      for (ValueId in : node.inputs) {
        const Ints& operand = perms[static_cast<size_t>(in)];
        if (perm.empty() && operand.size() == rank) perm = operand;
      }
    }
  }
  return perms;
}

}  // namespace shardrun
