// Executor: runs one rank's Program step by step in one arena.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/communicator.h"
#include "device/device.h"
#include "exec/checks/flight_recorder.h"
#include "exec/collective_step.h"
#include "exec/timeline.h"
#include "graph/program.h"
#include "kernels/kernel.h"

namespace shardrun {

/// One zeroed allocation, aligned to a page and touched, so that no page is missing later. Programs
/// that share persistent values (training and evaluation) share one, as large as the larger needs.
/// It is of the world's memory: peers on the same machine reach collectives' buffers directly.
class Arena {
 public:
  /// Collective; `world` must outlive it. Throws out_of_memory with the bytes.
  Arena(int64_t bytes, Communicator& world)
      : world_(world), memory_(world.allocate(bytes)), bytes_(bytes) {}
  char* data() const { return memory_.data.get(); }
  int64_t bytes() const { return bytes_; }
  /// Why peers on this machine cannot reach it; "": they can, or there are none.
  const std::string& why_private() const { return memory_.why_private; }
  /// This rank's of Communicator::split(groups): one for all who share the arena. It goes before
  /// the memory does, which a device may not give back while a call waits for peers. Collective
  /// when it is first asked for.
  Communicator* group(const std::vector<std::vector<int>>& groups);

 private:
  Communicator& world_;
  Memory memory_;
  int64_t bytes_ = 0;
  std::map<std::vector<std::vector<int>>, std::unique_ptr<Communicator>> groups_;
};

/// Exact bytes that any step needs with these kernels: what place_memory asks for. Remembers what
/// it has prepared, so a model's repeated blocks cost one preparation. Copies share the memory, and
/// several threads may ask at once. `threads`: that the kernels are to have; 0: the caller's.
class StepNeeds {
 public:
  explicit StepNeeds(std::span<const KernelList* const> lists);
  StepBytes operator()(const Program& program, const Step& step, int threads = 0) const;
  /// How a kernel's step runs with its neighbours: what the passes of fusion ask for.
  StepFusion fusion(const Program& program, const Step& step, int threads = 0) const;

 private:
  struct Known {
    StepBytes bytes;
    StepFusion fusion;
  };
  struct Remembered {
    std::mutex mutex;
    std::map<std::pair<int, std::string>, Known> known;  // by threads and call
  };
  Known known(const Program& program, const Step& step, int threads) const;

  std::vector<const KernelList*> lists_;
  std::shared_ptr<Remembered> remembered_;
};

/// One step of training is
///   set_scalar("lr", …), set_scalar("step", …); begin_step();
///   for each micro-batch: fill batch shards (batch() or write()); run_micro();
///   run_update(); read metrics.
/// Batch buffers hold nothing any more after run_micro: they are filled anew for each.
///
/// Every method that runs steps, and the constructor, is collective over `world`. An exception
/// leaves the peers waiting: whoever catches it calls world.abort().
///
/// From the second step on nothing of ours that a step calls allocates: kernels, collectives,
/// begin_step, set_scalar and metric. (oneDNN does, a list of arguments for each primitive.)
class Executor {
 public:
  /// `program` has been placed; the world has as many ranks as its mesh and this one is
  /// program.rank. Without `arena`, allocates exactly program.arena_bytes. `initialise`: read or
  /// make every persistent value's shard from its Source (false: the arena holds them already, or
  /// gets them later).
  /// `lists` are tried in order, during construction; their names are seen through
  /// implementation(). Kernels and `world` are those of `device`, which the arena lies on. Where it
  /// has a side, `world` is of that one: collectives overlap with kernels that do not need them.
  Executor(Program program, std::span<const KernelList* const> lists, Communicator& world,
           uint64_t seed, std::shared_ptr<Arena> arena = nullptr, bool initialise = true,
           Device& device = host_device());
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Before the first step and after write() has kernels keep what they read in every run, and runs
  /// Program::setup; zeroes what starts every step at zero (accumulated gradients). Who fills
  /// parameters through view() does so before the first.
  void begin_step();
  void run_micro();  // throws Error with the rank and the node in front
  void run_update();

  /// Reads or makes this rank's shards of those persistent values from their Sources.
  void initialise(uint64_t seed, const std::function<bool(const Binding&)>& which);

  /// Called after every step from now on, on the thread that runs it, with the step's index in
  /// program().steps and what it has left in the arena. What it throws passes through run_*.
  /// Fused steps (Program::fused) and those of one call (Step::call) then run one by one, with
  /// the same results: all ranks ask for that, or none, for they must make the same calls.
  using StepHook = std::function<void(size_t step, std::span<const TensorView> results)>;
  void on_step(StepHook hook) { hook_ = std::move(hook); }

  /// From now on tells `timeline` when each step ran; null: no more.
  void record(Timeline* timeline) { timeline_ = timeline; }
  /// From now on writes each step there before it runs, as of `part`; null: no more. Work that a
  /// device could note is then asked for step by step.
  void record(FlightRecorder* flight, const std::string& part);

  /// Returns false if the program has no such scalar (a model without dropout has no random_step).
  bool set_scalar(std::string_view name, double value);
  bool set_scalar(std::string_view name, int64_t value);
  bool set_scalar(std::string_view name, int value) {
    return set_scalar(name, static_cast<int64_t>(value));
  }

  const Program& program() const { return program_; }
  /// Inputs and persistent values by name, outputs and metrics by name; null if there is none.
  const Binding* find(std::string_view name) const;
  const Binding* find_output(std::string_view name) const;
  const Binding* find_metric(std::string_view name) const;
  /// This rank's shard (binding.box) in the arena, which is the device's memory.
  TensorView view(const Binding& binding) const { return view(binding.buffer); }
  /// Has `write(void* shard)` fill this rank's shard (binding.box): in place, or in staging memory
  /// where the arena is not the host's. Not called for an empty shard.
  template <class Write>
  void fill(const Binding& binding, const Write& write) {
    if (void* shard = to_fill(binding)) {
      write(shard);
      filled(binding);
    }
  }
  /// Copies in or out. write throws invalid_input if the name or the shard's type is wrong.
  void write(std::string_view name, const Tensor& shard);
  Tensor read(const Binding& binding) const;
  /// A buffer of the arena, as a step leaves it (StepHook).
  Tensor read(const TensorView& buffer) const;
  double metric(std::string_view name) const;  // throws invalid_input if there is none
  /// Another Program that shares the arena has run: what kernels keep, and what Program::setup
  /// makes, is made anew before the next step.
  void weights_changed() { is_set_up_ = false; }

  int64_t allocated_bytes() const { return arena_->bytes(); }
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  Device& device() const { return device_; }

  /// Seconds in communication, packing included, since construction (slices are compute). On a
  /// device that works behind the host they are known only while a timeline is recorded.
  double comm_seconds() const { return comm_seconds_; }
  /// Which kernel runs each step: "reference", "cpu:onednn"; empty for collectives.
  std::string_view implementation(size_t step) const;
  /// Bytes that this rank sends in a step; 0 for kernels.
  int64_t bytes_sent(size_t step) const;

 private:
  struct Ready;  // a step with its pointers
  struct Fused;  // several, run as one
  void find_groups();
  void prepare(std::span<const KernelList* const> lists);
  void agree_on_recording(Communicator& world);
  void set_up();
  void fuse();
  void plan_waits();
  void run(Phase phase);
  void run_steps(Phase phase);
  void wait_before(const Ready& ready, int point);
  void run_step(size_t step);
  void run_fused(size_t first, const Fused& fused);
  void tell_times();
  TensorView view(BufferId buffer) const;
  void* to_fill(const Binding& binding);  // null if it is empty
  void filled(const Binding& binding);
  const Binding* scalar(std::string_view name) const;
  const TensorType& type_of(const Binding& binding) const;
  void* data_of(const Binding& binding) const;  // null if it is empty

  Program program_;
  std::string name_;  // this rank's, for errors
  Device& device_;
  std::shared_ptr<Arena> arena_;
  std::map<std::vector<int>, Communicator*> groups_;  // by mesh axes
  std::vector<Ready> setup_, ready_;                  // of Program::setup and Program::steps
  bool is_set_up_ = false;
  std::map<size_t, Fused> fused_;  // by their first step
  std::set<Phase> recordable_;     // on every rank
  std::map<Phase, std::unique_ptr<RecordedWork>> recorded_;
  std::vector<int> waits_;     // by step the point of its side that the device waits for before, -1
  std::vector<int> passes_;    // by step the point that the side passes behind it, -1
  std::set<Phase> warm_;       // have run once, step by step
  std::vector<char> staging_;  // what fill gives out where the arena is not the host's
  struct Timed {
    size_t step = 0, count = 1;  // from the first of so many
    size_t begin = 0;            // the mark before them; the next one is behind
  };
  std::unique_ptr<Marks> marks_;
  std::vector<Timed> timed_;  // of the run that goes on
  double comm_seconds_ = 0;
  StepHook hook_;
  Timeline* timeline_ = nullptr;
  FlightRecorder* flight_ = nullptr;
  FlightRecorder::Lines flight_lines_;
};

}  // namespace shardrun
