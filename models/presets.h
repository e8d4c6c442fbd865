// Presets: options of a model under a name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace shardrun {

template <class Options>
using Presets = std::vector<std::pair<std::string, Options>>;

/// How a model whose outputs are logits is trained.
inline constexpr const char* kLossRecipe = "--loss cross-entropy";
/// The same of one whose first output is numbers to be met.
inline constexpr const char* kRegressionRecipe = "--loss mse";

/// "a, b, c"
inline std::string listed(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

/// Throws invalid_input if none is named so.
template <class Options>
Options preset_named(const Presets<Options>& presets, const std::string& wanted) {
  std::vector<std::string> names;
  for (const auto& [name, options] : presets) {
    if (name == wanted) return options;
    names.push_back(name);
  }
  fail(ErrorKind::invalid_input, "no preset is named '", wanted, "'; there are ", listed(names));
}

}  // namespace shardrun
