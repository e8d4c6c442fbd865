// Ops of Programs join the registry of ops when a program starts. graph knows nothing of them, and
// the linker keeps this file for its symbol (CMakeLists.txt).
#include "program/ops/families.h"

namespace shardrun {

std::vector<OpDef> program_ops() {
  std::vector<OpDef> all;
  for (auto family : {fused_ops, packing_ops, row_ops, fused_loss_ops}) {
    for (OpDef& def : family()) all.push_back(std::move(def));
  }
  return all;
}

namespace {

/// The registry is built when it is first asked for, so the order of such initialisers is of no
/// matter; and these families hold nothing that another one makes. A linker that has libshardrun
/// may take this file once more, for anything that it defines; then the ops are there.
bool join_registry() {
  for (OpDef& def : program_ops()) {
    if (find_op(def.name) == nullptr) register_op(std::move(def));
  }
  return true;
}

}  // namespace

extern "C" {
extern const bool shardrun_program_ops;
const bool shardrun_program_ops = join_registry();
}

}  // namespace shardrun
