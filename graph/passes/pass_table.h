// Tables of passes: rows with a name, in the order in which they run.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace shardrun {

template <class Pass, size_t count>
std::vector<std::string_view> pass_names(const Pass (&table)[count]) {
  std::vector<std::string_view> names;
  for (const Pass& pass : table) names.push_back(pass.name);
  return names;
}

/// Throws invalid_input with all names unless a pass is called `name`, or it is "".
template <class Pass, size_t count>
void require_pass(const Pass (&table)[count], const std::string& name) {
  bool found = name.empty();
  std::string names;
  for (const Pass& pass : table) {
    found = found || pass.name == name;
    names += str(names.empty() ? "" : ", ", pass.name);
  }
  SR_REQUIRE(found, invalid_input, "no pass is called '", name, "'; there are ", names);
}

}  // namespace shardrun
