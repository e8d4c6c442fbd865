// Lock-step replay: ranks, one rank and its shadow stop after every shared step while one looks.
#include "verify/replay.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <set>

#include "base/thread_group.h"
#include "graph/op_def.h"
#include "ranks/lockstep.h"
#include "verify/replay_comparison.h"
#include "verify/replay_party.h"
#include "verify/replay_steps.h"

namespace shardrun {
namespace {

/// The leader: runs one rank's programs, takes the others along, and compares.
class Leader {
 public:
  Leader(const std::vector<ReplayAct>& acts, const Stops& stops,
         std::span<const KernelList* const> lists, const ReplayOptions& options, Lockstep& ranks,
         Lockstep& shadow)
      : acts_(acts),
        stops_of_(stops),
        lists_(lists),
        options_(options),
        ranks_(ranks),
        shadow_(shadow),
        values_(options.tolerance),
        persistent_(persistent_names(acts[0].whole)) {}

  /// Throws Stopped if a party has failed, or at the first mismatch.
  void run() {
    auto alone = make_local_communicators(1);
    Party reference(acts_, whole_programs(acts_), lists_, *alone[0], options_);
    reference_ = &reference;
    for (size_t a = 0; a < acts_.size(); ++a) {
      begin(a, acts_[a].training);
      count_fused();
      const auto held = holds_;
      reference.executor(a).on_step(
          [&](size_t s, std::span<const TensorView>) { after_reference(s); });
      reference.play(a, [&](Phase phase) {
        phase_ = phase;
        if (phase == Phase::micro) {
          next_ = 0;
          holds_ = held;
          made_.clear();
          owed_.clear();
          kept_.clear();
        }
        follow();
      });
      compare_persistent();
    }
  }

  /// What was found, when all parties have ended.
  Replay result() const { return values_.result(); }

  static std::vector<const Program*> whole_programs(const std::vector<ReplayAct>& acts) {
    std::vector<const Program*> programs;
    for (const ReplayAct& act : acts) programs.push_back(&act.whole);
    return programs;
  }

 private:
  void begin(size_t a, bool training) {
    const ReplayAct& act = acts_[a];
    act_ = &act;
    stops_ = stops_of_[a];
    next_ = 0;
    made_.clear();
    owed_.clear();
    kept_.clear();
    makes_.clear();
    copied_.clear();
    ids_.clear();
    nodes_.clear();
    values_.begin(act, training);
    holds_.clear();
    for (size_t v = 0; v < act.graph.values().size(); ++v)
      ids_.emplace(act.graph.values()[v].name, static_cast<ValueId>(v));
    for (size_t n = 0; n < act.graph.nodes().size(); ++n)
      nodes_.emplace(act.graph.nodes()[n].name, static_cast<NodeId>(n));
    for (const Binding& b : act.whole.bindings) {
      if (const auto it = ids_.find(b.name); it != ids_.end()) holds_[it->second] = b.buffer;
    }
    for (size_t s = 0; s < stops_.size(); ++s) {
      const Step& step = first_step(stops_[s]);
      if (step.kind == Step::Kind::collective) copied_[ids_.at(step.source)] = s;
    }
  }

  void count_fused() {
    for (const SharedStep& stop : stops_) makes_.insert(stop.values.begin(), stop.values.end());
    const std::vector<Node>& nodes = act_->graph.nodes();
    values_.count_fused(std::count_if(nodes.begin(), nodes.end(), [&](const Node& node) {
      return std::none_of(node.outputs.begin(), node.outputs.end(),
                          [&](ValueId v) { return makes_.count(v) > 0; });
    }));
  }

  bool is_node(const Step& step) const {
    return step.kind == Step::Kind::kernel && nodes_.count(step.node.name) > 0;
  }
  const Program& first_program() const { return act_->programs.at(0); }
  const Step& first_step(const SharedStep& stop) const {
    return first_program().steps[stop.of_rank[0]];
  }

  /// Of each of the reference's nodes: what it made, how far that may be off, and the ranks as far
  /// as the reference has come.
  void after_reference(size_t s) {
    const Step& step = act_->whole.steps[s];
    if (is_node(step)) {
      const Node& node = act_->graph.node(nodes_.at(step.node.name));
      for (size_t r = 0; r < step.out.size(); ++r) {
        for (auto it = holds_.begin(); it != holds_.end();) {  // what was there is gone
          it = it->second == step.out[r] ? holds_.erase(it) : std::next(it);
        }
        holds_[node.outputs[r]] = step.out[r];
      }
      const HostViews made = shown(step.out);
      shadow_.wait();
      for (size_t r = 0; r < step.out.size(); ++r)
        values_.learn_scale(node.outputs[r], made.views()[r], shadow_.views()[0][r],
                            terms_of(node, r));
      shadow_.release();  // which blurs its copy of what is right
      made_.insert(node.outputs.begin(), node.outputs.end());
      for (const ValueId value : node.outputs) {
        if (makes_.count(value) > 0) owed_.insert(value);
      }
      follow();
      keep_for_later(node);
    } else {  // a copy of an update into its persistent value
      const auto moved = std::find_if(holds_.begin(), holds_.end(),
                                      [&](const auto& h) { return h.second == step.in[0]; });
      if (moved != holds_.end()) moved->second = step.out[0];
    }
    const bool last = s + 1 == act_->whole.steps.size() || act_->whole.steps[s + 1].phase != phase_;
    SR_REQUIRE(!last || next_ == stops_.size() || first_step(stops_[next_]).phase != phase_,
               internal, "replay: the ranks are at step '", first_step(stops_[next_]).node.name,
               "', one rank at the end of its steps");
  }

  /// Has the reference made what the ranks' step leaves?
  bool is_made(const Step& step, const std::vector<ValueId>& values) const {
    if (step.kind == Step::Kind::collective) {
      const ValueId source = ids_.at(step.source);
      return act_->graph.value(source).producer < 0 || made_.count(source) > 0;
    }
    return std::all_of(values.begin(), values.end(),
                       [&](ValueId v) { return v < 0 || made_.count(v) > 0; });
  }

  /// The ranks' steps whose results the reference has made, and the collectives behind them. Where
  /// steps are fused (runtime/program/fusion/patterns.h), a step of theirs may stand for several
  /// nodes: of these the results that it has are compared, when the last of them is there.
  void follow() {
    for (; next_ < stops_.size(); ++next_) {
      const Step& step = first_step(stops_[next_]);
      const std::vector<ValueId>& values = stops_[next_].values;
      if (step.phase != phase_ || !is_made(step, values)) return;
      ranks_.wait();
      SR_REQUIRE(ranks_.step() == next_, internal, "replay: the ranks are at step ", ranks_.step(),
                 ", wanted '", step.node.name, "'");
      if (step.kind == Step::Kind::collective) {
        const ValueId value = ids_.at(step.source);
        if (const auto wanted = held(value)) compare_collective(step, value, wanted->views()[0]);
      }
      for (size_t r = 0; r < values.size(); ++r) {
        // What it made in windows or blocks is compared when it has been put together.
        if (values[r] < 0 || is_exchanged_after(stops_[next_].of_rank[0], r)) continue;
        if (const auto wanted = held(values[r]))
          values_.compare(values[r], planned(values[r]), shards(r), wanted->views()[0],
                          str(step.node.op, " '", step.node.name, "'"));
      }
      for (const ValueId value : values) owed_.erase(value);
      ranks_.release();
    }
  }

  const Node& producer(ValueId value) const {
    return act_->graph.node(act_->graph.value(value).producer);
  }
  const Sharding& planned(ValueId value) const {
    const Node& node = producer(value);
    const auto r = std::find(node.outputs.begin(), node.outputs.end(), value);
    return act_->plan.nodes.at(node.name).out[static_cast<size_t>(r - node.outputs.begin())];
  }

  /// What the reference has of a value now, or had when the ranks were behind.
  std::optional<HostViews> held(ValueId value) const {
    if (const auto kept = kept_.find(value); kept != kept_.end()) {
      const TensorView view = kept->second.view();
      return HostViews(host_device(), {&view, 1});
    }
    const auto it = holds_.find(value);
    return it == holds_.end() ? std::nullopt : std::optional(shown({&it->second, 1}));
  }

  /// Does a collective of `value` come that the ranks have not reached?
  bool copied_later(ValueId value) const {
    const auto last = copied_.find(value);
    return last != copied_.end() && last->second >= next_;
  }

  /// The ranks are behind where a step of theirs waits for nodes to come, and they may reshard a
  /// value long after the reference has used its memory for another: these may be gone by then.
  void keep_for_later(const Node& node) {
    std::erase_if(kept_,
                  [&](const auto& kept) { return owed_.empty() && !copied_later(kept.first); });
    for (const ValueId value : node.outputs) {
      if (owed_.empty() && !copied_later(value)) continue;
      const HostViews held = shown({&holds_.at(value), 1});
      const TensorView& now = held.views()[0];
      Tensor copy(now.type);
      if (now.count() > 0)
        std::memcpy(copy.data(), now.data, static_cast<size_t>(byte_size(now.type)));
      kept_.insert_or_assign(value, std::move(copy));
    }
  }

  void compare_collective(const Step& step, ValueId value, const TensorView& wanted) {
    const CollectiveTraits& kind = step.collective->traits();
    const bool before = kind.place == CollectiveTraits::Place::before_node;
    if (before && kind.by_rows)
      return;  // a rank's own and named rows: their node's result is compared
    const Sharding after = sharding_after(step, act_->graph.value(value).name);
    std::string where = str(kind.name, " to ", to_string(after, act_->plan.mesh));
    if (kind.place == CollectiveTraits::Place::after_node) {
      const Node& node = act_->graph.node(act_->graph.value(value).producer);
      where = str(node.op, " '", node.name, "' and its ", kind.name);
    }
    if (!before) {
      values_.compare(value, after, shards(0), wanted, where);
      return;
    }
    std::vector<Box> boxes;
    for (const Program& program : act_->programs) {
      const size_t at = stops_[next_].of_rank[static_cast<size_t>(program.rank)];
      const Collective& c = *program.steps[at].collective;
      const auto me = std::find(c.group.begin(), c.group.end(), program.rank) - c.group.begin();
      boxes.push_back(c.out_boxes[static_cast<size_t>(me)]);
    }
    values_.compare(value, after, boxes, shards(0), wanted, where);
  }

  /// Does an exchange take what step `index` of the ranks leaves as its result `r`?
  bool is_exchanged_after(size_t index, size_t r) const {
    const std::vector<Step>& steps = first_program().steps;
    const BufferId made = steps[index].out[r];
    for (size_t s = index + 1; s < steps.size() && steps[s].kind == Step::Kind::collective; ++s) {
      if (steps[s].in[0] == made) {
        return steps[s].collective->traits().place == CollectiveTraits::Place::after_node;
      }
    }
    return false;
  }

  /// A copy's buffer is named after the value and its Sharding; one that became a persistent
  /// value's own buffer lies as that does.
  Sharding sharding_after(const Step& step, const std::string& value) const {
    for (const Binding& b : first_program().bindings) {
      if (b.buffer == step.out[0]) return b.sharding;
    }
    const std::string& name = first_program().buffers[static_cast<size_t>(step.out[0])].name;
    if (name == value) return act_->plan.values.at(value);
    const size_t begin = value.size() + 1, end = name.find("@halo", begin);
    return parse_sharding(std::string_view(name).substr(begin, end - begin), act_->plan.mesh);
  }

  /// Everything that lives on, after each act. The shadow gets a copy to go on from.
  void compare_persistent() {
    const Graph& graph = acts_[0].graph;
    begin(0, values_.training());
    for (const std::string& name : persistent_) {
      const ValueId value = ids_.at(name);
      const HostViews held = reference_->persistent(name);
      const TensorView& wanted = held.views()[0];
      shadow_.wait();
      const bool exact = !values_.training() || graph.value(value).role == Role::constant;
      if (!exact) values_.learn_scale(value, wanted, shadow_.views()[0][0], 1);
      shadow_.release();
      ranks_.wait();
      values_.compare(value, acts_[0].plan.values.at(name), shards(0), wanted,
                      values_.training() ? "after the update" : "after validation");
      ranks_.release();
    }
  }

  /// What the reference has in these buffers.
  HostViews shown(std::span<const BufferId> ids) const {
    std::vector<TensorView> views;
    for (const BufferId id : ids) {
      const Buffer& b = act_->whole.buffers[static_cast<size_t>(id)];
      char* arena = reference_->executor(0).arena()->data();
      views.push_back({byte_size(b.type) == 0 ? nullptr : arena + b.offset, b.type});
    }
    return reference_->shown(views);
  }

  std::vector<TensorView> shards(size_t r) const {
    std::vector<TensorView> out;
    for (const auto& views : ranks_.views()) out.push_back(views.at(r));
    return out;
  }

  /// Terms of the sum that an element of the node's r-th result is, by the op's FLOPs.
  double terms_of(const Node& node, size_t r) const {
    const auto types = [&](const std::vector<ValueId>& values) {
      std::vector<TensorType> out;
      for (const ValueId v : values) out.push_back(act_->graph.type(v));
      return out;
    };
    const std::vector<TensorType> in = types(node.inputs), out = types(node.outputs);
    const auto count = static_cast<double>(std::max<int64_t>(1, element_count(out[r].shape)));
    return node_flops(node, in, out) / (2 * count);
  }

  const std::vector<ReplayAct>& acts_;
  const Stops& stops_of_;
  std::span<const KernelList* const> lists_;
  const ReplayOptions& options_;
  Lockstep &ranks_, &shadow_;
  Comparison values_;
  const std::vector<std::string> persistent_;
  Party* reference_ = nullptr;  // while it runs

  // Of the act that is looked at: behind each one, the first, which holds everything.
  const ReplayAct* act_ = nullptr;
  std::span<const SharedStep> stops_;
  std::map<std::string, ValueId> ids_;
  std::map<std::string, NodeId> nodes_;
  std::map<ValueId, BufferId> holds_;  // where the reference has each value now
  std::set<ValueId> made_;             // by the reference's nodes, in this pass
  std::set<ValueId> makes_;            // that steps of the ranks make
  std::set<ValueId> owed_;             // of these, what the reference's nodes have made already
  std::map<ValueId, size_t> copied_;   // the last stop at which the ranks reshard a value
  std::map<ValueId, Tensor> kept_;     // while the ranks are behind
  size_t next_ = 0;                    // where the ranks stop next
  Phase phase_ = Phase::micro;
};

/// Runs one rank's programs with every value blurred, a step behind the reference.
void play_shadow(const std::vector<ReplayAct>& acts, std::span<const KernelList* const> lists,
                 const ReplayOptions& options, Lockstep& lockstep) {
  auto alone = make_local_communicators(1);
  Party party(acts, Leader::whole_programs(acts), lists, *alone[0], options);
  const std::vector<std::string> names = persistent_names(acts[0].whole);
  const auto blur_parameters = [&] {
    for (const Value& value : acts[0].graph.values()) {
      if (value.role != Role::parameter) continue;
      HostViews held = party.persistent(value.name);
      blur(held.views()[0], value.name);
      held.put_back();
    }
  };
  for (size_t a = 0; a < acts.size(); ++a) {
    std::map<std::string, const Node*> nodes;
    for (const Node& node : acts[a].graph.nodes()) nodes.emplace(node.name, &node);
    blur_parameters();
    party.executor(a).on_step([&](size_t s, std::span<const TensorView> out) {
      const Step& step = party.program(a).steps[s];
      const auto node = nodes.find(step.node.name);
      if (step.kind != Step::Kind::kernel || node == nodes.end()) return;
      HostViews left = party.shown(out);
      lockstep.arrive(0, s, {{left.views().begin(), left.views().end()}});
      for (size_t r = 0; r < out.size(); ++r)
        blur(left.views()[r], acts[a].graph.value(node->second->outputs[r]).name);
      left.put_back();
    });
    party.play(a, [](Phase) {});
    const size_t steps = party.program(a).steps.size();
    for (size_t i = 0; i < names.size(); ++i) {
      HostViews held = party.persistent(names[i]);
      lockstep.arrive(0, steps + i, {{held.views()[0]}});
      held.put_back();
    }
  }
}

/// Of the errors of several parties the first cause: a peer of a rank that failed reports only
/// that.
void rethrow_first(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr first;
  bool first_is_comm = false;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    bool comm = false;
    try {
      std::rethrow_exception(error);
    } catch (const Error& e) {
      comm = e.kind() == ErrorKind::comm;
    } catch (...) {
    }
    if (!first || (first_is_comm && !comm)) {
      first = error;
      first_is_comm = comm;
    }
  }
  if (first) std::rethrow_exception(first);
}

/// The leader and the shadow on threads of their own, while `ranks` plays the ranks on this
/// one. `ranks` may throw Stopped.
Replay lead(const std::vector<ReplayAct>& acts, const Stops& stops,
            std::span<const KernelList* const> lists, const ReplayOptions& options,
            Lockstep& rank_steps, const std::function<void()>& ranks) {
  Lockstep shadow_steps(1);
  Leader leader(acts, stops, lists, options, rank_steps, shadow_steps);
  std::vector<std::exception_ptr> errors(3);
  const auto guarded = [&](size_t index, const std::function<void()>& play) {
    bool complete = false;
    try {
      play();
      complete = true;
    } catch (const Stopped&) {
    } catch (...) {
      errors[index] = std::current_exception();
    }
    if (complete) return;
    rank_steps.stop();
    shadow_steps.stop();
  };
  ThreadGroup threads;
  const auto start = [&](size_t index, const std::function<void()>& play) {
    threads.start([&, index, play] {
      guarded(index, [&] {
        if (options.on_thread) options.on_thread();
        play();
      });
    });
  };
  guarded(0, [&] {
    start(1, [&] { play_shadow(acts, lists, options, shadow_steps); });
    start(2, [&] { leader.run(); });
    ranks();
  });
  threads.join();
  const Replay result = leader.result();
  if (!result.mismatch) rethrow_first(errors);
  return result;
}

}  // namespace

Plan whole_plan(const Graph& graph) {
  Plan plan;
  plan.planner = "one rank";
  plan.model_hash = structural_hash(graph);
  const auto whole = [&](ValueId id) { return Sharding::replicated(graph.type(id).shape.size()); };
  for (size_t v = 0; v < graph.values().size(); ++v)
    plan.values[graph.values()[v].name] = whole(static_cast<ValueId>(v));
  for (const Node& node : graph.nodes()) {
    NodePlan& np = plan.nodes[node.name];
    for (ValueId id : node.inputs) np.in.push_back(whole(id));
    for (ValueId id : node.outputs) np.out.push_back(whole(id));
  }
  return plan;
}

Replay replay(const std::vector<ReplayAct>& acts, std::span<const KernelList* const> lists,
              const ReplayOptions& options) {
  const size_t ranks = acts[0].programs.size();
  const Stops stops = stops_of(acts);
  Lockstep lockstep(ranks);
  return lead(acts, stops, lists, options, lockstep, [&] {
    auto communicators = make_local_communicators(static_cast<int>(ranks));
    std::vector<std::exception_ptr> errors(ranks);
    const auto play = [&](size_t rank) {
      try {
        if (options.on_thread) options.on_thread();
        play_rank(acts, stops, static_cast<int64_t>(rank), lists, *communicators[rank], options,
                  [&](size_t, size_t stop, std::span<const TensorView> left) {
                    lockstep.arrive(rank, stop, {{left.begin(), left.end()}});
                  });
      } catch (const Stopped&) {
        communicators[rank]->abort();  // a peer may be in the next collective already
      } catch (...) {
        errors[rank] = std::current_exception();
        communicators[rank]->abort();
        lockstep.stop();
      }
    };
    ThreadGroup threads;
    size_t rank = 0;
    try {
      for (; rank < ranks; ++rank) threads.start(play, rank);
    } catch (...) {  // those that were started would wait for the rest
      errors[rank] = std::current_exception();
      communicators[0]->abort();
      lockstep.stop();
    }
    threads.join();
    rethrow_first(errors);
  });
}

Replay replay_over(Communicator& world, const std::vector<ReplayAct>& acts,
                   std::span<const KernelList* const> lists, const ReplayOptions& options) {
  constexpr int64_t kGoOn = 0, kStop = 1;
  const Stops stops = stops_of(acts);
  const auto others_step = [&](size_t act, size_t rank, size_t stop) {
    const Program& program = acts[act].programs.at(rank);
    std::vector<TensorType> types;
    if (stop < stops[act].size()) {
      for (BufferId id : program.steps[stops[act][stop].of_rank[rank]].out)
        types.push_back(program.buffers[static_cast<size_t>(id)].type);
    } else {
      const std::string name = persistent_names(acts[0].whole).at(stop - stops[act].size());
      for (const Binding& b : acts[0].programs.at(rank).bindings) {
        if (b.name == name)
          types.push_back(acts[0].programs.at(rank).buffers[static_cast<size_t>(b.buffer)].type);
      }
    }
    return types;
  };
  const auto each = [](std::span<const TensorView> views, auto&& move) {
    for (const TensorView& view : views) {
      if (byte_size(view.type) > 0) move(view.data, byte_size(view.type));
    }
  };
  if (world.rank() > 0) {
    try {
      play_rank(acts, stops, world.rank(), lists, world, options,
                [&](size_t, size_t, std::span<const TensorView> left) {
                  each(left, [&](void* data, int64_t bytes) { world.send(data, bytes, 0); });
                  int64_t verdict = kGoOn;
                  world.broadcast(&verdict, sizeof verdict, 0);
                  if (verdict == kStop) throw Stopped();
                  each(left, [&](void* data, int64_t bytes) { world.recv(data, bytes, 0); });
                });
    } catch (const Stopped&) {  // rank 0 says why
    }
    return {};
  }
  const auto ranks = static_cast<size_t>(world.size());
  Lockstep lockstep(ranks);
  return lead(acts, stops, lists, options, lockstep, [&] {
    play_rank(acts, stops, 0, lists, world, options,
              [&](size_t act, size_t stop, std::span<const TensorView> left) {
                std::vector<std::vector<TensorView>> views = {{left.begin(), left.end()}};
                std::vector<Tensor> received;
                for (size_t rank = 1; rank < ranks; ++rank) {
                  views.emplace_back();
                  for (const TensorType& type : others_step(act, rank, stop)) {
                    received.emplace_back(type);
                    views.back().push_back(received.back().view());
                  }
                  each(views.back(), [&](void* data, int64_t bytes) {
                    world.recv(data, bytes, static_cast<int>(rank));
                  });
                }
                int64_t verdict = kGoOn;
                try {
                  lockstep.arrive(0, stop, views);
                } catch (const Stopped&) {
                  verdict = kStop;
                }
                world.broadcast(&verdict, sizeof verdict, 0);
                if (verdict == kStop) throw Stopped();
                for (size_t rank = 1; rank < ranks; ++rank) {
                  each(views[rank], [&](void* data, int64_t bytes) {
                    world.send(data, bytes, static_cast<int>(rank));
                  });
                }
              });
  });
}

}  // namespace shardrun
