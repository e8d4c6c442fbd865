// Einsum: the letters of a two-operand matmul, "bij,jk->bik".
#pragma once

#include <map>
#include <span>
#include <string>

#include "base/shape.h"

namespace shardrun {

/// One letter per dim of each operand and of the result. Every letter stands in at least two of the
/// three and never twice in one.
struct Einsum {
  std::string a, b, out;

  /// Throws invalid_input for anything but letters around one ',' and one '->', a letter twice in
  /// one term, or a letter in one term only.
  static Einsum parse(const std::string& equation);
  std::string to_string() const { return a + "," + b + "->" + out; }

  /// Size of every letter. Throws invalid_input where ranks or sizes do not fit.
  std::map<char, int64_t> sizes(const Shape& a_shape, const Shape& b_shape) const;
};

}  // namespace shardrun
