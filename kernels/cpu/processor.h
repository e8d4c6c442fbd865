// The processor's instruction sets, as oneDNN sees them; ONEDNN_MAX_CPU_ISA bounds it.
#pragma once

namespace shardrun::cpu {

/// Do its fast products read their second operand in blocks (AVX-512)? Elsewhere there are no
/// PackedProducts.
bool multiplies_blocks();

/// Does it multiply bf16 by instructions of the processor's own (AVX-512 BF16 or AMX)? Elsewhere
/// its products of bf16 are several times slower than those of f32, or are left to the reference
/// kernels.
bool multiplies_bf16();

/// AMX: products of bf16 are several times as fast again.
bool has_matrix_units();

}  // namespace shardrun::cpu
