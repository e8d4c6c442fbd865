// TF32: whether f32 products may use tensor cores.
#pragma once

#include <cstdlib>
#include <string>

namespace shardrun::cuda {

/// SHARDRUN_TF32=1: f32 operands of products and convolutions are rounded to 10 bits, for speed.
inline bool tf32_wanted() {
  const char* text = std::getenv("SHARDRUN_TF32");
  return text != nullptr && std::string(text) == "1";
}

}  // namespace shardrun::cuda
