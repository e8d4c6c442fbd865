// Lock-step replay: ranks, one rank and its shadow, each a thread, stop after every step while one
// looks.
#include "replay.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "base/philox.h"
#include "exec/executor.h"
#include "graph/optimizer.h"

namespace shardrun {
namespace {

/// Thrown through a follower's executor to end it.
struct Stopped {};

/// Threads that stop after each of their steps until the leader has looked at what they left.
class Lockstep {
 public:
  explicit Lockstep(size_t followers) : views_(followers) {}

  /// A follower's: shows its results and waits.
  void arrive(size_t follower, size_t step, std::span<const TensorView> out) {
    std::unique_lock lock(mutex_);
    if (stopped_) throw Stopped();
    views_[follower].assign(out.begin(), out.end());
    step_ = step;
    ++arrived_;
    const int64_t mine = round_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return stopped_ || round_ != mine; });
    if (stopped_) throw Stopped();
  }

  /// The leader's: waits for all followers. False if one has failed.
  bool wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || arrived_ == views_.size(); });
    return !stopped_;
  }

  size_t step() const { return step_; }
  const std::vector<std::vector<TensorView>>& views() const { return views_; }

  void release() {
    const std::lock_guard lock(mutex_);
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<TensorView>> views_;
  size_t arrived_ = 0, step_ = 0;
  int64_t round_ = 0;
  bool stopped_ = false;
};

using Reader = double (*)(const void*, int64_t);

Reader reader_of(DType dtype) {
  return dispatch(dtype, [](auto tag) -> Reader {
    using T = typename decltype(tag)::type;
    return [](const void* data, int64_t i) {
      return static_cast<double>(static_cast<const T*>(data)[i]);
    };
  });
}

/// By what a value of this type is blurred, relatively; 0: it is left alone.
double blur_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return 0x1p-20;
    case DType::f64: return 0x1p-49;
    case DType::bf16: return 0x1p-8;
    default: return 0;
  }
}

/// Multiplies each element by 1 + blur x (uniform in [-1, 1)).
void blur(const TensorView& view, const std::string& name) {
  const double by = blur_of(view.type.dtype);
  if (by == 0) return;
  const RandomStream random{0, hash_name(name.data(), name.size()), 0};
  dispatch_float(view.type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* data = view.as<T>();
    for (int64_t i = 0; i < view.count(); ++i) {
      const double u = 2.0 * random.uniform(static_cast<uint64_t>(i)) - 1.0;
      data[i] = static_cast<T>(static_cast<double>(data[i]) * (1.0 + by * u));
    }
  });
}

/// How much one value may differ.
struct Scale {
  double scale = 0, tolerance = 0;
  double allowed() const { return scale * tolerance; }
};

double reduce(ReduceOp op, double a, double b) {
  return op == ReduceOp::sum ? a + b : op == ReduceOp::max ? std::max(a, b) : std::min(a, b);
}

/// Visits the elements of a box in row-major order: f(index in the box, index in the whole).
template <class F>
void for_box(const Box& box, const Shape& whole, F&& f) {
  if (is_empty(box)) return;
  const Shape strides = row_major_strides(whole);
  Shape at(box.size(), 0);
  const int64_t count = element_count(box_shape(box));
  for (int64_t local = 0; local < count; ++local) {
    int64_t global = 0;
    for (size_t d = 0; d < box.size(); ++d) global += (box[d].begin + at[d]) * strides[d];
    if (!f(local, global)) return;
    for (size_t d = box.size(); d-- > 0;) {
      if (++at[d] < box[d].size) break;
      at[d] = 0;
    }
  }
}

std::vector<int64_t> coordinates_of(int64_t index, const Shape& shape) {
  std::vector<int64_t> at(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    at[d] = index % shape[d];
    index /= shape[d];
  }
  return at;
}

class Player {
 public:
  Player(const Graph& graph, const Plan& plan, const std::vector<Program>& programs,
         const Program& whole, std::span<const KernelList* const> lists,
         const ReplayOptions& options)
      : graph_(graph),
        plan_(plan),
        programs_(programs),
        whole_(whole),
        lists_(lists),
        options_(options),
        ranks_(programs.size()),
        shadow_(1) {
    for (size_t v = 0; v < graph.values().size(); ++v)
      ids_.emplace(graph.values()[v].name, static_cast<ValueId>(v));
    for (size_t n = 0; n < graph.nodes().size(); ++n)
      nodes_.emplace(graph.nodes()[n].name, static_cast<NodeId>(n));
  }

  Replay run() {
    auto communicators = make_local_communicators(static_cast<int>(programs_.size()));
    std::vector<std::exception_ptr> errors(programs_.size() + 1);
    std::vector<std::unique_ptr<Executor>> executors(programs_.size() + 1);
    std::vector<std::thread> threads;
    auto follow = [&](size_t index, const Program& program, Communicator& comm, Lockstep& lockstep,
                      size_t follower) {
      try {
        if (options_.on_thread) options_.on_thread();
        executors[index] = std::make_unique<Executor>(program, lists_, comm, options_.seed);
        Executor& executor = *executors[index];
        const bool shadow = index == programs_.size();
        if (shadow) blur_parameters(executor);
        executor.on_step([&](size_t step, std::span<const TensorView> out) {
          if (shadow && !is_node(program.steps[step])) return;
          lockstep.arrive(follower, step, out);
          if (shadow) blur_results(program.steps[step], out);
        });
        play(executor, [](Phase) {});
      } catch (const Stopped&) {
        comm.abort();  // a peer may be in the next collective already
      } catch (...) {
        errors[index] = std::current_exception();
        comm.abort();
        ranks_.stop();
        shadow_.stop();
      }
    };
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      threads.emplace_back(follow, rank, std::cref(programs_[rank]), std::ref(*communicators[rank]),
                           std::ref(ranks_), rank);
    }
    auto shadow_world = make_local_communicators(1), own_world = make_local_communicators(1);
    threads.emplace_back(follow, programs_.size(), std::cref(whole_), std::ref(*shadow_world[0]),
                         std::ref(shadow_), size_t{0});
    std::exception_ptr own_error;
    bool complete = false;
    try {
      lead(*own_world[0]);
      complete = true;
    } catch (const Stopped&) {
    } catch (...) {
      own_error = std::current_exception();
    }
    if (!complete) {
      ranks_.stop();
      shadow_.stop();
    }
    for (std::thread& thread : threads) thread.join();
    if (!result_.mismatch) rethrow_first(errors, own_error);
    if (complete) compare_persistent(executors);
    result_.values = static_cast<int64_t>(compared_.size());
    return result_;
  }

 private:
  bool is_node(const Step& step) const {
    return step.kind == Step::Kind::kernel && nodes_.count(step.node.name) > 0;
  }

  static void rethrow_first(const std::vector<std::exception_ptr>& errors,
                            const std::exception_ptr& own) {
    // A peer of a rank that failed reports only that; the one with another reason is the first
    // cause.
    std::exception_ptr first;
    bool first_is_comm = false;
    auto consider = [&](const std::exception_ptr& error) {
      if (!error) return;
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
    };
    for (const std::exception_ptr& error : errors) consider(error);
    consider(own);
    if (first) std::rethrow_exception(first);
  }

  /// One step; `before_phase` runs when inputs are there and the phase's first step is next.
  template <class F>
  void play(Executor& executor, F before_phase) {
    executor.set_scalar(kLearningRate, options_.lr);
    executor.set_scalar(kStep, 1);
    executor.begin_step();
    for (int micro = 0; micro < options_.accumulate; ++micro) {
      executor.set_scalar(kRandomStep, micro);
      for (const Binding& b : executor.program().bindings) {
        if (b.role == Role::batch) options_.fill(micro, b.name, b.box, executor.view(b).data);
      }
      before_phase(Phase::micro);
      executor.run_micro();
    }
    before_phase(Phase::update);
    executor.run_update();
  }

  void blur_parameters(Executor& executor) {
    for (const Binding& b : executor.program().bindings) {
      if (b.role == Role::parameter) blur(executor.view(b), b.name);
    }
  }

  void blur_results(const Step& step, std::span<const TensorView> out) {
    const Node& node = graph_.node(nodes_.at(step.node.name));
    for (size_t r = 0; r < out.size(); ++r) blur(out[r], graph_.value(node.outputs[r]).name);
  }

  /// The reference runs on this thread and takes the others along: after each of its nodes the
  /// ranks' same node is compared, and then the collectives up to the ranks' next node, while the
  /// reference still holds what they move.
  void lead(Communicator& comm) {
    if (options_.on_thread) options_.on_thread();
    reference_ = std::make_unique<Executor>(whole_, lists_, comm, options_.seed);
    for (const Binding& b : reference_->program().bindings) {
      if (const auto it = ids_.find(b.name); it != ids_.end()) holds_[it->second] = b.buffer;
    }
    const auto held = holds_;
    reference_->on_step([&](size_t s, std::span<const TensorView>) {
      after_reference(reference_->program().steps[s]);
    });
    play(*reference_, [&](Phase phase) {
      phase_ = phase;
      if (phase == Phase::micro) {
        next_ = 0;
        holds_ = held;
      }
      follow_collectives();
    });
  }

  void after_reference(const Step& step) {
    if (!is_node(step)) {  // a copy of an update into its persistent value
      const auto moved = std::find_if(holds_.begin(), holds_.end(),
                                      [&](const auto& h) { return h.second == step.in[0]; });
      if (moved != holds_.end()) moved->second = step.out[0];
      return;
    }
    const Node& node = graph_.node(nodes_.at(step.node.name));
    for (size_t r = 0; r < step.out.size(); ++r) {
      for (auto it = holds_.begin(); it != holds_.end();) {  // what was there is gone
        it = it->second == step.out[r] ? holds_.erase(it) : std::next(it);
      }
      holds_[node.outputs[r]] = step.out[r];
    }
    wait(shadow_);
    for (size_t r = 0; r < step.out.size(); ++r) {
      const TensorView mine = view_of(step.out[r]), &blurred = shadow_.views()[0][r];
      learn_scale(node.outputs[r], mine, blurred);
      if (mine.count() > 0)
        std::memcpy(blurred.data, mine.data, static_cast<size_t>(byte_size(mine.type)));
    }
    shadow_.release();  // which blurs its copy of what is right

    wait(ranks_);
    const Step& theirs = programs_[0].steps.at(ranks_.step());
    SR_REQUIRE(ranks_.step() == next_ && theirs.node.name == step.node.name, internal,
               "replay: the ranks are at step '", theirs.node.name, "', one rank at '",
               step.node.name, "'");
    const NodePlan& planned = plan_.nodes.at(node.name);
    for (size_t r = 0; r < step.out.size(); ++r) {
      // What it made in windows or blocks is compared when it has been put together.
      if (is_exchanged_after(ranks_.step(), r)) continue;
      compare(node.outputs[r], planned.out[r], result(r), view_of(step.out[r]),
              str(node.op, " '", node.name, "'"));
    }
    ranks_.release();
    ++next_;
    follow_collectives();
  }

  /// The ranks' steps up to their next node or the end of the phase.
  void follow_collectives() {
    while (next_ < programs_[0].steps.size()) {
      const Step& step = programs_[0].steps[next_];
      if (step.phase != phase_ || is_node(step)) return;
      wait(ranks_);
      if (step.kind == Step::Kind::collective) {
        const ValueId value = ids_.at(step.source);
        const auto held = holds_.find(value);
        if (held != holds_.end()) {
          compare_collective(step, value, view_of(held->second));
        }
      }
      ranks_.release();
      ++next_;
    }
  }

  void compare_collective(const Step& step, ValueId value, const TensorView& wanted) {
    const Collective::Kind kind = step.collective->kind;
    const Sharding after = sharding_after(step, graph_.value(value).name);
    std::string where = str(to_string(kind), " to ", to_string(after, plan_.mesh));
    if (kind == Collective::Kind::halo_add || kind == Collective::Kind::block_exchange) {
      const Node& node = graph_.node(graph_.value(value).producer);
      where = str(node.op, " '", node.name, "' and its ", to_string(kind));
    }
    if (kind != Collective::Kind::halo_exchange) {
      compare(value, after, result(0), wanted, where);
      return;
    }
    std::vector<Box> boxes;
    for (const Program& program : programs_) {
      const Collective& c = *program.steps[next_].collective;
      const auto me = std::find(c.group.begin(), c.group.end(), program.rank) - c.group.begin();
      boxes.push_back(c.out_boxes[static_cast<size_t>(me)]);
    }
    compare(value, after, boxes, result(0), wanted, where);
  }

  /// Does an exchange take what step `index` of the ranks leaves as its result `r`?
  bool is_exchanged_after(size_t index, size_t r) const {
    const std::vector<Step>& steps = programs_[0].steps;
    const BufferId made = steps[index].out[r];
    for (size_t s = index + 1; s < steps.size() && steps[s].kind == Step::Kind::collective; ++s) {
      if (steps[s].in[0] == made) {
        return steps[s].collective->kind == Collective::Kind::halo_add ||
               steps[s].collective->kind == Collective::Kind::block_exchange;
      }
    }
    return false;
  }

  /// A copy's buffer is named after the value and its Sharding; one that became a persistent
  /// value's own buffer lies as that does.
  Sharding sharding_after(const Step& step, const std::string& value) const {
    for (const Binding& b : programs_[0].bindings) {
      if (b.buffer == step.out[0]) return b.sharding;
    }
    const std::string& name = programs_[0].buffers[static_cast<size_t>(step.out[0])].name;
    if (name == value) return plan_.values.at(value);
    const size_t begin = value.size() + 1, end = name.find("@halo", begin);
    return parse_sharding(std::string_view(name).substr(begin, end - begin), plan_.mesh);
  }

  void wait(Lockstep& lockstep) {
    if (!lockstep.wait()) throw Stopped();
  }

  TensorView view_of(BufferId id) const {
    const Buffer& b = whole_.buffers[static_cast<size_t>(id)];
    return {byte_size(b.type) == 0 ? nullptr : reference_->arena()->data() + b.offset, b.type};
  }

  std::vector<TensorView> result(size_t r) const {
    std::vector<TensorView> shards;
    for (const auto& views : ranks_.views()) shards.push_back(views[r]);
    return shards;
  }

  void learn_scale(ValueId value, const TensorView& wanted, const TensorView& blurred) {
    const Reader read = reader_of(wanted.type.dtype);
    const double blur = blur_of(wanted.type.dtype);
    double most = 0, noise = 0;
    for (int64_t i = 0; i < wanted.count(); ++i) {
      const double x = read(wanted.data, i), difference = std::abs(read(blurred.data, i) - x);
      if (std::isfinite(x)) most = std::max(most, std::abs(x));
      if (std::isfinite(difference)) noise = std::max(noise, difference);
    }
    Scale& scale = scales_[value];
    scale.tolerance = options_.tolerance;
    if (blur == 0) {  // whole numbers, exact unless the shadow shows that rounding decides them
      scale.scale = noise / options_.tolerance;
    } else {
      if (wanted.type.dtype != DType::f32) scale.tolerance *= blur / blur_of(DType::f32);
      scale.tolerance = std::min(scale.tolerance, 0x1p-4);
      scale.scale = std::max(most, noise / blur);
    }
    const Scale learnt = scale;
    for (const auto& [held, next] :
         graph_.updates) {  // what it replaces holds it from the next micro-batch on
      if (next == value) scales_[held] = learnt;
    }
  }

  /// `shards`: every rank's part in `sharding` of a value that should be `wanted`.
  void compare(ValueId value, const Sharding& sharding, const std::vector<TensorView>& shards,
               const TensorView& wanted, const std::string& where) {
    std::vector<Box> boxes;
    for (int64_t rank = 0; rank < plan_.mesh.size(); ++rank)
      boxes.push_back(
          local_box(wanted.type.shape, sharding, plan_.mesh, plan_.mesh.coordinates(rank)));
    compare(value, sharding, boxes, shards, wanted, where);
  }

  /// The same where the ranks hold these boxes.
  void compare(ValueId value, const Sharding& sharding, const std::vector<Box>& boxes,
               const std::vector<TensorView>& shards, const TensorView& wanted,
               const std::string& where) {
    compared_.insert(value);
    ++result_.comparisons;
    if (wanted.count() == 0) return;
    const Reader read = reader_of(wanted.type.dtype);
    // A held value that no node has made yet is copied, so it is equal.
    const Scale scale = scales_.count(value) ? scales_.at(value) : Scale();
    std::vector<int> axes;
    for (const auto& p : sharding.partial) axes.push_back(p.axis);
    for (int64_t rank = 0; rank < plan_.mesh.size(); ++rank) {
      const std::vector<int64_t> group = plan_.mesh.group(rank, axes);
      if (group.front() != rank) continue;
      const Box& box = boxes[static_cast<size_t>(rank)];
      for (int64_t member : group) {
        SR_REQUIRE(shards[static_cast<size_t>(member)].type.shape == box_shape(box), internal,
                   "replay: '", graph_.value(value).name, "' on rank ", member, " is ",
                   shards[static_cast<size_t>(member)].type, ", the plan says ",
                   to_string(sharding, plan_.mesh));
      }
      std::vector<double> terms(group.size());
      for_box(box, wanted.type.shape, [&](int64_t local, int64_t global) {
        for (size_t m = 0; m < group.size(); ++m)
          terms[m] = read(shards[static_cast<size_t>(group[m])].data, local);
        const double got = combine(terms, sharding), want = read(wanted.data, global);
        const double difference = std::abs(got - want);
        if (got == want || (std::isnan(got) && std::isnan(want))) return true;
        if (difference <= scale.allowed()) {
          result_.largest = std::max(result_.largest, difference / scale.scale);
          return true;
        }
        result_.mismatch = Mismatch{graph_.value(value).name,
                                    where,
                                    to_string(sharding, plan_.mesh),
                                    group,
                                    coordinates_of(global, wanted.type.shape),
                                    got,
                                    want,
                                    scale.allowed()};
        return false;
      });
      if (result_.mismatch) throw Stopped();
      correct(sharding, box, group, shards, wanted);
    }
  }

  /// Gives a group the reference's value. Of partial sums the first takes the correction: of 1.25
  /// and 2.5, where 3.7501 is wanted, 1.2501 and 2.5 remain.
  static void correct(const Sharding& sharding, const Box& box, const std::vector<int64_t>& group,
                      const std::vector<TensorView>& shards, const TensorView& wanted) {
    const DType dtype = wanted.type.dtype;
    const TensorView& first = shards[static_cast<size_t>(group[0])];
    if (sharding.partial.empty()) {
      copy_box(wanted.data, full_box(wanted.type.shape), first.data, box, box, size_of(dtype));
    } else if (is_float(dtype) &&
               std::all_of(sharding.partial.begin(), sharding.partial.end(),
                           [](const auto& p) { return p.op == ReduceOp::sum; })) {
      const Reader read = reader_of(dtype);
      dispatch_float(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        for_box(box, wanted.type.shape, [&](int64_t local, int64_t global) {
          double others = 0;
          for (size_t m = 1; m < group.size(); ++m)
            others += read(shards[static_cast<size_t>(group[m])].data, local);
          first.as<T>()[local] = static_cast<T>(read(wanted.data, global) - others);
          return true;
        });
      });
    }
  }

  /// The group's values in row-major order of the partial axes, combined axis by axis.
  double combine(std::vector<double>& terms, const Sharding& sharding) const {
    size_t count = terms.size();
    for (size_t p = sharding.partial.size(); p-- > 0;) {
      const auto size = static_cast<size_t>(plan_.mesh.axis_size(sharding.partial[p].axis));
      count /= size;
      for (size_t i = 0; i < count; ++i) {
        double sum = terms[i * size];
        for (size_t k = 1; k < size; ++k)
          sum = reduce(sharding.partial[p].op, sum, terms[i * size + k]);
        terms[i] = sum;
      }
    }
    return terms[0];
  }

  /// Everything that lives on, when all threads have ended.
  void compare_persistent(const std::vector<std::unique_ptr<Executor>>& executors) {
    try {
      for (const Binding& b : reference_->program().bindings) {
        if (b.role != Role::parameter && b.role != Role::state && b.role != Role::constant)
          continue;
        const ValueId value = ids_.at(b.name);
        const TensorView wanted = reference_->view(b);
        const Binding* blurred = executors.back()->find(b.name);
        if (b.role != Role::constant) learn_scale(value, wanted, executors.back()->view(*blurred));
        std::vector<TensorView> shards;
        for (size_t rank = 0; rank < programs_.size(); ++rank) {
          const Binding* theirs = executors[rank]->find(b.name);
          SR_REQUIRE(theirs != nullptr, internal, "replay: rank ", rank, " does not hold '", b.name,
                     "'");
          shards.push_back(executors[rank]->view(*theirs));
        }
        compare(value, plan_.values.at(b.name), shards, wanted, "after the update");
      }
    } catch (const Stopped&) {  // the mismatch is noted
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const std::vector<Program>& programs_;
  const Program& whole_;
  std::span<const KernelList* const> lists_;
  const ReplayOptions& options_;
  Lockstep ranks_, shadow_;
  std::unique_ptr<Executor> reference_;
  std::map<std::string, ValueId> ids_;
  std::map<std::string, NodeId> nodes_;
  std::map<ValueId, BufferId> holds_;  // where the reference has each value now
  std::map<ValueId, Scale> scales_;
  std::set<ValueId> compared_;
  size_t next_ = 0;  // the ranks' next step
  Phase phase_ = Phase::micro;
  Replay result_;
};

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

Replay replay_step(const Graph& graph, const Plan& plan, const std::vector<Program>& programs,
                   const Program& whole, std::span<const KernelList* const> lists,
                   const ReplayOptions& options) {
  return Player(graph, plan, programs, whole, lists, options).run();
}

}  // namespace shardrun
