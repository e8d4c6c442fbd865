// Post-ops: `post` names them, `post_places` says of each which operand the result so far is, and
// how many others it has; attributes of the third are called `post2.…`. `post_keep`: kept_before;
// `post_sum`: summed_operand.
#include "program/ops/post.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "graph/op_def.h"
#include "graph/ops/einsum.h"
#include "program/ops/families.h"

namespace shardrun {
namespace {

constexpr const char* kPostSuffix = "_post";

std::string prefix_of(size_t index) { return "post" + std::to_string(index) + "."; }

}  // namespace

std::vector<PostOp> post_ops(const Node& node) {
  std::vector<PostOp> out;
  if (!node.attrs.has("post")) return out;
  const std::vector<int64_t>& places = node.attrs.ints("post_places");
  std::istringstream names(node.attrs.s("post"));
  size_t operand = kOwnOperands;
  for (std::string op; names >> op;) {
    const size_t index = out.size();
    PostOp post;
    post.node.op = op;
    post.node.name = node.name;
    const std::string prefix = prefix_of(index);
    for (const auto& [name, attr] : node.attrs.all()) {
      if (name.starts_with(prefix)) post.node.attrs.set(name.substr(prefix.size()), attr);
    }
    post.at = static_cast<size_t>(places.at(2 * index));
    for (int64_t i = 0; i < places.at(2 * index + 1); ++i) post.operands.push_back(operand++);
    out.push_back(std::move(post));
  }
  return out;
}

std::vector<TensorType> types_of(const PostOp& post, const TensorType& so_far,
                                 std::span<const TensorType> in) {
  std::vector<TensorType> out;
  for (size_t i : post.operands) {
    SR_REQUIRE(i < in.size(), invalid_input, post.node.op, " behind it lacks an operand");
    out.push_back(in[i]);
  }
  out.insert(out.begin() + static_cast<std::ptrdiff_t>(post.at), so_far);
  return out;
}

std::optional<size_t> kept_before(const Node& node) {
  if (!node.attrs.has("post_keep")) return std::nullopt;
  return static_cast<size_t>(node.attrs.i("post_keep"));
}

void add_post_op(Node& node, const Node& next, size_t at, bool keep) {
  const size_t index = post_ops(node).size();
  if (!has_post_ops(node.op)) node.op += kPostSuffix;
  std::vector<int64_t> places;
  if (index > 0) places = node.attrs.ints("post_places");
  places.push_back(static_cast<int64_t>(at));
  places.push_back(static_cast<int64_t>(next.inputs.size()) - 1);
  node.attrs.set("post", index == 0 ? next.op : node.attrs.s("post") + " " + next.op);
  node.attrs.set("post_places", places);
  if (keep) node.attrs.set("post_keep", static_cast<int64_t>(index));
  for (const auto& [name, attr] : next.attrs.all()) node.attrs.set(prefix_of(index) + name, attr);
}

std::optional<size_t> summed_operand(const Node& node) {
  if (!node.attrs.has("post_sum")) return std::nullopt;
  return static_cast<size_t>(node.attrs.i("post_sum"));
}

void add_operand_sum(Node& node, size_t operand) {
  if (!has_post_ops(node.op)) node.op += kPostSuffix;
  node.attrs.set("post_sum", static_cast<int64_t>(operand));
}

Node operand_sum(const Node& node, DType operand, DType product) {
  const Einsum e = Einsum::parse(node.attrs.s("equation"));
  const std::string& term = *summed_operand(node) == 0 ? e.a : e.b;
  std::vector<int64_t> axes;
  for (size_t i = 0; i < term.size(); ++i) {
    if (e.out.find(term[i]) == std::string::npos) axes.push_back(static_cast<int64_t>(i));
  }
  Node sum;
  sum.op = "reduce_sum";
  sum.name = node.name;
  sum.attrs = {{"axes", axes}, {"keepdims", int64_t{0}}};
  if (operand != product) sum.attrs.set("out_dtype", std::string(to_string(product)));
  return sum;
}

Node without_post_ops(const Node& node) {
  Node out = node;
  if (has_post_ops(node.op)) out.op.resize(node.op.size() - std::string_view(kPostSuffix).size());
  out.attrs = {};
  for (const auto& [name, attr] : node.attrs.all()) {
    if (!name.starts_with("post") && name != "rearranged") out.attrs.set(name, attr);
  }
  if (out.inputs.size() > kOwnOperands) out.inputs.resize(kOwnOperands);
  return out;
}

bool is_post_op(const std::string& op) {
  static constexpr std::array kOps = {
      "abs",  "add",       "clip",       "div",      "dropout", "elu",  "exp",
      "gelu", "gelu_grad", "leaky_relu", "max",      "min",     "mul",  "neg",
      "relu", "sigmoid",   "silu",       "softplus", "sub",     "tanh", "where"};
  return std::find(kOps.begin(), kOps.end(), op) != kOps.end();
}

bool has_post_ops(const std::string& op) { return op.ends_with(kPostSuffix); }

bool takes_post_ops(const std::string& op) {
  return op == "matmul" || op == "conv" || op == "conv_data_grad";
}

namespace {

using Types = std::vector<TensorType>;
using InTypes = std::span<const TensorType>;

/// The types of the results. `type`: before them.
Types infer_behind(const Node& node, TensorType type, InTypes in) {
  const std::vector<PostOp> posts = post_ops(node);
  size_t wanted = kOwnOperands;
  for (const PostOp& post : posts) wanted += post.operands.size();
  SR_REQUIRE(in.size() == wanted, invalid_input, node.op, " takes ", wanted, " operands, got ",
             in.size());
  const std::optional<size_t> keep = kept_before(node);
  SR_REQUIRE(!keep || *keep < posts.size(), invalid_input, node.op, " keeps what its op ",
             keep.value_or(0), " takes, of ", posts.size());
  Types more;
  const DType product = type.dtype;
  for (const PostOp& post : posts) {
    if (keep && &post == &posts[*keep]) more = {type};
    const Types out = infer_types(post.node, types_of(post, type, in));
    SR_REQUIRE(out.size() == 1 && out[0].shape == type.shape, invalid_input, post.node.op,
               " behind it makes ", out[0], " of ", type);
    type = out[0];
  }
  if (const auto operand = summed_operand(node)) {
    SR_REQUIRE(*operand < kOwnOperands, invalid_input, node.op, " sums its operand ", *operand);
    const Types summed = {in[*operand]};
    more.push_back(infer_types(operand_sum(node, summed[0].dtype, product), summed)[0]);
  }
  more.insert(more.begin(), type);
  return more;
}

/// An operand of post-ops over another result: what is not 1 is as large as the result's dim.
Shape over_result(Shape operand, const Shape& result) {
  for (size_t d = operand.size(), r = result.size(); d-- > 0;) {
    --r;
    if (operand[d] != 1) operand[d] = result[r];
  }
  return operand;
}

/// The result's type before post-ops.
TensorType type_before(const Node& node, InTypes in) {
  return infer_types(without_post_ops(node), in.first(kOwnOperands))[0];
}

OpDef with_post_ops(const char* op) {
  OpDef def;
  def.name = std::string(op) + kPostSuffix;
  def.infer = [](const Node& node, InTypes in) -> Types {
    SR_REQUIRE(in.size() >= kOwnOperands, invalid_input, node.op, " takes ", kOwnOperands,
               " operands or more, got ", in.size());
    return infer_behind(node, type_before(node, in), in);
  };
  def.flops = [](const Node& node, InTypes in, InTypes out) {
    double flops = node_flops(without_post_ops(node), in.first(kOwnOperands), out.first(1));
    for (const PostOp& post : post_ops(node))
      flops += node_flops(post.node, types_of(post, out[0], in), out.first(1));
    return flops;
  };
  def.cost = CostClass::fused;
  def.precision = Precision::follows;  // steps are fused in Programs, after in_bf16
  return def;
}

/// Post-ops keep their attributes, and the convolution's depend on its own operands alone.
OpDef convolution_with_post_ops(const char* op) {
  OpDef def = with_post_ops(op);
  def.localise = [](const Node& node, InTypes in, LocalBoxes boxes) {
    return op_def(without_post_ops(node).op)
        .localise(node, in.first(kOwnOperands), {boxes.in.first(kOwnOperands), boxes.out});
  };
  def.shrink = [](const Node& node, InTypes original, Types& in) {
    Types own(in.begin(), in.begin() + kOwnOperands);
    Node small = node;
    small.attrs = op_def(without_post_ops(node).op).shrink(node, original.first(kOwnOperands), own);
    std::copy(own.begin(), own.end(), in.begin());
    const Shape result = type_before(small, in).shape;
    for (size_t i = kOwnOperands; i < in.size(); ++i)
      in[i].shape = over_result(original[i].shape, result);
    return small.attrs;
  };
  return def;
}

/// `node` with these behind it: each a name, which operand the result so far is, and the types of
/// the others.
struct Behind {
  const char* op;
  Attrs attrs;
  size_t at;
  Types others;
  bool keep = false;
};
OpDef::Sample sample(const char* op, Attrs attrs, Types own, const std::vector<Behind>& behind) {
  Node node;
  node.op = op;
  node.attrs = std::move(attrs);
  Types in = std::move(own);
  for (const Behind& b : behind) {
    Node next;
    next.op = b.op;
    next.attrs = b.attrs;
    next.inputs.resize(b.others.size() + 1);
    add_post_op(node, next, b.at, b.keep);
    in.insert(in.end(), b.others.begin(), b.others.end());
  }
  return {in, node.attrs};
}

TensorType f(Shape shape) { return {DType::f32, std::move(shape)}; }

OpDef matmul_post() {
  OpDef matmul = with_post_ops("matmul");
  const Attrs product = {{"equation", std::string("bij,jk->bik")}};
  const Attrs by_tanh = {{"approximate", std::string("tanh")}};
  const Types own = {f({2, 3, 5}), f({5, 4})};
  const TensorType whole = f({2, 3, 4}), columns = f({4}), one = f({}), rows = f({2, 3, 1});
  const auto add = [&](Attrs attrs, Types in, const std::vector<Behind>& behind) {
    matmul.samples.push_back(sample("matmul", std::move(attrs), std::move(in), behind));
  };
  add(product, own, {{"add", {}, 0, {columns}}});
  add(product, own, {{"add", {}, 1, {columns}}, {"relu", {}, 0, {}}});
  add(product, own,
      {{"add", {}, 0, {columns}},
       {"gelu", by_tanh, 0, {}},
       {"mul", {}, 0, {one}},
       {"add", {}, 1, {whole}}});
  add(product, own, {{"gelu", {}, 0, {}}, {"sub", {}, 1, {whole}}});
  add(product, own, {{"gelu_grad", {}, 1, {whole}}});
  const Types wide = {f({2, 3, 5}), f({5, 8})};  // rows on boundaries of 8 elements
  add(product, wide, {{"add", {}, 0, {f({8})}}, {"gelu", by_tanh, 0, {}}});
  add(product, wide, {{"add", {}, 0, {f({8})}}, {"gelu", by_tanh, 0, {}, true}});
  add(product, wide, {{"gelu", by_tanh, 0, {}, true}, {"add", {}, 0, {f({2, 3, 8})}}});
  add(product, wide, {{"gelu_grad", by_tanh, 1, {f({2, 3, 8})}}});
  add(product, own, {{"add", {}, 0, {columns}}, {"add", {}, 1, {whole}}});
  add(product, own, {{"mul", {}, 0, {rows}}, {"max", {}, 0, {columns}}});
  add({{"equation", std::string("ij,jk->ki")}}, {f({4, 6}), f({6, 3})},
      {{"add", {}, 0, {f({4})}}, {"tanh", {}, 0, {}}, {"mul", {}, 0, {f({3, 4})}}});
  for (const int64_t operand : {0, 1}) {
    matmul.samples.push_back({{f({2, 3, 4}), f({2, 3, 8})},
                              {{"equation", std::string("abi,abk->ik")}, {"post_sum", operand}}});
  }
  add({{"equation", std::string("bhij,bhjk->bhik")}}, {f({2, 3, 4, 5}), f({2, 3, 5, 3})},
      {{"leaky_relu", {{"alpha", 0.2}}, 0, {}}});
  return matmul;
}

/// Images of 3 channels and 5 x 6 become ones of 4 and 4 x 3, or with a kernel of 1 of 5 x 6; or
/// the other way round.
OpDef convolution_post(const char* op) {
  using Ints = std::vector<int64_t>;
  OpDef def = convolution_with_post_ops(op);
  const bool back = op == std::string("conv_data_grad");
  const auto add = [&](bool one_by_one, bool last, const auto& behind_of) {
    const auto image = [&](int64_t c, int64_t h, int64_t w) {
      return last ? f({2, h, w, c}) : f({2, c, h, w});
    };
    Attrs attrs = {{"strides", one_by_one ? Ints{1, 1} : Ints{1, 2}},
                   {"dilations", Ints{1, 1}},
                   {"pads_low", one_by_one ? Ints{0, 0} : Ints{1, 0}}};
    if (last) attrs.set("channels_last", int64_t{1});
    attrs.set(back ? "size" : "pads_high", back         ? Ints{5, 6}
                                           : one_by_one ? Ints{0, 0}
                                                        : Ints{0, 1});
    const TensorType in = image(3, 5, 6), out = one_by_one ? image(4, 5, 6) : image(4, 4, 3),
                     weights = one_by_one ? f({4, 3, 1, 1}) : f({4, 3, 3, 2});
    const int64_t count = back ? 3 : 4;
    def.samples.push_back(sample(op, attrs, {back ? out : in, weights},
                                 behind_of(last ? f({count}) : f({count, 1, 1}), back ? in : out)));
  };
  using All = std::vector<Behind>;
  const auto bias = [](const TensorType& channels, const TensorType&) {
    return All{{"add", {}, 0, {channels}}};
  };
  const auto active = [](const TensorType& channels, const TensorType&) {
    return All{{"add", {}, 1, {channels}}, {"relu", {}, 0, {}}};
  };
  const auto residual = [](const TensorType& channels, const TensorType& whole) {
    return All{{"mul", {}, 0, {f({})}},
               {"sub", {}, 0, {channels}},
               {"tanh", {}, 0, {}},
               {"add", {}, 1, {whole}}};
  };
  for (const bool last : {false, true}) {
    add(false, last, bias);
    add(false, last, active);
    add(false, last, residual);
  }
  add(true, false, residual);
  return def;
}

}  // namespace

std::vector<OpDef> fused_ops() {
  return {matmul_post(), convolution_post("conv"), convolution_post("conv_data_grad")};
}

}  // namespace shardrun
