// matmul by oneDNN: the letters of the einsum fall into batch, m, n and k; where each group is one
// strided dim in every operand, large products are packed in chunks (packed_product.h), and of
// small ones and batches oneDNN reads the operands as they lie, else they are transposed into the
// workspace first.
#include <map>

#include "graph/ops/einsum.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/nonzeros.h"
#include "kernels/cpu/packed_product.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/strided_copy.h"

namespace shardrun::cpu {
namespace {

using Sizes = std::map<char, int64_t>;

// Letters of `term` that are in (or, if !inside, not in) `other`, in the order of `term`.
std::string common(const std::string& term, const std::string& other, bool inside) {
  std::string out;
  for (char c : term) {
    if ((other.find(c) != std::string::npos) == inside) out += c;
  }
  return out;
}

Shape dims_of(const std::string& term, const Sizes& size) {
  Shape out;
  for (char c : term) out.push_back(size.at(c));
  return out;
}

// Strides by letter of a dense operand.
std::map<char, int64_t> strides_of(const std::string& term, const Sizes& size) {
  const Shape strides = row_major_strides(dims_of(term, size));
  std::map<char, int64_t> out;
  for (size_t i = 0; i < term.size(); ++i) out[term[i]] = strides[i];
  return out;
}

struct Merged {
  int64_t size = 1, stride = 1;
};

// A group of letters as one strided dim, or nullopt: "bi" of "bij" [2,3,5] has size 6 and stride 5.
std::optional<Merged> merge(const std::string& group, const std::map<char, int64_t>& stride,
                            const Sizes& size) {
  Merged out;
  for (size_t i = group.size(); i-- > 0;) {
    const int64_t s = stride.at(group[i]), n = size.at(group[i]);
    if (i + 1 == group.size()) {
      out = {n, s};
    } else if (s == out.stride * out.size) {
      out.size *= n;
    } else {
      return std::nullopt;
    }
  }
  return out;
}

// Packing an operand of a product costs about as much as 64 rows of it, and saves a tenth of each.
constexpr int64_t kRowsThatPay = 512;

struct Types {
  DType a, b;     // of the operands
  DType in, out;  // of the product: bf16 if one of the operands is
};

// The terms without batch, packed, or null and why not.
std::shared_ptr<const PackedProduct> packed(const Einsum& e, const Sizes& size, const Types& types,
                                            std::string* why) {
  const std::string m = common(e.out, e.a, true), n = common(e.out, e.b, true),
                    k = common(e.a, e.out, false);
  if (m + n != e.out || common(m, e.b, true) != "") {
    *why = "the result is not rows of one operand by columns of the other";
    return nullptr;
  }
  const auto sa = strides_of(e.a, size), sb = strides_of(e.b, size);
  const auto am = merge(m, sa, size), ak = merge(k, sa, size), bk = merge(k, sb, size),
             bn = merge(n, sb, size);
  if (!am || !ak || !bk || !bn || (am->stride != 1 && ak->stride != 1) ||
      (bk->stride != 1 && bn->stride != 1)) {
    *why = "letters of one group are not adjacent";
    return nullptr;
  }
  if (types.a == types.b && am->size < kRowsThatPay) {
    *why = "too few rows for packing";
    return nullptr;
  }
  ProductShape s;
  s.m = am->size, s.n = bn->size, s.k = ak->size;
  s.a_row = am->stride, s.a_col = ak->stride, s.b_row = bk->stride, s.b_col = bn->stride;
  s.a = types.a, s.b = types.b, s.in = types.in, s.out = types.out;
  return PackedProduct::make(s, why);
}

// The terms as dense operands without copies, or null and why not.
std::shared_ptr<const Gemm> direct(const Einsum& e, const Sizes& size, DType in, DType out,
                                   std::string* why) {
  const auto sa = strides_of(e.a, size), sb = strides_of(e.b, size), sc = strides_of(e.out, size);
  const std::string m = common(common(e.out, e.a, true), e.b, false),
                    n = common(common(e.out, e.b, true), e.a, false);
  const std::string k = common(common(e.a, e.b, true), e.out, false);
  const auto am = merge(m, sa, size), ak = merge(k, sa, size), bk = merge(k, sb, size),
             bn = merge(n, sb, size);
  const auto cm = merge(m, sc, size), cn = merge(n, sc, size);
  if (!am || !ak || !bk || !bn || !cm || !cn) {
    *why = "letters of one group are not adjacent";
    return nullptr;
  }
  GemmShape g;
  g.in = in, g.out = out;
  const std::string batch = common(common(e.out, e.a, true), e.b, true);
  for (size_t i = 0; i < batch.size(); ++i) {
    const char c = batch[i];
    const int64_t s = size.at(c);
    const bool joins = i > 0 && g.a_strides.back() == sa.at(c) * s &&
                       g.b_strides.back() == sb.at(c) * s && g.c_strides.back() == sc.at(c) * s;
    if (joins) {
      for (Shape* dims : {&g.a, &g.b, &g.c}) dims->back() *= s;
      g.a_strides.back() = sa.at(c), g.b_strides.back() = sb.at(c), g.c_strides.back() = sc.at(c);
    } else {
      for (Shape* dims : {&g.a, &g.b, &g.c}) dims->push_back(s);
      g.a_strides.push_back(sa.at(c)), g.b_strides.push_back(sb.at(c)),
          g.c_strides.push_back(sc.at(c));
    }
  }
  auto append = [](Shape& dims, Shape& strides, const Merged& rows, const Merged& cols) {
    dims.insert(dims.end(), {rows.size, cols.size});
    // A dim of 1 may have any stride; oneDNN recognises the layout best by a dense one.
    const int64_t row_stride =
        rows.size == 1 ? std::max(cols.size * cols.stride, int64_t{1}) : rows.stride;
    const int64_t col_stride =
        cols.size == 1 ? (rows.stride == 1 && rows.size > 1 ? rows.size : 1) : cols.stride;
    strides.insert(strides.end(), {row_stride, col_stride});
  };
  append(g.a, g.a_strides, *am, *ak);
  append(g.b, g.b_strides, *bk, *bn);
  append(g.c, g.c_strides, *cm, *cn);
  if (g.c_strides.back() != 1) {
    *why = "the result's last letter is not n";
    return nullptr;
  }
  return Gemm::make(g, why);
}

struct Plan {
  std::shared_ptr<const PackedProduct> packed;  // or
  std::shared_ptr<const Gemm> gemm;         // both null: the result is empty, or zero because k is
  bool swapped = false;                     // b is the left operand
  bool narrow_a = false, narrow_b = false;  // f32 beside bf16: rounded into the workspace first
  std::optional<StridedCopy> copy_a, copy_b, copy_out;
  int64_t bytes_a = 0, bytes_b = 0, bytes_out = 0;  // of the copies, rounded up to 64
  int64_t bytes_narrow = 0;

  int64_t workspace_bytes() const {
    if (packed) return packed->workspace_bytes();
    return bytes_narrow + bytes_a + bytes_b + bytes_out + (gemm ? gemm->scratch_bytes() : 0);
  }
};

int64_t round64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

std::vector<int64_t> permutation(const std::string& from, const std::string& to) {
  std::vector<int64_t> perm;
  for (char c : to) perm.push_back(static_cast<int64_t>(from.find(c)));
  return perm;
}

std::optional<Plan> plan(const KernelCall& call, std::string* why) {
  const Einsum whole = Einsum::parse(call.node.attrs.s("equation"));
  const Sizes size = whole.sizes(call.in[0].shape, call.in[1].shape);
  Plan p;
  std::string trivial;
  for (const auto& [letter, n] : size) {
    if (n == 0) return p;
    if (n == 1) trivial += letter;
  }
  const Einsum e{common(whole.a, trivial, false), common(whole.b, trivial, false),
                 common(whole.out, trivial, false)};
  const DType a = call.in[0].dtype, b = call.in[1].dtype, out = call.out[0].dtype,
              in = a == b ? a : DType::bf16;
  for (bool swapped : {false, true}) {
    const Einsum oriented = swapped ? Einsum{e.b, e.a, e.out} : e;
    p.packed = packed(oriented, size, {swapped ? b : a, swapped ? a : b, in, out}, why);
    p.swapped = swapped;
    if (p.packed) return p;
  }
  p.narrow_a = a != in, p.narrow_b = b != in;
  if (p.narrow_a) p.bytes_narrow = round64(element_count(call.in[0].shape) * size_of(in));
  if (p.narrow_b) p.bytes_narrow = round64(element_count(call.in[1].shape) * size_of(in));
  const std::string m = common(common(e.out, e.a, true), e.b, false),
                    n = common(common(e.out, e.b, true), e.a, false);
  const std::string k = common(common(e.a, e.b, true), e.out, false);
  const std::string batch = common(common(e.out, e.a, true), e.b, true);
  if (!batch.empty() && m.empty() && n.empty() && k.empty()) {
    *why = "is an element-wise product";
    return std::nullopt;
  }
  // As few transpositions as possible, in either order of the operands.
  for (int bits : {0, 1, 2, 4, 3, 5, 6, 7}) {
    for (bool swapped : {false, true}) {
      Einsum local = e;
      if (bits & 1) local.a = batch + m + k;
      if (bits & 2) local.b = batch + k + n;
      if (bits & 4) local.out = swapped ? batch + n + m : batch + m + n;
      const Einsum oriented = swapped ? Einsum{local.b, local.a, local.out} : local;
      p.gemm = direct(oriented, size, in, out, why);
      if (!p.gemm) continue;
      p.swapped = swapped;
      if (bits & 1) {
        p.copy_a =
            StridedCopy::transpose(dims_of(e.a, size), permutation(e.a, local.a), size_of(in));
        p.bytes_a = round64(element_count(call.in[0].shape) * size_of(in));
      }
      if (bits & 2) {
        p.copy_b =
            StridedCopy::transpose(dims_of(e.b, size), permutation(e.b, local.b), size_of(in));
        p.bytes_b = round64(element_count(call.in[1].shape) * size_of(in));
      }
      if (bits & 4) {
        p.copy_out = StridedCopy::transpose(dims_of(local.out, size), permutation(local.out, e.out),
                                            size_of(out));
        p.bytes_out = round64(byte_size(call.out[0]));
      }
      return p;
    }
  }
  return std::nullopt;
}

void narrow(const TensorView& from, void* to) {
  const int64_t count = from.count();
  pack_rows({from.data, from.type.dtype, 1, count, count, 1}, DType::bf16, to);
}

std::optional<std::string> refuses(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  std::string why;
  if (!plan(call, &why)) return why;
  return std::nullopt;
}

PreparedKernel prepare(const KernelCall& call) {
  std::string why;
  std::optional<Plan> p = plan(call, &why);
  SR_REQUIRE(p.has_value(), internal, "matmul '", call.node.name, "' was refused: ", why);
  return {[p = *p](const KernelArgs& args) {
            const TensorView& out = args.out[0];
            const void *a = args.in[0].data, *b = args.in[1].data;
            char* work = static_cast<char*>(args.workspace);
            if (p.packed)
              return p.packed->run(p.swapped ? b : a, p.swapped ? a : b, out.data, work);
            if (!p.gemm) {
              if (out.count() > 0)
                std::memset(out.data, 0, static_cast<size_t>(byte_size(out.type)));
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
            p.gemm->run(p.swapped ? b : a, p.swapped ? a : b, c, work);
            if (p.copy_out) p.copy_out->run(c, out.data);
          },
          p->workspace_bytes(), "cpu:onednn"};
}

}  // namespace

KernelList matmul_kernels() {
  const KernelImpl dense{"matmul", "cpu:onednn", refuses, prepare};
  return {by_nonzeros(dense), dense};
}

}  // namespace shardrun::cpu
