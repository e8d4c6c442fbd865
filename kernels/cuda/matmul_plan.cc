// From row-major einsums to cuBLASLt's columns: the transposed product of transposed operands.
#include "kernels/cuda/matmul_plan.h"

#include "kernels/cuda/refusals.h"
#include "kernels/einsum_product.h"

namespace shardrun::cuda {
namespace {

int64_t round256(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// A matrix of strides (row, column) as cuBLASLt reads it: with columns for rows, one of the
/// strides
/// 1. `transposed`: it lies the other way round.
struct Lying {
  bool transposed;
  int64_t ld;
};
std::optional<Lying> lying(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
  if ((col_stride == 1 || cols == 1) && row_stride >= cols) return Lying{false, row_stride};
  if ((row_stride == 1 || rows == 1) && col_stride >= rows) return Lying{true, col_stride};
  return std::nullopt;
}

// Of several batch dims one is cuBLASLt's, the others are calls of their own.
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
    if (d == strided) {
      s.batch = p.c[d];
      s.a.step = p.b_strides[d], s.b.step = p.a_strides[d], s.d.step = p.c_strides[d];
      continue;
    }
    if (static_cast<int64_t>(s.starts.size()) * p.c[d] > kMostCalls) {
      *why = "has too many batch dims that do not lie evenly";
      return std::nullopt;
    }
    std::vector<LtShape::Start> all;
    for (const LtShape::Start& start : s.starts) {
      for (int64_t i = 0; i < p.c[d]; ++i)
        all.push_back({start.a + i * p.b_strides[d], start.b + i * p.a_strides[d],
                       start.d + i * p.c_strides[d]});
    }
    s.starts = std::move(all);
  }
  return s;
}

BoxLoops moving(const EinsumProduct::Transposition& of) {
  Shape to;
  for (int64_t d : of.perm) to.push_back(of.from[static_cast<size_t>(d)]);
  const Shape from_strides = row_major_strides(of.from), to_strides = row_major_strides(to);
  BoxLoops loops;
  loops.dims = static_cast<int>(to.size());
  loops.count = element_count(to);
  for (size_t d = 0; d < to.size(); ++d) {
    loops.size[d] = to[d], loops.to[d] = to_strides[d];
    loops.from[d] = from_strides[static_cast<size_t>(of.perm[d])];
  }
  return loops;
}

}  // namespace

std::optional<MatmulPlan> plan_matmul(const KernelCall& call, bool tf32, std::string* why) {
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
    plan.move_first = moving(*product->a);
    plan.move_first_bytes = bytes(product->a->from, plan.in);
  }
  if (product->b) {
    plan.move_second = moving(*product->b);
    plan.move_second_bytes = bytes(product->b->from, plan.in);
  }
  if (product->out) {
    plan.move_result = moving(*product->out);
    plan.move_result_bytes = bytes(product->out->from, out);
  }
  plan.product_bytes = plan.product->workspace_bytes();
  return plan;
}

}  // namespace shardrun::cuda
