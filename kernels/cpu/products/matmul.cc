// matmul: the letters of the einsum fall into batch, m, n and k; where each group is one strided
// dim in every operand, large products are packed in chunks (packed_product.h), and of small ones
// and batches oneDNN reads the operands as they lie, else they are transposed into the workspace
// first. A row by a matrix has a kernel of its own (row_product.h).
#include <algorithm>

#include "base/round_up.h"
#include "graph/ops/einsum.h"
#include "graph/rearranged.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/products/epilogue.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/nonzeros.h"
#include "kernels/cpu/products/packed_product.h"
#include "kernels/cpu/products/row_product.h"
#include "kernels/cpu/products/weight_blocks.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/strided_copy.h"
#include "kernels/einsum_product.h"
#include "program/ops/post.h"

namespace shardrun::cpu {
namespace {

// Packing an operand of a product costs about as much as 64 rows of it, and saves a tenth of each.
constexpr int64_t kRowsThatPay = 512;

enum class By { tiles, onednn };

/// How a call is multiplied.
struct How {
  By by;
  bool packed_before = false;  // the second operand's blocks are there
  bool sums = false;           // the result is read at once, by an epilogue
};

constexpr std::string_view name_of(By by) { return by == By::tiles ? "cpu:amx" : "cpu:onednn"; }

struct Types {
  DType a, b;     // of the operands
  DType in, out;  // of the product: bf16 if one of the operands is
};

// The terms without batch, packed, or null and why not.
std::shared_ptr<const PackedProduct> packed(const Einsum& e, const LetterSizes& size,
                                            const Types& types, const std::vector<GemmPost>& post,
                                            const How& how, std::string* why) {
  const std::string m = common_letters(e.out, e.a, true), n = common_letters(e.out, e.b, true),
                    k = common_letters(e.a, e.out, false);
  if (m + n != e.out || common_letters(m, e.b, true) != "") {
    *why = "the result is not rows of one operand by columns of the other";
    return nullptr;
  }
  const auto sa = strides_of(e.a, size), sb = strides_of(e.b, size);
  const auto am = merge_letters(m, sa, size), ak = merge_letters(k, sa, size),
             bk = merge_letters(k, sb, size), bn = merge_letters(n, sb, size);
  if (!am || !ak || !bk || !bn || (am->stride != 1 && ak->stride != 1) ||
      (bk->stride != 1 && bn->stride != 1)) {
    *why = "letters of one group are not adjacent";
    return nullptr;
  }
  ProductShape s;
  s.m = am->size, s.n = bn->size, s.k = ak->size;
  s.a_row = am->stride, s.a_col = ak->stride, s.b_row = bk->stride, s.b_col = bn->stride;
  s.a = types.a, s.b = types.b, s.in = types.in, s.out = types.out;
  s.post = post;
  s.tiles = how.by == By::tiles;
  s.read_at_once = how.sums;
  s.packed = how.packed_before;
  if (!s.tiles && !s.packed && s.a == s.b && s.m < kRowsThatPay) {
    *why = "too few rows for packing";
    return nullptr;
  }
  return PackedProduct::make(s, why);
}

struct ProductSteps {
  std::optional<RowProduct> row;                // or
  std::shared_ptr<const PackedProduct> packed;  // or
  std::shared_ptr<const Gemm> gemm;         // all null: the result is empty, or zero because k is
  bool swapped = false;                     // b is the left operand
  bool packed_before = false;               // b is read from the last operand, in blocks
  bool narrow_a = false, narrow_b = false;  // f32 with bf16: rounded into the workspace first
  std::optional<StridedCopy> copy_a, copy_b, copy_out;
  int64_t bytes_a = 0, bytes_b = 0, bytes_out = 0;  // of the copies, rounded up to 64
  int64_t bytes_narrow = 0;

  int64_t workspace_bytes() const {
    if (row) return row->workspace_bytes();
    if (packed) return packed->workspace_bytes();
    return bytes_narrow + bytes_a + bytes_b + bytes_out + (gemm ? gemm->scratch_bytes() : 0);
  }
};

/// The product of a row and a matrix in f32, if it is one.
std::optional<ProductSteps> row_steps(const KernelCall& call) {
  for (const auto& types : {call.in, call.out}) {
    for (const TensorType& type : types) {
      if (type.dtype != DType::f32 || element_count(type.shape) == 0) return std::nullopt;
    }
  }
  const Einsum whole = Einsum::parse(call.node.attrs.s("equation"));
  const LetterSizes size = whole.sizes(call.in[0].shape, call.in[1].shape);
  const Einsum e = without_ones(whole, size);
  for (bool swapped : {false, true}) {
    ProductSteps p;
    p.row = RowProduct::make(swapped ? Einsum{e.b, e.a, e.out} : e, size);
    p.swapped = swapped;
    if (p.row) return p;
  }
  return std::nullopt;
}

std::optional<ProductSteps> steps_of(const KernelCall& call, const std::vector<GemmPost>& post,
                                     const How& how, std::string* why) {
  if (post.empty() && how.by == By::onednn) {
    if (auto row = row_steps(call)) return row;
  }
  const Einsum whole = Einsum::parse(call.node.attrs.s("equation"));
  const LetterSizes size = whole.sizes(call.in[0].shape, call.in[1].shape);
  ProductSteps p;
  p.packed_before = how.packed_before;
  for (const auto& [letter, n] : size) {
    if (n > 0) continue;
    *why = "there is nothing to multiply";
    return how.by == By::onednn ? std::optional(p) : std::nullopt;
  }
  const Einsum e = without_ones(whole, size);
  const DType a = call.in[0].dtype, b = call.in[1].dtype, out = call.out[0].dtype,
              in = a == b ? a : DType::bf16;
  for (bool swapped : {false, true}) {
    const Einsum oriented = swapped ? Einsum{e.b, e.a, e.out} : e;
    p.packed = packed(oriented, size, {swapped ? b : a, swapped ? a : b, in, out}, post, how, why);
    p.swapped = swapped;
    if (p.packed) return p;
    if (how.packed_before) return std::nullopt;
  }
  if (how.by == By::tiles) return std::nullopt;
  p.narrow_a = a != in, p.narrow_b = b != in;
  if (p.narrow_a) p.bytes_narrow = round_up_64(element_count(call.in[0].shape) * size_of(in));
  if (p.narrow_b) p.bytes_narrow = round_up_64(element_count(call.in[1].shape) * size_of(in));
  const auto accepts = [&](const StridedProduct& product, std::string* reason) {
    GemmShape g;
    g.a = product.a, g.b = product.b, g.c = product.c;
    g.a_strides = product.a_strides, g.b_strides = product.b_strides;
    g.c_strides = product.c_strides;
    g.in = in, g.out = out, g.post = post;
    p.gemm = Gemm::make(g, reason);
    return p.gemm != nullptr;
  };
  const std::optional<EinsumProduct> product = plan_product(e, size, accepts, why);
  if (!product) return std::nullopt;
  if (product->out && !post.empty()) {
    *why = "operands of post-ops lie as the result does, which is transposed";
    return std::nullopt;
  }
  p.swapped = product->swapped;
  const auto copy = [](const std::optional<EinsumProduct::Transposition>& of, DType dtype,
                       int64_t* bytes) -> std::optional<StridedCopy> {
    if (!of) return std::nullopt;
    *bytes = round_up_64(element_count(of->from) * size_of(dtype));
    return StridedCopy::transpose(of->from, of->perm, size_of(dtype));
  };
  p.copy_a = copy(product->a, in, &p.bytes_a);
  p.copy_b = copy(product->b, in, &p.bytes_b);
  p.copy_out = copy(product->out, out, &p.bytes_out);
  return p;
}

void narrow(const TensorView& from, void* to) {
  const int64_t count = from.count();
  pack_rows({from.data, from.type.dtype, 1, count, count, 1}, DType::bf16, to);
}

void run(const ProductSteps& p, const KernelArgs& args,
         std::span<const void* const> operands = {}) {
  const TensorView& out = args.out[0];
  const void *a = args.in[0].data, *b = (p.packed_before ? args.in.back() : args.in[1]).data;
  char* work = static_cast<char*>(args.workspace);
  if (p.row) {
    const auto *row = static_cast<const float*>(p.swapped ? b : a),
               *matrix = static_cast<const float*>(p.swapped ? a : b);
    return p.row->run(row, matrix, out.as<float>(), work);
  }
  if (p.packed)
    return p.packed->run(p.swapped ? b : a, p.swapped ? a : b, out.data, work, operands);
  if (!p.gemm) {
    if (out.count() > 0) std::memset(out.data, 0, static_cast<size_t>(byte_size(out.type)));
    return;
  }
  if (p.narrow_a) narrow(args.in[0], work), a = work;
  if (p.narrow_b) narrow(args.in[1], work), b = work;
  work += p.bytes_narrow;
  if (p.copy_a) p.copy_a->run(a, work), a = work;
  work += p.bytes_a;
  if (p.copy_b) p.copy_b->run(b, work), b = work;
  work += p.bytes_b;
  void* c = p.copy_out ? work : out.data;
  work += p.bytes_out;
  p.gemm->run(p.swapped ? b : a, p.swapped ? a : b, c, work, operands);
  if (p.copy_out) p.copy_out->run(c, out.data);
}

template <By kBy>
How how_of(const KernelCall& call) {
  return {kBy, rearranged_operands(call.node) > 0};
}

template <By kBy>
std::optional<std::string> refuses(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  std::string why;
  if (!steps_of(call, {}, how_of<kBy>(call), &why)) return why;
  return std::nullopt;
}

template <By kBy>
PreparedKernel prepare(const KernelCall& call) {
  std::string why;
  std::optional<ProductSteps> p = steps_of(call, {}, how_of<kBy>(call), &why);
  SR_REQUIRE(p.has_value(), internal, "matmul '", call.node.name, "' was refused: ", why);
  return {[p = *p](const KernelArgs& args) { run(p, args); }, p->workspace_bytes(), name_of(kBy)};
}

// ---- with post-ops ----

// As large as the result, or as its last dims, or one number?
bool lies_in_rows(const Shape& operand, const Shape& result) {
  if (element_count(operand) == 1) return true;
  const auto first = std::find_if(operand.begin(), operand.end(), [](int64_t n) { return n != 1; });
  return std::equal(operand.rbegin(), std::make_reverse_iterator(first), result.rbegin());
}

/// A product that ends with the post-ops, or one in f32, and they behind it.
struct Posted {
  ProductSteps product;
  std::shared_ptr<const Epilogue> epilogue;  // or
  int64_t bytes_sums = 0;                    // where the result is not f32 itself
  TensorType sums;
};

std::optional<Posted> plan_posted(const KernelCall& call, const How& how, std::string* why) {
  const Node node = without_post_ops(call.node);
  const std::span<const TensorType> own = call.in.first(kOwnOperands);
  Posted out;
  const auto lies = [&](const Shape& operand) { return lies_in_rows(operand, call.out[0].shape); };
  out.sums = {DType::f32, call.out[0].shape};
  const KernelCall of_sums{node, own, std::span(&out.sums, 1)};
  const auto posts = gemm_posts(call, lies);
  if (posts && !row_steps(of_sums)) {
    const auto product = steps_of({node, own, call.out}, *posts, how, why);
    if (product && (product->packed || product->gemm)) {
      out.product = *product;
      return out;
    }
  }
  const auto product = steps_of(of_sums, {}, {how.by, how.packed_before, true}, why);
  if (!product) return std::nullopt;
  out.product = *product;
  out.epilogue = Epilogue::make(call, why);
  if (!out.epilogue) return std::nullopt;
  if (call.out[0].dtype != DType::f32) out.bytes_sums = round_up_64(byte_size(out.sums));
  return out;
}

template <By kBy>
std::optional<std::string> posted_refuses(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  if (auto reason = refuse_more_results(call)) return reason;
  std::string why;
  if (!plan_posted(call, how_of<kBy>(call), &why)) return why;
  return std::nullopt;
}

template <By kBy>
PreparedKernel prepare_posted(const KernelCall& call) {
  std::string why;
  const std::optional<Posted> p = plan_posted(call, how_of<kBy>(call), &why);
  SR_REQUIRE(p.has_value(), internal, "matmul_post '", call.node.name, "' was refused: ", why);
  PreparedKernel out{nullptr, p->bytes_sums + p->product.workspace_bytes(), name_of(kBy)};
  if (!p->epilogue) {
    out.run = [p = *p](const KernelArgs& args) {
      KernelArgs own = args;
      if (p.product.packed_before) own.in = args.in.first(args.in.size() - 1);
      run(p.product, args, PostOperands(own).span());
    };
    return out;
  }
  out.run = [p = *p, sums = TensorView{nullptr, p->sums}](const KernelArgs& args) mutable {
    sums.data = p.bytes_sums > 0 ? args.workspace : args.out[0].data;
    run(p.product,
        {args.in, std::span(&sums, 1), static_cast<char*>(args.workspace) + p.bytes_sums});
    p.epilogue->run(args, sums.as<float>(), 0, p.epilogue->rows());
  };
  return out;
}

}  // namespace

std::optional<WeightLayout> matmul_layout(const KernelCall& call) {
  const TensorType& weights = call.in[1];
  if (call.in[0].dtype != DType::bf16 || weights.dtype != DType::bf16 || weights.shape.size() != 2)
    return std::nullopt;
  const Einsum e = Einsum::parse(call.node.attrs.s("equation"));
  const bool rows_are_terms = e.out.find(e.b[0]) == std::string::npos;
  for (const By by : {By::tiles, By::onednn}) {
    std::string why;
    std::optional<ProductSteps> product;
    if (!has_post_ops(call.node.op)) {
      product = steps_of(call, {}, {by, true}, &why);
    } else if (const auto posted = plan_posted(call, {by, true}, &why)) {
      product = posted->product;
    }
    if (!product || !product->packed) continue;
    const WeightLayout layout = WeightBlocks::matrix(product->packed->blocks(), 2, rows_are_terms);
    return WeightBlocks::make(weights, layout) ? std::optional(layout) : std::nullopt;
  }
  return std::nullopt;
}

template <By kBy>
KernelImpl product_kernel() {
  return {"matmul", std::string(name_of(kBy)), refuses<kBy>, prepare<kBy>};
}
template <By kBy>
KernelImpl posted_kernel() {
  return {"matmul_post", std::string(name_of(kBy)), posted_refuses<kBy>, prepare_posted<kBy>};
}

KernelList matmul_kernels() {
  return {by_nonzeros(product_kernel<By::onednn>()), product_kernel<By::tiles>(),
          product_kernel<By::onednn>(), posted_kernel<By::tiles>(), posted_kernel<By::onednn>()};
}

}  // namespace shardrun::cpu
