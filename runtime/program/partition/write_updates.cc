// In place where that is right, else by a copy.
#include "program/partition/write_updates.h"

#include <algorithm>
#include <numeric>

#include "graph/op_def.h"

namespace shardrun {
namespace {

bool runs_in_place(const Step& step, const HeldUpdate& u) {
  if (step.kind != Step::Kind::kernel) return false;
  if (std::count(step.in.begin(), step.in.end(), u.persistent) != 1) return false;
  for (const auto& [result, operand] : op_def(step.node.op).in_place) {
    if (static_cast<size_t>(result) < step.out.size() &&
        step.out[static_cast<size_t>(result)] == u.next &&
        static_cast<size_t>(operand) < step.in.size() &&
        step.in[static_cast<size_t>(operand)] == u.persistent) {
      return true;
    }
  }
  return false;
}

}  // namespace

void write_updates(Skeleton& skeleton, const std::vector<HeldUpdate>& updates) {
  Program& program = skeleton.program;
  const size_t n = program.buffers.size(), step_count = program.steps.size();
  std::vector<int> producer(n, -1), last_read(n, -1);
  for (size_t s = 0; s < step_count; ++s) {
    for (BufferId b : program.steps[s].in) last_read[static_cast<size_t>(b)] = static_cast<int>(s);
    for (BufferId b : program.steps[s].out) producer[static_cast<size_t>(b)] = static_cast<int>(s);
  }
  std::vector<BufferId> becomes(n);
  std::iota(becomes.begin(), becomes.end(), 0);
  std::vector<size_t> behind(step_count);  // by step: that step, or the one that a copy follows
  std::iota(behind.begin(), behind.end(), size_t{0});
  for (const HeldUpdate& u : updates) {
    if (u.next == u.persistent) continue;
    const int made = producer[static_cast<size_t>(u.next)];
    const int read = last_read[static_cast<size_t>(u.persistent)];
    SR_REQUIRE(made >= 0, internal, "update of '", u.name, "' is made by no step");
    const Step& maker = program.steps[static_cast<size_t>(made)];
    const bool taken = becomes[static_cast<size_t>(u.next)] != u.next;
    if (!taken && (read < made || (read == made && runs_in_place(maker, u)))) {
      becomes[static_cast<size_t>(u.next)] = u.persistent;
      continue;
    }
    const auto after = static_cast<size_t>(std::max(made, read));
    const Phase phase = maker.phase;
    SR_REQUIRE(program.steps[after].phase == phase, internal, "update of '", u.name,
               "' is made in every micro-batch, but step '", program.steps[after].node.name,
               "' of the update phase reads the old value");
    for (size_t s = after + 1; s < step_count; ++s) {
      std::vector<BufferId>& in = program.steps[s].in;
      std::replace(in.begin(), in.end(), u.next, u.persistent);
    }
    skeleton.add_copy(u.next, u.persistent, phase, u.name);
    behind.push_back(after);
  }
  std::vector<size_t> order(behind.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return behind[a] < behind[b]; });
  skeleton.reorder(order);
  const auto rename = [&](BufferId& id) { id = becomes[static_cast<size_t>(id)]; };
  for (Step& step : program.steps) {
    for (auto* list : {&step.in, &step.out}) std::for_each(list->begin(), list->end(), rename);
  }
  for (auto* list : {&program.outputs, &program.metrics}) {
    for (Binding& b : *list) rename(b.buffer);
  }
}

}  // namespace shardrun
