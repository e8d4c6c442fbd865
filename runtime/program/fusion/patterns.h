// fuse_patterns: steps that become another op where a plan leaves nothing between them.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "graph/program.h"

namespace shardrun {

/// Does the backend run a fused step as well as what it is made of? Asked of products and
/// convolutions. Null: any.
using TakesStep = std::function<bool(const Node& node, const std::vector<TensorType>& in,
                                     const std::vector<TensorType>& out)>;

struct FusionPattern {
  std::string_view name, becomes;  // what the steps are, and what they become
  void (*rewrite)(Program& program, const TakesStep& takes);  // rewrites.h
};

/// In the order in which they are tried. Each is a row here and a file of its own.
std::span<const FusionPattern> fusion_patterns();

/// Rewrites by every pattern, in a Program that has not been placed yet; what stood between fused
/// steps, and nobody else reads, is no buffer any more. Plans are made of whole nodes, so this
/// takes no cut from them: a sum that is still partial behind a step, or gathered behind it, is
/// simply not fused.
void fuse_patterns(Program& program, const TakesStep& takes = nullptr);

}  // namespace shardrun
