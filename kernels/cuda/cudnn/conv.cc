// conv and its gradients through cuDNN.
#include <memory>

#include "device/cuda/cuda.h"
#include "kernels/cuda/cublas/tf32.h"
#include "kernels/cuda/cudnn/conv_plan.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/own/convert.h"
#include "kernels/cuda/refusals.h"

namespace shardrun::cuda {
namespace {

void clear(void* to, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream), "cudaMemset");
  launched(stream);
}

class Convolution {
 public:
  Convolution(const ConvPlan& plan, std::optional<size_t> only)
      : plan_(plan), graph_(make_cudnn_graph(plan.convolution, only)) {}

  void run(const KernelArgs& args) {
    const auto stream = static_cast<cudaStream_t>(args.stream);
    std::string why;
    SR_REQUIRE(graph_->prepare(&why), device, "cuDNN has no ", plan_.convolution.key(), ": ", why);
    using Pass = CudnnConvolution::Pass;
    const Pass pass = plan_.convolution.pass;
    const DType dtype = plan_.convolution.dtype;
    char* work = static_cast<char*>(args.workspace);
    char* weights = work;
    char* narrow = weights + plan_.weights_bytes;
    char* copy = narrow + plan_.narrow_bytes;
    void* rest = copy + plan_.image_bytes;
    const auto at = [&](const TensorView& tensor, int64_t element) -> void* {
      return static_cast<char*>(tensor.data) + element * size_of(dtype);
    };
    // Of x, or of a part of it.
    const auto copied = [&](void* x) -> void* {
      if (!plan_.copy_image) return x;
      if (plan_.clears_copy) clear(copy, plan_.image_bytes, stream);
      launch_copy_box(stream, x, copy, *plan_.copy_image, size_of(dtype));
      return copy;
    };
    const TensorView& out = args.out[0];
    if (pass == Pass::weights) {
      void* made = plan_.move_weights ? weights : out.data;
      const bool narrows = plan_.narrow_bytes > 0;
      void* const tensors[] = {copied(args.in[0].data), args.in[1].data, narrows ? narrow : made};
      graph_->run(tensors, rest, args.stream);
      if (narrows) launch_widen(stream, narrow, static_cast<float*>(made), out.count());
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
    if (plan_.clears_image) clear(out.data, byte_size(out.type), stream);
    for (int64_t part = 0; part < plan_.parts; ++part) {
      void* const x = at(forward ? args.in[0] : out, part * plan_.part_x);
      void* const y = at(forward ? out : args.in[0], part * plan_.part_y);
      if (forward) {
        void* const tensors[] = {copied(x), kernel, y};
        graph_->run(tensors, rest, args.stream);
        continue;
      }
      void* const tensors[] = {y, kernel, plan_.copy_image ? copy : x};
      graph_->run(tensors, rest, args.stream);
      if (plan_.copy_image) launch_copy_box(stream, copy, x, *plan_.copy_image, size_of(dtype));
    }
  }

 private:
  ConvPlan plan_;
  std::unique_ptr<CudnnGraph> graph_;
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

PreparedKernel prepare(const KernelCall& call, std::optional<size_t> only) {
  std::string why;
  const std::optional<ConvPlan> plan = plan_conv(call, tf32_wanted(), &why);
  SR_REQUIRE(plan.has_value(), internal, call.node.op, " '", call.node.name,
             "' was refused: ", why);
  if (plan->zero) {
    const auto zero = [](const KernelArgs& args) {
      const TensorView& out = args.out[0];
      clear(out.data, byte_size(out.type), static_cast<cudaStream_t>(args.stream));
    };
    return {zero, 0, "cuda:cudnn"};
  }
  const auto convolution = std::make_shared<Convolution>(*plan, only);
  return {[convolution](const KernelArgs& args) { convolution->run(args); },
          plan->workspace_bytes(), "cuda:cudnn"};
}

KernelList convolutions(std::optional<size_t> only) {
  KernelList list;
  for (const char* op : {"conv", "conv_data_grad", "conv_weight_grad"}) {
    list.push_back({op, "cuda:cudnn", refuses,
                    [only](const KernelCall& call) { return prepare(call, only); }});
  }
  return list;
}

}  // namespace

KernelList conv_kernels() { return convolutions(std::nullopt); }
KernelList conv_by_plan(size_t plan) { return convolutions(plan); }

}  // namespace shardrun::cuda
