// conv and its gradients through cuDNN.
#include <memory>

#include "device/cuda/cuda.h"
#include "kernels/cuda/conv_plan.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/refusals.h"
#include "kernels/cuda/tf32.h"

namespace shardrun::cuda {
namespace {

void clear(const TensorView& to, cudaStream_t stream) {
  if (to.count() == 0) return;
  check(cudaMemsetAsync(to.data, 0, static_cast<size_t>(byte_size(to.type)), stream), "cudaMemset");
  launched(stream);
}

class Convolution {
 public:
  explicit Convolution(const ConvPlan& plan) : plan_(plan) {
    graph_ = make_cudnn_graph(plan.convolution);
  }

  void run(const KernelArgs& args) {
    const auto stream = static_cast<cudaStream_t>(args.stream);
    prepare();
    using Pass = CudnnConvolution::Pass;
    const Pass pass = plan_.convolution.pass;
    const DType dtype = plan_.convolution.dtype;
    char* work = static_cast<char*>(args.workspace);
    char* weights = work;
    char* narrow = weights + plan_.weights_bytes;
    void* rest = narrow + plan_.narrow_bytes;
    const auto at = [&](const TensorView& tensor, int64_t element) -> void* {
      return static_cast<char*>(tensor.data) + element * size_of(dtype);
    };
    const TensorView& out = args.out[0];
    if (pass == Pass::weights) {
      void* made = plan_.move_weights ? weights : out.data;
      void* const tensors[] = {at(args.in[0], plan_.image_offset), args.in[1].data,
                               widens_ ? narrow : made};
      graph_->run(tensors, rest, args.stream);
      if (widens_) launch_widen(stream, narrow, static_cast<float*>(made), out.count());
      if (plan_.move_weights)
        launch_copy_box(stream, weights, out.data, *plan_.move_weights, size_of(out.type.dtype));
      return;
    }
    void* kernel = args.in[1].data;
    if (plan_.move_weights) {
      launch_copy_box(stream, kernel, weights, *plan_.move_weights, size_of(dtype));
      kernel = weights;
    }
    const bool forward = pass == Pass::forward;
    if (plan_.clears_image) clear(out, stream);
    for (int64_t part = 0; part < plan_.parts; ++part) {
      void* const x = at(forward ? args.in[0] : out, plan_.image_offset + part * plan_.part_x);
      void* const y = at(forward ? out : args.in[0], part * plan_.part_y);
      void* const tensors[] = {forward ? x : y, kernel, forward ? y : x};
      graph_->run(tensors, rest, args.stream);
    }
  }

 private:
  void prepare() {
    std::string why;
    if (graph_->prepare(&why)) return;
    if (plan_.narrow_bytes > 0 && !widens_) {
      CudnnConvolution narrow = plan_.convolution;
      narrow.weights_dtype = narrow.dtype;
      graph_ = make_cudnn_graph(narrow);
      widens_ = true;
      if (graph_->prepare(&why)) return;
    }
    fail(ErrorKind::device, "cuDNN has no ", plan_.convolution.key(), ": ", why);
  }

  ConvPlan plan_;
  std::unique_ptr<CudnnGraph> graph_;
  bool widens_ = false;
};

Refusal refuses(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  if (auto reason = refuse_more(call, 2, 1,
                                {"strides", "dilations", "pads_low", "pads_high", "size", "kernel",
                                 "channels_last", "out_dtype"}))
    return reason;
  std::string why;
  if (!plan_conv(call, tf32_wanted(), &why)) return why;
  return std::nullopt;
}

PreparedKernel prepare(const KernelCall& call) {
  std::string why;
  const std::optional<ConvPlan> plan = plan_conv(call, tf32_wanted(), &why);
  SR_REQUIRE(plan.has_value(), internal, call.node.op, " '", call.node.name,
             "' was refused: ", why);
  if (plan->zero) {
    const auto zero = [](const KernelArgs& args) {
      clear(args.out[0], static_cast<cudaStream_t>(args.stream));
    };
    return {zero, 0, "cuda:cudnn"};
  }
  const auto convolution = std::make_shared<Convolution>(*plan);
  return {[convolution](const KernelArgs& args) { convolution->run(args); },
          plan->workspace_bytes(), "cuda:cudnn"};
}

}  // namespace

KernelList conv_kernels() {
  KernelList list;
  for (const char* op : {"conv", "conv_data_grad", "conv_weight_grad"})
    list.push_back({op, "cuda:cudnn", refuses, prepare});
  return list;
}

}  // namespace shardrun::cuda
