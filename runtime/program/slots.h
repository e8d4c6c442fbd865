// Slots: what has to be in the arena for a time, and where in it each lies.
#pragma once

#include <cstdint>
#include <vector>

namespace shardrun {

/// Memory that one or more aliased buffers, or one workspace, hold for a time: from step `first` to
/// step `last`, both inclusive. -1: before the first step; the number of steps: behind the last.
struct Slot {
  int first = 0, last = 0;
  int64_t bytes = 0, offset = 0;
};

struct SlotsPlaced {
  int64_t bytes = 0;      // that the slots use, from offset 0 on
  int64_t looked_at = 0;  // ranges of memory in use, over all slots that were placed: the work done
};

/// Gives every slot an offset, so that no two of them overlap that are alive in one step. Each goes
/// into the smallest gap that fits, in the best of several orders.
SlotsPlaced place_slots(std::vector<Slot>& slots, int steps);

}  // namespace shardrun
