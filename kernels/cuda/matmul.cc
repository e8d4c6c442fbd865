// matmul through cuBLASLt.
#include <memory>

#include "device/cuda/cuda.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/matmul_plan.h"
#include "kernels/cuda/refusals.h"
#include "kernels/cuda/tf32.h"

namespace shardrun::cuda {
namespace {

Refusal refuses(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  if (auto reason = refuse_more(call, 2, 1, {"equation", "out_dtype"})) return reason;
  std::string why;
  if (!plan_matmul(call, tf32_wanted(), &why)) return why;
  return std::nullopt;
}

void run(const MatmulPlan& plan, LtProduct& product, const KernelArgs& args) {
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
  product.run(plan.first_is_a ? first : second, plan.first_is_a ? second : first, result, work,
              args.stream);
  if (plan.move_result)
    launch_copy_box(stream, result, out.data, *plan.move_result, size_of(out.type.dtype));
}

PreparedKernel prepare(const KernelCall& call) {
  std::string why;
  const std::optional<MatmulPlan> plan = plan_matmul(call, tf32_wanted(), &why);
  SR_REQUIRE(plan.has_value(), internal, "matmul '", call.node.name, "' was refused: ", why);
  if (!plan->product) {
    const auto zero = [](const KernelArgs& args) {
      const TensorView& out = args.out[0];
      if (out.count() == 0) return;
      check(cudaMemsetAsync(out.data, 0, static_cast<size_t>(byte_size(out.type)),
                            static_cast<cudaStream_t>(args.stream)),
            "cudaMemset");
    };
    return {zero, 0, "cuda:cublaslt"};
  }
  const std::shared_ptr<LtProduct> product = make_lt_product(*plan->product);
  return {[plan = *plan, product](const KernelArgs& args) { run(plan, *product, args); },
          plan->workspace_bytes(), "cuda:cublaslt"};
}

}  // namespace

KernelList matmul_kernels() { return {{"matmul", "cuda:cublaslt", refuses, prepare}}; }

}  // namespace shardrun::cuda
