// A check of how a Program's memory is placed.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "program/fusion/chains.h"
#include "program/live_ranges.h"
#include "program/memory.h"

namespace shardrun {

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
    const LiveRange& live = live_[static_cast<size_t>(id)];
    const BufferId holder = holders_[static_cast<size_t>(id)];
    SR_REQUIRE(live.first != LiveRange::kNever, internal, "buffer '", buffer(id).name,
               "' is never made");
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
  const std::vector<LiveRange> live_;
  std::vector<std::vector<BufferId>> born_, dies_;  // by step
  std::map<int64_t, Taken> taken_;                  // by offset: what is alive now
};
/// Throws internal naming both if two buffers that are alive at once overlap (in-place pairs
/// and reshapes apart), if a reshape's result lies elsewhere than its operand, or if memory does
/// not allow a chain of fused steps.
inline void check_memory(const Program& program) {
  MemoryCheck(program).run();
  Program cut = program;
  cut_chains(cut);
  SR_REQUIRE(cut.fused == program.fused, internal,
             "a chain of fused steps uses memory anew before it has been read");
}
}  // namespace shardrun
