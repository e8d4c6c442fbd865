// conv and its gradients: by Winograd's tiles, or through oneDNN, as products where the kernel is
// 1, else as convolutions.
#include <algorithm>
#include <cstring>

#include "base/round_up.h"
#include "graph/op_def.h"
#include "graph/ops/window.h"
#include "graph/rearranged.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/images/convolution.h"
#include "kernels/cpu/images/gathered_gradient.h"
#include "kernels/cpu/images/tile_weight_gradient.h"
#include "kernels/cpu/images/winograd.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/packed_product.h"
#include "kernels/cpu/products/weight_blocks.h"
#include "kernels/cpu/simd.h"
#include "program/ops/post.h"

namespace shardrun::cpu {
namespace {

using Pass = ConvolutionShape::Pass;

Pass pass_of(const Node& node) {
  return node.op == "conv"             ? Pass::forward
         : node.op == "conv_data_grad" ? Pass::data
                                       : Pass::weights;
}

}  // namespace

ConvolutionShape convolution_shape(const KernelCall& call) {
  ConvolutionShape s;
  s.pass = pass_of(call.node);
  const TensorType& x = s.pass == Pass::data ? call.out[0] : call.in[0];
  const TensorType& w = s.pass == Pass::weights ? call.out[0] : call.in[1];
  const TensorType& y = s.pass == Pass::forward ? call.out[0]
                        : s.pass == Pass::data  ? call.in[0]
                                                : call.in[1];
  const size_t spatial = call.node.attrs.ints("strides").size();
  const ImageDims d{spatial, x.shape.size() == spatial + 3, channels_last(call.node)};
  s.channels_last = d.channels_last;
  s.batch = x.shape[0];
  if (d.groups) s.groups = x.shape[d.group()];
  s.in_channels = x.shape[d.channel()];
  s.out_channels = y.shape[d.channel()];
  s.in = d.sizes(x.shape);
  s.out = d.sizes(y.shape);
  s.kernel = d.kernel_sizes(w.shape);
  s.strides = call.node.attrs.ints("strides");
  s.dilations = call.node.attrs.ints("dilations");
  s.low = call.node.attrs.ints("pads_low");
  s.dtype = x.dtype;
  s.weights_dtype = w.dtype;
  return s;
}

bool is_zero(const ConvolutionShape& s) {
  if (s.batch == 0 || s.groups == 0 || s.in_channels == 0 || s.out_channels == 0) return true;
  for (size_t d = 0; d < s.in.size(); ++d) {
    const Window w{s.kernel[d], s.strides[d], s.dilations[d], s.low[d], 0};
    if (w.reads({0, s.out[d]}, s.in[d]).size == 0 || s.out[d] == 0) return true;
  }
  return false;
}

namespace {

/// A kernel of 1 that steps through every position: with channels first a product of [O, C] with
/// [C, positions] for each image and group, with channels last one of all images' positions, both
/// without a change of layout.
bool is_product(const ConvolutionShape& s) {
  for (size_t d = 0; d < s.in.size(); ++d) {
    if (s.kernel[d] != 1 || s.strides[d] != 1 || s.low[d] != 0 || s.in[d] != s.out[d]) return false;
  }
  return true;
}

/// One image's and group's product. The gradient of the weights adds to what is there.
GemmShape product_of(const ConvolutionShape& s, bool accumulate) {
  const int64_t n = element_count(s.in), c = s.in_channels, o = s.out_channels;
  GemmShape g;
  g.in = s.dtype;
  g.out = s.epilogue ? DType::f32 : s.dtype;
  switch (s.pass) {
    case Pass::forward:  // y [o, n] = w [o, c] x [c, n]
      g.a = {o, c}, g.a_strides = {c, 1}, g.b = {c, n}, g.b_strides = {n, 1};
      g.c = {o, n}, g.c_strides = {n, 1};
      break;
    case Pass::data:  // dx [c, n] = w' [c, o] dy [o, n]
      g.a = {c, o}, g.a_strides = {1, c}, g.b = {o, n}, g.b_strides = {n, 1};
      g.c = {c, n}, g.c_strides = {n, 1};
      break;
    case Pass::weights:  // dw [o, c] += dy [o, n] x' [n, c]
      g.a = {o, n}, g.a_strides = {n, 1}, g.b = {n, c}, g.b_strides = {1, n};
      g.c = {o, c}, g.c_strides = {c, 1};
      g.out = s.weights_dtype;
      g.accumulate = accumulate;
      break;
  }
  return g;
}

/// With channels last. Null where it is no product, or not faster than oneDNN's convolutions: these
/// fall back where channels are many compared with positions, most of all in the gradient of the
/// weights.
std::shared_ptr<const PackedProduct> packed_product(const ConvolutionShape& s) {
  const int64_t n = s.batch * element_count(s.in), c = s.in_channels, o = s.out_channels;
  const bool weights = s.pass == Pass::weights;
  if (!s.channels_last || s.groups != 1 || !is_product(s) || n > std::min(c, o) * (weights ? 4 : 1))
    return nullptr;
  ProductShape p;
  p.a = p.b = p.in = s.dtype;
  p.out = s.epilogue ? DType::f32 : weights ? s.weights_dtype : s.dtype;
  p.post = s.post;
  p.packed = s.packed;
  switch (s.pass) {
    case Pass::forward:  // y [n, o] = x [n, c] w' [c, o]
      p.m = n, p.k = c, p.n = o, p.a_row = c, p.a_col = 1, p.b_row = 1, p.b_col = c;
      break;
    case Pass::data:  // dx [n, c] = dy [n, o] w [o, c]
      p.m = n, p.k = o, p.n = c, p.a_row = o, p.a_col = 1, p.b_row = c, p.b_col = 1;
      break;
    case Pass::weights:  // dw [o, c] = dy' [o, n] x [n, c]
      p.m = o, p.k = n, p.n = c, p.a_row = 1, p.a_col = o, p.b_row = c, p.b_col = 1;
      break;
  }
  std::string why;
  return PackedProduct::make(p, &why);
}

struct ConvolutionSteps {
  ConvolutionShape shape;
  bool zero = false;
  std::shared_ptr<const Gemm> product, more;  // more: adds to the result of the first
  std::shared_ptr<const PackedProduct> packed;
  std::shared_ptr<const Convolution> convolution;
  int64_t bytes_sums = 0;  // of products that something follows, where the result is not f32 itself
  int64_t workspace = 0;   // these included
};

std::optional<ConvolutionSteps> steps_of(const ConvolutionShape& shape, std::string* why) {
  ConvolutionSteps p;
  p.shape = shape;
  p.zero = is_zero(p.shape);
  if (p.zero) return p;
  // Sums over images in bf16 would be rounded each time.
  const bool sums = p.shape.pass == Pass::weights && p.shape.batch > 1;
  const auto bytes_sums = [&](int64_t images) {
    if (!p.shape.epilogue || p.shape.dtype == DType::f32) return int64_t{0};
    return round_up_64(images * p.shape.made_channels() * element_count(p.shape.made()) * 4);
  };
  if (!p.shape.channels_last && is_product(p.shape) && p.shape.post.empty() &&
      !(sums && p.shape.weights_dtype != DType::f32)) {
    p.product = Gemm::make(product_of(p.shape, false), why);
    if (p.product && sums) p.more = Gemm::make(product_of(p.shape, true), why);
    if (p.product && (!sums || p.more)) {
      p.bytes_sums = bytes_sums(1);
      p.workspace =
          p.bytes_sums + std::max(p.product->scratch_bytes(), p.more ? p.more->scratch_bytes() : 0);
      return p;
    }
    p.product = p.more = nullptr;
  }
  p.packed = packed_product(p.shape);
  if (p.packed) {
    p.bytes_sums = bytes_sums(p.shape.batch);
    p.workspace = p.bytes_sums + p.packed->workspace_bytes();
    return p;
  }
  p.convolution = GatheredGradient::make(p.shape, why);
  if (p.convolution) {
    p.workspace = p.convolution->scratch_bytes();
    return p;
  }
  if (p.shape.in.size() > 3) {
    *why = "oneDNN has at most 3 spatial dims";
    return std::nullopt;
  }
  p.convolution = Convolution::make(p.shape, why);
  if (!p.convolution) return std::nullopt;
  p.workspace = p.convolution->scratch_bytes();
  return p;
}

void run_products(const ConvolutionSteps& p, const KernelArgs& args) {
  const ConvolutionShape& s = p.shape;
  const int64_t in = size_of(s.dtype), n = element_count(s.in);
  const int64_t x = s.in_channels * n * in, y = s.out_channels * n * in;
  const int64_t w =
      s.out_channels * s.in_channels * (s.pass == Pass::weights ? size_of(s.weights_dtype) : in);
  const auto* first = static_cast<const char*>(args.in[0].data);
  const auto* second = static_cast<const char*>(args.in[1].data);
  auto* out = static_cast<char*>(args.out[0].data);
  char* work = static_cast<char*>(args.workspace) + p.bytes_sums;
  const int64_t made = s.made_channels() * n;  // of an image
  for (int64_t image = 0; image < s.batch; ++image) {
    char* result = p.bytes_sums > 0 ? static_cast<char*>(args.workspace)
                                    : out + image * made * size_of(s.dtype);
    for (int64_t group = 0; group < s.groups; ++group) {
      const int64_t at = image * s.groups + group;
      if (s.pass == Pass::weights) {  // operands x, dy
        const Gemm& gemm = image == 0 ? *p.product : *p.more;
        gemm.run(second + at * y, first + at * x, out + group * w, work);
      } else {  // operands x, w or dy, w
        p.product->run(second + group * w, first + at * (s.pass == Pass::forward ? x : y),
                       result + group * (made / s.groups) * (s.epilogue ? 4 : in), work);
      }
    }
    if (s.epilogue) {
      const int64_t rows = s.epilogue->rows() / s.batch;
      s.epilogue->run(args, reinterpret_cast<float*>(result) - image * made, image * rows,
                      (image + 1) * rows);
    }
  }
}

void run_packed(const ConvolutionSteps& p, const KernelArgs& args) {
  const bool weights = p.shape.pass == Pass::weights;
  void* result = p.bytes_sums > 0 ? args.workspace : args.out[0].data;
  const void *a = args.in[weights ? 1 : 0].data, *b = args.in[weights ? 0 : 1].data;
  KernelArgs own = args;
  if (p.shape.packed) b = args.in.back().data, own.in = args.in.first(args.in.size() - 1);
  char* work = static_cast<char*>(args.workspace) + p.bytes_sums;
  if (p.shape.epilogue) {
    p.packed->run(a, b, result, work);
    p.shape.epilogue->run(args, static_cast<float*>(result), 0, p.shape.epilogue->rows());
  } else {
    p.packed->run(a, b, result, work, PostOperands(own).span());
  }
}

/// As large as the result, or one number for each of its channels, or one?
bool lies_in_channels(const Shape& operand, const Shape& result, size_t channel) {
  if (operand == result || element_count(operand) == 1) return true;
  const size_t lead = result.size() - operand.size();
  for (size_t d = 0; d < operand.size(); ++d) {
    if (operand[d] != (lead + d == channel ? result[channel] : 1)) return false;
  }
  return lead <= channel;
}

/// Makes one of a shape without post-ops what oneDNN ends with those of the call, or, if it cannot,
/// what their own kernels end.
template <class Make>
auto with_posts(const KernelCall& call, ConvolutionShape shape, bool by_onednn, std::string* why,
                Make&& make) -> decltype(make(shape)) {
  if (!has_post_ops(call.node.op)) return make(shape);
  if (auto reason = refuse_more_results(call)) {
    *why = *reason;
    return {};
  }
  if (is_zero(shape)) {
    *why = "nothing is computed";
    return {};
  }
  const Shape& result = call.out[0].shape;
  const ImageDims d{shape.in.size(), result.size() == shape.in.size() + 3, shape.channels_last};
  const auto posts = gemm_posts(call, [&](const Shape& operand) {
    const bool one = element_count(operand) == 1;
    return d.groups ? one || operand == result : lies_in_channels(operand, result, d.channel());
  });
  if (posts && by_onednn) {
    shape.post = *posts;
    if (auto made = make(shape)) return made;
    shape.post.clear();
  }
  shape.epilogue = Epilogue::make(call, why);
  if (!shape.epilogue) return {};
  return make(shape);
}

ConvolutionShape own_shape(const KernelCall& call) {
  const Node node = without_post_ops(call.node);
  ConvolutionShape shape = convolution_shape({node, call.in.first(kOwnOperands), call.out});
  shape.packed = rearranged_operands(call.node) > 0;
  return shape;
}

std::optional<ConvolutionSteps> steps_of(const KernelCall& call, std::string* why) {
  const ConvolutionShape shape = own_shape(call);
  // oneDNN's gradients have no post-ops, but products do.
  const bool packed = has_post_ops(call.node.op) && packed_product(shape);
  return with_posts(call, shape, packed || shape.pass == Pass::forward, why,
                    [&](const ConvolutionShape& s) -> std::optional<ConvolutionSteps> {
                      auto made = steps_of(s, why);
                      if (made && packed && !made->packed) return std::nullopt;
                      return made;
                    });
}

std::optional<std::string> refuses(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  std::string why;
  if (!steps_of(call, &why)) return why;
  return std::nullopt;
}

PreparedKernel prepare(const KernelCall& call) {
  std::string why;
  std::optional<ConvolutionSteps> p = steps_of(call, &why);
  SR_REQUIRE(p.has_value(), internal, call.node.op, " '", call.node.name, "' was refused: ", why);
  return {[p = *p](const KernelArgs& args) {
            const TensorView& out = args.out[0];
            if (p.zero) {
              if (out.count() > 0)
                std::memset(out.data, 0, static_cast<size_t>(byte_size(out.type)));
            } else if (p.product) {
              run_products(p, args);
            } else if (p.packed) {
              run_packed(p, args);
            } else {
              p.convolution->run(args);
            }
          },
          p->workspace, "cpu:onednn"};
}

/// Makes a convolution of our own, or says why not.
using Maker = std::shared_ptr<const Convolution> (*)(const ConvolutionShape&, std::string*);

template <Maker kMake>
std::shared_ptr<const Convolution> own(const KernelCall& call, std::string* why) {
  const ConvolutionShape shape = own_shape(call);
  if (is_zero(shape)) {
    *why = "nothing is computed";
    return nullptr;
  }
  return with_posts(call, shape, false, why,
                    [&](const ConvolutionShape& s) { return kMake(s, why); });
}

template <Maker kMake>
std::optional<std::string> refuses_own(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  std::string why;
  if (!own<kMake>(call, &why)) return why;
  return std::nullopt;
}

template <Maker kMake>
KernelImpl own_kernel(const std::string& op, const char* name) {
  return {
      op, name, refuses_own<kMake>, [name](const KernelCall& call) -> PreparedKernel {
        std::string why;
        const std::shared_ptr<const Convolution> made = own<kMake>(call, &why);
        SR_REQUIRE(made, internal, call.node.op, " '", call.node.name, "' was refused: ", why);
        return {[made](const KernelArgs& args) { made->run(args); }, made->scratch_bytes(), name};
      }};
}

}  // namespace

std::optional<WeightLayout> conv_layout(const KernelCall& call) {
  if (refuses(call) || !refuses_own<Winograd::make>(call))
    return std::nullopt;  // those do it in cache
  const TensorType& weights = call.in[1];
  std::string why;
  const std::optional<ConvolutionSteps> p = steps_of(call, &why);
  if (p->packed) {
    if (weights.dtype != DType::bf16) return std::nullopt;
    ConvolutionShape shape = p->shape;
    shape.packed = true;
    const auto product = packed_product(shape);
    if (!product) return std::nullopt;
    const WeightLayout layout =
        WeightBlocks::matrix(product->blocks(), weights.shape.size(), shape.pass == Pass::data);
    return WeightBlocks::make(weights, layout) ? std::optional(layout) : std::nullopt;
  }
  if (!p->convolution) return std::nullopt;
  std::optional<WeightLayout> layout = p->convolution->weights_layout();
  if (!layout) return std::nullopt;
  Node pack;
  pack.op = "pack_weights";
  pack.attrs.set("layout", layout->to_string());
  const std::vector<TensorType> out = {layout->type(call.in[1])};
  if (refuses_packing({pack, call.in.subspan(1, 1), out})) return std::nullopt;
  return layout;
}

KernelList conv_kernels() {
  KernelList list = {own_kernel<make_tile_weight_gradient>("conv_weight_grad", "cpu:amx")};
  for (const char* op :
       {"conv", "conv_post", "conv_data_grad", "conv_data_grad_post", "conv_weight_grad"}) {
    list.push_back(own_kernel<Winograd::make>(op, "cpu:winograd"));
    list.push_back({op, "cpu:onednn", refuses, prepare});
  }
  return list;
}

KernelList pack_kernels() {
  return {{"pack_weights", "cpu:onednn", refuses_packing, prepare_packing}};
}

}  // namespace shardrun::cpu
