// Makers and readers of buffers, and taking steps out.
#include "program/step_uses.h"

#include "graph/ops/optimizer.h"

namespace shardrun {

Uses::Uses(const Program& program)
    : makers_(program.buffers.size()),
      readers_(program.buffers.size()),
      bound_(program.buffers.size()),
      given_(program.buffers.size()) {
  note(program, 0, program.steps.size());
  for (const auto* list : {&program.bindings, &program.outputs, &program.metrics}) {
    for (const Binding& b : *list) bound_[static_cast<size_t>(b.buffer)] = true;
  }
  for (const Binding& b : program.bindings) given_[static_cast<size_t>(b.buffer)] = true;
}

void Uses::forget(const Program& program, size_t first, size_t last) {
  const auto drop = [&](std::vector<size_t>& of) {
    of.erase(std::lower_bound(of.begin(), of.end(), first),
             std::lower_bound(of.begin(), of.end(), last));
  };
  for (size_t s = first; s < last; ++s) {
    for (BufferId b : program.steps[s].in) drop(readers_[static_cast<size_t>(b)]);
    for (BufferId b : program.steps[s].out) drop(makers_[static_cast<size_t>(b)]);
  }
}

void Uses::note(const Program& program, size_t first, size_t last) {
  const auto put = [](std::vector<size_t>& of, size_t s) {
    of.insert(std::upper_bound(of.begin(), of.end(), s), s);
  };
  for (size_t s = first; s < last; ++s) {
    for (BufferId b : program.steps[s].in) put(readers_[static_cast<size_t>(b)], s);
    for (BufferId b : program.steps[s].out) put(makers_[static_cast<size_t>(b)], s);
  }
}

bool is_kernel(const Step& step, std::string_view op) {
  return step.kind == Step::Kind::kernel && step.node.op == op;
}

const Step* made_for(const Program& program, const Uses& uses, BufferId made, std::string_view op,
                     size_t s, const std::vector<size_t>& readers) {
  if (!uses.passing(made) || uses.readers(made) != readers) return nullptr;
  const size_t by = uses.makers(made)[0];
  const Step& maker = program.steps[by];
  if (!is_kernel(maker, op) || maker.phase != program.steps[s].phase) return nullptr;
  for (BufferId b : maker.in) {
    if (uses.written_between(b, by, s)) return nullptr;
  }
  return &maker;
}

bool is_update(const Step& step) {
  return step.kind == Step::Kind::kernel && is_update(step.node.op);
}

bool runs_alike(const Program& program, const Step& more, const Step& alone,
                const RunsAlike& asked) {
  if (!asked) return true;
  const std::vector<TensorType> in = types_of(program, more.in), out = types_of(program, more.out),
                                own_in = types_of(program, alone.in),
                                own_out = types_of(program, alone.out);
  return asked({more.node, in, out}, {alone.node, own_in, own_out});
}

std::set<BufferId> buffers_of(const Program& program, Role role) {
  std::set<BufferId> out;
  for (const Binding& b : program.bindings) {
    if (b.role == role) out.insert(b.buffer);
  }
  return out;
}

std::vector<BufferId> drop_unused_buffers(Program& program) {
  std::vector<BufferId> renamed(program.buffers.size(), -1);
  const auto visit = [&](auto&& f) {
    for (auto* steps : {&program.setup, &program.steps}) {
      for (Step& step : *steps) {
        for (auto* list : {&step.in, &step.out}) {
          for (BufferId& b : *list) f(b);
        }
      }
    }
    for (auto* list : {&program.bindings, &program.outputs, &program.metrics}) {
      for (Binding& b : *list) f(b.buffer);
    }
  };
  visit([&](BufferId& b) { renamed[static_cast<size_t>(b)] = 0; });
  std::vector<Buffer> buffers;
  for (size_t b = 0; b < renamed.size(); ++b) {
    if (renamed[b] < 0) continue;
    renamed[b] = static_cast<BufferId>(buffers.size());
    buffers.push_back(std::move(program.buffers[b]));
  }
  program.buffers = std::move(buffers);
  visit([&](BufferId& b) { b = renamed[static_cast<size_t>(b)]; });
  for (auto* list : {&program.setup, &program.steps}) {
    for (Step& step : *list) {
      if (step.kind != Step::Kind::kernel) continue;
      step.node.inputs = step.in;
      step.node.outputs = step.out;
    }
  }
  return renamed;
}

void remove_gone(Program& program, const std::set<size_t>& gone) {
  if (gone.empty()) return;
  std::vector<Step> steps;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    if (gone.count(s) == 0) steps.push_back(std::move(program.steps[s]));
  }
  program.steps = std::move(steps);
  drop_unused_buffers(program);
}

}  // namespace shardrun
