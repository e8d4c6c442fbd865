// Reference attention to kept keys and values: one query row at a time in f64.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/doubles.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

void cached_attention(const Node& node, const KernelArgs& args) {
  const Doubles q = load(args.in[0]), k = load(args.in[1]), v = load(args.in[2]);
  const std::vector<int64_t> positions = load_ints(args.in[3]);
  const Shape &qs = args.in[0].type.shape, &vs = args.in[2].type.shape;
  const int64_t B = qs[0], H = qs[1], R = qs[2], D = qs[3], S = vs[0], Dv = vs[3];
  const int64_t queries = node.attrs.i("queries");
  const bool has_mask = node.attrs.i("has_mask", 0) != 0;
  Doubles mask;
  bool boolean = false;
  Shape mask_stride(4, 0);
  if (has_mask) {
    mask = load(args.in[4]);
    boolean = args.in[4].type.dtype == DType::boolean;
    mask_stride = broadcast_strides(args.in[4].type.shape, {B, H, R / queries, S});
  }
  Doubles y(static_cast<size_t>(args.out[0].count()));
  for (int64_t row = 0; row < B * H * R; ++row) {
    const int64_t b = row / (H * R), h = row / R % H, p = row % R / queries;
    const int64_t seen = std::clamp<int64_t>(positions[static_cast<size_t>(p)] + 1, 0, S);
    Doubles weights(static_cast<size_t>(seen));
    double top = kNever, sum = 0;
    for (int64_t s = 0; s < seen; ++s) {
      double dot = 0;
      for (int64_t d = 0; d < D; ++d)
        dot += q[static_cast<size_t>(row * D + d)] *
               k[static_cast<size_t>(((s * B + b) * H + h) * D + d)];
      dot *= node.attrs.f("scale");
      if (has_mask) {
        const double m = mask[static_cast<size_t>(b * mask_stride[0] + h * mask_stride[1] +
                                                  p * mask_stride[2] + s * mask_stride[3])];
        dot = boolean ? (m != 0 ? dot : kNever) : dot + m;
      }
      weights[static_cast<size_t>(s)] = dot;
      top = std::max(top, dot);
    }
    if (top == kNever) continue;
    for (double& w : weights) sum += w = std::exp(w - top);
    for (int64_t s = 0; s < seen; ++s) {
      for (int64_t d = 0; d < Dv; ++d)
        y[static_cast<size_t>(row * Dv + d)] +=
            weights[static_cast<size_t>(s)] / sum *
            v[static_cast<size_t>(((s * B + b) * H + h) * Dv + d)];
    }
  }
  store(y, args.out[0]);
}

}  // namespace

KernelList cached_attention_kernels() { return {plain("cached_attention", cached_attention)}; }

}  // namespace shardrun::reference
