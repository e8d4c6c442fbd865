// Window candidates: those of ShardCombine that cut dims which do not cut plainly.
//
// Two kinds, both proposed from dependence (planner/rules/dependence.h) and kept only if the trials
// hold:
//   windows   an operand is read, or a result made, in windows of another dim's shards
//   blocks    operands are cut where their rows are joined: the result is in blocks
#pragma once

#include <functional>
#include <vector>

#include "planner/rules/trial.h"

namespace shardrun {

/// Calls `attempt` with each candidate, best first; it says whether the candidate holds. `found`
/// are the plain options: dims that some option joins to a cut result are not looked at.
void try_windows(Trials& trials, const std::vector<SpmdRule::Option>& found,
                 const std::function<bool(const Trials::Candidate&)>& attempt);

}  // namespace shardrun
