// Planning: mesh, shardings, and the exact bytes of every rank.
#include "plan.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "cluster.h"
#include "planner/cluster_file.h"
#include "world.h"

namespace shardrun {
namespace {

/// What the user wants, if that is a mesh.
std::optional<Mesh> wanted_mesh(const std::string& text, int64_t ranks) {
  if (text == "auto") return std::nullopt;
  Mesh mesh = Mesh::parse(text);
  SR_REQUIRE(mesh.size() == ranks, invalid_input, "mesh ", mesh.to_string(), " has ", mesh.size(),
             " ranks, the job has ", ranks);
  return mesh;
}

int64_t machine_memory() {
  struct sysinfo info {};
  return sysinfo(&info) == 0 ? static_cast<int64_t>(info.totalram) * info.mem_unit
                             : int64_t{1} << 40;
}

/// What has been laid out, so that counting bytes is not laying out anew.
struct Measures {
  MeasuredPlans train, evaluation;
  Measures(const Model::Impl& model, const Cluster& cluster)
      : train(model.train, cluster), evaluation(model.evaluation, cluster) {}
};

std::map<std::string, Sharding> persistent_shardings(const Graph& graph, const Plan& plan) {
  std::map<std::string, Sharding> out;
  for (const Value& value : graph.values()) {
    if (value.role == Role::parameter || value.role == Role::constant ||
        value.role == Role::state) {
      if (const auto it = plan.values.find(value.name); it != plan.values.end())
        out[value.name] = it->second;
    }
  }
  return out;
}

/// A rank's limit where none was asked for: what the cluster's devices have, and its share of this
/// machine, if it is here that it will run. A plan for so many ranks elsewhere (`plan`) on a
/// cluster that does not say has none.
int64_t memory_limit(const PlanRequest& request, const Cluster& cluster, const World::Impl& world) {
  if (request.memory_bytes > 0) return request.memory_bytes;
  if (request.ranks > 0) return cluster.memory_bytes;
  const int64_t share = machine_memory() / local_ranks(world);
  return cluster.memory_bytes > 0 ? std::min(share, cluster.memory_bytes) : share;
}

PlanOptions plan_options(const Model::Impl& model, const PlanRequest& request, int64_t limit,
                         Measures& measures) {
  PlanOptions options;
  options.planner = request.planner;
  options.requests = request.shard;
  options.solve_seconds = request.solve_seconds;
  options.seed = request.seed;
  options.memory_limit = limit;
  options.arena_use = [&, limit](const Plan& candidate) {
    return arena_use(measures.train.of(candidate)->fullest(limit), model.train);
  };
  return options;
}

/// The search, on rank 0. `limit`: bytes of a rank; 0: none.
void search(const Model::Impl& model, const PlanRequest& request, int64_t ranks, int64_t limit,
            Measures& measures, TrainingPlan::Impl& out) {
  const std::optional<Mesh> mesh = wanted_mesh(request.mesh, ranks);
  SR_REQUIRE(mesh || request.shard.empty(), invalid_input, "--shard '", request.shard[0],
             "': names axes of the mesh, so give that too, as --mesh data=2,model=4");
  RuleCache rules;
  const PlanOptions options = plan_options(model, request, limit, measures);
  out.train = mesh ? plan_shardings(model.train, *mesh, out.cluster, options, rules, &out.report)
                   : plan_best_mesh(model.train, ranks, out.cluster, options, request.solve_seconds,
                                    rules, &out.report, &out.meshes);
  if (!out.with_evaluation) return;
  PlanOptions evaluation = options;
  evaluation.requests.clear();  // of the training step's values
  evaluation.pinned = persistent_shardings(model.train, out.train);
  // Weights and the optimizer's state stay while it runs.
  evaluation.arena_use = [&](const Plan& plan) {
    return arena_use(measures.evaluation.of(plan, measures.train.of(out.train))->fullest(limit),
                     model.evaluation);
  };
  out.evaluation = plan_shardings(model.evaluation, out.train.mesh, out.cluster, evaluation, rules);
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  SR_REQUIRE(in.good() && text.good(), invalid_input, path, ": cannot read the plan");
  return text.str();
}

/// Path and options of a model, as the plan file keeps them.
std::string origin_json(const Model::Impl& model) {
  const ModelOptions& o = model.options;
  return nlohmann::json{{"path", model.path},
                        {"dims", o.dims},
                        {"batch", o.batch ? nlohmann::json(*o.batch) : nlohmann::json()},
                        {"loss", o.loss},
                        {"freeze", o.freeze},
                        {"train", o.train},
                        {"shared", o.shared},
                        {"mode", o.mode},
                        {"running_statistics", o.running_statistics},
                        {"dtype", o.dtype},
                        {"optimizer", o.optimizer},
                        {"beta1", o.beta1},
                        {"beta2", o.beta2},
                        {"eps", o.eps},
                        {"momentum", o.momentum},
                        {"nesterov", o.nesterov},
                        {"weight_decay", o.weight_decay},
                        {"decay_all", o.decay_all},
                        {"clip", o.clip},
                        {"accumulate", o.accumulate},
                        {"seed", o.seed},
                        {"data", o.data}}
      .dump();
}

std::string plans_text(const TrainingPlan::Impl& plan) {
  const nlohmann::json both = {
      {"model", nlohmann::json::parse(plan.origin)},
      {"cluster", nlohmann::json::parse(cluster_json(plan.cluster))},
      {"train", nlohmann::json::parse(to_json(plan.train))},
      {"evaluation",
       plan.with_evaluation ? nlohmann::json::parse(to_json(plan.evaluation)) : nlohmann::json()}};
  return both.dump(1) + "\n";
}

void read_plans(const std::string& text, const std::string& origin, TrainingPlan::Impl& out) {
  const nlohmann::json both = nlohmann::json::parse(text, nullptr, false);
  for (const char* name : {"cluster", "train", "evaluation"}) {
    SR_REQUIRE(both.is_object() && both.contains(name), invalid_input, origin,
               ": is not a plan: field '", name, "' is missing");
  }
  out.cluster = parse_cluster(both["cluster"].dump(), origin + ": cluster");
  out.train = plan_from_json(both["train"].dump(), origin + ": train");
  out.with_evaluation = !both["evaluation"].is_null();
  out.origin = both.contains("model") ? both["model"].dump() : "{}";
  if (out.with_evaluation)
    out.evaluation = plan_from_json(both["evaluation"].dump(), origin + ": evaluation");
}

void check(const Model::Impl& model, const TrainingPlan::Impl& plan, int64_t ranks,
           const std::string& origin) {
  try {
    SR_REQUIRE(plan.train.mesh.size() == ranks, invalid_input, "plan: field 'mesh' is ",
               plan.train.mesh.to_string(), ", ", plan.train.mesh.size(), " ranks; the job has ",
               ranks);
    check_plan(plan.train, model.train);
    if (plan.with_evaluation) check_plan(plan.evaluation, model.evaluation);
  } catch (const Error& e) {
    throw origin.empty() ? e : e.with_context(origin);
  }
}

void count_bytes(Measures& measures, TrainingPlan::Impl& plan, int64_t limit) {
  const std::shared_ptr<PlanPrograms> train = measures.train.of(plan.train);
  const std::shared_ptr<PlanPrograms> evaluation =
      plan.with_evaluation ? measures.evaluation.of(plan.evaluation, train) : nullptr;
  for (int64_t rank = 0; rank < plan.train.mesh.size(); ++rank) {
    const Program& training = train->of_rank(rank);
    plan.bytes.push_back(
        std::max(training.arena_bytes, evaluation ? evaluation->of_rank(rank).arena_bytes : 0));
    plan.persistent_bytes.push_back(training.persistent_bytes);
    SR_REQUIRE(limit == 0 || plan.bytes.back() <= limit, out_of_memory, "rank ", rank, " needs ",
               plan.bytes.back(), " bytes (training ", training.arena_bytes, "), the limit is ",
               limit, "; use more ranks, a smaller batch or bf16");
  }
}

std::string describe_held(const Graph& graph, const Plan& plan) {
  std::map<std::string, int> kinds;
  for (const Value& value : graph.values()) {
    const bool held = value.role == Role::parameter || value.role == Role::state;
    if (held && plan.values.count(value.name))
      ++kinds[to_string(plan.values.at(value.name), plan.mesh)];
  }
  std::string out;
  for (const auto& [sharding, count] : kinds)
    out += str(out.empty() ? "" : "; ", count, " x ", sharding);
  return out;
}

std::string bytes_text(int64_t bytes) {
  char text[48];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / 0x1p20);
  return text;
}

}  // namespace

int64_t RankPrograms::arena_bytes() const {
  return std::max(train.arena_bytes, evaluation ? evaluation->arena_bytes : 0);
}

RankPrograms compile_for_rank(const Model::Impl& model, const TrainingPlan::Impl& plan,
                              int64_t rank) {
  RankPrograms out;
  out.train = compile(model.train, plan.train, plan.cluster, rank);
  if (plan.with_evaluation)
    out.evaluation = compile(model.evaluation, plan.evaluation, plan.cluster, rank, &out.train);
  const int64_t predicted = plan.bytes.at(static_cast<size_t>(rank));
  SR_REQUIRE(out.arena_bytes() == predicted, internal, "rank ", rank, ": its programs need ",
             out.arena_bytes(), " bytes, the plan says ", predicted);
  return out;
}

int mesh_ranks(const std::string& mesh) {
  return at_boundary(
      [&] { return mesh == "auto" ? 0 : static_cast<int>(Mesh::parse(mesh).size()); });
}

TrainingPlan make_plan(World& world, const Model& model, const PlanRequest& request) {
  auto impl = std::make_unique<TrainingPlan::Impl>();
  impl->with_evaluation = request.with_evaluation;
  at_boundary(
      [&] { share_cores(world.impl()); });  // predicted workspaces are those of as many threads
  const int64_t ranks = request.ranks > 0 ? request.ranks : world.size();
  const std::string text = decide_on_rank0(world, [&] {
    if (request.plan_file.empty()) {
      impl->cluster =
          find_cluster(request.cluster).for_ranks(ranks, world.impl().mpi ? "mpi" : "threads");
    } else {
      SR_REQUIRE(request.cluster.empty(), invalid_input, "--cluster ", request.cluster,
                 ": the plan ", request.plan_file,
                 " has a cluster of its own; leave out one of the two");
      read_plans(read_text(request.plan_file), request.plan_file, *impl);
    }
    const int64_t limit = memory_limit(request, impl->cluster, world.impl());
    Measures measures(model.impl(), impl->cluster);
    if (request.plan_file.empty()) {
      impl->origin = origin_json(model.impl());
      search(model.impl(), request, ranks, limit, measures, *impl);
    }
    impl->memory_limit = limit;
    check(model.impl(), *impl, ranks, request.plan_file);
    count_bytes(measures, *impl, limit);
    if (!world.impl().mpi) return std::string();  // nobody to tell
    nlohmann::json told = nlohmann::json::parse(plans_text(*impl));
    told["bytes"] = impl->bytes;
    told["persistent_bytes"] = impl->persistent_bytes;
    return told.dump();
  });
  if (!world.leader()) {
    at_boundary([&] {
      read_plans(text, "plan of rank 0", *impl);
      const nlohmann::json told = nlohmann::json::parse(text);
      impl->bytes = told["bytes"].get<std::vector<int64_t>>();
      impl->persistent_bytes = told["persistent_bytes"].get<std::vector<int64_t>>();
      check(model.impl(), *impl, ranks, "");
    });
  }
  impl->held = describe_held(model.impl().train, impl->train);
  return TrainingPlan(std::move(impl));
}

PlannedModel read_planned_model(const std::string& plan_file) {
  return at_boundary([&] {
    const nlohmann::json root = nlohmann::json::parse(read_text(plan_file), nullptr, false);
    SR_REQUIRE(root.is_object() && root.contains("model") && root.contains("train"), invalid_input,
               plan_file, ": is not a plan: fields 'model' and 'train' are wanted");
    PlannedModel out;
    try {
      const nlohmann::json& m = root.at("model");
      ModelOptions& o = out.options;
      out.path = m.at("path");
      o.dims = m.at("dims").get<std::map<std::string, int64_t>>();
      if (!m.at("batch").is_null()) o.batch = m.at("batch").get<int64_t>();
      o.loss = m.at("loss");
      o.freeze = m.at("freeze").get<std::vector<std::string>>();
      o.train = m.at("train").get<std::vector<std::string>>();
      o.shared = m.at("shared");
      o.mode = m.at("mode");
      o.running_statistics = m.at("running_statistics");
      o.dtype = m.at("dtype");
      o.optimizer = m.at("optimizer");
      o.beta1 = m.at("beta1");
      o.beta2 = m.at("beta2");
      o.eps = m.at("eps");
      o.momentum = m.at("momentum");
      o.nesterov = m.value("nesterov", false);
      o.weight_decay = m.at("weight_decay");
      o.decay_all = m.at("decay_all");
      o.clip = m.at("clip");
      o.accumulate = m.at("accumulate");
      o.seed = m.at("seed");
      o.data = m.value("data", "");
    } catch (const nlohmann::json::exception& e) {
      fail(ErrorKind::invalid_input, plan_file, ": field 'model': ", e.what());
    }
    const Plan plan = plan_from_json(root["train"].dump(), plan_file + ": train");
    out.ranks = static_cast<int>(plan.mesh.size());
    out.planner = plan.planner;
    return out;
  });
}

Plan plan_without(const Model::Impl& model, const TrainingPlan::Impl& plan,
                  const PlanRequest& request, const std::string& value, const Sharding& sharding) {
  Measures measures(model, plan.cluster);
  PlanOptions options = plan_options(model, request, request.memory_bytes, measures);
  options.planner = plan.train.planner;
  options.avoided = {{value, sharding}};
  RuleCache rules;
  return plan_shardings(model.train, plan.train.mesh, plan.cluster, options, rules);
}

TrainingPlan::TrainingPlan(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainingPlan::TrainingPlan(TrainingPlan&&) noexcept = default;
TrainingPlan& TrainingPlan::operator=(TrainingPlan&&) noexcept = default;
TrainingPlan::~TrainingPlan() = default;

std::string TrainingPlan::json() const { return plans_text(*impl_); }
double TrainingPlan::predicted_seconds() const { return impl_->train.seconds; }
std::vector<int64_t> TrainingPlan::predicted_bytes() const { return impl_->bytes; }

std::string TrainingPlan::summary() const {
  const Plan& plan = impl_->train;
  std::ostringstream out;
  char line[256];
  std::snprintf(
      line, sizeof line,
      "plan: mesh %s, planner %s; predicted step %.2f ms (compute %.2f, communication %.2f)\n",
      plan.mesh.to_string().c_str(), plan.planner.c_str(), plan.seconds * 1e3,
      plan.compute_seconds * 1e3, plan.comm_seconds * 1e3);
  out << line;
  out << "      cluster " << impl_->cluster.name;
  if (!impl_->cluster.about.empty()) out << " (" << impl_->cluster.about << ")";
  if (impl_->memory_limit > 0)
    out << "; memory limit of a rank " << bytes_text(impl_->memory_limit);
  out << "\n";
  if (impl_->meshes.size() > 1) {
    out << "      meshes tried:";
    for (const MeshTrial& trial : impl_->meshes) {
      std::snprintf(line, sizeof line, "%s %s %s", &trial == &impl_->meshes[0] ? "" : ",",
                    trial.mesh.to_string().c_str(), trial.fits ? "" : "does not fit");
      out << line;
      if (trial.fits) {
        std::snprintf(line, sizeof line, "%.2f ms", trial.seconds * 1e3);
        out << line;
      }
    }
    out << "\n";
  }
  const PlanReport& r = impl_->report;
  if (r.nodes > 0) {
    std::snprintf(line, sizeof line,
                  "      %d nodes (%d after folding), %d rules from %d kernel runs in %.2f s, "
                  "search %.2f s with %s\n",
                  r.nodes, r.folded_nodes, r.distinct_rules, r.kernel_runs, r.discovery_seconds,
                  r.build_seconds + r.solve_seconds, r.solver.c_str());
    out << line;
  }
  out << "      weights and state: " << impl_->held << "\n";
  const auto most =
      std::max_element(impl_->bytes.begin(), impl_->bytes.end()) - impl_->bytes.begin();
  out << "      bytes of the fullest rank (" << most
      << "): " << impl_->bytes[static_cast<size_t>(most)] << " ("
      << bytes_text(impl_->bytes[static_cast<size_t>(most)]) << "), of them "
      << bytes_text(impl_->persistent_bytes[static_cast<size_t>(most)]) << " weights and state\n";
  return out.str();
}

}  // namespace shardrun
