// Equation: the letters of a matmul's operands and result.
#pragma once

#include <string>
#include <vector>

namespace shardrun {

struct Equation {
  std::string a, b, out;

  /// "bij,jk->bik"
  static Equation parse(const std::string& text) {
    const size_t comma = text.find(','), arrow = text.find("->");
    return {text.substr(0, comma), text.substr(comma + 1, arrow - comma - 1),
            text.substr(arrow + 2)};
  }
  std::string text() const { return a + "," + b + "->" + out; }
};

inline bool has_letter(const std::string& letters, char c) {
  return letters.find(c) != std::string::npos;
}

}  // namespace shardrun
