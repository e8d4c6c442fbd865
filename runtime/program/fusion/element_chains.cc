// Chains of element-wise steps: from each step on as many as there are, then as memory allows.
#include <algorithm>

#include "program/fusion/chains.h"
#include "program/fusion/chains_within.h"
#include "program/fusion/places.h"

namespace shardrun {
namespace {

constexpr size_t kMostSteps = 32;      // of one kernel: registers are few
constexpr size_t kMostPointers = 100;  // that a kernel gets

/// Who needs a buffer: the last step that reads it, and whether anybody else does.
struct Needs {
  size_t last_reader = 0;
  bool bound = false;
};

std::vector<Needs> needs_of(const Program& program) {
  std::vector<Needs> needs(program.buffers.size());
  std::vector<bool> made(program.buffers.size(), false);
  for (size_t s = 0; s < program.steps.size(); ++s) {
    for (BufferId id : program.steps[s].in) {
      Needs& need = needs[static_cast<size_t>(id)];
      need.last_reader = s;
      need.bound = need.bound || !made[static_cast<size_t>(id)];  // of the turn before
    }
    for (BufferId id : program.steps[s].out) made[static_cast<size_t>(id)] = true;
  }
  for (const auto* bindings : {&program.bindings, &program.outputs, &program.metrics}) {
    for (const Binding& b : *bindings) needs[static_cast<size_t>(b.buffer)].bound = true;
  }
  for (const Step& step : program.setup) {
    for (BufferId id : step.out) needs[static_cast<size_t>(id)].bound = true;
  }
  for (size_t b = 0; b < needs.size(); ++b) {  // what lies where a persistent value does
    const int64_t offset = program.buffers[b].offset;
    if (offset >= 0 && offset < program.persistent_bytes) needs[b].bound = true;
  }
  return needs;
}

/// Some steps as one kernel, and what it does to memory.
class Candidate {
 public:
  Candidate(const Program& program, const Places& places, const std::vector<Needs>& needs,
            size_t first, size_t end) {
    chain.first = first;
    chain.size = end - first;
    const Shape& shape = type_of(program, program.steps[first].out[0]).shape;
    const auto access = [&](BufferId id, bool write, size_t s) {
      return places.access(id, write, type_of(program, id).shape == shape, s);
    };
    std::vector<BufferId> made;
    for (size_t s = first; s < end; ++s) {
      const Step& step = program.steps[s];
      for (BufferId id : step.in) {
        if (std::find(made.begin(), made.end(), id) == made.end())
          reads_.push_back(access(id, false, s));
      }
      const BufferId out = step.out[0];
      made.push_back(out);
      const Needs& need = needs[static_cast<size_t>(out)];
      const bool needed = need.bound || need.last_reader >= end;
      (needed ? writes_ : unwritten_).push_back(access(out, true, s));
      if (!needed) chain.unwritten.push_back(out);
    }
  }

  /// Is anything read after it is written, or written by two steps?
  bool is_right() const {
    if (writes_.empty() || reads_.size() + writes_.size() > kMostPointers) return false;
    for (const Access& read : reads_) {
      for (const Access& write : writes_) {
        if (read.overlaps(write) && !(match(read, write) && read.step <= write.step)) return false;
      }
      for (const Access& write : unwritten_) {
        if (read.overlaps(write) && read.step > write.step) return false;
      }
    }
    for (size_t a = 0; a < writes_.size(); ++a) {
      for (size_t b = a + 1; b < writes_.size(); ++b) {
        if (writes_[a].overlaps(writes_[b]) && !match(writes_[a], writes_[b])) return false;
      }
    }
    return true;
  }

  FusedSteps chain;

 private:
  /// Do the same elements of both lie in the same bytes?
  static bool match(const Access& a, const Access& b) {
    return a.matching && b.matching && a.begin == b.begin && a.element_bytes == b.element_bytes;
  }

  std::vector<Access> reads_, writes_, unwritten_;
};

}  // namespace

std::vector<FusedSteps> element_chains_within(const Program& program, const Places& places,
                                              std::span<const FusedSteps> runs) {
  std::vector<FusedSteps> out;
  if (runs.empty()) return out;
  const std::vector<Needs> needs = needs_of(program);
  for (const FusedSteps& run : runs) {
    for (size_t first = run.first; first + 1 < run.end(); ++first) {
      for (size_t end = std::min(run.end(), first + kMostSteps); end > first + 1; --end) {
        Candidate candidate(program, places, needs, first, end);
        if (!candidate.is_right()) continue;
        out.push_back(std::move(candidate.chain));
        first = end - 1;
        break;
      }
    }
  }
  return out;
}

}  // namespace shardrun
