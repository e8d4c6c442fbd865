// The passes, in order.
#include "program/compile.h"

#include <map>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "graph/passes/pass_table.h"
#include "kernels/call_signature.h"
#include "kernels/fused_call.h"
#include "program/collective_order.h"
#include "program/combine_collectives.h"
#include "program/fusion/chains.h"
#include "program/fusion/updates.h"
#include "program/keep_casts.h"
#include "program/ops/post.h"
#include "program/share_groups.h"

namespace shardrun {
namespace {

/// What passes read.
struct Compilation {
  const Partition& partition;
  const Plan& plan;
  int64_t rank;
  const BackendTraits& traits;
  const CompileOptions& options;
};

struct Pass {
  std::string_view name, does;
  bool fuses;  // left out for Steps::all
  Program (*run)(Program program, const Compilation& c);
};

constexpr Pass kPasses[] = {
    {"partition", "local nodes and the collectives between them", false,
     [](Program program, const Compilation& c) {
       program = c.partition.program(c.rank);
       return program;
     }},
    {"order_collectives", "collectives where ranks and kernels seldom wait for them", false,
     [](Program program, const Compilation& c) {
       order_collectives(program, c.partition.collectives(), c.partition.most_bytes());
       return program;
     }},
    {"combine_collectives", "neighbouring sums over ranks, one call for several", true,
     [](Program program, const Compilation& c) {
       if (c.partition.collectives() == Collectives::together) combine_collectives(program);
       return program;
     }},
    {"fuse_patterns", "steps that another op does at once", true,
     [](Program program, const Compilation& c) {
       fuse_patterns(program, c.traits.takes);
       return program;
     }},
    {"keep_casts", "bf16 copies of weights from step to step", true,
     [](Program program, const Compilation& c) {
       if (c.plan.keep_casts) keep_casts(program);
       return program;
     }},
    {"keep_packed", "weights as kernels like to read them", true,
     [](Program program, const Compilation& c) {
       if (c.plan.keep_packed && c.traits.packed_weights)
         keep_packed(program, c.traits.packed_weights, c.traits.runs_alike);
       return program;
     }},
    {"fuse_updates", "the optimizer's updates as one", true,
     [](Program program, const Compilation& c) {
       fuse_updates(program, c.traits.runs_alike);
       return program;
     }},
    {"share_groups", "rows that several steps group alike, grouped once", true,
     [](Program program, const Compilation&) {
       share_groups(program);
       return program;
     }},
    {"fuse_elements", "chains of element-wise steps, each one kernel", true,
     [](Program program, const Compilation& c) {
       fuse_elements(program, c.traits.fusion_of());
       return program;
     }},
    {"fuse_rows", "chains of row-wise steps, some rows at a time", true,
     [](Program program, const Compilation& c) {
       fuse_rows(program, c.traits.fusion_of());
       return program;
     }},
    {"place_memory", "every buffer and workspace at its place in the arena", false,
     [](Program program, const Compilation& c) {
       place_memory(program, c.traits.needs_of(), c.options.persistent_like,
                    c.partition.collectives(), c.plan.hold_fraction, c.options.limits);
       return program;
     }},
};

}  // namespace

FusionOf BackendTraits::fusion_of() const {
  if (!fusion) return nullptr;
  return [asked = fusion, n = threads](const Program& program, const Step& step) {
    return asked(program, step, n);
  };
}

NeedsOf BackendTraits::needs_of() const {
  if (!needs) return nullptr;
  return [asked = needs, n = threads](const Program& program, const Step& step) {
    return asked(program, step, n);
  };
}

BackendTraits traits_of(std::span<const KernelList* const> kernels, bool packs_products) {
  const std::vector lists(kernels.begin(), kernels.end());
  BackendTraits traits;
  struct Asked {  // once for all calls that are alike, as those of layers are
    std::mutex mutex;
    std::map<std::string, bool> known;
  };
  traits.takes = [lists, packs_products, asked = std::make_shared<Asked>()](
                     const Node& node, const auto& in, const auto& out) {
    if (!has_post_ops(node.op)) return packs_products;
    std::string call = signature({node, in, out});
    const std::lock_guard lock(asked->mutex);
    const auto it = asked->known.find(call);
    if (it != asked->known.end()) return it->second;
    const bool fused = runs_fused(lists, {node, in, out});
    return asked->known.emplace(std::move(call), fused).first->second;
  };
  traits.runs_alike = [lists](const KernelCall& more, const KernelCall& alone) {
    return runs_alike(lists, more, alone);
  };
  return traits;
}

std::vector<std::string_view> compile_passes() { return pass_names(kPasses); }

Program compile(const Graph& graph, const Plan& plan, const Cluster& cluster, int64_t rank,
                const BackendTraits& traits, const CompileOptions& options) {
  return compile(Partition(graph, plan, cluster), plan, rank, traits, options);
}

Program compile(const Partition& partition, const Plan& plan, int64_t rank,
                const BackendTraits& traits, const CompileOptions& options) {
  require_pass(kPasses, options.stop_after);
  const Compilation compilation{partition, plan, rank, traits, options};
  Program program;
  for (const Pass& pass : kPasses) {
    if (pass.fuses && options.steps == Steps::all) continue;
    const double start = now_seconds();
    program = pass.run(std::move(program), compilation);
    if (options.after)
      options.after({pass.name, pass.does, 1e3 * (now_seconds() - start), program});
    if (pass.name == options.stop_after) break;
  }
  return program;
}

}  // namespace shardrun
