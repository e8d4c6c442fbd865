// PlanSession: the game over schedules, for agents from outside.
#include <algorithm>
#include <limits>

#include "annotations/annotated.h"
#include "error_context.h"
#include "plan/micro_batches.h"
#include "plan/plan.h"
#include "planner/game/proposal.h"
#include "planner/plan_search.h"
#include "planner/rules/rule_file.h"
#include "planner/space/requests.h"
#include "ranks/backend.h"
#include "ranks/world.h"
#include "shardrun/input.h"
#include "shardrun/play.h"

namespace shardrun {
namespace {

constexpr int kMostAxes = 3;  // strategies of more are too many to list
/// More than any plan needs: bytes count, and cost nothing.
constexpr int64_t kAnyBytes = std::numeric_limits<int64_t>::max() / 4;

/// `ranks`: those of the World, where neither the request nor its mesh says how many.
Mesh played_mesh(const PlanRequest& request, int ranks) {
  check_plan_request(request);
  SR_REQUIRE(request.plan_file.empty(), invalid_input, "--plan ", request.plan_file,
             ": a game begins with tactics, not with a plan; leave it out");
  const PlannerKind kind = parse_planner(request.planner).kind;
  SR_REQUIRE(kind == PlannerKind::automatic || kind == PlannerKind::mcts ||
                 kind == PlannerKind::mcts_arguments,
             invalid_input, "--planner ", request.planner,
             ": a game is not planned; wanted mcts, or mcts-arguments to cut arguments");
  SR_REQUIRE(request.mesh != "auto", invalid_input,
             "--mesh auto: a game is played on one mesh; give it, as --mesh data=2,model=4");
  SR_REQUIRE(!request.strict, invalid_input,
             "--strict: a game goes on where a node could be cut in several ways alike, and its "
             "reports count them; leave it out");
  if (request.ranks > 0)
    ranks = request.ranks;
  else if (!Mesh::has_unknown_size(request.mesh))
    ranks = static_cast<int>(Mesh::parse(request.mesh).size());
  Mesh mesh = *wanted_mesh(request.mesh, ranks);
  int axes = 0;
  for (int axis = 0; axis < mesh.axis_count(); ++axis) axes += mesh.axis_size(axis) > 1;
  SR_REQUIRE(axes <= kMostAxes, invalid_input, "--mesh ", request.mesh, ": has ", axes,
             " axes that can cut; a game has at most ", kMostAxes);
  return mesh;
}

/// A game is priced without a search, so without the hints that one would follow.
std::vector<std::string> without_hints(const std::vector<std::string>& requests, const Graph& graph,
                                       const Mesh& mesh) {
  std::vector<std::string> out;
  for (const std::string& text : requests) {
    if (is_hint(text))
      find_request(text, graph, mesh, "--shard");  // throws where it names nothing
    else
      out.push_back(text);
  }
  return out;
}

}  // namespace

struct PlanSession::Impl {
  Impl(World& the_world, const Model& the_model, const PlanRequest& asked)
      : world(the_world),
        model(the_model),
        request(asked),
        mesh(played_mesh(asked, the_world.size())),
        cluster(planned_cluster(the_world, asked, mesh.size())),
        options(plan_options(the_model.impl(), asked, 0)) {
    GameOptions game_rules;
    game_rules.arguments_only = options.planner.kind == PlannerKind::mcts_arguments;
    options.planner = {};
    options.tactics.clear();  // the game begins with them
    check_turns(model.impl(), request.tactics);
    const AnnotationRequests annotated = annotation_requests(model.impl(), request, &mesh);
    options.requests = without_hints(options.requests, model.impl().train, mesh);
    for (const std::string& text : annotated.requests)
      if (!is_hint(text)) options.requests.push_back(text);
    search.emplace(model.impl().train, tables, options, rules);
    game_rules.memory_limit = asked_bytes(request) > 0   ? asked_bytes(request)
                              : cluster.memory_bytes > 0 ? cluster.memory_bytes
                                                         : kAnyBytes;
    table = search->table(game_rules);
    const Schedule schedule = parse_tactics(mesh_tactics(request.tactics), mesh);
    game.emplace(table->board, table->board.of_schedule(schedule, search->rule_of()));
  }

  World& world;
  const Model& model;
  PlanRequest request;
  Mesh mesh;
  Cluster cluster;
  MeshTables tables{mesh, cluster};
  PlanOptions options;
  RuleCache rules{rule_file_path()};
  std::optional<PlanSearch> search;
  std::unique_ptr<GameTable> table;
  std::optional<PlanGame> game;
};

PlanSession::PlanSession(World& world, const Model& model, const PlanRequest& request) {
  impl_ = at_boundary([&] { return std::make_unique<Impl>(world, model, request); });
}
PlanSession::PlanSession(PlanSession&&) noexcept = default;
PlanSession& PlanSession::operator=(PlanSession&&) noexcept = default;
PlanSession::~PlanSession() = default;

std::vector<std::string> PlanSession::actions() {
  return at_boundary([&] {
    std::vector<std::string> out;
    for (const Action& action : impl_->game->legal()) out.push_back(impl_->game->text(action));
    return out;
  });
}

std::vector<std::string> PlanSession::tactics() const {
  return impl_->game->schedule(impl_->request.tactics);
}

uint64_t PlanSession::state() const { return impl_->game->state(); }

PlanSession::Price PlanSession::price() {
  return at_boundary([&] {
    const shardrun::Price price = impl_->game->price();
    return Price{price.seconds, price.relative, price.bytes};
  });
}

void PlanSession::apply(const std::string& action) {
  at_boundary([&] {
    const std::optional<Action> known = impl_->game->action_of(action);
    SR_REQUIRE(known, invalid_input, "action '", shortened(action),
               "' is none of this game; its actions are those that a state lists");
    SR_REQUIRE(impl_->game->apply(*known), invalid_input, "action '", action,
               "' changes nothing here: what it cuts is cut along that axis already, or the mesh "
               "does not divide it");
  });
}

void PlanSession::undo() {
  at_boundary([&] {
    SR_REQUIRE(!impl_->game->applied().empty(), invalid_input, "there is no action left to undo");
    impl_->game->undo();
  });
}

TacticReport PlanSession::report() {
  PlanRequest request = impl_->request;
  request.planner = name_of(kPlanners, PlannerKind::automatic);
  request.tactics = tactics();
  request.ranks = static_cast<int>(impl_->mesh.size());
  return report_tactics(impl_->world, impl_->model, request);
}

}  // namespace shardrun
