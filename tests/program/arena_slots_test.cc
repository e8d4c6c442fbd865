// Slots of an arena: none lies over another one that is held with it, and a limit of bytes changes
// nothing but when placing ends.
#include "program/arena_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace shardrun {
namespace {

constexpr int kSteps = 40;

std::vector<Slot> random_slots(unsigned seed, int count) {
  std::mt19937 random(seed);
  std::vector<Slot> out(static_cast<size_t>(count));
  for (Slot& slot : out) {
    const int a = static_cast<int>(random() % (kSteps + 2)) - 1, length = random() % 12;
    slot.first = a;
    slot.last = std::min(kSteps, a + length);
    slot.bytes = 64 * (1 + static_cast<int64_t>(random() % (slot.first % 3 == 0 ? 64 : 8)));
  }
  return out;
}

bool overlap(const Slot& a, const Slot& b) {
  return a.first <= b.last && b.first <= a.last && a.offset < b.offset + b.bytes &&
         b.offset < a.offset + a.bytes;
}

/// The most that slots need at one time: no placement takes less.
int64_t fullest(const std::vector<Slot>& slots) {
  int64_t most = 0;
  for (int t = -1; t <= kSteps; ++t) {
    int64_t sum = 0;
    for (const Slot& slot : slots) sum += slot.first <= t && t <= slot.last ? slot.bytes : 0;
    most = std::max(most, sum);
  }
  return most;
}

TEST(ArenaSlots, LieApartWhereTheyAreHeldTogether) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::vector<Slot> slots = random_slots(seed, 5 + static_cast<int>(seed) * 4);
    const int64_t bytes = place_slots(slots, kSteps).bytes;
    int64_t end = 0;
    for (size_t i = 0; i < slots.size(); ++i) {
      EXPECT_GE(slots[i].offset, 0);
      end = std::max(end, slots[i].offset + slots[i].bytes);
      for (size_t k = 0; k < i; ++k)
        EXPECT_FALSE(overlap(slots[i], slots[k])) << "seed " << seed << ": " << i << " and " << k;
    }
    EXPECT_EQ(bytes, end);
    EXPECT_GE(bytes, fullest(slots));
    EXPECT_LE(static_cast<double>(bytes), 1.3 * static_cast<double>(fullest(slots)));
  }
}

TEST(ArenaSlots, AreTheSameWithinWhatTheyTakeAndDoNotFitWithinLess) {
  int gaps = 0;
  std::set<SlotOrder> best;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const std::vector<Slot> slots = random_slots(seed, 100);
    std::vector<Slot> free = slots, just = slots, roomy = slots, less = slots;
    const SlotsPlaced found = place_slots(free, kSteps);
    EXPECT_TRUE(place_slots_within(just, kSteps, found));
    EXPECT_EQ(just, free);
    EXPECT_TRUE(place_slots_within(roomy, kSteps, {2 * found.bytes, found.order}));
    EXPECT_EQ(roomy, free);
    for (const SlotOrder order : {SlotOrder::bytes, SlotOrder::bytes_and_time, SlotOrder::time})
      EXPECT_FALSE(place_slots_within(less, kSteps, {found.bytes - 1, order}));
    EXPECT_FALSE(place_slots_within(less, kSteps, {0, found.order}));
    gaps += found.bytes > fullest(slots);
    best.insert(found.order);
  }
  EXPECT_GT(gaps, 0);
  EXPECT_GT(best.size(), 1u);  // else one order would do
}

/// What suffices is found as without it, and of what does not it is said that it does not.
TEST(ArenaSlots, EnoughBytesAreFoundExactly) {
  int by_others = 0, roughly = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const std::vector<Slot> slots = random_slots(seed, 100);
    std::vector<Slot> free = slots;
    const SlotsPlaced found = place_slots(free, kSteps);
    for (const int64_t less : {0, 1}) {
      std::vector<Slot> placed = slots;
      const SlotsPlaced its = place_slots(placed, kSteps, found.bytes - less);
      EXPECT_EQ(used_bytes(placed), its.bytes);
      if (less == 0) {
        EXPECT_EQ(placed, free);
        by_others += its.order != SlotOrder::bytes;
      } else {
        EXPECT_GE(its.bytes, found.bytes);
        EXPECT_EQ(its.order, SlotOrder::bytes);
        roughly += its.bytes > found.bytes;
      }
    }
  }
  EXPECT_GT(by_others, 0);
  EXPECT_GT(roughly, 0);
}

}  // namespace
}  // namespace shardrun
