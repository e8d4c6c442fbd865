// Printing Programs, for people and tests.
#include "graph/program.h"

#include <sstream>

namespace shardrun {
namespace {

void print_bindings(std::ostream& out, std::string_view what, const std::vector<Binding>& bindings,
                    const Program& p) {
  for (const Binding& b : bindings) {
    out << "  " << what << " " << b.name << " = %" << b.buffer << " " << b.global << " "
        << to_string(b.sharding, p.mesh) << " box " << box_text(b.box)
        << (b.zeroed_each_step ? " zeroed each step" : "") << "\n";
  }
}

void print_buffers(std::ostream& out, const std::vector<BufferId>& ids, const Program& p) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const Buffer& b = p.buffers[static_cast<size_t>(ids[i])];
    out << (i ? ", " : "") << "%" << ids[i] << " " << b.name << ":" << b.type;
    if (b.offset >= 0) out << "@" << b.offset;
  }
}

void print_step(std::ostream& out, std::string_view when, const Step& step,
                const Program& program) {
  out << "  " << when << " ";
  print_buffers(out, step.out, program);
  out << " = ";
  if (step.kind == Step::Kind::kernel) {
    out << step.node.op << "{" << to_string(step.node.attrs) << "}";
  } else {
    out << to_string(*step.collective, program.mesh, program.rank);
  }
  out << "(";
  print_buffers(out, step.in, program);
  out << ")";
  if (step.call != 0) out << " in call " << step.call;
  if (step.needs.workspace > 0)
    out << " workspace " << step.needs.workspace << "@" << step.workspace_offset;
  if (step.needs.kept > 0) out << " keeps " << step.needs.kept << "@" << step.kept_offset;
  out << "  # " << step.node.name << "\n";
}

/// In front of its steps: "fused 3 steps by rows, 12 at a time".
void print_fused(std::ostream& out, const FusedSteps& fused, const Program& program) {
  const bool rows = fused.kind == FusedSteps::Kind::rows;
  out << "  fused " << fused.size << " steps by " << (rows ? "rows" : "elements");
  if (fused.rows_at_once > 0) out << ", " << fused.rows_at_once << " at a time";
  if (!fused.unwritten.empty()) {
    out << ", unwritten ";
    print_buffers(out, fused.unwritten, program);
  }
  out << "\n";
}

}  // namespace

const TensorType& type_of(const Program& program, BufferId b) {
  return program.buffers[static_cast<size_t>(b)].type;
}

std::vector<TensorType> types_of(const Program& program, const std::vector<BufferId>& ids) {
  std::vector<TensorType> out;
  for (BufferId b : ids) out.push_back(type_of(program, b));
  return out;
}

bool joins_call(const Program& program, size_t s) {
  return s > 0 && program.steps[s].call != 0 && program.steps[s].call == program.steps[s - 1].call;
}

size_t call_size(const Program& program, size_t first) {
  size_t end = first + 1;
  while (end < program.steps.size() && joins_call(program, end)) ++end;
  return end - first;
}

std::string to_string(const Program& program) {
  std::ostringstream out;
  out << "rank " << program.rank << " of mesh " << program.mesh.to_string() << ", arena "
      << program.arena_bytes << " bytes, " << program.persistent_bytes << " of them persistent\n";
  print_bindings(out, "bind", program.bindings, program);
  for (const Step& step : program.setup) print_step(out, "setup", step, program);
  auto fused = program.fused.begin();
  for (size_t s = 0; s < program.steps.size(); ++s) {
    if (fused != program.fused.end() && fused->first == s) print_fused(out, *fused++, program);
    const Step& step = program.steps[s];
    print_step(out, step.phase == Phase::update ? "update" : "micro", step, program);
  }
  print_bindings(out, "output", program.outputs, program);
  print_bindings(out, "metric", program.metrics, program);
  return out.str();
}

}  // namespace shardrun
