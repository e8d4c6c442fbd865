// Best fit, in several orders, among the ranges that a tree over time keeps.
#include "program/slots.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

namespace shardrun {
namespace {

int64_t peak_bytes(const std::vector<Slot>& slots, int steps) {
  std::vector<int64_t> change(static_cast<size_t>(steps) + 3, 0);
  for (const Slot& s : slots) {
    change[static_cast<size_t>(s.first + 1)] += s.bytes;
    change[static_cast<size_t>(s.last + 2)] -= s.bytes;
  }
  int64_t now = 0, peak = 0;
  for (int64_t c : change) peak = std::max(peak, now += c);
  return peak;
}

/// Bytes of the arena, `end` not among them.
struct Bytes {
  int64_t begin = 0, end = 0;
};

/// Bytes in use: apart from each other, and in order.
class Union {
 public:
  void add(Bytes more) {
    const auto first =
        std::lower_bound(all_.begin(), all_.end(), more.begin,
                         [](const Bytes& have, int64_t begin) { return have.end < begin; });
    auto last = first;
    for (; last != all_.end() && last->begin <= more.end; ++last) {
      more.begin = std::min(more.begin, last->begin);
      more.end = std::max(more.end, last->end);
    }
    if (first == last) {
      all_.insert(first, more);
    } else {
      *first = more;
      all_.erase(first + 1, last);
    }
  }
  const std::vector<Bytes>& all() const { return all_; }

 private:
  std::vector<Bytes> all_;
};

/// Which bytes are in use when: a segment tree over steps. What is alive for long stands at few
/// nodes, and neighbours in memory are one range, so a look at some steps is at few ranges, however
/// many slots there are.
class InUse {
 public:
  explicit InUse(int steps) : leaves_(std::bit_ceil(static_cast<size_t>(steps) + 2)) {
    nodes_.resize(2 * leaves_);
  }

  void add(const Slot& slot) { add({1, 0, leaves_}, begin(slot), end(slot), bytes(slot)); }

  /// Adds to `out` what is in use while the slot is alive, in no order.
  void collect(const Slot& slot, std::vector<Bytes>& out) const {
    collect({1, 0, leaves_}, begin(slot), end(slot), out);
  }

 private:
  struct Node {
    Union throughout;  // all the node's time
    Union sometimes;   // any of it, `throughout` too
  };
  /// A node and its time: [first, end).
  struct Place {
    size_t node, first, end;
    Place left() const { return {2 * node, first, (first + end) / 2}; }
    Place right() const { return {2 * node + 1, (first + end) / 2, end}; }
  };

  static size_t begin(const Slot& slot) { return static_cast<size_t>(slot.first + 1); }
  static size_t end(const Slot& slot) { return static_cast<size_t>(slot.last + 2); }
  static Bytes bytes(const Slot& slot) { return {slot.offset, slot.offset + slot.bytes}; }

  void add(const Place& at, size_t first, size_t end, const Bytes& bytes) {
    if (end <= at.first || at.end <= first) return;
    nodes_[at.node].sometimes.add(bytes);
    if (first <= at.first && at.end <= end) {
      nodes_[at.node].throughout.add(bytes);
    } else {
      add(at.left(), first, end, bytes);
      add(at.right(), first, end, bytes);
    }
  }

  void collect(const Place& at, size_t first, size_t end, std::vector<Bytes>& out) const {
    if (end <= at.first || at.end <= first) return;
    const Node& node = nodes_[at.node];
    const bool whole = first <= at.first && at.end <= end;
    const std::vector<Bytes>& used = (whole ? node.sometimes : node.throughout).all();
    out.insert(out.end(), used.begin(), used.end());
    if (whole) return;
    collect(at.left(), first, end, out);
    collect(at.right(), first, end, out);
  }

  size_t leaves_;
  std::vector<Node> nodes_;  // the root is 1, below node i are 2 i and 2 i + 1
};

/// The smallest gap of at least `bytes` between ranges, the first of equals; else behind them.
int64_t best_gap(std::vector<Bytes>& used, int64_t bytes) {
  std::sort(used.begin(), used.end(),
            [](const Bytes& a, const Bytes& b) { return a.begin < b.begin; });
  int64_t cursor = 0, best = -1, least = std::numeric_limits<int64_t>::max();
  for (const Bytes& range : used) {
    const int64_t gap = range.begin - cursor;
    if (gap >= bytes && gap < least) {
      best = cursor;
      least = gap;
    }
    cursor = std::max(cursor, range.end);
  }
  return best >= 0 ? best : cursor;
}

/// Places the slots in the given order. Gives up where they come to `most` bytes or more.
SlotsPlaced best_fit(std::vector<Slot>& slots, const std::vector<int>& order, int steps,
                     int64_t most) {
  InUse in_use(steps);
  SlotsPlaced out;
  std::vector<Bytes> used;
  for (int index : order) {
    Slot& slot = slots[static_cast<size_t>(index)];
    used.clear();
    in_use.collect(slot, used);
    out.looked_at += static_cast<int64_t>(used.size());
    slot.offset = best_gap(used, slot.bytes);
    out.bytes = std::max(out.bytes, slot.offset + slot.bytes);
    if (out.bytes >= most) break;
    in_use.add(slot);
  }
  return out;
}

}  // namespace

/// Largest first is good on the whole, but a long-lived small buffer placed late can leave a hole,
/// so bytes times time, and time alone, are tried too.
SlotsPlaced place_slots(std::vector<Slot>& slots, int steps) {
  const int64_t bound = peak_bytes(slots, steps);
  std::vector<int> order(slots.size());
  std::iota(order.begin(), order.end(), 0);
  auto bytes = [&](int i) { return slots[static_cast<size_t>(i)].bytes; };
  auto length = [&](int i) {
    return slots[static_cast<size_t>(i)].last - slots[static_cast<size_t>(i)].first + 1;
  };
  auto first = [&](int i) { return slots[static_cast<size_t>(i)].first; };
  const auto by_bytes = [&](int a, int b) {
    return bytes(a) != bytes(b) ? bytes(a) > bytes(b) : first(a) < first(b);
  };
  const auto by_area = [&](int a, int b) {
    const double x = static_cast<double>(bytes(a)) * length(a),
                 y = static_cast<double>(bytes(b)) * length(b);
    return x != y ? x > y : first(a) < first(b);
  };
  const auto by_length = [&](int a, int b) {
    return length(a) != length(b) ? length(a) > length(b) : bytes(a) > bytes(b);
  };
  std::stable_sort(order.begin(), order.end(), by_bytes);
  SlotsPlaced best = best_fit(slots, order, steps, std::numeric_limits<int64_t>::max());
  auto attempt = [&](const auto& less) {
    if (best.bytes == bound) return;
    std::vector<Slot> other = slots;
    std::stable_sort(order.begin(), order.end(), less);
    const SlotsPlaced now = best_fit(other, order, steps, best.bytes);
    best.looked_at += now.looked_at;
    if (now.bytes < best.bytes) {
      best.bytes = now.bytes;
      slots = std::move(other);
    }
  };
  attempt(by_area);
  attempt(by_length);
  return best;
}

}  // namespace shardrun
