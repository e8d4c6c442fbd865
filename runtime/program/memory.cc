// Memory: live ranges, aliasing and offsets in the arena.
//
// Time is the index of a step. A micro-batch runs the micro steps from the start again, so what
// lives from one micro-batch into the next is persistent; everything else is made anew in each.
// Values that cross into the update phase are the last micro-batch's.
#include "program/memory.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/round_up.h"
#include "graph/op_def.h"
#include "program/arena_slots.h"
#include "program/collective_waits.h"
#include "program/fusion/chains.h"

namespace shardrun {
namespace {

constexpr int kNever = std::numeric_limits<int>::max();
/// Where collectives' memory cannot be held for so many steps, this fraction is tried.
constexpr int kShorterWindow = 4;

/// Steps during which a buffer holds something, both inclusive. -1: filled by the host before step
/// 0; the number of steps: read by the host after the last.
struct Live {
  int first = kNever, last = -1;
  bool persistent = false;
  bool zeroed = false;  // persistent memory whose contents end with their last reader
};

bool is_reshape(const Step& step) {
  return step.kind == Step::Kind::kernel && step.node.op == "reshape";
}

/// A buffer that others are held by is alive for as long as they are.
std::vector<Live> live_ranges(const Program& program, const std::vector<BufferId>& holders) {
  std::vector<Live> live(program.buffers.size());
  const int end = static_cast<int>(program.steps.size());
  auto at = [&](BufferId b) -> Live& { return live[static_cast<size_t>(b)]; };
  for (const Binding& b : program.bindings) {
    Live& l = at(b.buffer);
    l.first = -1;
    l.persistent = is_persistent(b.role);
    l.zeroed = b.zeroed_each_step;
    // What is the same in the next step need not be filled again, batches too.
    if (!l.zeroed) l.last = end;
  }
  for (const Step& step : program.setup) {
    for (BufferId b : step.out) at(b) = {-1, end, true};
  }
  for (int s = 0; s < end; ++s) {
    const Step& step = program.steps[static_cast<size_t>(s)];
    for (BufferId b : step.in) {
      SR_REQUIRE(at(b).first <= s, internal, "step '", step.node.name, "' reads '",
                 program.buffers[static_cast<size_t>(b)].name, "' before it is made");
      at(b).last = std::max(at(b).last, s);
    }
    for (BufferId b : step.out) {
      at(b).first = std::min(at(b).first, s);
      at(b).last = std::max(at(b).last, s);
    }
  }
  for (const auto* list : {&program.outputs, &program.metrics}) {
    for (const Binding& b : *list) at(b.buffer).last = end;
  }
  for (size_t b = 0; b < holders.size(); ++b)
    at(holders[b]).last = std::max(at(holders[b]).last, live[b].last);
  for (Live& l : live) {  // what the micro phase reads last is there in the next micro-batch
    const bool ends = l.last >= 0 && l.last < end &&
                      program.steps[static_cast<size_t>(l.last)].phase == Phase::update;
    if (l.zeroed && !ends) l.last = end;
  }
  return live;
}

/// {result, operand} positions of `step` that may share memory.
std::vector<std::pair<int, int>> alias_pairs(const Step& step) {
  if (step.kind == Step::Kind::kernel) return op_def(step.node.op).in_place;
  if (step.collective->traits().in_place) return {{0, 0}};
  return {};
}

/// May result `r` take the memory of operand `o`, by what the step does and what lives on?
bool may_alias(const Program& program, const std::vector<Live>& live,
               const std::vector<BufferId>& holders, int s, std::pair<int, int> pair) {
  const Step& step = program.steps[static_cast<size_t>(s)];
  const auto [r, o] = pair;
  if (static_cast<size_t>(r) >= step.out.size() || static_cast<size_t>(o) >= step.in.size())
    return false;
  const auto holder = [&](BufferId b) { return holders[static_cast<size_t>(b)]; };
  const BufferId result = step.out[static_cast<size_t>(r)],
                 operand = holder(step.in[static_cast<size_t>(o)]);
  if (result == operand || holder(result) != result) return false;
  const Live &from = live[static_cast<size_t>(operand)], &to = live[static_cast<size_t>(result)];
  return (!from.persistent || from.zeroed) && !to.persistent && from.last == s && to.first == s &&
         std::count_if(step.in.begin(), step.in.end(),
                       [&](BufferId b) { return holder(b) == operand; }) == 1 &&
         byte_size(program.buffers[static_cast<size_t>(operand)].type) ==
             byte_size(program.buffers[static_cast<size_t>(result)].type);
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
  void place(Program& program, Collectives collectives) {
    const SlotsPlaced found = place_slots(slots_, static_cast<int>(program.steps.size()));
    const bool overlap = collectives == Collectives::apart;
    bool placed = false;
    if (!program.fused.empty()) {
      const std::vector<Slot> apart = slots_for_chains();
      placed = (overlap && hold_for_overlap(apart, found)) || place_within(apart, found);
    }
    if (overlap && !placed) hold_for_overlap(slots_, found);
    program.arena_bytes = program.persistent_bytes + found.bytes;
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

  /// Takes the slots, which are held longer, as far as they come to no more bytes than was found.
  /// The order that was best for the shorter ones is: no other was seen to do where it did not.
  bool place_within(std::vector<Slot> slots, const SlotsPlaced& found) {
    if (!place_slots_within(slots, static_cast<int>(program_.steps.size()), found)) return false;
    slots_ = std::move(slots);
    return true;
  }

  /// What a collective that overlaps with kernels uses is given to no kernel before one waits for
  /// it anyway, as far as that takes no more bytes than was found: of several windows the longest
  /// that does not. False: none did.
  bool hold_for_overlap(const std::vector<Slot>& slots, const SlotsPlaced& found) {
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
    const int steps = static_cast<int>(ends.size());
    for (int window = steps; window > 0; window /= kShorterWindow) {
      std::vector<Slot> held = lengthened(slots, wanted, window, steps);
      if (held == slots) return false;
      if (place_within(std::move(held), found)) return true;
    }
    return false;
  }

  BufferId operand_of(const Step& step, std::pair<int, int> pair) const {
    return holders_[static_cast<size_t>(step.in[static_cast<size_t>(pair.second)])];
  }

  int new_slot(int first, int last, int64_t bytes) {
    slots_.push_back({first, last, round_up(bytes, kArenaAlignment), 0});
    return static_cast<int>(slots_.size() - 1);
  }

  void give_slot(BufferId of) {
    const BufferId b = holders_[static_cast<size_t>(of)];
    const Live& l = live_[static_cast<size_t>(b)];
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
  const std::vector<Live> live_;
  std::vector<Slot> slots_;
  std::vector<int> slot_of_;  // by buffer, -1: none
  // By buffer the persistent one whose memory it takes over, -1: none. Accumulated gradients are
  // reduced where they lie.
  std::vector<BufferId> lies_in_;
  std::vector<int> workspace_slot_;  // by step, -1: none
};

/// Runs through the steps with what is alive in each; fails where two of these overlap.
class MemoryCheck {
 public:
  explicit MemoryCheck(const Program& program)
      : program_(program),
        holders_(memory_holders(program)),
        live_(live_ranges(program, holders_)),
        born_(program.steps.size()),
        dies_(program.steps.size()) {}

  void run() {
    for (size_t b = 0; b < live_.size(); ++b) begin(static_cast<BufferId>(b));
    for (const Step& step : program_.steps)
      take(step.kept_offset, step.needs.kept, step.node.name + " (kept)");
    for (size_t b = 0; b < live_.size(); ++b) {
      if (live_[b].last < 0 && !live_[b].persistent) release(static_cast<BufferId>(b));
    }
    for (size_t s = 0; s < program_.steps.size(); ++s) run_step(s);
  }

 private:
  struct Taken {
    int64_t end;
    std::string name;
  };

  const Buffer& buffer(BufferId b) const { return program_.buffers[static_cast<size_t>(b)]; }

  void take(int64_t offset, int64_t bytes, const std::string& name) {
    if (bytes == 0) return;
    SR_REQUIRE(offset >= 0 && offset % kArenaAlignment == 0, internal, "'", name, "' is at offset ",
               offset, ", wanted a multiple of ", kArenaAlignment);
    SR_REQUIRE(offset + bytes <= program_.arena_bytes, internal, "'", name, "' ends at ",
               offset + bytes, ", the arena at ", program_.arena_bytes);
    const auto next = taken_.lower_bound(offset);
    auto overlap = [&](const auto& other) {
      fail(ErrorKind::internal, "'", name, "' [", offset, ", ", offset + bytes, ") and '",
           other->second.name, "' [", other->first, ", ", other->second.end,
           ") are alive at once and overlap");
    };
    if (next != taken_.end() && next->first < offset + bytes) overlap(next);
    if (next != taken_.begin() && std::prev(next)->second.end > offset) overlap(std::prev(next));
    taken_[offset] = {offset + bytes, name};
  }
  void take(BufferId b) { take(buffer(b).offset, byte_size(buffer(b).type), buffer(b).name); }
  void release(BufferId b) {
    if (byte_size(buffer(b).type) > 0) taken_.erase(buffer(b).offset);
  }

  /// Takes what is there before the first step, and lists the others by step.
  void begin(BufferId id) {
    const Live& live = live_[static_cast<size_t>(id)];
    const BufferId holder = holders_[static_cast<size_t>(id)];
    SR_REQUIRE(live.first != kNever, internal, "buffer '", buffer(id).name, "' is never made");
    if (holder != id) {
      SR_REQUIRE(buffer(id).offset == buffer(holder).offset, internal, "'", buffer(id).name,
                 "' is at offset ", buffer(id).offset, ", what it is a reshape of, '",
                 buffer(holder).name, "', at ", buffer(holder).offset);
      return;
    }
    if (live.persistent) {
      SR_REQUIRE(buffer(id).offset + byte_size(buffer(id).type) <= program_.persistent_bytes,
                 internal, "persistent '", buffer(id).name, "' ends behind the persistent part");
    }
    if (live.first < 0) {
      take(id);
    } else {
      born_[static_cast<size_t>(live.first)].push_back(id);
    }
    if (live.last >= 0 && live.last < static_cast<int>(program_.steps.size()))
      dies_[static_cast<size_t>(live.last)].push_back(id);
  }

  void run_step(size_t s) {
    const Step& step = program_.steps[s];
    std::vector<BufferId> replaced;
    for (const auto& pair : alias_pairs(step)) {
      if (!may_alias(program_, live_, holders_, static_cast<int>(s), pair)) continue;
      const BufferId operand =
                         holders_[static_cast<size_t>(step.in[static_cast<size_t>(pair.second)])],
                     result = step.out[static_cast<size_t>(pair.first)];
      if (buffer(operand).offset != buffer(result).offset) continue;
      if (std::find(replaced.begin(), replaced.end(), operand) != replaced.end()) continue;
      release(operand);
      replaced.push_back(operand);
    }
    for (BufferId b : born_[s]) take(b);
    if (step.needs.workspace > 0) {
      take(step.workspace_offset, step.needs.workspace, step.node.name + " (workspace)");
      taken_.erase(step.workspace_offset);
    }
    for (BufferId b : dies_[s]) {
      if (std::find(replaced.begin(), replaced.end(), b) == replaced.end()) release(b);
    }
  }

  const Program& program_;
  const std::vector<BufferId> holders_;
  const std::vector<Live> live_;
  std::vector<std::vector<BufferId>> born_, dies_;  // by step
  std::map<int64_t, Taken> taken_;                  // by offset: what is alive now
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

std::vector<bool> runs_in_place(const Program& program) {
  const std::vector<BufferId> holders = memory_holders(program);
  const std::vector<Live> live = live_ranges(program, holders);
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
                  Collectives collectives) {
  for (Step& step : program.setup) {
    SR_REQUIRE(!needs || needs(program, step) == StepBytes(), internal, "setup '", step.node.name,
               "' wants a workspace");
  }
  for (Step& step : program.steps) step.needs = needs ? needs(program, step) : StepBytes();
  place_persistent(program, persistent_like);
  SlotMap(program).place(program, collectives);
  cut_chains(program);
}

ArenaUse arena_use(const Program& program, const Graph& graph) {
  const std::vector<BufferId> holders = memory_holders(program);
  const std::vector<Live> live = live_ranges(program, holders);
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

void check_memory(const Program& program) {
  MemoryCheck(program).run();
  Program cut = program;
  cut_chains(cut);
  SR_REQUIRE(cut.fused == program.fused, internal,
             "a chain of fused steps uses memory anew before it has been read");
}

}  // namespace shardrun
