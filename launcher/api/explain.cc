// A Model's plan explained: from the public header to explain/.
#include "explain/explain.h"

#include <nlohmann/json.hpp>

#include "base/files/input_file.h"
#include "error_context.h"
#include "explain/figures.h"
#include "explain/hints.h"
#include "plan/plan.h"
#include "plan/plan_parts.h"
#include "ranks/backend.h"
#include "ranks/world.h"
#include "shardrun/bench.h"

namespace shardrun {
namespace {

Explained explained(const Model::Impl& model, const TrainingPlan::Impl& plan) {
  return {step_of(model, plan), plan.train, plan.cluster, plan.bytes, [&](int64_t rank) {
            if (rank == 0 && plan.program) return *plan.program;
            return compile(step_of(model, plan), plan.train, plan.cluster, rank, backend_traits());
          }};
}

}  // namespace

std::string plan_details(const Model& model, const TrainingPlan& plan) {
  return at_boundary([&] {
    require_made_for(model.impl(), plan.impl());
    return details_text(explained(model.impl(), plan.impl()), plan.impl().report,
                        arithmetic(model.impl().train));
  });
}

std::string explain_plan(const Model& model, const TrainingPlan& plan) {
  return at_boundary([&] {
    require_made_for(model.impl(), plan.impl());
    return table_text(explained(model.impl(), plan.impl()), plan.impl().recomputed) +
           hints_text(plan.impl().hints);
  });
}

std::string explain_why(const Model& model, const TrainingPlan& plan, const std::string& value,
                        const PlanRequest& request) {
  return at_boundary([&] {
    require_made_for(model.impl(), plan.impl());
    return why_text(explained(model.impl(), plan.impl()), value,
                    [&](const std::string& name, const Sharding& sharding) {
                      return plan_again(model.impl(), plan.impl(), request,
                                        [&](PlanOptions& options) {
                                          options.avoided = {{name, sharding}};
                                        });
                    });
  });
}

std::string explain_what_if(const Model& model, const TrainingPlan& plan, const std::string& shard,
                            const PlanRequest& request) {
  return at_boundary([&] {
    require_made_for(model.impl(), plan.impl());
    return what_if_text(explained(model.impl(), plan.impl()), shard, [&] {
      return plan_again(model.impl(), plan.impl(), request,
                        [&](PlanOptions& options) { options.requests.push_back(shard); });
    });
  });
}

std::string explain_difference(const Model& model, const TrainingPlan& plan,
                               const TrainingPlan& other) {
  return at_boundary([&] {
    require_made_for(model.impl(), plan.impl());
    require_made_for(model.impl(), other.impl());
    return difference_text(explained(model.impl(), plan.impl()),
                           explained(model.impl(), other.impl()));
  });
}

std::string explain_loops(const Model& model, const TrainingPlan& plan) {
  return at_boundary([&] {
    require_made_for(model.impl(), plan.impl());
    return loops_text(explained(model.impl(), plan.impl()));
  });
}

std::string plan_page(const Model& model, const TrainingPlan& plan, const TrainingPlan* other,
                      const std::string& report) {
  return at_boundary([&] {
    constexpr int64_t kMostBytes = int64_t{256} << 20;
    require_made_for(model.impl(), plan.impl());
    std::optional<std::string> measured;
    if (!report.empty()) measured = read_input_file(report, "a run's report", kMostBytes);
    std::optional<Explained> its;
    if (other != nullptr) {
      require_made_for(model.impl(), other->impl());
      its.emplace(explained(model.impl(), other->impl()));
    }
    const Explained own = explained(model.impl(), plan.impl());
    std::string page;
    within(report, [&] {
      page =
          page_html(own, model.impl().path, its ? &*its : nullptr, measured ? &*measured : nullptr);
    });
    return page;
  });
}

std::string plan_json(const Model& model, const TrainingPlan& plan) {
  return at_boundary([&] {
    const TrainingPlan::Impl& impl = plan.impl();
    require_made_for(model.impl(), impl);
    nlohmann::json all = plans_json(impl);
    const auto describe = [&](const char* step, const Graph& graph, const Plan& of) {
      const nlohmann::json nodes = nodes_json(graph, of, impl.cluster);
      for (const auto& [name, about] : nodes.items()) all[step]["nodes"][name].update(about);
    };
    describe("train", step_of(model.impl(), impl), impl.train);
    if (impl.with_evaluation) describe("evaluation", model.impl().evaluation, impl.evaluation);
    return all.dump(1) + "\n";
  });
}

std::vector<std::string> program_passes() {
  const std::vector<std::string_view> names = compile_passes();
  return {names.begin(), names.end()};
}

void dump_passes(const Model& model, const TrainingPlan& plan, const std::string& folder,
                 const std::string& stop_after, int rank) {
  at_boundary([&] {
    write_passes(explained(model.impl(), plan.impl()), rank, backend_traits(), folder, stop_after);
  });
}

PlanFigures plan_figures(World& world, const Model& model, const TrainingPlan& plan) {
  return at_boundary([&] {
    const TrainingPlan::Impl& impl = plan.impl();
    require_made_for(model.impl(), impl);
    PlanFigures out;
    out.mesh = impl.train.mesh.to_string();
    out.planner = impl.train.planner;
    for (const auto& [op, part] : arithmetic(model.impl().train)) out.flops += part;
    share_cores(world.impl());
    out.threads = world.impl().kernel_threads;
    for (int64_t rank = 0; rank < impl.train.mesh.size(); ++rank) {
      const Program program =
          compile(step_of(model.impl(), impl), impl.train, impl.cluster, rank, backend_traits());
      out.sent_bytes.push_back(sent_bytes(program));
    }
    return out;
  });
}

}  // namespace shardrun
