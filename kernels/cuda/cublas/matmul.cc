// matmul through cuBLASLt, and what is behind it as its epilogue.
#include <memory>

#include "device/cuda/cuda.h"
#include "kernels/cuda/cublas/evened.h"
#include "kernels/cuda/cublas/matmul_plan.h"
#include "kernels/cuda/cublas/tf32.h"
#include "kernels/cuda/elements/element_kernel.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/measure.h"
#include "kernels/cuda/own/convert.h"
#include "kernels/cuda/refusals.h"
#include "program/ops/post.h"

namespace shardrun::cuda {
namespace {

/// The sum of a call's operand as a call of its own.
struct OperandSum {
  explicit OperandSum(const KernelCall& whole)
      : in(whole.in[*summed_operand(whole.node)]),
        out(whole.out.back()),
        node(operand_sum(whole.node, in.dtype, out.dtype)) {}
  KernelCall call() const { return {node, std::span(&in, 1), std::span(&out, 1)}; }

  TensorType in, out;
  Node node;
};

Refusal refuses(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  const Node alone = without_post_ops(call.node);
  const KernelCall product{alone, call.in.first(kOwnOperands), call.out};
  if (auto reason = refuse_more(product, kOwnOperands, 2, {"equation", "out_dtype"})) return reason;
  std::string why;
  if (!plan_matmul(call, tf32_wanted(), &why)) return why;
  if (!summed_operand(call.node)) return std::nullopt;
  const OperandSum sum(call);
  for (const KernelImpl& impl : reduce_kernels()) {
    if (impl.op == sum.node.op) return impl.refuses(sum.call());
  }
  return "nothing else could sum the operand";
}

/// A product and what follows it or is summed with it: cuBLASLt's epilogue, or a kernel of our own
/// behind the product where the library has none for it, or is slower so. And one whose lines lie
/// badly: as they are, or evened.
class Product {
 public:
  Product(const KernelCall& call, const LtShape& shape)
      : shape_(shape), whole_(make_lt_product(shape)), workspace_bytes_(shape.workspace_bytes()) {
    if (const auto plan = evened(shape)) {
      evened_.emplace(*plan, shape.starts[0]);
      workspace_bytes_ = std::max(workspace_bytes_, evened_->workspace_bytes());
    }
    if (!shape.ends()) return;
    alone_ = make_lt_product(shape.alone());
    if (const auto operand = summed_operand(call.node)) {
      const KernelList list = reduce_kernels();
      const KernelList* lists[] = {&list};
      behind_ = select_kernel(lists, OperandSum(call).call());
      summed_ = operand;
      workspace_bytes_ = std::max(workspace_bytes_, behind_.workspace_bytes);
      return;
    }
    const ElementChain chain = chain_behind(call);
    behind_ = element_kernel(chain);
    writes_ = chain.writes.size();
    for (int value : chain.reads)
      views_.push_back({nullptr, chain.values[static_cast<size_t>(value)]});
  }

  int64_t workspace_bytes() const { return workspace_bytes_; }

  void run(const LtOperands& operands, void* workspace, const KernelArgs& args) {
    if (!alone_ && !evened_) return whole_->run(operands, workspace, args.stream);
    if (!chosen_) choose(operands, workspace, args);
    if (apart_ || !whole_->try_run(operands, workspace, args.stream))
      run_apart(operands, workspace, args);
  }

 private:
  /// The product is rounded to the result's type, and lies where what is kept will, or the result.
  void run_apart(const LtOperands& o, void* workspace, const KernelArgs& args) {
    if (evened_) return evened_->run(o, workspace, args.stream);
    void* product = o.kept != nullptr ? o.kept : o.d;
    alone_->run({o.a, o.b, product}, workspace, args.stream);
    if (summed_) {
      behind_.run({args.in.subspan(*summed_, 1), args.out.last(1), workspace, args.stream});
      return;
    }
    views_[0].data = product;
    for (size_t i = 1; i < views_.size(); ++i) views_[i].data = args.in[kOwnOperands + i - 1].data;
    behind_.run({views_, args.out.first(writes_), nullptr, args.stream});
  }

  void choose(const LtOperands& operands, void* workspace, const KernelArgs& args) {
    const std::string key = "way of " + shape_.key();
    const auto stream = static_cast<cudaStream_t>(args.stream);
    const auto time = [&](size_t way) {
      return measure(stream, key, [&] {
        if (way == kJoined) return whole_->try_run(operands, workspace, args.stream);
        run_apart(operands, workspace, args);
        return true;
      });
    };
    // While nothing can be measured: joined, if that can be.
    const auto way =
        fastest(tuned_products(), key, {"joined", "apart"}, !is_recorded(stream), time);
    if (!way) return;
    apart_ = *way != kJoined;
    chosen_ = true;
  }

  static constexpr size_t kJoined = 0;
  LtShape shape_;
  std::unique_ptr<LtProduct> whole_, alone_;
  int64_t workspace_bytes_;
  std::optional<EvenedProduct> evened_;
  PreparedKernel behind_;
  std::optional<size_t> summed_;   // the operand that it sums, or
  std::vector<TensorView> views_;  // what it reads
  size_t writes_ = 0;              // how many of the results it writes
  bool chosen_ = false, apart_ = false;
};

void run(const MatmulPlan& plan, Product& product, const KernelArgs& args) {
  const auto stream = static_cast<cudaStream_t>(args.stream);
  char* work = static_cast<char*>(args.workspace);
  const auto take = [&](int64_t bytes) {
    char* part = work;
    work += bytes;
    return part;
  };
  const auto ready = [&](const TensorView& operand, int64_t narrow_bytes,
                         const std::optional<BoxLoops>& move, int64_t move_bytes) {
    const void* data = operand.data;
    if (narrow_bytes > 0) {
      char* narrow = take(narrow_bytes);
      launch_narrow(stream, static_cast<const float*>(data), narrow, operand.count());
      data = narrow;
    }
    if (move) {
      char* moved = take(move_bytes);
      launch_copy_box(stream, data, moved, *move, size_of(plan.in));
      data = moved;
    }
    return data;
  };
  const void* first =
      ready(args.in[0], plan.narrow_first_bytes, plan.move_first, plan.move_first_bytes);
  const void* second =
      ready(args.in[1], plan.narrow_second_bytes, plan.move_second, plan.move_second_bytes);
  const TensorView& out = args.out[0];
  void* result = plan.move_result ? take(plan.move_result_bytes) : out.data;
  product.run(plan.operands(args, first, second, result), work, args);
  if (plan.move_result)
    launch_copy_box(stream, result, out.data, *plan.move_result, size_of(out.type.dtype));
}

PreparedKernel prepare(const KernelCall& call) {
  std::string why;
  const std::optional<MatmulPlan> plan = plan_matmul(call, tf32_wanted(), &why);
  SR_REQUIRE(plan.has_value(), internal, call.node.op, " '", call.node.name,
             "' was refused: ", why);
  if (!plan->product) {
    const auto zero = [](const KernelArgs& args) {
      const TensorView& out = args.out[0];
      if (out.count() == 0) return;
      check(cudaMemsetAsync(out.data, 0, static_cast<size_t>(byte_size(out.type)),
                            static_cast<cudaStream_t>(args.stream)),
            "cudaMemset");
      launched(args.stream);
    };
    return {zero, 0, "cuda:cublaslt"};
  }
  const auto product = std::make_shared<Product>(call, *plan->product);
  return {[plan = *plan, product](const KernelArgs& args) { run(plan, *product, args); },
          plan->workspace_bytes() - plan->product_bytes + product->workspace_bytes(),
          "cuda:cublaslt"};
}

}  // namespace

KernelList matmul_kernels() {
  return {{"matmul", "cuda:cublaslt", refuses, prepare},
          {"matmul_post", "cuda:cublaslt", refuses, prepare}};
}

}  // namespace shardrun::cuda
