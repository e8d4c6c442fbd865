// From row-major einsums to cuBLASLt's columns: the transposed product of transposed operands.
#include "kernels/cuda/cublas/matmul_plan.h"

#include "graph/op_def.h"
#include "kernels/cuda/refusals.h"
#include "kernels/einsum_product.h"
#include "program/ops/post.h"

namespace shardrun::cuda {
namespace {

int64_t round256(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// A matrix of strides (row, column) as cuBLASLt reads it: with columns for rows, and one of the
/// strides 1. `transposed`: it lies the other way round.
struct Lying {
  bool transposed;
  int64_t ld;
};
std::optional<Lying> lying(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
  if ((col_stride == 1 || cols == 1) && row_stride >= cols) return Lying{false, row_stride};
  if ((row_stride == 1 || rows == 1) && col_stride >= rows) return Lying{true, col_stride};
  return std::nullopt;
}

// Of several batch dims one is cuBLASLt's, where it is not too long; the others are calls of their
// own.
constexpr int64_t kMostCalls = 32;

std::optional<LtShape> lt_shape(const StridedProduct& p, std::string* why) {
  const size_t batches = p.c.size() - 2, row = batches, col = batches + 1;
  // d, transposed, is [n, m]: cuBLASLt's a is b.
  const auto first = lying(p.b[row], p.b[col], p.b_strides[row], p.b_strides[col]);
  const auto second = lying(p.a[row], p.a[col], p.a_strides[row], p.a_strides[col]);
  const auto result = lying(p.c[row], p.c[col], p.c_strides[row], p.c_strides[col]);
  if (!first || !second || !result || result->transposed) {
    *why = "a matrix has neither rows nor columns that lie dense";
    return std::nullopt;
  }
  LtShape s;
  s.rows = p.c[col], s.cols = p.c[row], s.depth = p.a[col];
  s.transpose_a = first->transposed, s.transpose_b = second->transposed;
  s.a.ld = first->ld, s.b.ld = second->ld, s.d.ld = result->ld;
  size_t strided = 0;
  for (size_t d = 1; d < batches; ++d) {
    if (p.c[d] > p.c[strided]) strided = d;
  }
  for (size_t d = 0; d < batches; ++d) {
    LtShape::Start step{p.b_strides[d], p.a_strides[d], p.c_strides[d]};
    int64_t calls = p.c[d];
    if (d == strided) {
      s.a.step = step.a, s.b.step = step.b, s.d.step = step.d;
      calls = 1;
      while (calls <= kMostCalls && (p.c[d] % calls != 0 || p.c[d] / calls > LtShape::kMostBatch))
        ++calls;
      s.batch = p.c[d] / calls;
      step = {step.a * s.batch, step.b * s.batch, step.d * s.batch};
    }
    if (static_cast<int64_t>(s.starts.size()) * calls > kMostCalls) {
      *why = str("needs more than ", kMostCalls, " calls for its batch");
      return std::nullopt;
    }
    std::vector<LtShape::Start> all;
    for (const LtShape::Start& start : s.starts) {
      for (int64_t i = 0; i < calls; ++i)
        all.push_back({start.a + i * step.a, start.b + i * step.b, start.d + i * step.d});
    }
    s.starts = std::move(all);
  }
  return s;
}

bool is_by_tanh(const Node& node) { return node.attrs.s("approximate", "none") == "tanh"; }

/// Fills in the plan's epilogue; false, with the reason, if cuBLASLt has none that does these.
class Ending {
 public:
  Ending(const KernelCall& call, MatmulPlan& plan, std::string* why)
      : call_(call), plan_(plan), product_(*plan.product), why_(why) {}

  bool take(const PostOp& post, bool keep) {
    const std::string& op = post.node.op;
    if (keep && (op != "gelu" || !is_by_tanh(post.node)))
      return refuse("cuBLASLt keeps only what its GELU, by tanh, takes, not what ", op, " does");
    product_.keeps = product_.keeps || keep;
    if (product_.ending != LtShape::Ending::none) return refuse(op, " comes behind the last");
    if (op == "add") return take_sum(post.operands.at(0));
    if (op == "relu") return take_last(LtShape::Ending::relu);
    // Of values near 0 its parts of f32 differed by more than 1e-4 (13.1 on an H200).
    if (op.starts_with("gelu") && is_by_tanh(post.node) && call_.out[0].dtype == DType::f32)
      return refuse("cuBLASLt's GELU is rougher than f32");
    if (op == "gelu" && is_by_tanh(post.node))
      return (!keep || lies_well("what is kept")) && take_last(LtShape::Ending::gelu);
    if (op == "gelu_grad" && is_by_tanh(post.node)) return take_slope(post);
    if (op.starts_with("gelu")) return refuse(op, " is by erf, cuBLASLt's is by tanh");
    return refuse("cuBLASLt ends a product with sums, relu or gelu, not with ", op);
  }

 private:
  template <class... Parts>
  bool refuse(const Parts&... parts) {
    *why_ = str(parts...);
    return false;
  }

  bool take_last(LtShape::Ending ending) {
    product_.ending = ending;
    return true;
  }

  /// A row of the result is a column of cuBLASLt's, and the bias has one number for each of its
  /// rows.
  bool take_sum(size_t operand) {
    const Shape &shape = call_.in[operand].shape, &result = call_.out[0].shape;
    const auto first = std::find_if(shape.begin(), shape.end(), [](int64_t n) { return n != 1; });
    const bool trails =
        std::equal(shape.rbegin(), std::make_reverse_iterator(first), result.rbegin());
    const int64_t count = element_count(shape);
    if (trails && count == product_.rows && !product_.adds_bias) {
      product_.adds_bias = true;
      plan_.bias = operand;
      return true;
    }
    if (trails && count == element_count(result) && !product_.adds_c) {
      product_.adds_c = true;
      plan_.c = operand;
      return true;
    }
    return refuse("cuBLASLt adds one row and one operand of the result's shape, not also ",
                  call_.in[operand]);
  }

  /// As the library asks of a matrix that an epilogue reads or writes besides d, and that lies as
  /// d.
  bool lies_well(const char* what) {
    constexpr int64_t kBoundary = 8;
    int64_t all = product_.d.ld | (product_.batch > 1 ? product_.d.step : 0);
    for (const LtShape::Start& start : product_.starts) all |= start.d;
    if (all % kBoundary == 0) return true;
    return refuse("rows of ", what, " lie ", product_.d.ld, " elements apart, not ", kBoundary,
                  " or a multiple");
  }

  bool take_slope(const PostOp& post) {
    if (post.at != 1) return refuse("the product is the argument of gelu_grad");
    if (product_.ends()) return refuse("cuBLASLt multiplies no sum with a slope");
    if (!lies_well("gelu_grad's argument")) return false;
    if (product_.depth == 1) return refuse("cuBLASLt multiplies no outer product with a slope");
    plan_.x = post.operands.at(0);
    return take_last(LtShape::Ending::gelu_grad);
  }

  const KernelCall& call_;
  MatmulPlan& plan_;
  LtShape& product_;
  std::string* why_;
};

/// Of one matrix, the sums in the order of the result's rows or columns. Known to work is the
/// operand whose columns, or rows, of d lie dense: each step along the depth is a whole vector.
bool sum_operand(const KernelCall& call, MatmulPlan& plan, size_t operand, std::string* why) {
  LtShape& s = *plan.product;
  const Einsum e = Einsum::parse(call.node.attrs.s("equation"));
  const std::string& term = operand == 0 ? e.a : e.b;
  const bool is_a = plan.first_is_a == (operand == 0);
  if (s.ends()) {
    *why = "cuBLASLt sums an operand or ends the product, not both";
  } else if (operand == 0 ? plan.narrow_first : plan.narrow_second) {
    *why = "the operand that is summed is rounded first";
  } else if (s.batch > 1 || s.starts.size() > 1) {
    *why = "cuBLASLt sums no operand of several products";
  } else if (common_letters(term, e.out, true) != common_letters(e.out, term, true)) {
    *why = "the sum has its dims in another order than the result";
  } else if (is_a ? s.transpose_a : !s.transpose_b) {
    *why = "cuBLASLt sums an operand along the dim that does not lie dense";
  } else {
    s.sums = is_a ? LtShape::Sums::of_a : LtShape::Sums::of_b;
    return true;
  }
  return false;
}

bool end_product(const KernelCall& call, MatmulPlan& plan, std::string* why) {
  if (!has_post_ops(call.node.op)) return true;
  const std::vector<PostOp> posts = post_ops(call.node);
  if (!plan.product) {
    *why = "nothing is multiplied";
    return false;
  }
  if (plan.move_result && !posts.empty()) {
    *why = "operands of what is behind it lie as the result does, which is transposed";
    return false;
  }
  const std::optional<size_t> keep = kept_before(call.node);
  Ending ending(call, plan, why);
  const auto summed = summed_operand(call.node);
  return std::all_of(posts.begin(), posts.end(),
                     [&](const PostOp& post) {
                       return ending.take(post, keep && &post == &posts[*keep]);
                     }) &&
         (!summed || sum_operand(call, plan, *summed, why));
}

std::optional<MatmulPlan> plan_alone(const KernelCall& call, bool tf32, std::string* why) {
  const Einsum whole = Einsum::parse(call.node.attrs.s("equation"));
  const LetterSizes size = whole.sizes(call.in[0].shape, call.in[1].shape);
  MatmulPlan plan;
  for (const auto& [letter, n] : size) {
    if (n == 0) return plan;
  }
  const Einsum e = without_ones(whole, size);
  if (std::max({e.a.size(), e.b.size(), e.out.size()}) > BoxLoops::kMost) {
    *why = str("moves at most ", BoxLoops::kMost, " dims");
    return std::nullopt;
  }
  const DType a = call.in[0].dtype, b = call.in[1].dtype, out = call.out[0].dtype;
  plan.in = a == b ? a : DType::bf16;
  plan.narrow_first = a != plan.in, plan.narrow_second = b != plan.in;
  const auto accepts = [&](const StridedProduct& product, std::string* reason) {
    plan.product = lt_shape(product, reason);
    return plan.product.has_value();
  };
  const std::optional<EinsumProduct> product = plan_product(e, size, accepts, why);
  if (!product) return std::nullopt;
  plan.product->in = plan.in, plan.product->out = out;
  plan.product->tf32 = tf32 && plan.in == DType::f32;
  plan.first_is_a = product->swapped;
  const auto bytes = [](const Shape& shape, DType dtype) {
    return round256(element_count(shape) * size_of(dtype));
  };
  if (plan.narrow_first) plan.narrow_first_bytes = bytes(call.in[0].shape, plan.in);
  if (plan.narrow_second) plan.narrow_second_bytes = bytes(call.in[1].shape, plan.in);
  if (product->a) {
    plan.move_first = turned(product->a->from, product->a->perm);
    plan.move_first_bytes = bytes(product->a->from, plan.in);
  }
  if (product->b) {
    plan.move_second = turned(product->b->from, product->b->perm);
    plan.move_second_bytes = bytes(product->b->from, plan.in);
  }
  if (product->out) {
    plan.move_result = turned(product->out->from, product->out->perm);
    plan.move_result_bytes = bytes(product->out->from, out);
  }
  plan.product_bytes = plan.product->workspace_bytes();
  return plan;
}

}  // namespace

LtOperands MatmulPlan::operands(const KernelArgs& args, const void* first, const void* second,
                                void* result) const {
  LtOperands o{first_is_a ? first : second, first_is_a ? second : first, result};
  if (c > 0) o.c = args.in[c].data;
  if (bias > 0) o.bias = args.in[bias].data;
  if (x > 0) o.x = args.in[x].data;
  if (product->keeps) o.kept = args.out[1].data;
  if (product->sums != LtShape::Sums::none) o.sums = args.out.back().data;
  return o;
}

std::optional<MatmulPlan> plan_matmul(const KernelCall& call, bool tf32, std::string* why) {
  const Node alone = without_post_ops(call.node);
  auto plan = plan_alone({alone, call.in.first(kOwnOperands), call.out}, tf32, why);
  if (!plan || !end_product(call, *plan, why)) return std::nullopt;
  return plan;
}

ElementChain chain_behind(const KernelCall& call) {
  ElementChain chain;
  const TensorType product =
      infer_types(without_post_ops(call.node), call.in.first(kOwnOperands))[0];
  chain.values = {product};
  chain.reads = {0};
  for (const TensorType& type : call.in.subspan(kOwnOperands)) {
    chain.reads.push_back(static_cast<int>(chain.values.size()));
    chain.values.push_back(type);
  }
  int so_far = 0, kept = 0;
  const std::vector<PostOp> posts = post_ops(call.node);
  const std::optional<size_t> keep = kept_before(call.node);
  for (const PostOp& post : posts) {
    if (keep && &post == &posts[*keep]) kept = so_far;
    ElementChain::Call next{post.node, {}, static_cast<int>(chain.values.size())};
    std::vector<TensorType> in;
    for (size_t operand : post.operands)
      next.in.push_back(static_cast<int>(operand - kOwnOperands) + 1);
    next.in.insert(next.in.begin() + static_cast<std::ptrdiff_t>(post.at), so_far);
    for (int value : next.in) in.push_back(chain.values[static_cast<size_t>(value)]);
    so_far = next.out;
    chain.values.push_back(infer_types(post.node, in)[0]);
    chain.calls.push_back(std::move(next));
  }
  chain.writes = {so_far};
  if (kept > 0) chain.writes.push_back(kept);
  return chain;
}

}  // namespace shardrun::cuda
