// pack_weights, and the updates that lay their parameter out in the same pass over memory.
#include "program/ops/pack.h"

#include "graph/ops/gradients.h"
#include "program/ops/families.h"

namespace shardrun {
namespace {

constexpr std::string_view kPackedSuffix = "_packed";

Types infer_weights(const Node& node, InTypes in) {
  require_operands(in, 1);
  return {WeightLayout::parse(node.attrs.s("layout")).type(in[0])};
}

Types infer_update(const Node& node, InTypes in) {
  const PackedUpdate form = PackedUpdate::of(node, in.size());
  Types out = infer_types(without_layouts(node), in);
  for (const WeightLayout& layout : form.layouts) out.push_back(layout.type(out[form.of_result()]));
  return out;
}

double update_flops(const Node& node, InTypes in, InTypes out) {
  const size_t own = PackedUpdate::of(node, in.size()).first;
  return node_flops(without_layouts(node), in, out.first(own));
}

OpDef pack_weights() {
  OpDef pack;
  pack.name = "pack_weights";
  pack.infer = infer_weights;
  pack.flops = [](const Node&, InTypes, InTypes) { return 0.0; };
  pack.cost = CostClass::streamed;
  pack.precision = Precision::follows;
  const auto laid_out = [&](Shape shape, const char* layout) {
    pack.samples.push_back({{{DType::f32, std::move(shape)}}, {{"layout", std::string(layout)}}});
  };
  laid_out({20, 7, 3, 2}, "AcdB16a2b");
  laid_out({32, 64, 3, 3}, "AcdB32a2b");
  laid_out({64, 32, 3}, "BAc8a16b2a");
  laid_out({32, 64, 1, 2}, "ABcd8a16b2a");
  laid_out({90, 47}, "BA16a64b2a");
  laid_out({90, 47}, "AB16b48a2b");
  laid_out({64, 33, 1, 1}, "ABcd16b64a2b");
  return pack;
}

/// With and without a copy.
OpDef packed(const char* update, size_t moments, const Attrs& attrs,
             std::vector<std::pair<int, int>> in_place) {
  OpDef def;
  def.name = str(update, kPackedSuffix);
  def.infer = infer_update;
  def.flops = update_flops;
  def.cost = CostClass::fused;
  def.precision = Precision::follows;
  def.in_place = std::move(in_place);
  const std::pair<Shape, const char*> laid_out[] = {{{64, 96, 3}, "AcB32a2b"},
                                                    {{64, 96, 3}, "BAc8a16b2a AcB64a2b"},
                                                    {{64, 96, 3}, "Abc4a"},
                                                    {{90, 47}, "BA16a64b2a AB16b64a2b"}};
  for (const auto& [shape, layouts] : laid_out) {
    for (const bool copy : {false, true}) {
      OpDef::Sample s;
      s.in.assign(2 + moments, {DType::f32, shape});
      s.in.insert(s.in.end(), {{DType::f32, {}}, {DType::i64, {}}, {DType::f32, {}}});
      s.attrs = attrs;
      s.attrs.set("layouts", std::string(layouts));
      if (copy) s.attrs.set("copy", std::string("bf16"));
      s.low = 0.05;  // the second moment is not negative
      def.samples.push_back(std::move(s));
    }
  }
  return def;
}

}  // namespace

PackedUpdate PackedUpdate::of(const Node& node, size_t operands) {
  PackedUpdate form;
  form.update = UpdateForm::of(without_layouts(node), operands);
  form.first = form.update.results();
  if (is_packed_update(node.op)) form.layouts = parse_layouts(node.attrs.s("layouts"));
  SR_REQUIRE(form.layouts.empty() || form.update.count == 1, invalid_input, node.op,
             " lays out one parameter, not ", form.update.count);
  return form;
}

bool is_packed_update(const std::string& op) {
  return op.ends_with(kPackedSuffix) && is_update(op.substr(0, op.size() - kPackedSuffix.size()));
}

Node with_layout(const Node& update, const WeightLayout& layout) {
  Node out = update;
  const bool more = is_packed_update(update.op);
  if (!more) out.op += kPackedSuffix;
  const std::string before = more ? update.attrs.s("layouts") + " " : "";
  out.attrs.set("layouts", before + layout.to_string());
  return out;
}

Node without_layouts(const Node& node) {
  Node out = node;
  if (!is_packed_update(node.op)) return out;
  out.op.resize(node.op.size() - kPackedSuffix.size());
  out.attrs = {};
  for (const auto& [name, attr] : node.attrs.all()) {
    if (name != "layouts") out.attrs.set(name, attr);
  }
  return out;
}

std::vector<OpDef> packing_ops() {
  const Attrs adam = {{"beta1", 0.9},
                      {"beta2", 0.95},
                      {"eps", 1e-8},
                      {"weight_decay", 0.1},
                      {"decoupled", int64_t{1}}};
  const Attrs sgd = {{"momentum", 0.9}, {"weight_decay", 0.0}, {"nesterov", int64_t{0}}};
  return {pack_weights(), packed("adamw", 2, adam, {{0, 0}, {1, 2}, {2, 3}}),
          packed("sgd", 1, sgd, {{0, 0}, {1, 2}})};
}

}  // namespace shardrun
