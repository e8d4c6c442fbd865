// Where each step that meets may stand, the fewest places that serve all of them, and who goes
// where.
//
// Place p is in front of the p-th step. Time has a slot for each place and one for each step:
// place p is slot 2p, step p is slot 2p + 1.
#include "program/collective_order.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "graph/op_def.h"

namespace shardrun {
namespace {

/// How many kernels that wait for collectives a collective may be asked for ahead of.
constexpr size_t kMostAhead = 2;

/// Places, both inclusive.
struct PlaceRange {
  size_t first = 0, last = 0;
};

class Order {
 public:
  Order(const Program& program, const std::vector<bool>& meets, const std::vector<int64_t>& bytes)
      : steps_(program.steps),
        meets_(meets),
        bytes_(bytes),
        touches_(bytes.size()),
        held_(bytes.size(), false),
        place_(steps_.size()) {
    std::iota(place_.begin(), place_.end(), size_t{0});
    for (size_t s = 0; s < steps_.size(); ++s) {
      for (BufferId b : steps_[s].in) touches_[index(b)].push_back({s, false});
      for (BufferId b : steps_[s].out) touches_[index(b)].push_back({s, true});
    }
    for (const auto* list : {&program.bindings, &program.outputs, &program.metrics}) {
      for (const Binding& b : *list) held_[index(b.buffer)] = true;
    }
  }

  std::vector<size_t> together(const std::vector<int>& sums) {
    find_ranges();
    find_places(sums);
    measure();
    for (size_t s = 0; s < steps_.size(); ++s) {
      if (meets_[s]) settle(s);
    }
    std::vector<size_t> before(steps_.size());
    std::iota(before.begin(), before.end(), size_t{0});
    const std::vector<size_t> after = order();
    return waits(after) < waits(before) ? after : before;
  }

  std::vector<size_t> early() {
    find_ranges();
    measure();
    std::set<size_t> waiting;  // kernels, each the first that waits for a collective
    for (size_t s = 0; s < steps_.size(); ++s) {
      if (!meets_[s]) continue;
      ask_early(s, waiting);
      size_t first = steps_.size();
      each_bound(s, false, [&](size_t t) { first = meets_[t] ? first : std::min(first, t); });
      if (first < steps_.size()) waiting.insert(first);
    }
    return order();
  }

 private:
  struct Touch {
    size_t step;
    bool writes;
  };

  static size_t index(BufferId b) { return static_cast<size_t>(b); }
  size_t slot(size_t s) const { return 2 * place_[s] + (meets_[s] ? 0 : 1); }

  std::vector<size_t> order() const {
    std::vector<size_t> order(steps_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return slot(a) < slot(b); });
    return order;
  }

  /// How often ranks wait: of steps that meet one after the other only the first does.
  size_t waits(const std::vector<size_t>& order) const {
    size_t count = 0;
    for (size_t i = 0; i < order.size(); ++i)
      count += meets_[order[i]] && (i == 0 || !meets_[order[i - 1]]);
    return count;
  }

  /// Steps that have to stand before `s` or, if not `before`, behind it.
  template <class Visit>
  void each_bound(size_t s, bool before, const Visit& visit) const {
    const auto look = [&](BufferId b, bool writes) {
      for (const Touch& t : touches_[index(b)]) {
        if ((writes || t.writes) && (before ? t.step < s : t.step > s)) visit(t.step);
      }
    };
    for (BufferId b : steps_[s].in) look(b, false);
    for (BufferId b : steps_[s].out) look(b, true);
  }

  void find_ranges() {
    const size_t n = steps_.size();
    ranges_.resize(n);
    size_t begin = 0;  // of the phase
    for (size_t s = 0; s < n; ++s) {
      if (steps_[s].phase != steps_[begin].phase) begin = s;
      if (!meets_[s]) continue;
      size_t& first = ranges_[s].first = begin;
      each_bound(s, true,
                 [&](size_t t) { first = std::max(first, meets_[t] ? ranges_[t].first : t + 1); });
    }
    size_t end = n;
    for (size_t s = n; s-- > 0;) {
      if (s + 1 < n && steps_[s].phase != steps_[s + 1].phase) end = s + 1;
      if (!meets_[s]) continue;
      size_t& last = ranges_[s].last = end;
      each_bound(s, false,
                 [&](size_t t) { last = std::min(last, meets_[t] ? ranges_[t].last : t); });
    }
  }

  /// The fewest: of the ranges that have no place yet, the end of that which ends first. Then each
  /// step's nearest, the later of two; of sums that one call may make, as few as will do for them.
  /// What needs another's result goes to no earlier place.
  void find_places(const std::vector<int>& sums) {
    std::vector<size_t> by_end;
    for (size_t s = 0; s < steps_.size(); ++s) {
      if (meets_[s]) by_end.push_back(s);
    }
    std::stable_sort(by_end.begin(), by_end.end(),
                     [&](size_t a, size_t b) { return ranges_[a].last < ranges_[b].last; });
    std::set<size_t> places;
    for (size_t s : by_end) {
      if (places.empty() || *places.rbegin() < ranges_[s].first) places.insert(ranges_[s].last);
    }
    wanted_.resize(steps_.size());
    std::map<int, size_t> place_of;  // of sums that one call may make, that of the last
    for (size_t s : by_end) {
      if (sums[s] >= 0) {
        const auto [known, fresh] = place_of.emplace(sums[s], 0);
        if (fresh || known->second < ranges_[s].first)
          known->second = *std::prev(places.upper_bound(ranges_[s].last));
        wanted_[s] = known->second;
        continue;
      }
      const auto behind = places.lower_bound(s);
      const bool later = behind != places.end() && *behind <= ranges_[s].last;
      const bool earlier = behind != places.begin() && *std::prev(behind) >= ranges_[s].first;
      const bool goes_later = later && (!earlier || *behind - s <= s - *std::prev(behind));
      wanted_[s] = goes_later ? *behind : *std::prev(behind);
    }
    for (size_t s = 0; s < steps_.size(); ++s) {
      if (!meets_[s]) continue;
      each_bound(s, true, [&](size_t t) {
        if (meets_[t]) wanted_[s] = std::max(wanted_[s], wanted_[t]);
      });
      ++company_[wanted_[s]];
    }
  }

  /// Slots in which a buffer holds something, both inclusive. A result that may take a dying
  /// operand's memory begins behind the step that makes it; so does a collective's that is no
  /// larger than its operand, or each of those at one place would count with all others'
  /// operands.
  PlaceRange alive(size_t b) const {
    size_t first = std::numeric_limits<size_t>::max(), last = 0, maker = 0;
    for (const Touch& t : touches_[b]) {
      if (slot(t.step) < first) first = slot(t.step), maker = t.step;
      last = std::max(last, slot(t.step));
    }
    if (first < last && takes_over(maker, b)) ++first;
    return {first, last};
  }

  bool takes_over(size_t maker, size_t b) const {
    const Step& step = steps_[maker];
    const auto may = [&](size_t result, size_t operand) {
      if (result >= step.out.size() || operand >= step.in.size()) return false;
      const size_t o = index(step.in[operand]);
      return index(step.out[result]) == b && o != b && !held_[o] &&
             (bytes_[o] == bytes_[b] || (meets_[maker] && bytes_[o] > bytes_[b])) &&
             std::all_of(touches_[o].begin(), touches_[o].end(),
                         [&](const Touch& t) { return slot(t.step) <= slot(maker); });
    };
    if (step.kind == Step::Kind::collective) return may(0, 0);
    const auto& pairs = op_def(step.node.op).in_place;
    return std::any_of(pairs.begin(), pairs.end(), [&](const std::pair<int, int>& pair) {
      return may(static_cast<size_t>(pair.first), static_cast<size_t>(pair.second));
    });
  }

  void measure() {
    std::vector<int64_t> change(2 * steps_.size() + 2, 0);
    for (size_t b = 0; b < bytes_.size(); ++b) {
      if (held_[b] || touches_[b].empty()) continue;
      const PlaceRange at = alive(b);
      change[at.first] += bytes_[b];
      change[at.last + 1] -= bytes_[b];
    }
    alive_.resize(change.size());
    std::partial_sum(change.begin(), change.end(), alive_.begin());
    most_ = *std::max_element(alive_.begin(), alive_.end());
  }

  /// Those in front of it have settled. It stays where it would be alone, where memory forbids the
  /// move, or where an operand is not made yet; but not in front of what makes an operand.
  void settle(size_t s) {
    size_t made = 0;
    each_bound(s, true, [&](size_t t) { made = std::max(made, meets_[t] ? place_[t] : 0); });
    const bool must = made > s;
    if (must || (company_.at(wanted_[s]) > 1 && wanted_[s] >= made)) move(s, wanted_[s], must);
  }

  /// In front of the kernels before it that wait for other collectives, as far as memory allows.
  void ask_early(size_t s, const std::set<size_t>& waiting) {
    size_t first = ranges_[s].first;
    each_bound(s, true, [&](size_t t) { first = std::max(first, meets_[t] ? place_[t] : t + 1); });
    std::vector<size_t> places;
    for (auto w = waiting.lower_bound(s); w != waiting.begin() && places.size() < kMostAhead;)
      places.push_back(std::max(*--w, first));
    while (!places.empty() && (places.back() >= s || !move(s, places.back(), false)))
      places.pop_back();
  }

  /// If memory allows that, or it must.
  bool move(size_t s, size_t place, bool must) {
    std::set<size_t> changed;  // buffers: of this step, and what may take over their memory
    for (const auto* list : {&steps_[s].in, &steps_[s].out}) {
      for (BufferId b : *list) {
        changed.insert(index(b));
        for (const Touch& t : touches_[index(b)]) {
          for (BufferId made : steps_[t.step].out) changed.insert(index(made));
        }
      }
    }
    std::map<size_t, int64_t> change;  // from slot on; most of what is taken away comes back
    const auto count = [&](int64_t sign) {
      for (size_t b : changed) {
        if (held_[b]) continue;
        const PlaceRange at = alive(b);
        change[at.first] += sign * bytes_[b];
        change[at.last + 1] -= sign * bytes_[b];
      }
    };
    const size_t before = place_[s];
    count(-1);
    place_[s] = place;
    count(1);
    const auto each_changed = [&](const auto& visit) {  // slot, by how many bytes
      int64_t more = 0;
      for (auto from = change.begin(); from != change.end(); ++from) {
        more += from->second;
        if (more == 0) continue;  // as behind the last
        for (size_t t = from->first; t < std::next(from)->first; ++t) visit(t, more);
      }
    };
    bool fits = true;
    each_changed(
        [&](size_t t, int64_t more) { fits = fits && (more < 0 || alive_[t] + more <= most_); });
    if (fits || must) {
      each_changed([&](size_t t, int64_t more) { alive_[t] += more; });
    } else {
      place_[s] = before;
    }
    return place_[s] == place;
  }

  const std::vector<Step>& steps_;
  const std::vector<bool>& meets_;
  const std::vector<int64_t>& bytes_;
  std::vector<std::vector<Touch>> touches_;  // by buffer, in the steps' order
  std::vector<bool> held_;                   // by buffer: what the host fills or reads
  std::vector<size_t> place_;                // by step
  // Of steps that meet:
  std::vector<PlaceRange> ranges_;  // where they may stand, with all others free
  std::vector<size_t> wanted_;      // places
  std::map<size_t, int> company_;   // by place: how many want it
  std::vector<int64_t> alive_;      // bytes, by slot
  int64_t most_ = 0;
};

/// By step: the number of the sums that one call may make; -1: none.
std::vector<int> numbered_sums(const Program& program) {
  std::vector<int> out;
  std::map<std::tuple<std::vector<int>, ReduceOp, DType>, int> numbers;
  for (const Step& step : program.steps) {
    out.push_back(-1);
    if (!step.collective || step.collective->kind != Collective::Kind::all_reduce) continue;
    const std::tuple kind(step.collective->axes, step.collective->op,
                          type_of(program, step.in[0]).dtype);
    out.back() = numbers.emplace(kind, static_cast<int>(numbers.size())).first->second;
  }
  return out;
}

}  // namespace

void order_collectives(Program& program, Collectives run, const std::vector<int64_t>& most_bytes) {
  std::vector<bool> meets;
  for (const Step& step : program.steps) {
    const CollectiveTraits* kind = step.collective ? &step.collective->traits() : nullptr;
    meets.push_back(kind != nullptr && !kind->local && !kind->is_exchange());
  }
  const std::vector<size_t> order =
      run == Collectives::together
          ? collectives_together(program, meets, numbered_sums(program), most_bytes)
          : collectives_early(program, meets, most_bytes);
  std::vector<Step> steps;
  for (const size_t s : order) steps.push_back(std::move(program.steps[s]));
  program.steps = std::move(steps);
}

std::vector<size_t> collectives_together(const Program& program, const std::vector<bool>& meets,
                                         const std::vector<int>& sums,
                                         const std::vector<int64_t>& bytes) {
  return Order(program, meets, bytes).together(sums);
}

std::vector<size_t> collectives_early(const Program& program, const std::vector<bool>& meets,
                                      const std::vector<int64_t>& bytes) {
  return Order(program, meets, bytes).early();
}

}  // namespace shardrun
