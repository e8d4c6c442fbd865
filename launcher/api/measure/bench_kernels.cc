// Kernels alone, compared with what the machine reaches at best.
#include "measure/bench_kernels.h"

#include <algorithm>
#include <map>

#include "graph/op_def.h"
#include "planner/cost/kernel_cost.h"
#include "program/memory.h"
#include "program/ops/pack.h"
#include "ranks/backend.h"
#include "ranks/world.h"

namespace shardrun {
namespace {

constexpr double kMemory = 192 << 20;  // bytes of the add that measures memory of a core: beyond
                                       // all caches

KernelTime time_of(const CalibrationCall& call, const Ceilings& ceilings) {
  const std::vector<TensorType> out = infer_types(call.node, call.in);
  const KernelWork work = work_of(call.node, call.in, out);
  KernelTime time;
  time.op = call.node.op;
  time.dtype = to_string(work.dtype);
  time.kernel = select_kernel(backend().kernels, KernelCall{call.node, call.in, out}).impl;
  for (const TensorType& t : call.in) time.in.push_back(str(t));
  for (const TensorType& t : out) time.out.push_back(str(t));
  time.places = call.places;
  time.bytes = work.bytes;
  time.flops = work.flops;
  const auto rate = ceilings.flops.find(time.dtype);
  const double flops = rate == ceilings.flops.end() ? ceilings.flops.at("f32") : rate->second;
  time.least = std::max(work.flops / flops, work.bytes / ceilings.bandwidth);
  return time;
}

void sort_worst_first(std::vector<KernelTime>& kernels) {
  std::stable_sort(kernels.begin(), kernels.end(),
                   [](const KernelTime& a, const KernelTime& b) { return a.lost() > b.lost(); });
}

}  // namespace

RankTeam own_team(World& world) {
  SR_REQUIRE(world.size() == 1, invalid_input,
             "kernels are measured on one rank with all its threads, not on ", world.size());
  share_cores(world.impl());
  return {device_alone(), world.impl().kernel_threads};
}

Ceilings measure_ceilings(RankTeam& team) {
  Ceilings out;
  out.threads = team.threads();
  out.device = team.device().name();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    double& best = out.flops[std::string(to_string(dtype))];
    const auto flops = [](int64_t n) {
      const auto edge = static_cast<double>(n);
      return 2 * edge * edge * edge;
    };
    for (int64_t n = 1024; n <= 2048 || flops(n) <= team.extent().flops(dtype); n *= 2)
      best = std::max(best, flops(n) / measure_call(team, matmul_call(dtype, "nn", {n, n, n})));
  }
  const double memory = kMemory * team.extent().times;
  const auto elements = static_cast<int64_t>(memory / 3 / sizeof(float));
  CalibrationCall add;
  add.node.op = add.node.name = "add";
  add.in.assign(2, {DType::f32, {elements / 512, 512}});
  for (const int place : {-1, 0}) {
    add.places = {place};
    out.bandwidth = std::max(out.bandwidth, memory / measure_call(team, add));
  }
  return out;
}

/// Of each result of a step the operand in whose place it lies.
std::vector<int> places_of(const Program& program, const Step& step) {
  const auto offset = [&](BufferId id) { return program.buffers[static_cast<size_t>(id)].offset; };
  std::vector<int> places;
  for (const BufferId out : step.out) {
    const auto in = std::find_if(step.in.begin(), step.in.end(),
                                 [&](BufferId id) { return offset(id) == offset(out); });
    places.push_back(in == step.in.end() ? -1 : static_cast<int>(in - step.in.begin()));
  }
  return places;
}

std::vector<ProgramCall> calls_of(const Program& program) {
  std::vector<ProgramCall> out;
  std::map<std::string, size_t> known;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    if (step.kind != Step::Kind::kernel) continue;
    ProgramCall call;
    call.call.node = step.node;
    std::string key = str(step.node.op, "|", to_string(step.node.attrs));
    for (const BufferId id : step.in) {
      call.call.in.push_back(program.buffers[static_cast<size_t>(id)].type);
      key += str("|", call.call.in.back());
    }
    call.stays = stays_in_place(program, step);
    call.call.places = places_of(program, step);
    call.call.from_memory = is_update(without_layouts(step.node).op);
    for (const int place : call.call.places) key += str("|", place);
    const auto [at, fresh] = known.emplace(key + (call.stays ? "|stays" : ""), out.size());
    if (fresh) out.push_back(std::move(call));
    out[at->second].calls += program.runs(step);
  }
  return out;
}

KernelBench bench_kernels(World& world) {
  return at_boundary([&] {
    RankTeam team = own_team(world);
    KernelBench out{measure_ceilings(team), {}};
    const auto add = [&](const CalibrationCall& call) {
      KernelTime time = time_of(call, out.ceilings);
      time.seconds = measure_call(team, call);
      out.kernels.push_back(std::move(time));
    };
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const char* layout : {"nn", "nt", "tn"})
        add(matmul_call(dtype, layout, {256, 2048, 1024}));
      for (const char* op : {"attention", "attention_grad"})
        add(attention_call(dtype, op, {12, 512, 64}));
      for (const CalibrationOp& op : calibration_ops()) {
        CalibrationCall call;
        try {  // not every op is there in every type
          call = op.call(dtype, (op.by_flops ? 1e9 : 0x1p24) * op.times(team.extent(), dtype));
          infer_types(call.node, call.in);
        } catch (const Error&) {
          continue;
        }
        add(call);
      }
    }
    sort_worst_first(out.kernels);
    return out;
  });
}

KernelBench bench_calls(RankTeam& team, const Program& program) {
  KernelBench out{measure_ceilings(team), {}};
  for (const ProgramCall& call : calls_of(program)) {
    KernelTime time = time_of(call.call, out.ceilings);
    time.node = call.call.node.name;
    time.calls = call.calls;
    if (call.stays) {
      time.bytes = time.least = 0;
    } else {
      time.seconds = measure_call(team, call.call);
    }
    out.kernels.push_back(std::move(time));
  }
  sort_worst_first(out.kernels);
  return out;
}

}  // namespace shardrun
