// Which steps may be joined: from each on as many as memory allows.
#include "exec/joined_steps.h"

#include <algorithm>
#include <set>

namespace shardrun {
namespace {

constexpr size_t kMostSteps = 32;      // of one kernel: registers are few
constexpr size_t kMostPointers = 100;  // that a kernel is handed

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
  // What replaces a persistent value is written where that lies.
  for (size_t b = 0; b < needs.size(); ++b) {
    if (program.buffers[b].offset < program.persistent_bytes) needs[b].bound = true;
  }
  return needs;
}

struct Access {
  const char* begin;
  int64_t bytes;
  bool whole;  // element i of it belongs to element i of the chain's shape
  int64_t element_bytes;
  size_t step;
};

bool overlap(const Access& a, const Access& b) {
  return a.bytes > 0 && b.bytes > 0 && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

/// Do the same elements of both lie in the same bytes?
bool match(const Access& a, const Access& b) {
  return a.whole && b.whole && a.begin == b.begin && a.element_bytes == b.element_bytes;
}

/// Some steps as one kernel, and what it does to memory.
struct Candidate {
  JoinedSteps joined;
  std::vector<Access> reads, writes, kept_back;

  Candidate(const Program& program, std::span<const RowStep> steps, const std::vector<Needs>& needs,
            size_t first, size_t end) {
    joined.size = end - first;
    const Shape& shape = steps[first].out[0].type.shape;
    std::map<BufferId, int> places;
    const auto access = [&](const TensorView& view, size_t step) {
      return Access{static_cast<const char*>(view.data), byte_size(view.type),
                    view.type.shape == shape, size_of(view.type.dtype), step};
    };
    ElementChain& chain = joined.chain;
    for (size_t s = first; s < end; ++s) {
      const Step& step = program.steps[s];
      ElementChain::Call call{step.node, {}, 0};
      for (size_t i = 0; i < step.in.size(); ++i) {
        const auto [it, fresh] = places.emplace(step.in[i], static_cast<int>(chain.values.size()));
        if (fresh) {
          chain.values.push_back(steps[s].in[i].type);
          chain.reads.push_back(it->second);
          joined.in.push_back(steps[s].in[i]);
        }
        const bool from_memory = std::count(chain.reads.begin(), chain.reads.end(), it->second) > 0;
        if (from_memory) reads.push_back(access(steps[s].in[i], s));
        call.in.push_back(it->second);
      }
      const TensorView& out = steps[s].out[0];
      call.out = static_cast<int>(chain.values.size());
      chain.values.push_back(out.type);
      places[step.out[0]] = call.out;
      const Needs& need = needs[static_cast<size_t>(step.out[0])];
      if (need.bound || need.last_reader >= end) {
        chain.writes.push_back(call.out);
        joined.out.push_back(out);
        writes.push_back(access(out, s));
      } else {
        kept_back.push_back(access(out, s));
      }
      chain.calls.push_back(std::move(call));
    }
  }

  bool is_right() const {
    if (writes.empty() || reads.size() + writes.size() > kMostPointers) return false;
    for (const Access& read : reads) {
      for (const Access& write : writes) {
        if (overlap(read, write) && !(match(read, write) && read.step <= write.step)) return false;
      }
      for (const Access& write : kept_back) {
        if (overlap(read, write) && read.step > write.step) return false;
      }
    }
    for (size_t a = 0; a < writes.size(); ++a) {
      for (size_t b = a + 1; b < writes.size(); ++b) {
        if (overlap(writes[a], writes[b]) && !match(writes[a], writes[b])) return false;
      }
    }
    return true;
  }
};

}  // namespace

std::map<size_t, JoinedSteps> joined_steps(const Program& program, std::span<const RowStep> steps) {
  const std::vector<Needs> needs = needs_of(program);
  const auto joins = [&](size_t first, size_t s) {
    const PreparedKernel *a = steps[first].kernel, *b = steps[s].kernel;
    return a != nullptr && b != nullptr && a->join != nullptr && a->join == b->join &&
           steps[s].out.size() == 1 && steps[s].out[0].count() > 0 &&
           steps[s].out[0].type.shape == steps[first].out[0].type.shape &&
           program.steps[s].phase == program.steps[first].phase;
  };
  std::map<size_t, JoinedSteps> all;
  for (size_t first = 0; first < steps.size(); ++first) {
    size_t end = first;
    while (end < steps.size() && end - first < kMostSteps && joins(first, end)) ++end;
    for (; end > first + 1; --end) {
      Candidate candidate(program, steps, needs, first, end);
      if (!candidate.is_right()) continue;
      all.emplace(first, std::move(candidate.joined));
      first = end - 1;
      break;
    }
  }
  return all;
}

}  // namespace shardrun
