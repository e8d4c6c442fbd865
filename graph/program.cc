// Printing Programs, for people and tests.
#include "graph/program.h"

#include <algorithm>

namespace shardrun {
namespace {

std::string box_text(const Box& box) {
  std::string out = "[";
  for (size_t d = 0; d < box.size(); ++d) {
    out += (d ? ", " : "") + std::to_string(box[d].begin) + ":" + std::to_string(box[d].end());
  }
  return out + "]";
}

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
    const Collective& c = *step.collective;
    out << to_string(c.kind) << "{axes=";
    for (size_t i = 0; i < c.axes.size(); ++i) {
      out << (i ? "," : "") << program.mesh.axes()[static_cast<size_t>(c.axes[i])].name;
    }
    if (c.kind == Collective::Kind::halo_exchange || c.kind == Collective::Kind::halo_add) {
      const auto me = std::find(c.group.begin(), c.group.end(), program.rank) - c.group.begin();
      out << " " << box_text(c.in_boxes.at(static_cast<size_t>(me))) << " -> "
          << box_text(c.out_boxes.at(static_cast<size_t>(me)));
    } else if (c.kind != Collective::Kind::all_reduce && c.kind != Collective::Kind::keep_first) {
      out << " dim=" << c.dim;
    }
    if (c.kind == Collective::Kind::all_to_all) out << " to_dim=" << c.to_dim;
    if (c.kind == Collective::Kind::reduce_scatter || c.kind == Collective::Kind::all_reduce ||
        c.kind == Collective::Kind::keep_first || c.kind == Collective::Kind::row_add) {
      out << " op=" << to_string(c.op);
    }
    if (c.kind == Collective::Kind::row_route || c.kind == Collective::Kind::row_fetch ||
        c.kind == Collective::Kind::row_add)
      out << " most_named=" << c.most_named << " most_owned=" << c.most_owned;
    out << "}";
  }
  out << "(";
  print_buffers(out, step.in, program);
  out << ")";
  if (step.needs.workspace > 0)
    out << " workspace " << step.needs.workspace << "@" << step.workspace_offset;
  if (step.needs.kept > 0) out << " keeps " << step.needs.kept << "@" << step.kept_offset;
  out << "  # " << step.node.name << "\n";
}

}  // namespace

std::string_view to_string(Collective::Kind kind) {
  switch (kind) {
    case Collective::Kind::all_gather: return "all_gather";
    case Collective::Kind::reduce_scatter: return "reduce_scatter";
    case Collective::Kind::all_reduce: return "all_reduce";
    case Collective::Kind::all_to_all: return "all_to_all";
    case Collective::Kind::slice: return "slice";
    case Collective::Kind::keep_first: return "keep_first";
    case Collective::Kind::halo_exchange: return "halo_exchange";
    case Collective::Kind::halo_add: return "halo_add";
    case Collective::Kind::block_exchange: return "block_exchange";
    case Collective::Kind::row_route: return "row_route";
    case Collective::Kind::row_fetch: return "row_fetch";
    case Collective::Kind::row_add: return "row_add";
  }
  return "?";
}

int64_t routing_size(const Collective& c) {
  return 2 * static_cast<int64_t>(c.group.size()) + c.most_owned;
}

std::string to_string(const Program& program) {
  std::ostringstream out;
  out << "rank " << program.rank << " of mesh " << program.mesh.to_string() << ", arena "
      << program.arena_bytes << " bytes, " << program.persistent_bytes << " of them persistent\n";
  print_bindings(out, "bind", program.bindings, program);
  for (const Step& step : program.setup) print_step(out, "setup", step, program);
  for (const Step& step : program.steps)
    print_step(out, step.phase == Phase::update ? "update" : "micro", step, program);
  print_bindings(out, "output", program.outputs, program);
  print_bindings(out, "metric", program.metrics, program);
  return out.str();
}

}  // namespace shardrun
