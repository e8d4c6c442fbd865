// Reference products and convolutions with post-ops: one after another, all in f64.
#include "program/ops/post.h"

#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

Tensor as_double(const TensorView& view) {
  Tensor out(TensorType{is_float(view.type.dtype) ? DType::f64 : view.type.dtype, view.type.shape});
  convert(view.data, view.type.dtype, out.data(), out.dtype(), view.count());
  return out;
}

PreparedKernel prepare(const KernelCall& call) {
  const Node alone = without_post_ops(call.node);
  const std::vector<TensorType> out = {{DType::f64, call.out[0].shape}};
  const KernelList* lists[] = {&reference_kernels()};
  const PreparedKernel product =
      select_kernel(lists, KernelCall{alone, call.in.first(kOwnOperands), out});
  return {[product, node = call.node, posts = post_ops(call.node),
           keep = kept_before(call.node)](const KernelArgs& args) {
            Tensor result(TensorType{DType::f64, args.out[0].type.shape});
            const TensorView view = result.view();
            product.run({args.in.first(kOwnOperands), std::span(&view, 1), args.workspace});
            const auto store = [&](const TensorView& out) {
              convert(result.data(), DType::f64, out.data, out.type.dtype, result.count());
            };
            for (const PostOp& post : posts) {
              if (keep && &post == &posts[*keep]) store(args.out[1]);
              std::vector<Tensor> in;
              for (size_t i : post.operands) in.push_back(as_double(args.in[i]));
              in.insert(in.begin() + static_cast<std::ptrdiff_t>(post.at), result);
              result = run_reference(post.node, in)[0];
            }
            store(args.out[0]);
            if (const auto operand = summed_operand(node)) {
              const Tensor summed[] = {as_double(args.in[*operand])};
              result = run_reference(operand_sum(node, DType::f64, DType::f64), summed)[0];
              store(args.out.back());
            }
          },
          product.workspace_bytes, "reference"};
}

}  // namespace

KernelList post_kernels() {
  KernelList list;
  for (const char* op : {"matmul_post", "conv_post", "conv_data_grad_post"})
    list.push_back({op, "reference", nullptr, prepare});
  return list;
}

}  // namespace shardrun::reference
