// Shape and data movement: reshape, transpose, expand, concat, split, tile, iota, fill, trilu.
#include "graph/ops/movement.h"

#include <algorithm>

#include "graph/ops/families.h"
#include "graph/ops/gradients.h"

namespace shardrun {
namespace {

/// The attributes with `shape` of the local result: reshape, expand, iota, fill.
Attrs localise_shape(const Node& node, InTypes, LocalBoxes boxes) {
  Attrs attrs = node.attrs;
  attrs.set("shape", box_shape(boxes.out[0]));
  return attrs;
}

Attrs with_shrunk_shape(const Node& node, InTypes original, std::vector<TensorType>& in) {
  Shape shape = node.attrs.ints("shape");
  for (int64_t& size : shape) size = shrunk_size(size, original, in);
  Attrs attrs = node.attrs;
  attrs.set("shape", shape);
  return attrs;
}

// ---- reshape, transpose, expand ----

Types infer_reshape(const Node& node, InTypes in) {
  require_operands(in, 1);
  const Shape& shape = node.attrs.ints("shape");
  SR_REQUIRE(element_count(shape) == element_count(in[0].shape), invalid_input, in[0],
             " does not reshape to ", to_string(shape));
  return {{in[0].dtype, shape}};
}

Grads reshape_gradient(GradientContext& c) {
  const Shape shape = c.in_shape(0);
  return {c.graph.add("reshape", {c.out_grads[0]}, {{"shape", shape}})};
}

/// A reshape's rule is derived from its shapes, so they stay as they are.
Attrs keep_original(const Node& node, InTypes original, std::vector<TensorType>& in) {
  in.assign(original.begin(), original.end());
  return node.attrs;
}

Types infer_transpose(const Node& node, InTypes in) {
  require_operands(in, 1);
  const Ints& perm = node.attrs.ints("perm");
  const size_t rank = in[0].shape.size();
  Ints sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  bool valid = perm.size() == rank;
  for (size_t d = 0; valid && d < rank; ++d) valid = sorted[d] == static_cast<int64_t>(d);
  SR_REQUIRE(valid, invalid_input, "perm is ", to_string(perm), ", wanted a permutation of ", rank,
             " dims");
  Shape shape;
  for (int64_t d : perm) shape.push_back(in[0].shape[static_cast<size_t>(d)]);
  return {{in[0].dtype, shape}};
}

Grads transpose_gradient(GradientContext& c) {
  const Ints& perm = c.node.attrs.ints("perm");
  Ints inverse(perm.size());
  for (size_t d = 0; d < perm.size(); ++d) {
    inverse[static_cast<size_t>(perm[d])] = static_cast<int64_t>(d);
  }
  return {c.graph.add("transpose", {c.out_grads[0]}, {{"perm", inverse}})};
}

Types infer_expand(const Node& node, InTypes in) {
  require_operands(in, 1);
  return {{in[0].dtype, broadcast_shape(in[0].shape, node.attrs.ints("shape"))}};
}

Grads expand_gradient(GradientContext& c) {
  const Shape shape = c.in_shape(0);
  return {unbroadcast(c.graph, c.out_grads[0], shape)};
}

// ---- concat, split ----

Types infer_concat(const Node& node, InTypes in) {
  SR_REQUIRE(!in.empty(), invalid_input, "got no operands, wanted one or more");
  const int64_t axis = node.attrs.i("axis");
  require_axis(axis, in[0].shape.size());
  TensorType out = in[0];
  int64_t& joined = out.shape[static_cast<size_t>(axis)];
  for (size_t i = 1; i < in.size(); ++i) {
    require_same_dtype(in[0], in[i]);
    Shape same = in[i].shape;
    if (same.size() == in[0].shape.size())
      same[static_cast<size_t>(axis)] = in[0].shape[static_cast<size_t>(axis)];
    SR_REQUIRE(same == in[0].shape, invalid_input, "operand ", i, " is ", in[i], ", the first is ",
               in[0], "; they may differ along axis ", axis, " only");
    joined += in[i].shape[static_cast<size_t>(axis)];
  }
  return {out};
}

Grads concat_gradient(GradientContext& c) {
  const auto axis = static_cast<size_t>(c.node.attrs.i("axis"));
  Ints sizes;
  for (size_t i = 0; i < c.node.inputs.size(); ++i) sizes.push_back(c.in_shape(i)[axis]);
  return c.graph.add_node("split", {c.out_grads[0]},
                          {{"axis", static_cast<int64_t>(axis)}, {"sizes", sizes}});
}

Types infer_split(const Node& node, InTypes in) {
  require_operands(in, 1);
  const int64_t axis = node.attrs.i("axis");
  require_axis(axis, in[0].shape.size());
  const Ints& sizes = node.attrs.ints("sizes");
  int64_t sum = 0;
  Types out;
  for (int64_t size : sizes) {
    SR_REQUIRE(size >= 0, invalid_input, "sizes are ", to_string(sizes));
    sum += size;
    out.push_back(in[0]);
    out.back().shape[static_cast<size_t>(axis)] = size;
  }
  SR_REQUIRE(sum == in[0].shape[static_cast<size_t>(axis)], invalid_input, "sizes ",
             to_string(sizes), " add up to ", sum, ", not to dim ", axis, " of ", in[0]);
  return out;
}

Attrs localise_split(const Node& node, InTypes, LocalBoxes boxes) {
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  Ints sizes;
  for (const Box& box : boxes.out) sizes.push_back(box[axis].size);
  Attrs attrs = node.attrs;
  attrs.set("sizes", sizes);
  return attrs;
}

/// Equal parts stay equal: [768, 768, 768] becomes [2, 2, 2] or more; others go to 2, 3, 4, … by
/// size.
Attrs shrink_split(const Node& node, InTypes, std::vector<TensorType>& in) {
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  Ints sizes = node.attrs.ints("sizes");
  Ints distinct = sizes;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  const int64_t parts = std::max<int64_t>(1, static_cast<int64_t>(sizes.size()));
  const int64_t least = std::max<int64_t>(2, in[0].shape[axis] / parts);
  int64_t sum = 0;
  for (int64_t& size : sizes) {
    const auto order = std::lower_bound(distinct.begin(), distinct.end(), size) - distinct.begin();
    size = std::min<int64_t>(size, least + order);
    sum += size;
  }
  in[0].shape[axis] = sum;
  Attrs attrs = node.attrs;
  attrs.set("sizes", sizes);
  return attrs;
}

Grads split_gradient(GradientContext& c) {
  std::vector<ValueId> parts;
  for (size_t i = 0; i < c.node.outputs.size(); ++i) {
    const TensorType type = c.graph.type(c.node.outputs[i]);
    parts.push_back(c.out_grads[i] != kNoValue ? c.out_grads[i] : fill(c.graph, type, 0));
  }
  return {c.graph.add("concat", parts, {{"axis", c.node.attrs.i("axis")}})};
}

// ---- tile ----

Types infer_tile(const Node& node, InTypes in) {
  require_operands(in, 1);
  const Ints& repeats = node.attrs.ints("repeats");
  SR_REQUIRE(repeats.size() == in[0].shape.size(), invalid_input, "repeats are ",
             to_string(repeats), ", wanted one per dim of ", in[0]);
  TensorType out = in[0];
  for (size_t d = 0; d < repeats.size(); ++d) {
    SR_REQUIRE(repeats[d] >= 0, invalid_input, "repeats are ", to_string(repeats));
    out.shape[d] *= repeats[d];
  }
  return {out};
}

/// A tiled dim may be cut between repetitions: 6 repetitions of 1 over 2 ranks are 3 each.
Attrs localise_tile(const Node& node, InTypes, LocalBoxes boxes) {
  Ints repeats = node.attrs.ints("repeats");
  for (size_t d = 0; d < repeats.size(); ++d) {
    const int64_t size = boxes.in[0][d].size;
    if (repeats[d] != 1 && size > 0) repeats[d] = boxes.out[0][d].size / size;
  }
  Attrs attrs = node.attrs;
  attrs.set("repeats", repeats);
  return attrs;
}

Attrs shrink_tile(const Node& node, InTypes, std::vector<TensorType>& in) {
  Ints repeats = node.attrs.ints("repeats");
  for (size_t d = 0; d < repeats.size(); ++d) {
    repeats[d] = std::min<int64_t>(repeats[d], in[0].shape[d] == 1 ? 6 : 3);
  }
  Attrs attrs = node.attrs;
  attrs.set("repeats", repeats);
  return attrs;
}

/// [r * n] is [r, n] summed over r.
Grads tile_gradient(GradientContext& c) {
  const Ints& repeats = c.node.attrs.ints("repeats");
  const Shape shape = c.in_shape(0);
  Shape apart;
  Ints axes;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (repeats[d] != 1) {
      axes.push_back(static_cast<int64_t>(apart.size()));
      apart.push_back(repeats[d]);
    }
    apart.push_back(shape[d]);
  }
  const ValueId dy = c.graph.add("reshape", {c.out_grads[0]}, {{"shape", apart}});
  return {c.graph.add("reduce_sum", {dy}, {{"axes", axes}, {"keepdims", int64_t{0}}})};
}

// ---- iota, fill, trilu ----

Types infer_fill(const Node& node, InTypes in) {
  require_operands(in, 0);
  element_count(node.attrs.ints("shape"));  // throws where a dim is negative
  return {{parse_dtype(node.attrs.s("dtype")), node.attrs.ints("shape")}};
}

Types infer_iota(const Node& node, InTypes in) {
  const Types out = infer_fill(node, in);
  require_axis(node.attrs.i("axis"), out[0].shape.size());
  return out;
}

Attrs localise_iota(const Node& node, InTypes in, LocalBoxes boxes) {
  Attrs attrs = localise_shape(node, in, boxes);
  const int64_t begin = boxes.out[0][static_cast<size_t>(node.attrs.i("axis"))].begin;
  attrs.set("start", node.attrs.i("start", 0) + node.attrs.i("step", 1) * begin);
  return attrs;
}

Types infer_trilu(const Node& node, InTypes in) {
  require_operands(in, 1);
  SR_REQUIRE(in[0].shape.size() >= 2, invalid_input, "operand is ", in[0],
             ", wanted two dims or more");
  node.attrs.i("upper");
  return {in[0]};
}

/// Element (i, j) of a part that begins at (r, s) is element (i + r, j + s) of the whole; it lies
/// on or above diagonal k if j + s >= i + r + k.
Attrs localise_trilu(const Node& node, InTypes, LocalBoxes boxes) {
  const Box& box = boxes.out[0];
  Attrs attrs = node.attrs;
  attrs.set("k", attrs.i("k", 0) + box[box.size() - 2].begin - box[box.size() - 1].begin);
  return attrs;
}

Attrs shrink_trilu(const Node& node, InTypes, std::vector<TensorType>&) {
  Attrs attrs = node.attrs;
  attrs.set("k", std::clamp<int64_t>(attrs.i("k", 0), -2, 2));
  return attrs;
}

Grads trilu_gradient(GradientContext& c) {
  return {c.graph.add("trilu", {c.out_grads[0]}, c.node.attrs)};
}

/// Adds an op that computes nothing. References that it returns live while `ops` has capacity.
struct OpAdder {
  std::vector<OpDef>& ops;

  OpDef& operator()(const char* name, decltype(&infer_reshape) infer,
                    std::vector<OpDef::Sample> samples) const {
    OpDef def;
    def.name = name;
    def.infer = infer;
    def.flops = no_flops;
    def.cost = CostClass::streamed;
    def.precision = Precision::follows;
    def.samples = std::move(samples);
    return ops.emplace_back(std::move(def));
  }
};

void add_layout_ops(const OpAdder& add) {
  const DType f = DType::f32;
  auto shape = [](Shape s) { return Attrs{{"shape", std::move(s)}}; };

  OpDef& reshape = add("reshape", infer_reshape,
                       {{{{f, {4, 6}}}, shape({4, 2, 3})},
                        {{{f, {2, 3, 5}}}, shape({6, 5})},
                        {{{f, {5}}}, shape({1, 5, 1})},
                        {{{DType::i64, {4, 3}}}, shape({12})}});
  reshape.gradient = reshape_gradient;
  reshape.reshapes = true;
  reshape.elements = Elements::all;
  reshape.localise = localise_shape;
  reshape.shrink = keep_original;
  reshape.in_place = {{0, 0}};

  auto perm = [](Ints p) { return Attrs{{"perm", std::move(p)}}; };
  OpDef& transpose = add("transpose", infer_transpose,
                         {{{{f, {3, 4}}}, perm({1, 0})},
                          {{{f, {2, 3, 5}}}, perm({2, 0, 1})},
                          {{{f, {2, 3, 4, 5}}}, perm({0, 2, 1, 3})},
                          {{{DType::i64, {3, 5}}}, perm({1, 0})}});
  transpose.gradient = transpose_gradient;
  transpose.cost = CostClass::transpose;
  transpose.elements = Elements::all;

  OpDef& expand = add("expand", infer_expand,
                      {{{{f, {3, 1}}}, shape({3, 4})},
                       {{{f, {5}}}, shape({2, 3, 5})},
                       {{{f, {}}}, shape({4, 3})},
                       {{{f, {1, 4}}}, shape({5, 1})},
                       {{{DType::i64, {1, 3}}}, shape({4, 3})}});
  expand.gradient = expand_gradient;
  expand.elements = Elements::some;
  expand.localise = localise_shape;
  expand.shrink = with_shrunk_shape;

  auto axis = [](int64_t a) { return Attrs{{"axis", a}}; };
  OpDef& concat = add("concat", infer_concat,
                      {{{{f, {3, 4}}, {f, {3, 2}}}, axis(1)},
                       {{{f, {2, 3}}, {f, {5, 3}}, {f, {1, 3}}}, axis(0)},
                       {{{f, {4, 3, 2}}, {f, {4, 3, 2}}}, axis(2)},
                       {{{f, {4}}}, axis(0)},
                       {{{DType::i64, {4, 3}}, {DType::i64, {4, 3}}}, axis(1)}});
  concat.gradient = concat_gradient;
  concat.elements = Elements::among;

  auto sizes = [](int64_t a, Ints s) { return Attrs{{"axis", a}, {"sizes", std::move(s)}}; };
  OpDef& split = add("split", infer_split,
                     {{{{f, {4, 6}}}, sizes(1, {2, 2, 2})},
                      {{{f, {5, 7}}}, sizes(1, {3, 4})},
                      {{{f, {7, 3}}}, sizes(0, {1, 4, 2})},
                      {{{f, {5}}}, sizes(0, {5})}});
  split.gradient = split_gradient;
  split.elements = Elements::some;
  split.localise = localise_split;
  split.shrink = shrink_split;

  auto repeats = [](Ints r) { return Attrs{{"repeats", std::move(r)}}; };
  OpDef& tile = add("tile", infer_tile,
                    {{{{f, {3, 4}}}, repeats({2, 1})},
                     {{{f, {4, 1}}}, repeats({1, 6})},
                     {{{f, {2, 3}}}, repeats({2, 3})},
                     {{{DType::i64, {5}}}, repeats({1})}});
  tile.gradient = tile_gradient;
  tile.localise = localise_tile;
  tile.shrink = shrink_tile;
}

void add_made_ops(const OpAdder& add) {
  const DType f = DType::f32;
  auto iota_attrs = [](Shape s, const char* dtype, int64_t a, int64_t start, int64_t step) {
    return Attrs{{"shape", std::move(s)},
                 {"dtype", std::string(dtype)},
                 {"axis", a},
                 {"start", start},
                 {"step", step}};
  };
  OpDef& iota = add("iota", infer_iota,
                    {{{}, iota_attrs({7}, "i64", 0, 0, 1)},
                     {{}, iota_attrs({4, 5}, "i64", 1, 3, -2)},
                     {{}, iota_attrs({4, 3}, "f32", 0, 0, 1)}});
  iota.localise = localise_iota;
  iota.shrink = with_shrunk_shape;

  auto fill_attrs = [](Shape s, const char* dtype, double value) {
    return Attrs{{"shape", std::move(s)}, {"dtype", std::string(dtype)}, {"value", value}};
  };
  OpDef& fill = add("fill", infer_fill,
                    {{{}, fill_attrs({4, 5}, "f32", 1.5)},
                     {{}, fill_attrs({}, "f32", -2)},
                     {{}, fill_attrs({7}, "i64", 3)},
                     {{}, fill_attrs({5}, "bool", 1)}});
  fill.localise = localise_shape;
  fill.shrink = with_shrunk_shape;

  auto triangle = [](int64_t upper, int64_t k) { return Attrs{{"upper", upper}, {"k", k}}; };
  OpDef& trilu = add("trilu", infer_trilu,
                     {{{{f, {4, 4}}}, triangle(1, 0)},
                      {{{f, {3, 5}}}, triangle(0, 1)},
                      {{{f, {2, 5, 4}}}, triangle(1, -1)},
                      {{{DType::i64, {4, 5}}}, triangle(0, 0)}});
  trilu.gradient = trilu_gradient;
  trilu.localise = localise_trilu;
  trilu.shrink = shrink_trilu;
  trilu.in_place = {{0, 0}};
}

}  // namespace

std::vector<OpDef> movement_ops() {
  std::vector<OpDef> ops = slice_pad_ops();
  ops.reserve(32);
  add_layout_ops({ops});
  add_made_ops({ops});
  return ops;
}

}  // namespace shardrun
