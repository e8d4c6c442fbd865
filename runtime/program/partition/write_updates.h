// Updates: what replaces persistent buffers at the end of their phase.
#pragma once

#include <vector>

#include "program/partition/lower_nodes.h"
#include "program/partition/skeleton.h"

namespace shardrun {

/// Makes every persistent buffer hold its new value when its phase ends. The step that makes the
/// new value writes it there directly if nobody reads the old one any more (or only that step does,
/// and its op may run in place); otherwise a copy follows the last reader of the old value. What
/// the former makes unused stays among the buffers.
void write_updates(Skeleton& skeleton, const std::vector<HeldUpdate>& updates);

}  // namespace shardrun
