// Memory: offsets in the arena.
#include "program/memory.h"

#include <algorithm>
#include <map>

#include "base/round_up.h"
#include "program/arena_slots.h"
#include "program/collective_waits.h"
#include "program/fusion/chains.h"
#include "program/live_ranges.h"

namespace shardrun {
namespace {

/// Where collectives' memory cannot be held for so many steps, this fraction is tried.
constexpr int kShorterHold = 4;

bool is_reshape(const Step& step) {
  return step.kind == Step::Kind::kernel && op_def(step.node.op).reshapes;
}

void place_persistent(Program& program, const Program* like) {
  // What its own setup makes lies behind the other's: made anew when that has run.
  int64_t offset = like != nullptr ? like->persistent_bytes : 0;
  const auto place = [&](BufferId id) {
    Buffer& buffer = program.buffers[static_cast<size_t>(id)];
    buffer.offset = offset;
    offset += round_up(byte_size(buffer.type), kArenaAlignment);
  };
  for (const Binding& b : program.bindings) {
    if (like == nullptr && is_persistent(b.role)) place(b.buffer);
  }
  for (const Step& step : program.setup) {
    for (BufferId b : step.out) place(b);
  }
  for (Step& step : program.steps) {
    step.kept_offset = offset;
    offset += round_up(step.needs.kept, kArenaAlignment);
  }
  program.persistent_bytes = offset;
  if (like == nullptr) return;
  std::map<std::string, const Binding*> theirs;
  for (const Binding& b : like->bindings) theirs[b.name] = &b;
  for (const Binding& b : program.bindings) {
    if (!is_persistent(b.role)) continue;
    const auto it = theirs.find(b.name);
    SR_REQUIRE(it != theirs.end() && is_persistent(it->second->role), invalid_input,
               "persistent value '", b.name,
               "' is not in the program whose memory is to be shared");
    SR_REQUIRE(it->second->global == b.global && it->second->sharding == b.sharding, invalid_input,
               "persistent value '", b.name, "' is ", b.global, " ",
               to_string(b.sharding, program.mesh),
               ", in the program whose memory is to be shared ", it->second->global, " ",
               to_string(it->second->sharding, like->mesh), "; pin its sharding when planning");
    program.buffers[static_cast<size_t>(b.buffer)].offset =
        like->buffers[static_cast<size_t>(it->second->buffer)].offset;
  }
}

/// Which slot of the arena each buffer and workspace has, or which persistent buffer it lies in.
class SlotMap {
 public:
  explicit SlotMap(const Program& program)
      : program_(program),
        holders_(memory_holders(program)),
        live_(live_ranges(program, holders_)),
        slot_of_(program.buffers.size(), -1),
        lies_in_(program.buffers.size(), -1),
        workspace_slot_(program.steps.size(), -1) {
    for (const Binding& b : program.bindings) give_slot(b.buffer);
    for (int s = 0; s < static_cast<int>(program.steps.size()); ++s) {
      const Step& step = program.steps[static_cast<size_t>(s)];
      for (const auto& pair : alias_pairs(step)) {
        if (may_alias(program, live_, holders_, s, pair))
          take_over(s, operand_of(step, pair), step.out[static_cast<size_t>(pair.first)]);
      }
      for (BufferId b : step.out) give_slot(b);
      if (step.needs.workspace > 0)
        workspace_slot_[static_cast<size_t>(s)] = new_slot(s, s, step.needs.workspace);
    }
  }

  /// Places the slots behind the persistent part and writes every offset.
  void place(Program& program, Collectives collectives, double hold_fraction,
             const ArenaLimits& limits) {
    const std::vector<Slot> apart = program.fused.empty() ? slots_ : slots_for_chains();
    const bool overlap = collectives == Collectives::apart;
    const int64_t fullest = most_alive(slots_, steps());
    const auto more = static_cast<int64_t>(hold_fraction * static_cast<double>(fullest));
    // Where there are bytes to spend, the first order is most often good enough.
    const bool held = overlap && more > 0 && hold_for_overlap(apart, {fullest}, more);
    if (!held) place_tightly(apart, overlap, more, limits);
    program.arena_bytes = program.persistent_bytes + used_bytes(slots_);
    const auto offset = [&](int slot) {
      return slot < 0 ? 0 : program.persistent_bytes + slots_[static_cast<size_t>(slot)].offset;
    };
    for (size_t b = 0; b < program.buffers.size(); ++b) {
      if (live_[b].persistent) continue;
      const auto holder = static_cast<size_t>(holders_[b]);
      const BufferId held = lies_in_[holder];
      program.buffers[b].offset =
          held >= 0 ? program.buffers[static_cast<size_t>(held)].offset : offset(slot_of_[holder]);
    }
    for (size_t s = 0; s < program.steps.size(); ++s)
      program.steps[s].workspace_offset = offset(workspace_slot_[s]);
  }

 private:
  /// Alive from the first to the last step of the chains that they are alive in, so that no chain
  /// is divided by memory that is used anew.
  std::vector<Slot> slots_for_chains() const {
    const size_t steps = program_.steps.size();
    std::vector<int> first(steps), last(steps);  // of the chain of each step
    for (size_t s = 0; s < steps; ++s) first[s] = last[s] = static_cast<int>(s);
    for (const FusedSteps& chain : program_.fused) {
      for (size_t s = chain.first; s < chain.end(); ++s) {
        first[s] = static_cast<int>(chain.first);
        last[s] = static_cast<int>(chain.end()) - 1;
      }
    }
    std::vector<Slot> slots = slots_;
    for (const int buffers : slot_of_) {  // workspaces are of one step
      if (buffers < 0) continue;
      Slot& slot = slots[static_cast<size_t>(buffers)];
      if (slot.first >= 0) slot.first = first[static_cast<size_t>(slot.first)];
      if (slot.last < static_cast<int>(steps)) slot.last = last[static_cast<size_t>(slot.last)];
    }
    return slots;
  }

  /// The fewest bytes that an order comes to, roughly if they are more than enough. As far as they
  /// suffice, chains stay whole and collectives' memory is held longer, that with so many bytes
  /// `more`; but not where no rank is to run this.
  void place_tightly(const std::vector<Slot>& apart, bool overlap, int64_t more,
                     const ArenaLimits& limits) {
    const int64_t persistent = program_.persistent_bytes;
    const SlotsPlaced found = place_slots(slots_, steps(), limits.enough - persistent);
    if (found.bytes > limits.fits - persistent) return;
    bool placed = false;
    if (!program_.fused.empty())
      placed = (overlap && hold_for_overlap(apart, found, more)) || place_within(apart, found);
    if (overlap && !placed) hold_for_overlap(slots_, found, more);
  }

  /// Takes the slots, which are held longer, as far as they come to no more bytes than was found.
  /// The order that was best for the shorter ones is: no other was seen to do where it did not.
  bool place_within(std::vector<Slot> slots, const SlotsPlaced& found) {
    if (!place_slots_within(slots, steps(), found)) return false;
    slots_ = std::move(slots);
    return true;
  }

  /// What a collective that overlaps with kernels uses is given to no kernel before one waits for
  /// it anyway, as far as that takes no more bytes than was found and `more`: of several holds the
  /// longest that does not. False: none did.
  bool hold_for_overlap(const std::vector<Slot>& slots, const SlotsPlaced& found, int64_t more) {
    const SlotsPlaced most{found.bytes + more, found.order};
    const std::vector<int> ends = overlapped_ends(program_, holders_);
    std::vector<int> wanted;  // last steps, by slot
    for (const Slot& slot : slots) wanted.push_back(slot.last);
    const auto want = [&](int slot, int s, int end) {
      if (slot < 0 || slots[static_cast<size_t>(slot)].last < s) return;
      wanted[static_cast<size_t>(slot)] = std::max(wanted[static_cast<size_t>(slot)], end);
    };
    for (size_t s = 0; s < ends.size(); ++s) {
      const Step& step = program_.steps[s];
      const int at = static_cast<int>(s);
      if (ends[s] <= at) continue;
      want(workspace_slot_[s], at, ends[s]);
      for (const auto* list : {&step.in, &step.out}) {
        for (BufferId b : *list)
          want(slot_of_[static_cast<size_t>(holders_[static_cast<size_t>(b)])], at, ends[s]);
      }
    }
    for (int hold = steps(); hold > 0; hold /= kShorterHold) {
      std::vector<Slot> held = lengthened(slots, wanted, hold, steps(), more);
      if (held == slots) return false;
      if (place_within(std::move(held), most)) return true;
    }
    return false;
  }

  int steps() const { return static_cast<int>(program_.steps.size()); }

  BufferId operand_of(const Step& step, std::pair<int, int> pair) const {
    return holders_[static_cast<size_t>(step.in[static_cast<size_t>(pair.second)])];
  }

  int new_slot(int first, int last, int64_t bytes) {
    slots_.push_back({first, last, round_up(bytes, kArenaAlignment), 0});
    return static_cast<int>(slots_.size() - 1);
  }

  void give_slot(BufferId of) {
    const BufferId b = holders_[static_cast<size_t>(of)];
    const LiveRange& l = live_[static_cast<size_t>(b)];
    int& slot = slot_of_[static_cast<size_t>(b)];
    const int64_t bytes = byte_size(program_.buffers[static_cast<size_t>(b)].type);
    if (l.persistent || slot >= 0 || lies_in_[static_cast<size_t>(b)] >= 0 || bytes == 0) return;
    slot = new_slot(l.first, l.last, bytes);
  }

  /// Step s writes `result` where `operand` lies, unless another of its results does.
  void take_over(int s, BufferId operand, BufferId result) {
    const std::vector<BufferId>& results = program_.steps[static_cast<size_t>(s)].out;
    const auto o = static_cast<size_t>(operand), r = static_cast<size_t>(result);
    const BufferId held = live_[o].persistent ? operand : lies_in_[o];
    if (held >= 0) {
      const bool taken = std::any_of(results.begin(), results.end(), [&](BufferId b) {
        return lies_in_[static_cast<size_t>(b)] == held;
      });
      if (!taken && slot_of_[r] < 0) lies_in_[r] = held;
      return;
    }
    const int slot = slot_of_[o];
    // slots_[slot].last == s: no other result of this step has taken the operand already.
    if (slot < 0 || slot_of_[r] >= 0 || lies_in_[r] >= 0 ||
        slots_[static_cast<size_t>(slot)].last != s ||
        std::any_of(results.begin(), results.end(),
                    [&](BufferId b) { return slot_of_[static_cast<size_t>(b)] == slot; })) {
      return;
    }
    slot_of_[r] = slot;
    slots_[static_cast<size_t>(slot)].last = live_[r].last;
  }

  const Program& program_;
  const std::vector<BufferId> holders_;
  const std::vector<LiveRange> live_;
  std::vector<Slot> slots_;
  std::vector<int> slot_of_;  // by buffer, -1: none
  // By buffer the persistent one whose memory it takes over, -1: none. Accumulated gradients are
  // reduced where they lie.
  std::vector<BufferId> lies_in_;
  std::vector<int> workspace_slot_;  // by step, -1: none
};

}  // namespace

std::vector<BufferId> memory_holders(const Program& program) {
  std::vector<int> writers(program.buffers.size(), 0);
  std::vector<bool> persistent(program.buffers.size(), false);
  for (const Binding& b : program.bindings) {
    ++writers[static_cast<size_t>(b.buffer)];
    persistent[static_cast<size_t>(b.buffer)] = is_persistent(b.role);
  }
  for (const auto* steps : {&program.setup, &program.steps}) {
    for (const Step& step : *steps) {
      for (BufferId b : step.out) {
        ++writers[static_cast<size_t>(b)];
        if (steps == &program.setup) persistent[static_cast<size_t>(b)] = true;
      }
    }
  }
  const auto written_once = [&](BufferId b) {
    return writers[static_cast<size_t>(b)] == 1 && !persistent[static_cast<size_t>(b)];
  };
  std::vector<BufferId> holders(program.buffers.size());
  for (size_t b = 0; b < holders.size(); ++b) holders[b] = static_cast<BufferId>(b);
  for (const Step& step : program.steps) {
    if (is_reshape(step) && written_once(step.in[0]) && written_once(step.out[0]))
      holders[static_cast<size_t>(step.out[0])] = holders[static_cast<size_t>(step.in[0])];
  }
  return holders;
}

bool stays_in_place(const Program& program, const Step& step) {
  const auto offset = [&](BufferId id) { return program.buffers[static_cast<size_t>(id)].offset; };
  return is_reshape(step) && offset(step.in[0]) == offset(step.out[0]);
}

std::vector<bool> runs_in_place(const Program& program) {
  const std::vector<BufferId> holders = memory_holders(program);
  const std::vector<LiveRange> live = live_ranges(program, holders);
  std::vector<bool> out;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const auto pairs = alias_pairs(program.steps[s]);
    const std::pair<int, int> first(0, 0);
    out.push_back(std::find(pairs.begin(), pairs.end(), first) != pairs.end() &&
                  may_alias(program, live, holders, static_cast<int>(s), first));
  }
  return out;
}

void place_memory(Program& program, const NeedsOf& needs, const Program* persistent_like,
                  Collectives collectives, double hold_fraction, const ArenaLimits& limits) {
  for (Step& step : program.setup) {
    SR_REQUIRE(!needs || needs(program, step) == StepBytes(), internal, "setup '", step.node.name,
               "' wants a workspace");
  }
  for (Step& step : program.steps) step.needs = needs ? needs(program, step) : StepBytes();
  place_persistent(program, persistent_like);
  SlotMap(program).place(program, collectives, hold_fraction, limits);
  cut_chains(program);
}

ArenaUse arena_use(const Program& program, const Graph& graph) {
  const std::vector<BufferId> holders = memory_holders(program);
  const std::vector<LiveRange> live = live_ranges(program, holders);
  const int steps = static_cast<int>(program.steps.size());
  std::vector<int64_t> change(program.steps.size() + 2, 0);
  // Buffers at one offset that follow each other without a step between share memory in that step.
  std::vector<size_t> order;
  for (size_t b = 0; b < live.size(); ++b) {
    const bool temporary =
        !live[b].persistent && program.buffers[b].offset >= program.persistent_bytes;
    if (temporary && byte_size(program.buffers[b].type) > 0 &&
        holders[b] == static_cast<BufferId>(b))
      order.push_back(b);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(program.buffers[a].offset, live[a].first) <
           std::pair(program.buffers[b].offset, live[b].first);
  });
  for (size_t k = 0; k < order.size(); ++k) {
    const size_t b = order[k];
    int first = std::max(live[b].first, 0);
    if (k > 0 && program.buffers[order[k - 1]].offset == program.buffers[b].offset)
      first = std::max(first, live[order[k - 1]].last + 1);
    const int last = std::min(live[b].last, steps - 1);
    if (first > last) continue;
    const int64_t bytes = round_up(byte_size(program.buffers[b].type), kArenaAlignment);
    change[static_cast<size_t>(first)] += bytes;
    change[static_cast<size_t>(last) + 1] -= bytes;
  }
  std::map<std::string_view, size_t> index;
  for (size_t n = 0; n < graph.nodes().size(); ++n) index[graph.nodes()[n].name] = n;
  ArenaUse out;
  out.bytes = program.arena_bytes;
  out.alive.assign(graph.nodes().size(), 0);
  int64_t now = program.persistent_bytes;
  size_t node = 0;
  int64_t before = 0;  // in front of the node whose kernel comes next
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    now += change[s];
    const int64_t held = now + round_up(step.needs.workspace, kArenaAlignment);
    const auto found = step.kind == Step::Kind::kernel ? index.find(step.node.name) : index.end();
    if (found != index.end()) {
      node = found->second;
      out.alive[node] = std::max({out.alive[node], held, before});
      before = 0;
    } else {
      before = std::max(before, held);
    }
  }
  if (!out.alive.empty()) out.alive[node] = std::max(out.alive[node], before);
  return out;
}

}  // namespace shardrun
