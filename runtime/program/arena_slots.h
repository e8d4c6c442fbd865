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

/// In which slots are placed: largest first, by bytes times time, or longest first.
enum class SlotOrder { bytes, bytes_and_time, time };

struct SlotsPlaced {
  int64_t bytes = 0;  // used
  SlotOrder order = SlotOrder::bytes;
};

/// Bytes of the slots that are alive at once, at the fullest step: no placing takes less.
int64_t most_alive(const std::vector<Slot>& slots, int steps);

/// Gives every slot its offset, so that none overlaps another one alive with it. The best of all
/// orders: largest first is good on the whole, but a long-lived small buffer placed late can leave
/// a hole. Where the first takes more than `enough`, others count if they do not.
SlotsPlaced place_slots(std::vector<Slot>& slots, int steps,
                        int64_t enough = std::numeric_limits<int64_t>::max());

/// The same in one order and within so many bytes. False where they don't suffice: the offsets mean
/// nothing then.
bool place_slots_within(std::vector<Slot>& slots, int steps, const SlotsPlaced& in);

/// What slots with an offset take.
int64_t used_bytes(const std::vector<Slot>& slots);

/// Slots that are held longer: each up to its step of `wanted`, by at most `hold` steps. All grow
/// by a step at a time; where a step would hold `more_bytes` beyond the fullest of all, a slot
/// ends before it.
std::vector<Slot> lengthened(const std::vector<Slot>& slots, const std::vector<int>& wanted,
                             int hold, int steps, int64_t more_bytes);

}  // namespace shardrun
