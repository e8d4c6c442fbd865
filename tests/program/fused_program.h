// A graph of a few nodes, its plan, and the program after the fusion patterns.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "program/compile.h"
#include "tests/exec/random_plan.h"
#include "tests/support/memory_check.h"

namespace shardrun::test {

/// "neg all_reduce add": of each step the op or the kind of the collective.
inline std::string kinds(const Program& p) {
  std::string out;
  for (const Step& s : p.steps) {
    out += (out.empty() ? "" : " ");
    out += s.kind == Step::Kind::kernel ? s.node.op : std::string(to_string(s.collective->kind));
  }
  return out;
}

struct FusedProgram {
  Graph g;
  Mesh mesh;
  Plan plan;

  ValueId batch(const std::string& name, TensorType type) {
    return g.add_input(name, std::move(type), Role::batch);
  }
  ValueId weight(const std::string& name, Shape shape) {
    return g.add_persistent(name, {DType::f32, std::move(shape)}, Role::parameter, Source{});
  }
  ValueId table_grad() {
    const ValueId dy = batch("dy", {DType::f32, {6, 4}}), rows = batch("rows", {DType::i64, {6}});
    return g.add("gather_grad", {dy, rows}, {{"axis", int64_t{0}}, {"size", int64_t{10}}}, "table");
  }
  ValueId product(ValueId a, ValueId b, const std::string& name) {
    return g.add("matmul", {a, b}, {{"equation", std::string("mk,kn->mn")}}, name);
  }
  ValueId narrow(ValueId value) {
    return g.add("cast", {value}, {{"to", std::string("bf16")}}, g.value(value).name + "/bf16");
  }
  void start_plan() { plan = test::replicated_plan(g, mesh); }
  /// w - lr (…) w of a gradient that is fed.
  void update(ValueId w, Phase phase = Phase::update) {
    const ValueId grad = batch("grad", g.type(w));
    const ValueId buffer = g.add_persistent("momentum", g.type(w), Role::state, Source{});
    const ValueId lr = g.add_input("lr", {DType::f32, {}}, Role::scalar),
                  step = g.add_input("step", {DType::i64, {}}, Role::scalar);
    g.phase = phase;
    const auto next =
        g.add_node("sgd", {w, grad, buffer, lr, step, lr},
                   {{"momentum", 0.9}, {"weight_decay", 0.0}, {"nesterov", int64_t{0}}}, "update");
    g.phase = Phase::micro;
    g.updates[w] = next[0];
    g.updates[buffer] = next[1];
  }
  /// Of a backend that gains by these steps.
  Program after_patterns(const TakesStep& takes) const {
    return compile(g, plan, Cluster{}, 0, {.takes = takes}, {.stop_after = "fuse_patterns"});
  }
  Program fused(bool keep = false) {
    plan.keep_casts = keep;
    const Program program = compile(g, plan, Cluster{}, 0, {});
    check_memory(program);
    return program;
  }
};

}  // namespace shardrun::test
