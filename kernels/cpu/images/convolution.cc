// oneDNN's convolutions: the primitive in the layouts that it likes best, with reorders around it.
// Images with their channels last are read and written as they are: at equal speed.
#include "kernels/cpu/images/convolution.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <string_view>

#include "base/round_up.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/products/weight_blocks.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

using Desc = dnnl::memory::desc;
using Pass = ConvolutionShape::Pass;

Shape with_channels(int64_t a, int64_t b, const Shape& spatial) {
  Shape dims = {a, b};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  return dims;
}

/// Strides of dense memory for dims [batch, channels, …spatial].
Shape image_strides(const Shape& dims, bool channels_last) {
  if (!channels_last) return row_major_strides(dims);
  Shape strides(dims.size(), 1);
  int64_t step = dims[1];
  for (size_t d = dims.size(); d-- > 2; step *= dims[d]) strides[d] = step;
  strides[0] = step;
  return strides;
}

/// Weights as `layout` has them.
Desc blocked(const Shape& dims, DType dtype, const WeightLayout& layout) {
  Desc out(dims, onednn_type(dtype), row_major_strides(dims));
  dnnl_blocking_desc_t& b = out.data.format_desc.blocking;
  b.inner_nblks = static_cast<int>(layout.blocks.size());
  const Shape counts = layout.counts(dims);
  std::copy(counts.begin(), counts.end(), out.data.padded_dims);
  int64_t step = 1;
  for (size_t i = 0; i < layout.blocks.size(); ++i) {
    b.inner_blks[i] = layout.blocks[i], b.inner_idxs[i] = layout.of[i];
    out.data.padded_dims[layout.of[i]] *= layout.blocks[i];
    step *= layout.blocks[i];
  }
  for (size_t i = layout.order.size(); i-- > 0;) {
    const auto d = static_cast<size_t>(layout.order[i]);
    b.strides[d] = step;
    step *= counts[d];
  }
  return out;
}

/// The other way round, if a WeightLayout can say it.
std::optional<WeightLayout> layout_of(const Shape& dims, DType dtype, const Desc& desc) {
  const dnnl_memory_desc_t& d = desc.data;
  if (d.format_kind != dnnl_blocked) return std::nullopt;
  const dnnl_blocking_desc_t& b = d.format_desc.blocking;
  WeightLayout out;
  out.order.resize(dims.size());
  std::iota(out.order.begin(), out.order.end(), 0);
  // A dim of one block has any stride: as if it were the outermost.
  const auto stride = [&](int64_t dim) {
    int64_t block = 1;
    for (int i = 0; i < b.inner_nblks; ++i) block *= b.inner_idxs[i] == dim ? b.inner_blks[i] : 1;
    return std::pair(b.strides[dim], d.padded_dims[dim] / block);
  };
  std::stable_sort(out.order.begin(), out.order.end(),
                   [&](int64_t i, int64_t j) { return stride(i) > stride(j); });
  out.blocks.assign(b.inner_blks, b.inner_blks + b.inner_nblks);
  out.of.assign(b.inner_idxs, b.inner_idxs + b.inner_nblks);
  return blocked(dims, dtype, out) == desc ? std::optional(out) : std::nullopt;
}

/// One tensor of the primitive: as the caller has it, and in the layout that the primitive wants.
struct Side {
  Desc outside, inside;
  int64_t offset = 0;  // bytes into the caller's memory
  int64_t at = 0;      // of the copy in scratch, if there is a reorder
  std::optional<Execution> reorder;
};

enum { kX, kW, kY };  // the sides of a convolution

class DnnlConvolution : public Convolution {
 public:
  /// `in_place`: images are taken in the layout that they have.
  DnnlConvolution(const ConvolutionShape& s, bool in_place) : s_(s) {
    const dnnl::memory::dims strides = s.strides;
    dnnl::memory::dims dilates, low, high, in = s.in;
    const Shape whole = with_channels(s.batch, s.groups * s.in_channels, s.in);
    const Shape whole_strides = image_strides(whole, s.channels_last);
    for (size_t d = 0; d < s.in.size(); ++d) {
      const int64_t crop = std::max<int64_t>(0, -s.low[d]);
      low.push_back(s.low[d] + crop);
      dilates.push_back(s.kernel[d] == 1 ? 0 : s.dilations[d] - 1);
      in[d] -= crop;
      sides_[kX].offset += crop * whole_strides[2 + d] * size_of(s.dtype);
      const int64_t reads =
          (s.out[d] - 1) * s.strides[d] + (s.kernel[d] - 1) * s.dilations[d] + 1 - low[d];
      if (in[d] - reads >= s.strides[d]) in[d] = reads;  // oneDNN leaves less than a stride over
      high.push_back(reads - in[d]);
    }
    const Shape x = with_channels(s.batch, s.groups * s.in_channels, in);
    const Shape y = with_channels(s.batch, s.groups * s.out_channels, s.out);
    Shape w = with_channels(s.out_channels, s.in_channels, s.kernel);
    if (s.groups > 1) w.insert(w.begin(), s.groups);
    const DType w_type = s.pass == Pass::weights ? s.weights_dtype : s.dtype;
    sides_[kX].outside = describe(x, whole_strides, s.dtype);
    sides_[kW].outside = describe(w, row_major_strides(w), w_type);
    sides_[kY].outside = describe(y, image_strides(y, s.channels_last), s.dtype);
    if (s.pass == Pass::data && in != s.in)
      zeroed_ = static_cast<size_t>(byte_size({s.dtype, whole}));

    const auto any = dnnl::memory::format_tag::any;
    const auto image = [&](const Shape& dims) {
      return in_place ? describe(dims, image_strides(dims, s.channels_last), s.dtype)
                      : Desc(dims, onednn_type(s.dtype), any);
    };
    const Desc x_any = image(x), y_any = image(y);
    const Desc w_any(w, onednn_type(w_type), any), w_hint(w, onednn_type(s.dtype), any);
    const auto direct = dnnl::algorithm::convolution_direct;
    const dnnl::engine& engine = cpu_engine();
    const dnnl::convolution_forward::desc desc(dnnl::prop_kind::forward_training, direct, x_any,
                                               w_hint, y_any, strides, dilates, low, high);
    dnnl::primitive_attr attr = caller_scratch();
    // Of the other passes it is a hint.
    const auto forward_with = [&](const dnnl::primitive_attr& with) {
      const dnnl::convolution_forward::primitive_desc pd(desc, with, engine);
      return s.pass == Pass::forward ? right(pd) : pd;
    };
    dnnl::convolution_forward::primitive_desc forward = forward_with(attr);
    if (!s.post.empty()) {
      const std::string alone = forward.impl_info_str();
      takes_posts_ = append_posts(s, in_place, attr);
      if (!takes_posts_) return;
      forward = forward_with(attr);
      takes_posts_ = forward.impl_info_str() == alone;  // no slower one for them
    }
    if (s.pass == Pass::forward) {
      keep(forward, dnnl::convolution_forward(forward), {kX, kW, kY},
           {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
           {forward.src_desc(), forward.weights_desc(), forward.dst_desc()});
    } else if (s.pass == Pass::data) {
      const auto pd = right(dnnl::convolution_backward_data::primitive_desc(
          {direct, x_any, w_any, y_any, strides, dilates, low, high}, attr, engine, forward));
      keep(pd, dnnl::convolution_backward_data(pd), {kY, kW, kX},
           {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
           {pd.diff_src_desc(), pd.weights_desc(), pd.diff_dst_desc()});
    } else {
      const auto pd = right(dnnl::convolution_backward_weights::primitive_desc(
          {direct, x_any, w_any, y_any, strides, dilates, low, high}, attr, engine, forward));
      keep(pd, dnnl::convolution_backward_weights(pd), {kX, kY, kW},
           {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST},
           {pd.src_desc(), pd.diff_weights_desc(), pd.diff_dst_desc()});
    }
  }

  int64_t scratch_bytes() const override { return scratch_bytes_; }
  bool of_channels_alone() const override { return channels_alone_; }
  bool plain_loops() const { return plain_loops_; }
  bool takes_posts() const { return takes_posts_; }

  std::optional<WeightLayout> weights_layout() const override {
    const Side& w = sides_[kW];
    if (order_[1] != kW || w.inside == w.outside) return std::nullopt;
    const dnnl_memory_desc_t& d = w.outside.data;
    return layout_of(Shape(d.dims, d.dims + d.ndims), s_.dtype, w.inside);
  }

  void run(const KernelArgs& all_args) const override {
    KernelArgs args = all_args;
    if (s_.packed) args.in = args.in.first(args.in.size() - 1);
    auto* work = static_cast<char*>(args.workspace);
    if (zeroed_ > 0) std::memset(args.out[0].data, 0, zeroed_);
    const void* data[] = {args.in[0].data, args.in[1].data, args.out[0].data};
    const void *outside[3], *inside[3];
    for (size_t i = 0; i < 3; ++i) {
      const Side& side = sides_[order_[i]];
      outside[i] = static_cast<const char*>(data[i]) + side.offset;
      inside[i] = side.reorder ? work + side.at : outside[i];
      if (s_.packed && order_[i] == kW) inside[i] = all_args.in.back().data;
      if (blocks_ && order_[i] == kW) {
        blocks_->run(static_cast<const uint16_t*>(outside[i]),
                     reinterpret_cast<uint16_t*>(work + side.at));
      } else if (i < 2 && side.reorder) {
        side.reorder->run({outside[i], inside[i], work});
      }
    }
    const void* all[4 + kMostPosts] = {inside[0], inside[1], inside[2], work};
    const PostOperands operands(args);
    std::copy_n(operands.data, operands.count, all + 4);
    execution_->run(std::span<const void* const>(all, 4 + operands.count));
    const Side& made = sides_[order_[2]];
    if (made.reorder) made.reorder->run({inside[2], outside[2], work});
  }

 private:
  /// False if oneDNN has no such post-op, or an operand would lie otherwise than the result.
  bool append_posts(const ConvolutionShape& s, bool in_place, dnnl::primitive_attr& attr) {
    const Shape y = with_channels(s.batch, s.made_channels(), s.made());
    dnnl::post_ops ops;
    for (const GemmPost& post : s.post) {
      Shape dims(y.size(), 1), strides = dims;
      if (post.count == element_count(y)) {
        if (!in_place) return false;
        dims = y, strides = image_strides(y, s.channels_last);
      } else if (post.count > 1) {
        dims[1] = post.count, strides[0] = post.count;
      }
      const Desc operand = describe(dims, strides, post.dtype);
      const int index = ops.len();
      if (!append(post, operand, ops)) return false;
      if (post.count > 0)
        operands_.emplace_back(DNNL_ARG_ATTR_MULTIPLE_POST_OP(index) | DNNL_ARG_SRC_1, operand);
    }
    attr.set_post_ops(ops);
    return true;
  }

  /// Does oneDNN 2.6 compute it wrongly so? Found by random convolutions (kernels_test,
  /// AnyConvolution).
  bool wrong(std::string_view impl) const {
    const bool bf16 = impl.starts_with("jit_bf16");
    const auto above_1 = [](int64_t n) { return n > 1; };
    const bool strided = std::any_of(s_.strides.begin(), s_.strides.end(), above_1);
    const bool amx = impl.find("amx") != std::string_view::npos;
    // Where positions are left out, it does not write what it adds to the channels in scratch.
    if (s_.pass == Pass::forward) return amx && strided && s_.in_channels % 32 != 0;
    if (impl.starts_with("jit_1x1") || impl.starts_with("jit_bf16_1x1")) {
      // Where positions are left out, it takes as many channels of an image as a register holds,
      // adds those of the next position to the gradient and writes past its scratch.
      if (s_.pass == Pass::weights) return s_.channels_last && strided && s_.in_channels < 16;
      return bf16 && s_.channels_last && s_.out_channels % 2 != 0;  // it takes them in pairs
    }
    if (s_.pass != Pass::weights) return false;
    if (impl.starts_with("jit:") && s_.in.size() == 3 && s_.low[0] > s_.strides[0]) {
      // Of depth 4, kernel 4, stride 2 and padding 3 the windows begin at -3, -1, 1 and 3. Behind
      // those that begin in front of the image it wants one that lies inside.
      const int64_t reach = (s_.kernel[0] - 1) * s_.dilations[0] + 1;
      const int64_t begin = (s_.strides[0] - s_.low[0] % s_.strides[0]) % s_.strides[0];
      if (s_.strides[0] > 1 && begin + reach > s_.in[0]) return true;
    }
    if (!bf16 && !amx) return false;
    // It does not write all lines of a copy in scratch, which it then reads.
    const size_t dims = s_.in.size();
    bool dilated = false, small = false;
    for (size_t d = 0; d < dims; ++d) {
      const int64_t reach = (s_.kernel[d] - 1) * s_.dilations[d] + 1;
      dilated = dilated || (d + 1 < dims && reach > s_.kernel[d]);
      small = small || s_.in[d] < reach;
    }
    if (amx) return dilated || small || (dims == 3 && strided);
    return dilated || (dims == 3 ? strided || small : strided && s_.in.back() <= 2);
  }
  /// The best of oneDNN's implementations that computes it rightly.
  template <class PrimitiveDesc>
  PrimitiveDesc right(PrimitiveDesc pd) const {
    while (wrong(pd.impl_info_str())) {
      if (!pd.next_impl()) throw dnnl::error(dnnl_unimplemented, "its convolution is wrong here");
    }
    return pd;
  }

  /// `order`: the sides that are read first, second, and made. Scratch begins with what one
  /// primitive at a time needs for itself.
  template <class PrimitiveDesc>
  void keep(const PrimitiveDesc& pd, const dnnl::primitive& primitive, std::array<int, 3> order,
            std::array<int, 3> arguments, std::array<Desc, 3> inside) {
    const std::string_view impl = pd.impl_info_str();
    plain_loops_ = impl.starts_with("ref");
    channels_alone_ = impl.find("dw:") != std::string_view::npos;  // jit_dw:avx2, brdgmm_dw:avx512
    order_ = order;
    const Desc scratch = pd.scratchpad_desc();
    const auto argument = [&](int i) {
      const auto side = static_cast<size_t>(order[static_cast<size_t>(i)]);
      return std::pair(arguments[side], inside[side]);
    };
    std::vector<std::pair<int, Desc>> all = {
        argument(0), argument(1), argument(2), {DNNL_ARG_SCRATCHPAD, scratch}};
    all.insert(all.end(), operands_.begin(), operands_.end());
    execution_.emplace(primitive, all);
    int64_t shared = round_up_64(static_cast<int64_t>(scratch.get_size())), copies = 0;
    for (int i = 0; i < 3; ++i) {
      Side& side = sides_[order[i]];
      side.inside = inside[static_cast<size_t>(order[i])];
      if (side.inside == side.outside || (s_.packed && order[i] == kW)) continue;
      const bool made = i == 2;
      const Desc &from = made ? side.inside : side.outside, &to = made ? side.outside : side.inside;
      const dnnl::reorder::primitive_desc change(cpu_engine(), from, cpu_engine(), to,
                                                 caller_scratch());
      const Desc own = change.scratchpad_desc();
      side.reorder.emplace(
          dnnl::reorder(change),
          std::vector<std::pair<int, Desc>>{
              {DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, own}});
      shared = std::max(shared, round_up_64(static_cast<int64_t>(own.get_size())));
      side.at = copies;
      copies += round_up_64(static_cast<int64_t>(side.inside.get_size()));
    }
    for (Side& side : sides_) side.at += shared;
    if (const auto layout = weights_layout(); layout && !s_.packed) {
      const dnnl_memory_desc_t& w = sides_[kW].outside.data;
      blocks_ = WeightBlocks::make({s_.dtype, Shape(w.dims, w.dims + w.ndims)}, *layout);
    }
    scratch_bytes_ = shared + copies;
  }

  Side sides_[3];
  std::array<int, 3> order_{};
  size_t zeroed_ = 0;  // bytes of dx where some rows are out of every window's reach
  std::optional<Execution> execution_;
  std::optional<WeightBlocks> blocks_;  // instead of the weights' reorder
  int64_t scratch_bytes_ = 0;
  ConvolutionShape s_;
  std::vector<std::pair<int, Desc>> operands_;  // of post-ops
  bool takes_posts_ = true;
  bool channels_alone_ = false;
  bool plain_loops_ = false;  // oneDNN's reference: it has nothing better for these layouts
};

/// From weights as they are to a layout.
dnnl::reorder::primitive_desc packing(const KernelCall& call) {
  const auto& [dtype, dims] = call.in[0];
  return {cpu_engine(), describe(dims, row_major_strides(dims), dtype), cpu_engine(),
          blocked(dims, dtype, WeightLayout::parse(call.node.attrs.s("layout"))), caller_scratch()};
}

}  // namespace

std::optional<std::string> refuses_packing(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  if (call.in[0].shape.empty() || element_count(call.in[0].shape) == 0) return "nothing to lay out";
  if (WeightBlocks::make(call.in[0], WeightLayout::parse(call.node.attrs.s("layout"))))
    return std::nullopt;
  try {
    if (packing(call).scratchpad_desc().get_size() > 0) return "oneDNN wants a workspace";
  } catch (const dnnl::error& e) {
    return std::string("oneDNN refuses: ") + e.what();
  }
  return std::nullopt;
}

PreparedKernel prepare_packing(const KernelCall& call) {
  const WeightLayout layout = WeightLayout::parse(call.node.attrs.s("layout"));
  if (const auto blocks = WeightBlocks::make(call.in[0], layout)) {
    return {[blocks = *blocks](const KernelArgs& args) {
              blocks.run(args.in[0].as<uint16_t>(), args.out[0].as<uint16_t>());
            },
            0, "cpu:onednn"};
  }
  const auto pd = packing(call);
  const auto reorder = std::make_shared<const Execution>(
      dnnl::reorder(pd), std::vector<std::pair<int, Desc>>{{DNNL_ARG_FROM, pd.src_desc()},
                                                           {DNNL_ARG_TO, pd.dst_desc()}});
  return {[reorder](const KernelArgs& args) {
            reorder->run({args.in[0].data, args.out[0].data});
          },
          0, "cpu:onednn"};
}

std::shared_ptr<const Convolution> Convolution::make(const ConvolutionShape& shape,
                                                     std::string* why) {
  if (shape.epilogue) {
    // Some images at a time, with what follows on each part in cache, took longer than all images
    // and another pass over them.
    *why = "oneDNN's convolution does not end with these post-ops";
    return nullptr;
  }
  try {
    std::shared_ptr<DnnlConvolution> made;
    if (shape.channels_last) made = std::make_shared<DnnlConvolution>(shape, true);
    if (!made || made->plain_loops()) made = std::make_shared<DnnlConvolution>(shape, false);
    if (made->takes_posts()) return made;
    *why = "oneDNN has no fast convolution that ends with these post-ops";
    return nullptr;
  } catch (const dnnl::error& e) {
    *why = std::string("oneDNN refuses: ") + e.what();
    return nullptr;
  }
}

}  // namespace shardrun::cpu
