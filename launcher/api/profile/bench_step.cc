// The calls of a step alone; and a step compared with its own products run alone, and its
// memory-bound traffic at measured bandwidth.
#include <algorithm>
#include <map>
#include <set>

#include "explain/figures.h"
#include "graph/rearranged.h"
#include "measure/bench_kernels.h"
#include "plan/plan.h"
#include "program/ops/post.h"
#include "ranks/world.h"
#include "train/train.h"

namespace shardrun {
namespace {

constexpr int64_t kWarmUp = 3;  // steps

/// What is made of products of matrices, and is run alone. All else goes through memory.
bool is_product(const std::string& op) {
  return op.starts_with("matmul") || op.starts_with("conv") || op.starts_with("attention");
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// Bytes that an event's steps take from memory and leave there. In a chain what one step leaves
/// the next one finds in cache.
std::map<size_t, double> bytes_of(const Timeline::Event& event, const RankProfile& profile,
                                  const Program& program) {
  std::map<size_t, double> out;
  std::set<BufferId> made;
  for (size_t s = event.step; s < event.step + event.count; ++s) {
    double bytes = profile.training[s].bytes;
    for (const BufferId id : program.steps[s].in) {
      if (made.count(id) > 0)
        bytes -= static_cast<double>(byte_size(program.buffers[static_cast<size_t>(id)].type));
    }
    out[s] = std::max(bytes, 0.0);
    made.insert(program.steps[s].out.begin(), program.steps[s].out.end());
  }
  return out;
}

/// Of what follows a product in its step: operands and a result of its own. The product is run
/// alone without.
double post_bytes(const Step& step, const Program& program) {
  if (!has_post_ops(step.node.op)) return 0;
  double bytes = 0;
  const auto add = [&](const std::vector<BufferId>& list, size_t first, size_t end) {
    for (size_t i = first; i < end; ++i)
      bytes += static_cast<double>(byte_size(program.buffers[static_cast<size_t>(list[i])].type));
  };
  add(step.in, kOwnOperands, step.in.size() - rearranged_operands(step.node));
  add(step.out, 1, step.out.size());
  return bytes;
}

/// One that is run alone, and the op that it is part of.
struct Alone {
  std::string op;
  ProgramCall product;
};
std::vector<Alone> products_of(const Program& program) {
  std::vector<Alone> out;
  for (ProgramCall& call : calls_of(program)) {
    Node& node = call.call.node;
    if (!is_product(node.op)) continue;
    Alone alone{node.op, std::move(call)};
    if (has_post_ops(alone.op)) {
      alone.product.call.node = without_post_ops(alone.product.call.node);
      alone.product.call.in.resize(kOwnOperands);
    }
    out.push_back(std::move(alone));
  }
  return out;
}

}  // namespace

KernelBench bench_kernels(World& world, const Model& model, const TrainingPlan& plan) {
  return at_boundary([&] {
    RankTeam team = own_team(world);
    return bench_calls(team, compile_for_rank(model.impl(), plan.impl(), 0).train);
  });
}

StepBench bench_step(World& world, const Model& model, const TrainingPlan& plan,
                     const TrainOptions& options, int rounds) {
  return at_boundary([&] {
    SR_REQUIRE(rounds >= 1, invalid_input, "rounds is ", rounds, ", wanted 1 or more");
    RankTeam team = own_team(world);
    StepBench out;
    out.ceilings = measure_ceilings(team);
    for (const auto& [op, flops] : arithmetic(model.impl().train))
      if (is_product(op)) out.flops += flops;
    const Program program = compile_for_rank(model.impl(), plan.impl(), 0).train;
    const std::vector<Alone> products = products_of(program);
    std::map<std::string, std::vector<double>> alone;  // per op and round
    TrainOptions timed = options;
    timed.steps = kWarmUp + rounds;
    timed.profile_steps = rounds;
    timed.on_step = [&](const StepReport& step) {
      if (step.step <= kWarmUp) return;
      StepBench::Round round{step.step_ms / 1e3, 0};
      std::map<std::string, double> now;
      for (const auto& [op, product] : products)
        now[op] += static_cast<double>(product.calls) * measure_call(team, product.call);
      for (const auto& [op, seconds] : now) {
        alone[op].push_back(seconds);
        round.products += seconds;
      }
      out.rounds.push_back(round);
    };
    // A device's steps are slower while they are recorded: they are timed before.
    if (!team.device().is_host()) {
      train(world, model, plan, timed, nullptr);
      timed.on_step = nullptr;
    }
    std::map<std::string, StepBench::Part> parts;
    train(world, model, plan, timed, [&](const RankProfile& profile) {
      const auto runs = static_cast<double>(profile.steps.size());
      for (const Timeline::Run& run : profile.steps) {
        double outside = run.end - run.begin;
        out.recorded += outside / runs;
        for (const Timeline::Event& e : run.events) {
          outside -= e.end - e.begin;
          if (const std::string host = host_work(e.step); !host.empty()) {
            ++parts[host].calls;
            parts[host].in_step += (e.end - e.begin) / runs;
            continue;
          }
          const auto bytes = bytes_of(e, profile, program);
          for (size_t s = e.step; s < e.step + e.count; ++s) {
            StepBench::Part& part = parts[profile.training[s].op];
            ++part.calls;
            part.in_step += share_of(s, e, profile.training) * (e.end - e.begin) / runs;
            part.flops += profile.training[s].flops / runs;
            part.bytes += bytes.at(s) / runs;
            part.traffic_bytes += post_bytes(program.steps[s], program) / runs;
          }
        }
        ++parts[kOutside].calls;
        parts[kOutside].in_step += outside / runs;
      }
      for (auto& [op, part] : parts) part.calls /= static_cast<int64_t>(profile.steps.size());
    });
    for (auto& [op, part] : parts) {
      part.op = op;
      part.product = is_product(op);
      if (part.product) {
        part.alone = median(alone.at(op));
      } else {
        part.traffic_bytes = part.bytes;
      }
      out.traffic_bytes += part.traffic_bytes;
      out.parts.push_back(part);
    }
    std::stable_sort(out.parts.begin(), out.parts.end(),
                     [](const auto& a, const auto& b) { return a.in_step > b.in_step; });
    return out;
  });
}

}  // namespace shardrun
