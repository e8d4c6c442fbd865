// math.h as text, which CMake puts into math_text.cc.in.
#pragma once

namespace shardrun::cuda {

extern const char* const kMathText;

}  // namespace shardrun::cuda
