// From window.h's convolutions to cuDNN's.
#include "kernels/cuda/cudnn/conv_plan.h"

#include <algorithm>

#include "base/round_up.h"
#include "graph/ops/window.h"
#include "kernels/cpu/images/convolution.h"

namespace shardrun::cuda {
namespace {

using Pass = cpu::ConvolutionShape::Pass;

/// Strides of [outer, channels, …sizes] with the channels at the end of memory, or as the dims
/// stand.
Shape strides_of(int64_t channels, const Shape& sizes, bool last) {
  const int64_t inner = element_count(sizes);
  Shape strides = {channels * inner, last ? 1 : inner};
  for (int64_t s : row_major_strides(sizes)) strides.push_back(last ? s * channels : s);
  return strides;
}

Shape dims_of(int64_t outer, int64_t channels, const Shape& sizes) {
  Shape dims = {outer, channels};
  dims.insert(dims.end(), sizes.begin(), sizes.end());
  return dims;
}

/// Does one padding on both sides, `low`, give windows their places and their number?
bool has_one_padding(const Window& w, int64_t size, int64_t count) {
  Window same = w;
  same.high = w.low;
  return w.low >= 0 && same.count(size) == count;
}

/// Cuts the batch until no tensor of a part has more elements than that, and parts begin on 16
/// bytes. False, with the reason, if it cannot be: gradients of weights would have to be added up.
bool cut_batch(ConvPlan& plan, int64_t most_elements, std::string* why) {
  CudnnConvolution& c = plan.convolution;
  const int64_t x = c.x_strides[0], y = c.y_strides[0], batch = c.x[0];
  const int64_t copy = element_count(c.x) / batch;  // at least x's, or a part of it
  const int64_t image = std::max({x, copy, y}), w = element_count(c.w), element = size_of(c.dtype);
  const auto fits = [&](int64_t parts) {
    const int64_t images = batch / parts;
    return batch % parts == 0 && images <= most_elements / image &&
           (parts == 1 || (images * x * element % 16 == 0 && images * y * element % 16 == 0));
  };
  int64_t parts = 1;
  while (parts <= batch && !fits(parts)) ++parts;
  const bool cut = parts > 1 && c.pass == CudnnConvolution::Pass::weights;
  if (w > most_elements || parts > batch || cut) {
    *why = str("has tensors of ", std::max(w, batch * image), " elements, where cuDNN counts ",
               most_elements, cut ? ", and adds no gradients of parts" : "");
    return false;
  }
  plan.parts = parts, plan.part_x = batch / parts * x, plan.part_y = batch / parts * y;
  c.x[0] = c.y[0] = batch / parts;
  return true;
}

/// What cuDNN is to see of the image where its windows cannot have one padding: the rows that
/// windows read, copied to where these want them.
struct ImageCopy {
  Shape in;                       // sizes of the image as cuDNN sees it
  Box read;                       // rows of the image that windows read
  std::vector<int64_t> from, to;  // the first of them, in the image and in the copy
  bool copied = false;
};

void set_arguments(CudnnConvolution& c, const cpu::ConvolutionShape& s, bool tf32) {
  c.pass = s.pass == Pass::forward ? CudnnConvolution::Pass::forward
           : s.pass == Pass::data  ? CudnnConvolution::Pass::data
                                   : CudnnConvolution::Pass::weights;
  c.dtype = s.dtype;
  c.tf32 = tf32 && s.dtype == DType::f32;
  c.strides = s.strides, c.dilations = s.dilations;
  c.x_strides = strides_of(s.groups * s.in_channels, s.in, s.channels_last);
  c.y_strides = strides_of(s.groups * s.out_channels, s.out, s.channels_last);
}

/// The padding of each dim; nothing, with the reason, if windows read no row of the image.
std::optional<ImageCopy> set_padding(CudnnConvolution& c, const cpu::ConvolutionShape& s,
                                     std::string* why) {
  ImageCopy image{s.in, {}, std::vector<int64_t>(s.in.size()), std::vector<int64_t>(s.in.size())};
  for (size_t d = 0; d < s.in.size(); ++d) {
    const Window window{s.kernel[d], s.strides[d], s.dilations[d], s.low[d], 0};
    image.read.push_back({0, s.in[d]});
    if (has_one_padding(window, s.in[d], s.out[d])) {
      c.low.push_back(s.low[d]);
      c.high.push_back(std::max<int64_t>(0, window.high_for(s.in[d], s.out[d])));
      continue;
    }
    image.copied = true;
    c.low.push_back(0), c.high.push_back(0);
    image.in[d] = (s.out[d] - 1) * s.strides[d] + window.span();
    const int64_t begin = std::max<int64_t>(0, -s.low[d]),
                  end = std::min(s.in[d], image.in[d] - s.low[d]);
    if (begin >= end) {
      *why = "reads no row of the image";
      return std::nullopt;
    }
    image.read[d] = {begin, end - begin};
    image.from[d] = begin, image.to[d] = begin + s.low[d];
  }
  return image;
}

void set_dims(CudnnConvolution& c, const cpu::ConvolutionShape& s, const Shape& in) {
  c.x = dims_of(s.batch, s.groups * s.in_channels, in);
  c.y = dims_of(s.batch, s.groups * s.out_channels, s.out);
  c.w = dims_of(s.groups * s.out_channels, s.in_channels, s.kernel);
  c.w_strides = strides_of(s.in_channels, s.kernel, s.channels_last);
}

void add_image_copy(ConvPlan& plan, const cpu::ConvolutionShape& s, const ImageCopy& image) {
  CudnnConvolution& c = plan.convolution;
  const int64_t channels = s.groups * s.in_channels;
  const Shape whole = c.x_strides;
  c.x_strides = strides_of(channels, image.in, s.channels_last);
  BoxLoops loops;
  const auto add = [&](int64_t count, size_t dim) {
    const int64_t in_image = whole[dim], in_copy = c.x_strides[dim];
    s.pass == Pass::data ? loops.add(count, in_copy, in_image)
                         : loops.add(count, in_image, in_copy);
  };
  add(c.x[0], 0);
  if (!s.channels_last) add(channels, 1);
  int64_t image_at = 0, copy_at = 0;
  for (size_t d = 0; d < image.read.size(); ++d) {
    add(image.read[d].size, d + 2);
    image_at += image.from[d] * whole[d + 2], copy_at += image.to[d] * c.x_strides[d + 2];
    plan.clears_copy = plan.clears_copy || image.read[d].size < image.in[d];
    plan.clears_image = plan.clears_image || image.read[d].size < s.in[d];
  }
  if (s.channels_last) add(channels, 1);
  loops.from_offset = s.pass == Pass::data ? copy_at : image_at;
  loops.to_offset = s.pass == Pass::data ? image_at : copy_at;
  plan.copy_image = loops;
  plan.clears_copy = plan.clears_copy && s.pass != Pass::data;
  plan.clears_image = plan.clears_image && s.pass == Pass::data;
  plan.image_bytes = round_up(element_count(c.x) * size_of(s.dtype), 256);
}

/// Weights with the channels last, and in the dtype that cuDNN reads.
void add_weight_moves(ConvPlan& plan, const cpu::ConvolutionShape& s) {
  const int64_t rows = plan.convolution.w[0], offsets = element_count(s.kernel);
  if (s.channels_last && offsets > 1 && s.in_channels > 1) {
    const bool back = s.pass == Pass::weights;  // [O, …, C] to [O, C, …]
    const int64_t middle = back ? s.in_channels : offsets, inner = back ? offsets : s.in_channels;
    BoxLoops loops;
    loops.add(rows, s.in_channels * offsets, s.in_channels * offsets);
    loops.add(middle, 1, inner);
    loops.add(inner, middle, 1);
    plan.move_weights = loops;
    plan.weights_bytes = round_up(loops.count * size_of(s.weights_dtype), 256);
  }
  if (s.weights_dtype != s.dtype)
    plan.narrow_bytes = round_up(rows * s.in_channels * offsets * size_of(s.dtype), 256);
}

}  // namespace

std::optional<ConvPlan> plan_conv(const KernelCall& call, bool tf32, std::string* why,
                                  int64_t most_elements) {
  cpu::ConvolutionShape s = cpu::convolution_shape(call);
  ConvPlan plan;
  plan.zero = cpu::is_zero(s);
  if (plan.zero) return plan;
  if (s.in.size() > 3) {
    *why = "cuDNN has at most 3 spatial dims";
    return std::nullopt;
  }
  if (s.in.size() == 1) {  // cuDNN has at least 2
    for (Shape* sizes : {&s.in, &s.out, &s.kernel, &s.strides, &s.dilations})
      sizes->insert(sizes->begin(), 1);
    s.low.insert(s.low.begin(), 0);
  }
  CudnnConvolution& c = plan.convolution;
  set_arguments(c, s, tf32);
  const std::optional<ImageCopy> image = set_padding(c, s, why);
  if (!image) return std::nullopt;
  set_dims(c, s, image->in);
  if (!cut_batch(plan, most_elements, why)) return std::nullopt;
  if (image->copied) add_image_copy(plan, s, *image);
  add_weight_moves(plan, s);
  return plan;
}

}  // namespace shardrun::cuda
