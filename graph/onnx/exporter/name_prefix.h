// Names of one module's tensors in two places, where one has it within another module: DDP's
// `module.`, `model.` of a wrapper that computes the loss, `_orig_mod.` of torch.compile.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace shardrun::importer {

/// What is to be done to a name: leave out `without` at its beginning, and put `with` there.
struct NamePrefix {
  std::string without, with;  // "module.", "" or ""
  bool changes() const { return without != with; }
  /// Empty for a name that does not begin so.
  std::string apply(const std::string& name) const;
};

/// "a._orig_mod.b" -> "a.b": a compiled module's tensors are those of the one within.
std::string without_compiled(const std::string& name);

/// The change after which the most of `names` are in `wanted`; none where that is no gain.
NamePrefix find_prefix(const std::vector<std::string>& names, const std::set<std::string>& wanted);

}  // namespace shardrun::importer
