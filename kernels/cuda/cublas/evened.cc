// Which matrix lies so that a copy may pay, and its parts.
#include "kernels/cuda/cublas/evened.h"

#include <algorithm>
#include <map>

#include "base/round_up.h"
#include "device/cuda/cuda.h"

namespace shardrun::cuda {
namespace {

constexpr int64_t kGroup = 8;       // bf16 numbers of 16 bytes
constexpr int64_t kFewLines = 256;  // fewer are no product to speak of

int64_t round_down(int64_t n) { return n / kGroup * kGroup; }

/// The product, and of rows and columns that are too many, where that matters, products of their
/// own.
void add_products(EvenedPlan::Part& part, const EvenedPlan::Product& whole) {
  const auto ranges = [](int64_t n, bool matters) {
    const int64_t even = matters && n > kGroup ? round_down(n) : n;
    std::vector<Range> all = {{0, even}};
    if (even < n) all.push_back({even, n - even});
    return all;
  };
  for (const Range& rows : ranges(whole.shape.rows, true)) {
    for (const Range& cols : ranges(whole.shape.cols, whole.shape.transpose_b)) {
      EvenedPlan::Product p = whole;
      p.shape.rows = rows.size, p.shape.cols = cols.size;
      p.a += rows.begin * (p.shape.transpose_a ? p.shape.a.ld : 1);
      p.b += cols.begin * (p.shape.transpose_b ? 1 : p.shape.b.ld);
      p.d += rows.begin + cols.begin * p.shape.d.ld;
      part.products.push_back(p);
    }
  }
}

}  // namespace

int64_t EvenedPlan::workspace_bytes() const {
  int64_t most = 0;
  for (const Part& part : parts) {
    for (const Product& product : part.products)
      most = std::max(most, product.shape.workspace_bytes());
  }
  return copy_bytes + other_bytes() + most;
}

std::optional<EvenedPlan> evened(const LtShape& s, double least_flops, int64_t most_bytes) {
  using Of = EvenedPlan::Of;
  const double flops = 2.0 * static_cast<double>(s.rows) * static_cast<double>(s.cols) *
                       static_cast<double>(s.depth);
  const bool odd_a = s.a.ld % kGroup != 0, odd_b = s.b.ld % kGroup != 0;
  const bool odd_d = s.d.ld % kGroup != 0 && s.out == DType::bf16;
  if (s.in != DType::bf16 || s.ends() || s.batch > 1 || s.starts.size() > 1 ||
      flops < least_flops || odd_a + odd_b + odd_d != 1 ||
      (odd_d && (s.d.ld != s.rows || s.starts[0].d % kGroup != 0)))
    return std::nullopt;
  EvenedPlan out;
  out.of = odd_a ? Of::a : odd_b ? Of::b : Of::d;
  const LtShape::Operand& odd = odd_a ? s.a : odd_b ? s.b : s.d;
  const bool transposed = odd_a ? s.transpose_a : odd_b && s.transpose_b;
  // Stored lines by lines' length: a is [rows, depth] or [depth, rows]; b [depth, cols] or turned;
  // d [rows, cols].
  const bool along_depth = !odd_d && odd_a != transposed;
  const int64_t across = odd_a ? s.rows : s.cols;
  const int64_t lines = along_depth ? s.depth : across;
  out.width = odd_d ? s.rows : along_depth ? across : s.depth;
  out.pitch = round_up(out.width, kGroup);
  out.from_pitch = odd.ld;
  int64_t some = std::max(most_bytes / (out.pitch * 2), kFewLines) / kFewLines * kFewLines;
  if (along_depth && lines > some && s.out != DType::f32) return std::nullopt;
  some = std::min(some, lines);
  EvenedPlan::Product whole;
  whole.shape = s;
  whole.shape.starts = {{}};
  (odd_a ? whole.shape.a : odd_b ? whole.shape.b : whole.shape.d).ld = out.pitch;
  // The copy's lines go along the depth, and end with zeros; the other operand's go across.
  const bool other_across = odd_a ? s.transpose_b : !s.transpose_a;
  if (!odd_d && !along_depth && s.depth % kGroup != 0 && other_across) {
    const int64_t ld = odd_a ? s.b.ld : s.a.ld;
    out.other_elements = s.depth * ld, out.other_zeros = (out.pitch - s.depth) * ld;
    whole.shape.depth = out.pitch;
  }
  for (int64_t first = 0; first < lines; first += some) {
    EvenedPlan::Part part;
    part.first = first, part.lines = std::min(some, lines - first);
    EvenedPlan::Product product = whole;
    LtShape& shape = product.shape;
    if (along_depth) {
      shape.depth = part.lines;
      shape.adds_c = first > 0;
      if (odd_a) {
        product.b = s.transpose_b ? first * s.b.ld : first;
      } else {
        product.a = s.transpose_a ? first : first * s.a.ld;
      }
    } else if (odd_a) {
      shape.rows = part.lines;
      product.d = first;
    } else {
      shape.cols = part.lines;
      if (odd_d) {
        product.b = s.transpose_b ? first : first * s.b.ld;
      } else {
        product.d = first * s.d.ld;
      }
    }
    add_products(part, product);
    out.parts.push_back(part);
  }
  out.copy_bytes = round_up(some * out.pitch * 2, 256);
  return out;
}

EvenedProduct::EvenedProduct(EvenedPlan plan, LtShape::Start start)
    : plan_(std::move(plan)), start_(start) {
  std::map<std::string, std::shared_ptr<LtProduct>> made;
  for (const EvenedPlan::Part& part : plan_.parts) {
    products_.emplace_back();
    for (const EvenedPlan::Product& each : part.products) {
      std::shared_ptr<LtProduct>& product = made[each.shape.key()];
      if (!product) product = make_lt_product(each.shape);
      products_.back().push_back(product);
    }
  }
}

void EvenedProduct::run(const LtOperands& o, void* workspace, void* on) const {
  using Of = EvenedPlan::Of;
  const auto stream = static_cast<cudaStream_t>(on);
  auto* const copy = static_cast<uint16_t*>(workspace);
  auto* const other = reinterpret_cast<uint16_t*>(static_cast<char*>(workspace) + plan_.copy_bytes);
  char* const rest = reinterpret_cast<char*>(other) + plan_.other_bytes();
  const auto at = [](const void* base, int64_t element) {
    return static_cast<const uint16_t*>(base) + element;
  };
  const uint16_t *a = at(o.a, start_.a), *b = at(o.b, start_.b);
  if (plan_.other_elements > 0) {
    const uint16_t*& whole = plan_.of == Of::a ? b : a;
    check(cudaMemcpyAsync(other, whole, static_cast<size_t>(2 * plan_.other_elements),
                          cudaMemcpyDeviceToDevice, stream),
          "cudaMemcpy");
    check(cudaMemsetAsync(other + plan_.other_elements, 0,
                          static_cast<size_t>(2 * plan_.other_zeros), stream),
          "cudaMemset");
    launched(stream, 2);
    whole = other;
  }
  for (size_t i = 0; i < products_.size(); ++i) {
    const EvenedPlan::Part& part = plan_.parts[i];
    const int64_t first = part.first * plan_.from_pitch;
    if (plan_.of != Of::d) {
      const int64_t groups = plan_.pitch / kGroup, count = part.lines * groups;
      launch_even_lines(
          stream,
          {(plan_.of == Of::a ? a : b) + first, reinterpret_cast<EvenLines::Eight*>(copy),
           plan_.width, plan_.from_pitch, Divisor(groups, count)},
          count);
    }
    for (size_t k = 0; k < part.products.size(); ++k) {
      const EvenedPlan::Product& p = part.products[k];
      void* const d = plan_.of == Of::d
                          ? copy + p.d
                          : static_cast<void*>(static_cast<char*>(o.d) +
                                               (start_.d + p.d) * size_of(p.shape.out));
      products_[i][k]->run({(plan_.of == Of::a ? copy : a) + p.a,
                            (plan_.of == Of::b ? copy : b) + p.b, d, p.shape.adds_c ? d : nullptr},
                           rest, on);
    }
    if (plan_.of == Of::d) {
      const int64_t count = part.lines * plan_.width;
      launch_dense_lines(stream, {copy, static_cast<uint16_t*>(o.d) + start_.d + first, plan_.width,
                                  plan_.pitch, count, Divisor(plan_.width, count)});
    }
  }
}

}  // namespace shardrun::cuda
