// The model, where bits flip, and what is expected of the check.
#include "tests/exec/checks/replica_check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <optional>
#include <random>

#include "exec/checks/replica_check.h"
#include "program/compile.h"
#include "tests/exec/planned_by_one.h"
#include "tests/support/kernel_traits.h"

namespace shardrun::test {
namespace {

constexpr uint32_t kSeed = 11;

class Flips {
 public:
  Flips(Communicator& world, const Graph& graph, const Plan& plan)
      : world_(world),
        executor_(compile(graph, plan, host_cluster(), world.rank(), with_kernels({}, kLists)),
                  kLists, world, 3),
        program_(executor_.program()),
        check_(executor_, plan),
        random_(kSeed) {
    const char* const begin = executor_.arena()->data();
    start_.assign(begin, begin + program_.persistent_bytes);
  }

  /// Losses are those of unchecked steps.
  void of_none() {
    std::vector<double> losses[2];
    for (const bool checked : {false, true}) {
      begin_anew();
      for (int step = 1; step <= 3; ++step) {
        EXPECT_EQ(take_step(step, checked, nullptr), "");
        losses[checked].push_back(executor_.metric("loss"));
      }
    }
    EXPECT_EQ(losses[0], losses[1]);
  }

  /// Just before the step that is checked; every second one before another step, which trains with
  /// it: then in the highest bit of an exponent, which no rounding heals.
  void of_weights(int flips) {
    std::vector<const Binding*> weights;
    for (const Binding& b : program_.bindings) {
      if (b.role == Role::parameter) weights.push_back(&b);
    }
    for (int i = 0; i < flips; ++i) {
      begin_anew();
      const auto rank = draw(static_cast<size_t>(world_.size()));
      const Binding& weight = *weights[draw(weights.size())];
      const bool trains = i % 2 != 0;
      const size_t random = random_(), bit = trains ? random / 32 * 32 + 30 : random;
      if (rank == static_cast<size_t>(world_.rank())) flip(weight.buffer, bit);
      if (trains) take_step(1, false, nullptr);
      // Where ranks of a group compute alike what the others need, a step spreads it to more.
      const bool spreads = trains && program_.mesh.axis_count() > 1;
      expect_found(take_step(2, true, nullptr),
                   {spreads ? "parameter '" : "parameter '" + weight.name + "'"}, rank);
    }
  }

  /// Behind a step, in a value that a later one reads.
  void of_values(int flips) {
    std::vector<size_t> places;  // of this rank, whose shards may be empty where others' are not
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      if (!read_later(s).empty()) places.push_back(s);
    }
    for (int i = 0; i < flips; ++i) {
      begin_anew();
      const auto rank = draw(static_cast<size_t>(world_.size()));
      const size_t place = random_(), which = random_(), bit = random_();
      const bool mine = rank == static_cast<size_t>(world_.rank());
      std::optional<BufferId> flipped;
      const std::string said = take_step(1, true, [&](size_t step) {
        check_.after(step);
        if (!mine || flipped || step != places[place % places.size()]) return;
        const std::vector<BufferId> live = read_later(step);
        flipped = live[which % live.size()];
        flip(*flipped, bit);
      });
      expect_found(said, flipped ? names_at(*flipped) : std::vector<std::string>(), rank, true);
    }
  }

  /// One rank gets another result than the others.
  void of_collectives(int flips) {
    std::vector<size_t> collectives;
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      const Step& step = program_.steps[s];
      if (step.kind != Step::Kind::collective) continue;
      const Collective::Kind kind = step.collective->kind;
      const bool replicates =
          kind == Collective::Kind::all_reduce || kind == Collective::Kind::all_gather;
      if (replicates && byte_size(type_of(program_, step.out[0])) > 0) collectives.push_back(s);
    }
    ASSERT_FALSE(collectives.empty());
    for (int i = 0; i < flips; ++i) {
      begin_anew();
      const auto rank = draw(static_cast<size_t>(world_.size()));
      const size_t target = collectives[draw(collectives.size())];
      const size_t bit = random_();
      const BufferId result = program_.steps[target].out[0];
      bool done = false;
      const std::string said = take_step(1, true, [&](size_t step) {
        if (step == target && rank == static_cast<size_t>(world_.rank()) && !done) {
          flip(result, bit);
          done = true;
        }
        check_.after(step);
      });
      expect_found(said, names_at(result), rank);
      EXPECT_NE(said.find(to_string(program_.steps[target].collective->kind)), std::string::npos)
          << said;
    }
  }

 private:
  static inline const std::vector<const KernelList*> kLists = {&reference_kernels()};

  /// The same number on every rank.
  size_t draw(size_t below) { return random_() % below; }

  void begin_anew() {
    world_.barrier();  // peers may read this rank's memory
    std::memcpy(executor_.arena()->data(), start_.data(), start_.size());
    executor_.weights_changed();
    world_.barrier();
  }

  /// What the check says, "" for an unchecked step. `after`: in place of ReplicaCheck::after.
  std::string take_step(int step, bool checked, const std::function<void(size_t)>& after) {
    executor_.set_scalar(kLearningRate, 1e-2);
    executor_.set_scalar(kStep, step);
    executor_.begin_step();
    if (checked) check_.begin();
    if (after) executor_.on_step([&](size_t s, std::span<const TensorView>) { after(s); });
    for (int64_t micro = 0; micro < program_.micro_batches; ++micro) {
      for (const Binding& b : program_.bindings) {
        if (b.role == Role::batch) executor_.fill(b, [&](void* shard) { fill(b, step, shard); });
      }
      if (checked) check_.before_micro();
      executor_.run_micro();
    }
    if (checked) check_.before_update();
    executor_.run_update();
    return checked ? check_.end(world_) : "";
  }

  /// The same number for every rank of a batch's element.
  static void fill(const Binding& binding, int step, void* shard) {
    const int64_t count = element_count(box_shape(binding.box));
    const int64_t row = count / std::max<int64_t>(1, binding.box[0].size);
    for (int64_t i = 0; i < count; ++i)
      static_cast<int64_t*>(shard)[i] = (7 * (binding.box[0].begin * row + i) + 3 * step) % 17;
  }

  int64_t offset(BufferId b) const { return program_.buffers[static_cast<size_t>(b)].offset; }

  void flip(BufferId buffer, size_t random) {
    const auto bits = static_cast<size_t>(byte_size(type_of(program_, buffer))) * 8;
    const size_t bit = random % bits;
    executor_.arena()->data()[offset(buffer) + static_cast<int64_t>(bit / 8)] ^=
        static_cast<char>(1 << bit % 8);
  }

  /// What steps up to this one have made, or is bound, and one of the same phase behind it reads,
  /// but not the very next one to write over it.
  std::vector<BufferId> read_later(size_t step) const {
    const Phase phase = program_.steps[step].phase;
    std::vector<bool> there(program_.buffers.size(), false);
    for (const Binding& b : program_.bindings) there[static_cast<size_t>(b.buffer)] = true;
    for (size_t s = 0; s <= step; ++s) {
      for (const BufferId b : program_.steps[s].out) there[static_cast<size_t>(b)] = true;
    }
    const auto overwrites = [&](size_t s, BufferId in) {
      const std::vector<BufferId>& made = program_.steps[s].out;
      return std::any_of(made.begin(), made.end(),
                         [&](BufferId b) { return offset(b) == offset(in); });
    };
    std::vector<BufferId> out;
    for (size_t s = step + 1; s < program_.steps.size() && program_.steps[s].phase == phase; ++s) {
      for (const BufferId in : program_.steps[s].in) {
        // An operation that finds a row's number wrong ends the step itself.
        const TensorType& type = type_of(program_, in);
        const bool flips = byte_size(type) > 0 && is_float(type.dtype);
        if (there[static_cast<size_t>(in)] && flips && !overwrites(step + 1, in)) out.push_back(in);
      }
      for (const BufferId made : program_.steps[s].out) there[static_cast<size_t>(made)] = false;
    }
    return out;
  }

  /// Reshapes lie where their operands do.
  std::vector<std::string> names_at(BufferId buffer) const {
    std::vector<std::string> out;
    for (const Buffer& b : program_.buffers) {
      if (b.offset == offset(buffer)) out.push_back("'" + b.name + "'");
    }
    return out;
  }

  /// `names`: any of them; what other ranks than `rank` know of them does not count.
  void expect_found(const std::string& said, const std::vector<std::string>& names, size_t rank,
                    bool always_names_rank = false) {
    EXPECT_NE(said, "") << "was not found";
    const bool named = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return said.find(name) != std::string::npos;
    });
    if (rank == static_cast<size_t>(world_.rank())) {
      EXPECT_TRUE(named) << testing::PrintToString(names) << ": " << said;
    }
    // Of two replicas both are named.
    const std::string wanted = str("rank ", rank);
    EXPECT_NE(said.find(always_names_rank ? "on " + wanted : wanted), std::string::npos) << said;
  }

  Communicator& world_;
  Executor executor_;
  const Program& program_;
  ReplicaCheck check_;
  std::mt19937 random_;
  std::vector<char> start_;
};

}  // namespace

void check_flips_are_found(Communicator& world, int flips) {
  struct Case {
    std::string mesh, planner;
    int accumulate;
  };
  std::vector<Case> cases = {{str("data=", world.size()), "dp", 1},
                             {str("data=", world.size()), "dp", 2}};
  if (world.size() == 4) cases.push_back({"data=2,model=2", "dp+megatron", 1});
  for (const Case& c : cases) {
    SCOPED_TRACE(
        str(c.planner, " on ", c.mesh, ", ", c.accumulate, " micro-batches, seed ", kSeed));
    GptOptions o;
    o.layers = 1, o.hidden = 16, o.heads = 2, o.vocab = 17, o.context = 4, o.batch = 5;
    OptimizerOptions optimizer;
    optimizer.accumulate = c.accumulate;
    const auto [graph, plan] = planned_by_one(o, optimizer, Mesh::parse(c.mesh), c.planner);
    Flips test(world, graph, plan);
    test.of_none();
    test.of_weights(flips);
    test.of_values(flips);
    test.of_collectives(flips);
  }
}

}  // namespace shardrun::test
