// Refusals: reasons for which kernels of the GPU leave a call to the host.
#pragma once

#include <algorithm>

#include "kernels/kernel.h"

namespace shardrun::cuda {

using Refusal = std::optional<std::string>;

/// Every floating operand and result must be f32 or bf16.
inline Refusal refuse_other_floats(std::span<const TensorType> types) {
  for (const TensorType& t : types) {
    if (is_float(t.dtype) && t.dtype != DType::f32 && t.dtype != DType::bf16)
      return str("computes in f32 and bf16, not ", t.dtype);
  }
  return std::nullopt;
}
inline Refusal refuse_other_floats(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call.in)) return reason;
  return refuse_other_floats(call.out);
}

/// The element type must be one that with_number knows (element.h).
inline Refusal refuse_other_numbers(DType dtype) {
  for (DType known : {DType::f32, DType::bf16, DType::i64, DType::i32, DType::boolean}) {
    if (dtype == known) return std::nullopt;
  }
  return str("has no arithmetic of ", dtype);
}

/// What else an op is given to do, as a step that several nodes became is, shows in its
/// attributes or in the number of its operands and results.
inline Refusal refuse_more(const KernelCall& call, size_t operands, size_t results,
                           const std::vector<const char*>& attrs) {
  if (call.in.size() > operands || call.out.size() > results)
    return str("takes at most ", operands, " operands and ", results, " results, not ",
               call.in.size(), " and ", call.out.size());
  for (const auto& [name, value] : call.node.attrs.all()) {
    if (std::find(attrs.begin(), attrs.end(), name) == attrs.end())
      return str("has no attribute '", name, "'");
  }
  return std::nullopt;
}

}  // namespace shardrun::cuda
