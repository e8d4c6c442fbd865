#include "kernels/cpu/processor.h"

#include <dnnl.hpp>

namespace shardrun::cpu {
namespace {

bool has(dnnl::cpu_isa isa) {  // a set of bits
  const auto wanted = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

}  // namespace

bool multiplies_blocks() { return has(dnnl::cpu_isa::avx512_core); }

bool multiplies_bf16() { return has(dnnl::cpu_isa::avx512_core_bf16); }

bool has_matrix_units() { return has(dnnl::cpu_isa::avx512_core_amx); }

}  // namespace shardrun::cpu
