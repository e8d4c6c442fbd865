// Slots of an arena: how long each is held, and where it lies.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace shardrun {

/// Memory that one or more aliased buffers, or one workspace, hold for a time. Steps are inclusive;
/// -1: before the first, as many as there are: behind the last.
struct Slot {
  int first = 0, last = 0;
  int64_t bytes = 0, offset = 0;
  bool operator==(const Slot&) const = default;
};

/// Gives every slot its offset, so that none overlaps another one alive with it. Returns the bytes
/// used. The best of several orders: largest first is good on the whole, but a long-lived small
/// buffer placed late can leave a hole, so bytes times time, and time of birth, are tried too,
/// until it comes to `enough` or less. Where all of them come to more than `most`, it returns more
/// than that, and the offsets mean nothing.
int64_t place_slots(std::vector<Slot>& slots, int steps, int64_t enough = 0,
                    int64_t most = std::numeric_limits<int64_t>::max());

/// Slots that are held longer: each up to its step of `wanted`, by at most `window` steps. All grow
/// by a step at a time; where a step would hold more bytes than the fullest of all, a slot ends
/// before it.
std::vector<Slot> lengthened(const std::vector<Slot>& slots, const std::vector<int>& wanted,
                             int window, int steps);

}  // namespace shardrun
