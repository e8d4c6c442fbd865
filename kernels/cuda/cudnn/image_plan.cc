// From window.h's pools and batch_norm.cc's normalisation to cuDNN's.
#include "kernels/cuda/cudnn/image_plan.h"

#include <algorithm>

#include "graph/ops/window.h"

namespace shardrun::cuda {
namespace {

/// [N, C, …sizes], at least two sizes.
Shape image_dims(int64_t outer, int64_t channels, Shape sizes) {
  while (sizes.size() < 2) sizes.insert(sizes.begin(), 1);
  sizes.insert(sizes.begin(), {outer, channels});
  return sizes;
}

}  // namespace

std::optional<CudnnPool> plan_pool(const KernelCall& call, std::string* why) {
  const Node& node = call.node;
  CudnnPool p;
  p.gradient = node.op.ends_with("_grad"), p.max = node.op.starts_with("max");
  const TensorType &x = p.gradient ? call.out[0] : call.in[0],
                   &y = p.gradient ? call.in[0] : call.out[0];
  const auto refuse = [&](const char* reason) {
    *why = reason;
    return std::nullopt;
  };
  if (!channels_last(node)) return refuse("pools images whose channels are last");
  p.dtype = x.dtype;
  p.kernel = node.attrs.ints("kernel");
  const size_t dims = p.kernel.size();
  if (dims < 1 || dims > 3) return refuse("pools 1 to 3 dims");
  if (element_count(x.shape) == 0 || element_count(y.shape) == 0)
    return refuse("has nothing to do");
  if (p.max) {
    p.which = call.in[1].dtype;  // of its gradient: the pool itself is not cuDNN's
    if (p.which == DType::u8 && element_count(p.kernel) > 128)
      return refuse("reads bytes of indices below 128");
  }
  const std::vector<Window> windows = windows_of(node, p.kernel);
  const auto lead = static_cast<std::ptrdiff_t>(x.shape.size() - dims - 1);
  const auto sizes = [&](const Shape& shape) {
    return Shape(shape.begin() + lead, shape.end() - 1);
  };
  const Shape in = sizes(x.shape), out = sizes(y.shape);
  for (size_t d = 0; d < dims; ++d) {
    Window w = windows[d];
    if (w.dilation > 1 && w.kernel > 1) return refuse("has no dilation");
    w.high = std::max<int64_t>(0, w.high_for(in[d], out[d]));
    if (w.low < 0 || w.count(in[d]) != out[d]) return refuse("does not cut the image");
    // The last window begins inside the image, and the first ends there.
    if (w.low >= w.kernel || (out[d] - 1) * w.stride - w.low >= in[d])
      return refuse("has no window of padding alone");
    p.strides.push_back(w.stride), p.low.push_back(w.low), p.high.push_back(w.high);
  }
  const int64_t outer = element_count(Shape(x.shape.begin(), x.shape.begin() + lead));
  p.x = image_dims(outer, x.shape.back(), in), p.y = image_dims(outer, x.shape.back(), out);
  if (std::max(element_count(p.x), element_count(p.y)) > kMostCudnnElements)
    return refuse("counts less than 2^31 elements of a tensor");
  if (dims == 1) {
    p.kernel.insert(p.kernel.begin(), 1), p.strides.insert(p.strides.begin(), 1);
    p.low.insert(p.low.begin(), 0), p.high.insert(p.high.begin(), 0);
  }
  return p;
}

std::optional<CudnnBatchNorm> plan_batch_norm(const KernelCall& call, std::string* why) {
  const Node& node = call.node;
  CudnnBatchNorm n;
  n.gradient = node.op == "batch_norm_grad";
  if (!n.gradient && node.op != "batch_norm") {
    *why = "sums of channels are not cuDNN's";
    return std::nullopt;
  }
  const TensorType& x = call.in[n.gradient ? 1 : 0];
  const Shape sizes(x.shape.begin() + 1, x.shape.end() - 1);
  if (!channels_last(node)) {
    *why = "normalises images whose channels are last";
  } else if (sizes.size() > 3) {
    *why = "normalises images of at most 3 dims";
  } else if (element_count(x.shape) == 0) {
    *why = "has nothing to do";
  } else if (element_count(x.shape) > kMostCudnnElements) {
    *why = "counts less than 2^31 elements of a tensor";
  } else {
    n.x = image_dims(x.shape[0], x.shape.back(), sizes);
    n.dtype = x.dtype;
    n.relu = node.attrs.i("relu", 0) != 0;
    n.residual = !n.gradient && call.in.size() > 5;
    return n;
  }
  return std::nullopt;
}

}  // namespace shardrun::cuda
