// group_rows, and add_rows(x, dy, indices){axis, offset} = x + gather_grad(dy, indices).
#include "program/ops/group_rows.h"

#include "graph/ops/gradients.h"
#include "graph/rearranged.h"
#include "program/ops/families.h"

namespace shardrun {
namespace {

Types infer_add_rows(const Node& node, InTypes in) {
  require_operands(in, 3);
  require_float(in[0], "x");
  Node gather;
  gather.op = "gather";
  gather.attrs = {{"axis", node.attrs.i("axis")}};
  const TensorType read = infer_types(gather, Types{in[0], in[2]})[0];
  SR_REQUIRE(in[1] == read, invalid_input, "x is ", in[0], ", indices are ", in[2], ", dy is ",
             in[1], "; dy must be as the rows of x that indices name, ", read);
  return {in[0]};
}

/// Rows are cut as a table's that is read.
Attrs localise_add_rows(const Node& node, InTypes in, LocalBoxes boxes) {
  return op_def("gather").localise(node, in, boxes);
}

Attrs shrink_add_rows(const Node& node, InTypes original, Types& in) {
  return op_def("gather").shrink(node, original, in);
}

Types infer_group_rows(const Node& node, InTypes in) {
  require_operands(in, 1);
  require_index(in[0], "numbers");
  return {{DType::i32, {RowGroups::elements(node.attrs.i("size"), element_count(in[0].shape))}}};
}

Attrs shrink_group_rows(const Node& node, InTypes original, Types& in) {
  Attrs attrs = node.attrs;
  attrs.set("size", shrunk_size(attrs.i("size"), original, in));
  return attrs;
}

}  // namespace

std::optional<RowGroups> RowGroups::wanted_by(const Node& node, InTypes in) {
  in = own_operands(node, in);
  RowGroups groups;
  groups.offset = node.attrs.i("offset", 0);
  if (node.op == "gather_grad") {
    groups.numbers = 1;
    groups.size = node.attrs.i("size");
  } else if (node.op == "add_rows") {
    groups.numbers = 2;
    groups.size = in[0].shape[static_cast<size_t>(node.attrs.i("axis"))];
  } else if (node.op == "segment_exp_sum") {
    groups.numbers = 2;
    groups.size = in[1].shape[0];
  } else if (node.op.starts_with("segment_") && node.attrs.has("size")) {
    groups.numbers = in.size() - 1;
    groups.size = node.attrs.i("size");
  } else {
    return std::nullopt;
  }
  return groups;
}

std::vector<OpDef> row_ops() {
  const auto f = [](Shape shape) { return TensorType{DType::f32, std::move(shape)}; };
  const auto i = [](Shape shape, DType type = DType::i64) {
    return TensorType{type, std::move(shape)};
  };
  const auto axis = [](int64_t a) { return Attrs{{"axis", a}}; };

  OpDef add_rows;
  add_rows.name = "add_rows";
  add_rows.infer = infer_add_rows;
  add_rows.flops = [](const Node&, InTypes in, InTypes) {
    return static_cast<double>(element_count(in[1].shape));
  };
  add_rows.cost = CostClass::row_update;
  add_rows.precision = Precision::follows;
  add_rows.localise = localise_add_rows;
  add_rows.shrink = shrink_add_rows;
  add_rows.index_bound = [](const Node& node, InTypes in, size_t operand) {
    return operand == 2 ? std::optional(in[0].shape[static_cast<size_t>(node.attrs.i("axis"))])
                        : std::nullopt;
  };
  add_rows.in_place = {{0, 0}};
  add_rows.samples = {{{f({5, 4}), f({3, 4}), i({3})}, axis(0)},
                      {{f({6, 3}), f({2, 4, 3}), i({2, 4}, DType::i32)}, axis(0)},
                      {{f({3, 5, 2}), f({3, 4, 2}), i({4})}, axis(1)}};

  OpDef group_rows;
  group_rows.name = "group_rows";
  group_rows.infer = infer_group_rows;
  group_rows.cost = CostClass::streamed;
  group_rows.precision = Precision::follows;
  group_rows.shrink = shrink_group_rows;
  group_rows.index_bound = [](const Node& node, InTypes, size_t) {
    return std::optional(node.attrs.i("size") + 1);  // one that is outside
  };
  group_rows.samples = {{{i({6})}, {{"size", int64_t{4}}}},
                        {{i({2, 5}, DType::i32)}, {{"size", int64_t{3}}}}};
  return {add_rows, group_rows};
}

}  // namespace shardrun
