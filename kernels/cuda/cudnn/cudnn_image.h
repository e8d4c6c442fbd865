// Pools and batch norm through cuDNN where that is faster than our own kernels for them, which do
// all that cuDNN has no plan for.
#pragma once

#include <memory>

#include "kernels/cuda/cudnn/cudnn_or_own.h"
#include "kernels/cuda/cudnn/image_plan.h"
#include "kernels/cuda/own/batch_norm.h"
#include "kernels/cuda/own/pool.h"

namespace shardrun::cuda {

// ---- pools ----

template <class On>
CudnnOrOwn<On> pool_either(const KernelCall& call, const CudnnPool& pool) {
  // Operands and then results, which is cuDNN's order too.
  const auto by_cudnn = [](const KernelArgs& args, CudnnGraph& graph) {
    std::vector<void*> tensors;
    for (const auto& views : {args.in, args.out}) {
      for (const TensorView& view : views) tensors.push_back(view.data);
    }
    graph.run(tensors, nullptr, args.stream);
  };
  return {On::graph(pool), pool.key(), by_cudnn, 0, prepare_pool<On>(call)};
}

// ---- batch norm ----

/// Numbers of channels that cuDNN reads, in the workspace: slope, and of a gradient offset and
/// tilt.
struct ChannelLines {
  Channels channels;
  float* slope;
  SR_HOST_DEVICE void operator()(int64_t c) const { slope[c] = channels(c).slope; }
};
struct ChannelTilts {
  NormaliseGrad<float> of;  // of channels alone: no image
  float *slope, *offset, *tilt;
  SR_HOST_DEVICE void operator()(int64_t c) const {
    const auto channel = of.channel(c);
    slope[c] = channel.line.slope, offset[c] = channel.offset, tilt[c] = channel.tilt;
  }
};

template <class On>
CudnnOrOwn<On> batch_norm_either(const KernelCall& call, const CudnnBatchNorm& norm) {
  const int64_t count = norm.x[1], line = (count * 4 + 255) / 256 * 256;
  const auto eps = static_cast<float>(call.node.attrs.f("eps"));
  const auto normalise = [=](const KernelArgs& args, CudnnGraph& graph) {
    const auto& in = args.in;
    auto* slope = static_cast<float*>(args.workspace);
    On::each(args, count,
             ChannelLines{Channels{in[1].as<float>(), in[2].as<float>(), in[3].as<float>(),
                                   in[4].as<float>(), eps},
                          slope},
             "batch_norm");
    std::vector<void*> tensors = {in[0].data, in[1].data, slope, in[4].data};
    if (norm.residual) tensors.push_back(in[5].data);
    tensors.push_back(args.out[0].data);
    graph.run(tensors, nullptr, args.stream);
  };
  const int64_t elements = call.node.attrs.i("count", 0);
  const double inverse_count = elements > 0 ? 1 / static_cast<double>(elements) : 0.0;
  const auto gradient = [=](const KernelArgs& args, CudnnGraph& graph) {
    const auto& in = args.in;
    char* at = static_cast<char*>(args.workspace);
    auto *slope = reinterpret_cast<float*>(at), *offset = reinterpret_cast<float*>(at + line),
         *tilt = reinterpret_cast<float*>(at + 2 * line);
    NormaliseGrad<float> of{};
    of.channels = {in[2].as<float>(), in[3].as<float>(), in[4].as<float>(), nullptr, eps};
    of.sums = in[5].as<double>(), of.count = count, of.inverse_count = inverse_count;
    On::each(args, count, ChannelTilts{of, slope, offset, tilt}, "batch_norm_grad");
    std::vector<void*> tensors = {in[0].data, in[1].data, in[2].data, slope, offset, tilt};
    if (norm.relu) tensors.push_back(in[6].data);
    tensors.push_back(args.out[0].data);
    graph.run(tensors, nullptr, args.stream);
    On::each(args, count,
             ParameterGrads{of.sums, args.out[1].as<float>(), args.out[2].as<float>(), count},
             "batch_norm_grad");
  };
  typename CudnnOrOwn<On>::ByCudnn by_cudnn = normalise;
  if (norm.gradient) by_cudnn = gradient;
  return {On::graph(norm), norm.key(), by_cudnn, norm.gradient ? 3 * line : line,
          prepare_batch_norm<On>(call)};
}

// ---- the lists ----

/// Those of `own` that cuDNN can be given too: plan(call, &why) and either(call, plan). `always`:
/// by cuDNN whatever is faster.
template <class On, class PlanOf, class Either>
KernelList cudnn_kernels_of(const KernelList& own, bool always, PlanOf plan, Either either) {
  KernelList list;
  for (const KernelImpl& impl : own) {
    const auto refuses = [plan, own_refuses = impl.refuses](const KernelCall& call) -> Refusal {
      if (auto reason = own_refuses(call)) return reason;
      std::string why;
      if (!plan(call, &why)) return why;
      return std::nullopt;
    };
    const auto prepare = [plan, either, always](const KernelCall& call) -> PreparedKernel {
      std::string why;
      const auto planned = plan(call, &why);
      SR_REQUIRE(planned.has_value(), internal, call.node.op, " '", call.node.name,
                 "' was refused: ", why);
      const auto kernel = std::make_shared<CudnnOrOwn<On>>(either(call, *planned));
      return {[kernel, always](const KernelArgs& args) {
                always ? kernel->run_cudnns(args) : kernel->run(args);
              },
              kernel->workspace_bytes(), "cuda:cudnn"};
    };
    list.push_back({impl.op, "cuda:cudnn", refuses, prepare});
  }
  return list;
}

template <class On>
KernelList cudnn_pool_kernels_on(bool always) {
  KernelList own;
  for (KernelImpl& impl : pool_kernels_on<On>()) {
    if (impl.op != "max_pool") own.push_back(std::move(impl));
  }
  return cudnn_kernels_of<On>(own, always, plan_pool, pool_either<On>);
}

template <class On>
KernelList cudnn_batch_norm_kernels_on(bool always) {
  KernelList own;
  for (KernelImpl& impl : batch_norm_kernels_on<On>()) {
    if (impl.op == "batch_norm" || impl.op == "batch_norm_grad") own.push_back(std::move(impl));
  }
  return cudnn_kernels_of<On>(own, always, plan_batch_norm, batch_norm_either<On>);
}

}  // namespace shardrun::cuda
