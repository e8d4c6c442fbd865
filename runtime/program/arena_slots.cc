// Best fit over live ranges.
#include "program/arena_slots.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

namespace shardrun {
namespace {

/// By step, from the one before the first to the one behind the last.
std::vector<int64_t> bytes_alive(const std::vector<Slot>& slots, int steps) {
  std::vector<int64_t> alive(static_cast<size_t>(steps) + 3, 0);
  for (const Slot& s : slots) {
    alive[static_cast<size_t>(s.first + 1)] += s.bytes;
    alive[static_cast<size_t>(s.last + 2)] -= s.bytes;
  }
  std::partial_sum(alive.begin(), alive.end(), alive.begin());
  return alive;
}

/// Slots that have a place, by offset. Times lie apart, so that many are compared at once.
class Placed {
 public:
  explicit Placed(size_t most) : alive_(most + kWord) {}

  /// Calls take(offset, bytes) with those that are alive with the slot, by offset, until it returns
  /// false.
  template <class Take>
  void alive_with(const Slot& slot, const Take& take) {
    const size_t count = offsets_.size();
    for (size_t k = 0; k < count; ++k)
      alive_[k] = (last_[k] >= slot.first) & (first_[k] <= slot.last);
    std::fill_n(alive_.begin() + static_cast<std::ptrdiff_t>(count), kWord, uint8_t{0});
    for (size_t k = 0; k < count; k += kWord) {
      uint64_t word;
      std::memcpy(&word, alive_.data() + k, kWord);
      for (; word != 0; word &= word - 1) {
        const size_t one = k + static_cast<size_t>(std::countr_zero(word)) / 8;
        if (!take(offsets_[one], bytes_[one])) return;
      }
    }
  }
  void insert(const Slot& slot) {
    const auto place =
        std::upper_bound(offsets_.begin(), offsets_.end(), slot.offset) - offsets_.begin();
    offsets_.insert(offsets_.begin() + place, slot.offset);
    bytes_.insert(bytes_.begin() + place, slot.bytes);
    first_.insert(first_.begin() + place, slot.first);
    last_.insert(last_.begin() + place, slot.last);
  }

 private:
  static constexpr size_t kWord = sizeof(uint64_t);

  std::vector<int64_t> offsets_, bytes_;
  std::vector<int> first_, last_;
  std::vector<uint8_t> alive_;  // 1 or 0
};

/// Places the slots in the given order, each into the smallest gap that fits among those alive with
/// it, else behind them. Returns the bytes used; gives up where they come to more than `most`.
int64_t best_fit(std::vector<Slot>& slots, const std::vector<int>& order, int64_t most) {
  Placed placed(slots.size());
  int64_t total = 0;
  for (int index : order) {
    Slot& slot = slots[static_cast<size_t>(index)];
    int64_t cursor = 0, best = -1, best_gap = std::numeric_limits<int64_t>::max();
    placed.alive_with(slot, [&](int64_t offset, int64_t bytes) {
      const int64_t gap = offset - cursor;
      if (gap >= slot.bytes && gap < best_gap) {
        best = cursor;
        best_gap = gap;
        if (gap == slot.bytes) return false;  // none is smaller
      }
      cursor = std::max(cursor, offset + bytes);
      return true;
    });
    slot.offset = best >= 0 ? best : cursor;
    total = std::max(total, slot.offset + slot.bytes);
    if (total > most) break;
    placed.insert(slot);
  }
  return total;
}

std::vector<int> sorted(const std::vector<Slot>& slots, SlotOrder order) {
  using Key = std::array<double, 3>;  // the largest first
  const auto key = [order](const Slot& slot) -> Key {
    const auto bytes = static_cast<double>(slot.bytes), first = static_cast<double>(slot.first);
    const double steps = slot.last - slot.first + 1;
    switch (order) {
      case SlotOrder::bytes: return {bytes, -first};
      case SlotOrder::bytes_and_time: return {bytes * steps, -first, bytes};
      case SlotOrder::time: return {steps, bytes, -first};
    }
    return {};
  };
  std::vector<std::pair<Key, int>> keys;
  for (const Slot& slot : slots) keys.emplace_back(key(slot), static_cast<int>(keys.size()));
  std::sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::vector<int> out;
  for (const auto& [unused, index] : keys) out.push_back(index);
  return out;
}

}  // namespace

int64_t most_alive(const std::vector<Slot>& slots, int steps) {
  const std::vector<int64_t> alive = bytes_alive(slots, steps);
  return *std::max_element(alive.begin(), alive.end());
}

SlotsPlaced place_slots(std::vector<Slot>& slots, int steps, int64_t enough) {
  const int64_t fullest = most_alive(slots, steps);
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  SlotsPlaced best{kAny, {}};
  std::vector<Slot> tried = slots;
  for (const SlotOrder order : {SlotOrder::bytes, SlotOrder::bytes_and_time, SlotOrder::time}) {
    const int64_t most = best.bytes == kAny ? kAny : std::min(best.bytes - 1, enough);
    if (most < fullest) break;  // none takes so few
    const int64_t bytes = best_fit(tried, sorted(tried, order), most);
    if (bytes > most) continue;
    best = {bytes, order};
    slots = tried;
  }
  return best;
}

bool place_slots_within(std::vector<Slot>& slots, int steps, const SlotsPlaced& in) {
  return most_alive(slots, steps) <= in.bytes &&
         best_fit(slots, sorted(slots, in.order), in.bytes) <= in.bytes;
}

int64_t used_bytes(const std::vector<Slot>& slots) {
  int64_t bytes = 0;
  for (const Slot& slot : slots) bytes = std::max(bytes, slot.offset + slot.bytes);
  return bytes;
}

std::vector<Slot> lengthened(const std::vector<Slot>& slots, const std::vector<int>& wanted,
                             int hold, int steps, int64_t more_bytes) {
  std::vector<Slot> out = slots;
  std::vector<int64_t> alive = bytes_alive(slots, steps);
  const int64_t most = *std::max_element(alive.begin(), alive.end()) + more_bytes;
  std::vector<size_t> growing;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (wanted[i] > slots[i].last) growing.push_back(i);
  }
  for (int more = 0; more < hold && !growing.empty(); ++more) {
    std::erase_if(growing, [&](size_t i) {
      Slot& slot = out[i];
      int64_t& next = alive[static_cast<size_t>(slot.last + 2)];
      if (slot.last == wanted[i] || next + slot.bytes > most) return true;
      next += slot.bytes;
      ++slot.last;
      return false;
    });
  }
  return out;
}

}  // namespace shardrun
