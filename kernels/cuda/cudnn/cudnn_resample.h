// The backward pass of cuDNN's resampling, which its frontend's graphs do not have: a node of the
// frontend's own kind. Read by cudnn.cc alone.
#pragma once

#include <dlfcn.h>

#include "device/cuda/library.h"
#define dlopen ::shardrun::cuda::open_as_ours
#include <cudnn_frontend.h>
#undef dlopen

#include "kernels/cuda/cudnn/cudnn.h"

namespace shardrun::cuda {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

inline fe::ResampleMode_t mode_of(const CudnnPool& pool) {
  return pool.max ? fe::ResampleMode_t::MAXPOOL : fe::ResampleMode_t::AVGPOOL_INCLUDE_PADDING;
}
inline fe::PaddingMode_t padding_of(const CudnnPool& pool) {
  return pool.max ? fe::PaddingMode_t::NEG_INF_PAD : fe::PaddingMode_t::ZERO_PAD;
}

struct ResampleBackwardAttributes : fe::graph::Attributes<ResampleBackwardAttributes> {
  enum class input_names { DY, INDEX };
  enum class output_names { DX };
  std::unordered_map<input_names, Tensor> inputs;
  std::unordered_map<output_names, Tensor> outputs;
  using Attributes::get_non_virtual_uids;
};

class ResampleBackwardNode : public fe::graph::NodeCRTP<ResampleBackwardNode> {
 public:
  using Inputs = ResampleBackwardAttributes::input_names;
  using Outputs = ResampleBackwardAttributes::output_names;
  ResampleBackwardAttributes attributes;

  ResampleBackwardNode(ResampleBackwardAttributes of, CudnnPool pool,
                       const fe::detail::Context& context)
      : NodeCRTP(context), attributes(std::move(of)), pool_(std::move(pool)) {}

  Type getType() override { return Type::RESAMPLE; }

  fe::error_t infer_properties_node() override {
    attributes.fill_from_context(context);
    return {};
  }

  fe::error_t create_cudnn_operations(
      std::unordered_set<int64_t>& uids, std::vector<std::shared_ptr<fe::Operation>>& operations,
      fe::graph::managed_backend_descriptor_t&,
      std::unordered_map<int64_t, std::shared_ptr<fe::Tensor>>& tensors) const override {
    const auto dims = static_cast<int64_t>(pool_.kernel.size());
    const fe::ResampleDesc window = fe::ResampleDescBuilder()
                                        .setComputeType(fe::DataType_t::FLOAT)
                                        .setNanPropagation(CUDNN_PROPAGATE_NAN)
                                        .setResampleMode(mode_of(pool_))
                                        .setPaddingMode(padding_of(pool_))
                                        .setSpatialDim(dims, pool_.kernel.data())
                                        .setSpatialStride(dims, pool_.strides.data())
                                        .setPrePadding(dims, pool_.low.data())
                                        .setPostPadding(dims, pool_.high.data())
                                        .build();
    const auto of = [&](const Tensor& tensor) -> const fe::Tensor& {
      return *tensors.at(tensor->get_uid());
    };
    fe::OperationBuilder operation(fe::DescriptorType_t::OPERATION_RESAMPLE_BWD_DESCRIPTOR);
    operation.setdyDesc(of(attributes.inputs.at(Inputs::DY)))
        .setdxDesc(of(attributes.outputs.at(Outputs::DX)))
        .setResampleDesc(window);
    if (pool_.max) operation.setidxDesc(of(attributes.inputs.at(Inputs::INDEX)));
    operations.push_back(std::make_shared<fe::Operation>(operation.build()));
    for (int64_t uid : attributes.get_non_virtual_uids()) uids.insert(uid);
    return {};
  }

 private:
  CudnnPool pool_;
};

/// The frontend's graph, and that node.
class FrontendGraph : public fe::graph::Graph {
 public:
  /// dx of the pool; `index`: of max pools, else null.
  Tensor resample_backward(const CudnnPool& pool, const Tensor& dy, const Tensor& index,
                           const Shape& strides) {
    ResampleBackwardAttributes of;
    of.set_name("resample_backward");
    of.inputs[ResampleBackwardNode::Inputs::DY] = dy;
    if (index) of.inputs[ResampleBackwardNode::Inputs::INDEX] = index;
    const Tensor dx = output_tensor("dx");
    dx->set_dim(pool.x).set_stride(strides);
    of.outputs[ResampleBackwardNode::Outputs::DX] = dx;
    sub_nodes.push_back(std::make_shared<ResampleBackwardNode>(std::move(of), pool, context));
    return dx;
  }
};

}  // namespace shardrun::cuda
