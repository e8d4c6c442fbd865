// Gathering: values whose shards are on several ranks, put together on every rank.
#pragma once

#include "base/tensor.h"
#include "exec/executor.h"

namespace shardrun {

/// A value, persistent or an output, whole on every rank. Each box is sent once, by the first rank
/// that holds it. Throws unsupported where it lies in partial sums. Collective over `host`.
Tensor gather_whole(const Executor& of, const Binding& value, Communicator& host);

}  // namespace shardrun
