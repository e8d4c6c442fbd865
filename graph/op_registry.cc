// The op registry: the families' lists put together once, and what others register.
#include <algorithm>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "graph/op_def.h"
#include "graph/ops/families.h"
#include "graph/rearranged.h"

namespace shardrun {
namespace {

/// A map's nodes do not move, so an OpDef that was given out stays valid when an op is added.
struct Registry {
  std::map<std::string, OpDef, std::less<>> ops;
  std::shared_mutex mutex;

  void add(OpDef def) {
    std::string name = def.name;
    SR_REQUIRE(ops.emplace(name, std::move(def)).second, internal, "op '", name,
               "' is listed twice");
  }
};

Registry& registry() {
  static Registry& instance = []() -> Registry& {
    static Registry r;
    for (auto family :
         {elementwise_ops, reduce_ops, movement_ops, indexing_ops, matmul_ops, conv_ops, pool_ops,
          batch_norm_ops, norm_ops, segment_ops, softmax_ops, attention_ops, cached_attention_ops,
          recurrence_ops, random_ops, optimizer_ops}) {
      for (OpDef& def : family()) r.add(std::move(def));
    }
    return r;
  }();
  return instance;
}

}  // namespace

const OpDef* find_op(std::string_view name) {
  Registry& r = registry();
  std::shared_lock lock(r.mutex);
  auto it = r.ops.find(name);
  return it == r.ops.end() ? nullptr : &it->second;
}

const OpDef& op_def(std::string_view name) {
  const OpDef* def = find_op(name);
  SR_REQUIRE(def != nullptr, unsupported, "op '", name,
             "' is not in the registry; register_op adds an op of your own");
  return *def;
}

std::vector<const OpDef*> all_ops() {
  Registry& r = registry();
  std::shared_lock lock(r.mutex);
  std::vector<const OpDef*> ops;
  ops.reserve(r.ops.size());
  for (const auto& [name, def] : r.ops) ops.push_back(&def);
  return ops;
}

void register_op(OpDef def) {
  SR_REQUIRE(!def.name.empty(), invalid_input, "an op needs a name");
  SR_REQUIRE(def.infer != nullptr, invalid_input, "op '", def.name,
             "' has no shape rule; set OpDef::infer");
  if (def.precision == Precision::unstated) def.precision = Precision::follows;
  if (def.cost == CostClass::unstated) def.cost = CostClass::streamed;
  Registry& r = registry();
  std::unique_lock lock(r.mutex);
  SR_REQUIRE(r.ops.find(def.name) == r.ops.end(), invalid_input, "op '", def.name,
             "' is already registered; choose another name");
  r.add(std::move(def));
}

std::vector<TensorType> infer_types(const Node& node, std::span<const TensorType> in) {
  return op_def(node.op).infer(node, own_operands(node, in));
}

size_t rearranged_operands(const Node& node) {
  return static_cast<size_t>(node.attrs.i("rearranged", 0));
}

std::span<const TensorType> own_operands(const Node& node, std::span<const TensorType> in) {
  return in.first(in.size() - std::min(in.size(), rearranged_operands(node)));
}

double node_flops(const Node& node, std::span<const TensorType> in,
                  std::span<const TensorType> out) {
  const OpDef& def = op_def(node.op);
  in = own_operands(node, in);
  if (def.flops != nullptr) return def.flops(node, in, out);
  double count = 0;
  for (const TensorType& t : out) count += static_cast<double>(element_count(t.shape));
  return count;
}

}  // namespace shardrun
