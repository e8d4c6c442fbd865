// Attention of a few positions to the keys and values of all before them, which are kept.
//
// cached_attention(q [B,H,R,D], k [S,B,H,D], v [S,B,H,Dv], positions [P], mask?) -> y [B,H,R,Dv]
//   `queries` of the R = P queries rows belong to each position, row r to positions[r / queries]:
//   several heads of queries may share keys. A row sees the keys s <= its position, and of these
//   what the mask, which broadcasts to [B,H,P,S], leaves. What the others hold does not matter.
#include "graph/ops/families.h"
#include "graph/ops/gradients.h"

namespace shardrun {
namespace {

Types infer(const Node& node, InTypes in) {
  const bool has_mask = node.attrs.i("has_mask", 0) != 0;
  require_operands(in, has_mask ? 5 : 4);
  const TensorType &q = in[0], &k = in[1], &v = in[2], &positions = in[3];
  require_float(q, "q");
  require_same_dtype(q, k);
  require_same_dtype(q, v);
  require_index(positions, "positions");
  SR_REQUIRE(q.shape.size() == 4 && k.shape.size() == 4 && v.shape.size() == 4 &&
                 positions.shape.size() == 1,
             invalid_input, "wants q [B,H,R,D], k [S,B,H,D], v [S,B,H,Dv] and positions [P], got ",
             q, ", ", k, ", ", v, " and ", positions);
  const int64_t queries = node.attrs.i("queries");
  SR_REQUIRE(k.shape[1] == q.shape[0] && k.shape[2] == q.shape[1] && k.shape[3] == q.shape[3] &&
                 v.shape[0] == k.shape[0] && v.shape[1] == k.shape[1] && v.shape[2] == k.shape[2] &&
                 q.shape[2] == positions.shape[0] * queries,
             invalid_input, "wants q [B,H,R,D], k [S,B,H,D], v [S,B,H,Dv] and positions [R / ",
             queries, "], got ", q, ", ", k, ", ", v, " and ", positions);
  if (has_mask) {
    const TensorType& mask = in[4];
    const Shape full = {q.shape[0], q.shape[1], positions.shape[0], k.shape[0]};
    SR_REQUIRE(is_float(mask.dtype) || mask.dtype == DType::boolean, invalid_input,
               "wants a floating or boolean mask, got ", mask);
    SR_REQUIRE(mask.shape.size() == 4, invalid_input, "wants a mask of rank 4, got ", mask);
    for (size_t d = 0; d < 4; ++d) {
      SR_REQUIRE(mask.shape[d] == 1 || mask.shape[d] == full[d], invalid_input,
                 "wants a mask that broadcasts to ", to_string(full), ", got ", mask);
    }
  }
  return {{q.dtype, {q.shape[0], q.shape[1], q.shape[2], v.shape[3]}}};
}

Attrs shrink(const Node& node, InTypes, std::vector<TensorType>& in) {
  in[0].shape[2] = in[3].shape[0] * node.attrs.i("queries");
  return node.attrs;
}

double cached_flops(const Node&, InTypes in, InTypes) {
  const Shape &q = in[0].shape, &v = in[2].shape;
  return 2.0 * static_cast<double>(q[0] * q[1] * q[2]) * static_cast<double>(v[0]) *
         static_cast<double>(q[3] + v[3]);
}

}  // namespace

std::vector<OpDef> cached_attention_ops() {
  auto f = [](Shape s) { return TensorType{DType::f32, std::move(s)}; };
  auto i = [](int64_t n) { return TensorType{DType::i64, {n}}; };
  auto attrs = [](int64_t queries, bool has_mask) {
    return Attrs{{"scale", 0.5}, {"queries", queries}, {"has_mask", int64_t{has_mask}}};
  };
  OpDef op;
  op.name = "cached_attention";
  op.infer = infer;
  op.flops = cached_flops;
  op.cost = CostClass::streamed;
  op.precision = Precision::follows;
  op.shrink = shrink;
  op.index_bound = [](const Node&, InTypes in, size_t operand) {
    return operand == 3 ? std::optional(in[1].shape[0]) : std::nullopt;
  };
  op.samples = {
      {{f({2, 3, 1, 4}), f({7, 2, 3, 4}), f({7, 2, 3, 5}), i(1)}, attrs(1, false)},
      {{f({1, 2, 6, 4}), f({5, 1, 2, 4}), f({5, 1, 2, 4}), i(2)}, attrs(3, false)},
      {{f({2, 2, 3, 3}), f({6, 2, 2, 3}), f({6, 2, 2, 3}), i(3), f({1, 2, 3, 6})}, attrs(1, true)},
      {{f({1, 4, 5, 20}), f({9, 1, 4, 20}), f({9, 1, 4, 37}), i(5), {DType::boolean, {1, 1, 5, 9}}},
       attrs(1, true)}};
  return {op};
}

}  // namespace shardrun
