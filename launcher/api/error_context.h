// within: the part of a file or of a plan that is wrong, added to its errors.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"

namespace shardrun {

/// An error names the plan's file, or the part of a plan, as "train", that is wrong. `of`:
/// one of this kind, else any.
template <class F>
void within(const std::string& context, F&& f, std::optional<ErrorKind> of = std::nullopt) {
  try {
    f();
  } catch (const Error& e) {
    throw context.empty() || e.kind() != of.value_or(e.kind()) ? e : e.with_context(context);
  }
}

}  // namespace shardrun
