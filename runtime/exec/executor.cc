// The arena, preparation of every step, and the loop that runs them.
#include "exec/executor.h"

#include <omp.h>

#include <algorithm>
#include <variant>

#include "base/streams/stream_waits.h"
#include "exec/fused_kernel.h"
#include "exec/read_pieces.h"
#include "exec/sum_call.h"
#include "kernels/call_signature.h"

namespace shardrun {
namespace {

/// As errors call this rank.
std::string name_in_job(const Communicator& world) {
  const Members& members = world.members();
  return members.job ? members.job->name(members.ranks[static_cast<size_t>(world.rank())])
                     : str("rank ", world.rank());
}

const Binding* find_in(const std::vector<Binding>& bindings, std::string_view name) {
  for (const Binding& b : bindings) {
    if (b.name == name) return &b;
  }
  return nullptr;
}

/// "node 'h.0/qkv'", or of what moves between ranks "value 'h.0/out'".
std::string name_of(const Program& program, const Step& step) {
  if (step.kind == Step::Kind::kernel) return str("node '", step.node.name, "'");
  return str("value '", program.buffers[static_cast<size_t>(step.in[0])].name, "'");
}

void write_scalar(Device& device, void* to, DType dtype, DType from, const void* value) {
  alignas(8) char rounded[8];
  convert(value, from, rounded, dtype, 1);
  device.copy_in(to, rounded, size_of(dtype));
}

/// Kernels that the calling thread prepares are prepared for so many threads.
class KernelThreads {
 public:
  explicit KernelThreads(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) omp_set_num_threads(threads);
  }
  ~KernelThreads() {
    if (omp_get_max_threads() != before_) omp_set_num_threads(before_);
  }
  KernelThreads(const KernelThreads&) = delete;
  KernelThreads& operator=(const KernelThreads&) = delete;

 private:
  const int before_;
};

}  // namespace

Communicator* Arena::group(const std::vector<std::vector<int>>& groups) {
  std::unique_ptr<Communicator>& group = groups_[groups];
  if (!group) group = world_.split(groups);
  return group.get();
}

StepNeeds::StepNeeds(std::span<const KernelList* const> lists)
    : lists_(lists.begin(), lists.end()), remembered_(std::make_shared<Remembered>()) {}

StepBytes StepNeeds::operator()(const Program& program, const Step& step, int threads) const {
  if (step.kind == Step::Kind::collective) {
    const DType dtype = program.buffers[static_cast<size_t>(step.in[0])].type.dtype;
    return {CollectiveStep::workspace_bytes(*step.collective, dtype, program.rank)};
  }
  return known(program, step, threads).bytes;
}

StepFusion StepNeeds::fusion(const Program& program, const Step& step, int threads) const {
  return known(program, step, threads).fusion;
}

StepNeeds::Known StepNeeds::known(const Program& program, const Step& step, int threads) const {
  const std::vector<TensorType> in = types_of(program, step.in), out = types_of(program, step.out);
  if (threads == 0) threads = omp_get_max_threads();
  std::pair key(threads, signature({step.node, in, out}));
  const std::lock_guard lock(remembered_->mutex);
  const auto it = remembered_->known.find(key);
  if (it != remembered_->known.end()) return it->second;
  const KernelThreads with(threads);
  const PreparedKernel kernel = select_kernel(lists_, KernelCall{step.node, in, out});
  Known known{{kernel.workspace_bytes, kernel.kept_bytes}, {}};
  known.fusion.elements = reinterpret_cast<const void*>(kernel.fuse);
  if (kernel.run_rows)
    known.fusion.rows = kernel.rows_of_operand ? RowWise::operand : RowWise::result;
  return remembered_->known.emplace(std::move(key), known).first->second;
}

struct Executor::Ready {
  Phase phase = Phase::micro;
  std::vector<TensorView> in, out;
  void *workspace = nullptr, *kept = nullptr;
  std::shared_ptr<PreparedKernel> kernel;  // or
  std::unique_ptr<CollectiveStep> collective;
  Communicator* group = nullptr;
  std::string where;  // rank and step, for errors

  KernelArgs args(const Device& device) const {
    return {in, out, workspace, device.stream(), kept};
  }
};

struct Executor::Fused {
  size_t size = 0;
  int waits = -1;  // as waits_ has it, of all its steps; calls have none
  std::variant<FusedKernel, SumCall> as_one;
};

Executor::Executor(Program program, std::span<const KernelList* const> lists, Communicator& world,
                   uint64_t seed, std::shared_ptr<Arena> arena, bool initialise, Device& device)
    : program_(std::move(program)),
      name_(name_in_job(world)),
      device_(device),
      arena_(std::move(arena)),
      marks_(device.marks()) {
  SR_REQUIRE(world.size() == program_.mesh.size() && world.rank() == program_.rank, internal,
             "program is for rank ", program_.rank, " of ", program_.mesh.size(),
             ", the communicator is rank ", world.rank(), " of ", world.size());
  if (!arena_) arena_ = std::make_shared<Arena>(program_.arena_bytes, world);
  SR_REQUIRE(arena_->bytes() >= program_.arena_bytes, internal, "the shared arena has ",
             arena_->bytes(), " bytes, the program needs ", program_.arena_bytes);
  try {
    find_groups();
    prepare(lists);
    agree_on_recording(world);
    plan_waits();
    fuse();
    if (initialise) this->initialise(seed, [](const Binding&) { return true; });
  } catch (const Error& e) {
    throw e.with_context(name_);
  }
}

Executor::~Executor() = default;

/// Every rank asks for the same axis sets in the order of their first use, which is the same in
/// every rank's program.
void Executor::find_groups() {
  for (const Step& step : program_.steps) {
    if (step.kind != Step::Kind::collective || step.collective->traits().local) continue;
    const std::vector<int>& axes = step.collective->axes;
    if (groups_.count(axes)) continue;
    std::vector<std::vector<int>> groups;
    for (int64_t rank = 0; rank < program_.mesh.size(); ++rank) {
      const std::vector<int64_t> members = program_.mesh.group(rank, axes);
      if (members.front() == rank) groups.emplace_back(members.begin(), members.end());
    }
    groups_[axes] = arena_->group(groups);
  }
}

void Executor::prepare(std::span<const KernelList* const> lists) {
  std::map<std::string, std::shared_ptr<PreparedKernel>> prepared;
  const auto ready_of = [&](const Step& step) {
    Ready ready;
    ready.phase = step.phase;
    ready.where = str(name_, ": ", name_of(program_, step));
    for (BufferId id : step.in) ready.in.push_back(view(id));
    for (BufferId id : step.out) ready.out.push_back(view(id));
    if (step.needs.workspace > 0) ready.workspace = arena_->data() + step.workspace_offset;
    if (step.needs.kept > 0) ready.kept = arena_->data() + step.kept_offset;
    StepBytes needed;
    try {
      if (step.kind == Step::Kind::collective) {
        const bool local = step.collective->traits().local;
        Device* const side = local ? nullptr : device_.side();
        ready.collective =
            std::make_unique<CollectiveStep>(step.collective, ready.in[0].type.dtype, program_.rank,
                                             side != nullptr ? *side : device_);
        needed.workspace = ready.collective->workspace_bytes();
        if (!local) ready.group = groups_.at(step.collective->axes);
      } else {
        const std::vector<TensorType> in = types_of(program_, step.in),
                                      out = types_of(program_, step.out);
        std::shared_ptr<PreparedKernel>& kernel = prepared[signature({step.node, in, out})];
        if (!kernel)
          kernel = std::make_shared<PreparedKernel>(
              select_kernel(lists, KernelCall{step.node, in, out}));
        ready.kernel = kernel;
        needed = {kernel->workspace_bytes, kernel->kept_bytes};
      }
      SR_REQUIRE(needed.workspace <= step.needs.workspace && needed.kept <= step.needs.kept,
                 internal, "needs ", needed.workspace, " bytes of workspace and keeps ",
                 needed.kept, ", ", step.needs.workspace, " and ", step.needs.kept,
                 " were placed for it");
    } catch (const Error& e) {
      throw e.with_context(name_of(program_, step));
    }
    return ready;
  };
  for (const Step& step : program_.setup) setup_.push_back(ready_of(step));
  for (const Step& step : program_.steps) ready_.push_back(ready_of(step));
}

/// All ranks record a phase or none: NCCL wants a collective recorded by all that take part in it
/// (its user guide, "Using NCCL with CUDA Graphs"), and kernels may differ, as those of an image's
/// first and last rows.
void Executor::agree_on_recording(Communicator& world) {
  if (device_.is_host()) return;
  for (const Phase phase : {Phase::micro, Phase::update}) {
    const uint8_t mine = std::all_of(ready_.begin(), ready_.end(), [&](const Ready& ready) {
      if (ready.phase != phase) return true;
      if (ready.kernel) return ready.kernel->recordable;
      return ready.collective->recordable() && (!ready.group || ready.group->recordable());
    });
    std::vector<uint8_t> all(static_cast<size_t>(world.size()));
    world.host().all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), 1), DType::u8);
    if (std::find(all.begin(), all.end(), 0) == all.end()) recordable_.insert(phase);
  }
}

void Executor::set_up() {
  for (const Ready& ready : ready_) {
    if (ready.kept == nullptr) continue;
    const std::vector<char> kept = ready.kernel->keep(ready.args(device_));
    device_.copy_in(ready.kept, kept.data(), static_cast<int64_t>(kept.size()));
  }
  for (const Ready& ready : setup_) ready.kernel->run(ready.args(device_));
  is_set_up_ = true;
}

void Executor::fuse() {
  for (const FusedSteps& chain : program_.fused) {
    std::vector<BoundStep> steps;
    int waits = -1;
    for (size_t s = chain.first; s < chain.end(); ++s) {
      steps.push_back({ready_[s].kernel.get(), ready_[s].in, ready_[s].out});
      waits = std::max(waits, waits_[s]);
    }
    fused_.emplace(chain.first, Fused{chain.size, waits, fused_kernel(program_, chain, steps)});
  }
  for (size_t first = 0; first < ready_.size() && device_.side() == nullptr; ++first) {
    const size_t size = call_size(program_, first);
    if (size == 1) continue;
    SumCall sum(ready_[first].in[0].type.dtype, program_.steps[first].collective->op);
    for (size_t s = first; s < first + size; ++s) {
      const Ready& ready = ready_[s];
      sum.add(ready.in[0], ready.out[0], ready.workspace, program_.steps[s].needs.workspace);
    }
    fused_.emplace(first, Fused{size, -1, std::move(sum)});
    first += size - 1;
  }
}

/// Phases that ask the side for anything end with a wait, so each stands for itself.
void Executor::plan_waits() {
  waits_.assign(ready_.size(), -1);
  passes_.assign(ready_.size(), -1);
  if (device_.side() == nullptr) return;
  const auto range = [](const void* data, int64_t bytes) {
    const auto* begin = static_cast<const char*>(data);
    return StepMemory::Range(begin, begin == nullptr ? begin : begin + bytes);
  };
  int points = 0;
  for (const Phase phase : {Phase::micro, Phase::update}) {
    std::vector<size_t> indices;
    std::vector<StepMemory> steps;
    for (size_t s = 0; s < ready_.size(); ++s) {
      const Ready& ready = ready_[s];
      if (ready.phase != phase) continue;
      StepMemory memory;
      for (const TensorView& v : ready.in) memory.reads.push_back(range(v.data, byte_size(v.type)));
      for (const TensorView& v : ready.out)
        memory.writes.push_back(range(v.data, byte_size(v.type)));
      memory.writes.push_back(range(ready.workspace, program_.steps[s].needs.workspace));
      memory.stream = ready.group != nullptr ? 1 : 0;
      steps.push_back(std::move(memory));
      indices.push_back(s);
    }
    const std::vector<std::vector<int>> waits = stream_waits(steps);
    for (size_t i = 0; i < indices.size(); ++i) {
      if (steps[i].stream != 0 || waits[i].empty()) continue;
      passes_[indices[static_cast<size_t>(waits[i][0])]] = waits_[indices[i]] = points++;
    }
  }
}

/// Where the arena is not the host's, numbers are made in the host's memory, some at a time: a
/// machine's GPUs may have more memory than it has itself.
void Executor::initialise(uint64_t seed, const std::function<bool(const Binding&)>& which) {
  constexpr int64_t kMostStaged = int64_t{64} << 20;
  const std::vector<int64_t> at = program_.mesh.coordinates(program_.rank);
  std::vector<ValuePiece> pieces;
  std::vector<std::pair<TensorView, Tensor>> shards;
  int64_t staged_bytes = 0;
  const auto fill = [&] {
    read_pieces(pieces, seed);
    for (const auto& [shard, numbers] : shards)
      device_.copy_in(shard.data, numbers.data(), byte_size(shard.type));
    pieces.clear(), shards.clear();
    staged_bytes = 0;
  };
  for (const Binding& b : program_.bindings) {
    if (!is_persistent(b.role) || !which(b)) continue;
    const TensorView shard = view(b.buffer);
    if (shard.count() == 0) continue;
    // A partial sum or product: the first rank along its axes holds the value, the others 0 or 1. A
    // partial max or min may be held by all.
    const auto other = std::find_if(b.sharding.partial.begin(), b.sharding.partial.end(),
                                    [&](const Sharding::Partial& p) {
                                      return (p.op == ReduceOp::sum || p.op == ReduceOp::prod) &&
                                             at[static_cast<size_t>(p.axis)] != 0;
                                    });
    if (other != b.sharding.partial.end()) {
      fill_identity(device_, shard.data, shard.count(), shard.type.dtype, other->op);
    } else if (!device_.is_host() && b.source.kind == Source::Kind::zeros) {
      device_.zero(shard.data, byte_size(shard.type));
    } else if (device_.is_host()) {
      add_pieces(b, shard, shard.as<char>(), pieces);
    } else {
      shards.emplace_back(shard, Tensor(shard.type));
      add_pieces(b, shard, static_cast<char*>(shards.back().second.data()), pieces);
      staged_bytes += byte_size(shard.type);
      if (staged_bytes >= kMostStaged) fill();
    }
  }
  fill();
}

void Executor::begin_step() {
  if (!is_set_up_) set_up();
  const double start = timeline_ ? Timeline::now() : 0;
  for (const Binding& b : program_.bindings) {
    if (!b.zeroed_each_step) continue;
    device_.zero(data_of(b), byte_size(type_of(b)));
  }
  if (timeline_) timeline_->add(Timeline::kZeroing, 1, start, Timeline::now());
}

void Executor::run_micro() { run(Phase::micro); }
void Executor::run_update() { run(Phase::update); }

/// The first run of a phase goes step by step: libraries make up their minds then. After it the
/// device may note the work and do it at one call.
void Executor::run(Phase phase) {
  const bool plain = hook_ || timeline_ || flight_;
  if (!plain && recorded_.count(phase) == 0 && warm_.count(phase) != 0) {
    const bool recordable = recordable_.count(phase) != 0;
    recorded_[phase] = recordable ? device_.record([&] { run_steps(phase); }) : nullptr;
  }
  const auto recorded = recorded_.find(phase);
  if (!plain && recorded != recorded_.end() && recorded->second) {
    recorded->second->run();
  } else {
    run_steps(phase);
  }
  warm_.insert(phase);
}

/// A kernel of the host's waits for the device, and so may any that first runs: it is loaded, and
/// libraries measure. Nobody watches those waits, and CUDA may hold a lock meanwhile that a
/// collective's own thread wants. So what was asked for before is waited for here, where a
/// collective that does not end is found out; and ranks begin a collective's first run together.
void Executor::wait_before(const Ready& ready, int point) {
  const bool first = warm_.count(ready.phase) == 0;
  if (device_.side() != nullptr && first) {
    device_.wait_for(*device_.side());
  } else if (point >= 0) {
    device_.wait_for_point(*device_.side(), point);
  }
  if (!first && (!ready.kernel || ready.kernel->recordable)) return;
  device_.begins("");  // what is found now is of a step before
  device_.synchronize();
  if (ready.group != nullptr && !device_.is_host()) ready.group->host().barrier();
}

void Executor::run_step(size_t step) {
  const Ready& ready = ready_[step];
  Device* const side = ready.group != nullptr ? device_.side() : nullptr;
  wait_before(ready, waits_[step]);
  try {
    device_.begins(ready.where);
    if (side != nullptr) side->wait_for(device_);
    if (ready.kernel) {
      ready.kernel->run(ready.args(device_));
    } else {
      ready.collective->run(ready.in, ready.out, ready.workspace, ready.group);
    }
    if (passes_[step] >= 0) side->passes(passes_[step]);
    if (side != nullptr && (timeline_ || hook_)) device_.wait_for(*side);
  } catch (const Error& e) {
    throw e.with_context(ready.where);
  }
}

void Executor::run_fused(size_t first, const Fused& fused) {
  wait_before(ready_[first], fused.waits);
  try {
    device_.begins(ready_[first].where);
    if (const auto* one = std::get_if<FusedKernel>(&fused.as_one)) {
      one->kernel.run(KernelArgs{one->in, one->out, nullptr, device_.stream()});
    } else {
      std::get<SumCall>(fused.as_one).run(*ready_[first].group);
    }
  } catch (const Error& e) {
    throw e.with_context(str(ready_[first].where, " and ", fused.size - 1, " behind it"));
  }
}

void Executor::run_steps(Phase phase) {
  const bool timed = timeline_ || device_.is_host();
  if (timed) marks_->begin();
  timed_.clear();
  size_t before = 0;  // the last mark
  const auto mark = [&] {
    if (timed) marks_->add();
    ++before;
  };
  bool on_side = false;
  for (size_t s = 0; s < ready_.size(); ++s) {
    const Ready& ready = ready_[s];
    if (ready.phase != phase) continue;
    on_side = on_side || ready.group != nullptr;
    const auto fused = fused_.find(s);
    const bool as_one = fused != fused_.end() && !hook_;
    const size_t count = as_one ? fused->second.size : 1;
    if (flight_ != nullptr) flight_->runs(flight_lines_, s, count);
    if (as_one) {
      run_fused(s, fused->second);
    } else {
      run_step(s);
    }
    timed_.push_back({s, count, before});
    mark();
    if (hook_) {
      hook_(s, ready.out);
      mark();
    }
    s += count - 1;
  }
  device_.begins("");
  if (on_side && device_.side() != nullptr) device_.wait_for(*device_.side());
  if (timed) tell_times();
}

void Executor::tell_times() {
  const std::span<const double> at = marks_->times();
  for (const Timed& t : timed_) {
    const double begin = at[t.begin], end = at[t.begin + 1];
    if (ready_[t.step].group != nullptr) comm_seconds_ += end - begin;
    if (timeline_) timeline_->add(t.step, t.count, begin, end);
  }
}

void Executor::record(FlightRecorder* flight, const std::string& part) {
  flight_ = flight;
  if (flight != nullptr) flight_lines_ = FlightRecorder::lines(program_, part);
}

const Binding* Executor::scalar(std::string_view name) const {
  const Binding* b = find(name);
  return b != nullptr && b->role == Role::scalar ? b : nullptr;
}

bool Executor::set_scalar(std::string_view name, double value) {
  const Binding* b = scalar(name);
  if (b == nullptr) return false;
  write_scalar(device_, data_of(*b), type_of(*b).dtype, DType::f64, &value);
  return true;
}

bool Executor::set_scalar(std::string_view name, int64_t value) {
  const Binding* b = scalar(name);
  if (b == nullptr) return false;
  write_scalar(device_, data_of(*b), type_of(*b).dtype, DType::i64, &value);
  return true;
}

const Binding* Executor::find(std::string_view name) const {
  return find_in(program_.bindings, name);
}
const Binding* Executor::find_output(std::string_view name) const {
  return find_in(program_.outputs, name);
}
const Binding* Executor::find_metric(std::string_view name) const {
  return find_in(program_.metrics, name);
}

const TensorType& Executor::type_of(const Binding& binding) const {
  return program_.buffers[static_cast<size_t>(binding.buffer)].type;
}

void* Executor::data_of(const Binding& binding) const {
  const Buffer& b = program_.buffers[static_cast<size_t>(binding.buffer)];
  return byte_size(b.type) == 0 ? nullptr : arena_->data() + b.offset;
}

TensorView Executor::view(BufferId buffer) const {
  const Buffer& b = program_.buffers[static_cast<size_t>(buffer)];
  SR_REQUIRE(b.offset >= 0 && b.offset + byte_size(b.type) <= program_.arena_bytes, internal,
             "buffer '", b.name, "' has not been placed");
  return {byte_size(b.type) == 0 ? nullptr : arena_->data() + b.offset, b.type};
}

void* Executor::to_fill(const Binding& binding) {
  if (device_.is_host()) return data_of(binding);
  const auto bytes = static_cast<size_t>(byte_size(type_of(binding)));
  if (staging_.size() < bytes) staging_.resize(bytes);
  return bytes == 0 ? nullptr : staging_.data();
}

void Executor::filled(const Binding& binding) {
  if (!device_.is_host())
    device_.copy_in(data_of(binding), staging_.data(), byte_size(type_of(binding)));
}

void Executor::write(std::string_view name, const Tensor& shard) {
  const Binding* b = find(name);
  SR_REQUIRE(b != nullptr, invalid_input, "the program has no input or persistent value '", name,
             "'");
  const TensorView target = view(b->buffer);
  SR_REQUIRE(shard.type() == target.type, invalid_input, "'", name, "' on rank ", program_.rank,
             " holds ", target.type, ", got ", shard.type());
  device_.copy_in(target.data, shard.data(), byte_size(target.type));
  if (b->role == Role::parameter) is_set_up_ = false;
}

Tensor Executor::read(const Binding& binding) const { return read(view(binding.buffer)); }

Tensor Executor::read(const TensorView& buffer) const {
  Tensor out(buffer.type);
  device_.copy_out(out.data(), buffer.data, byte_size(buffer.type));
  return out;
}

double Executor::metric(std::string_view name) const {
  const Binding* b = find_metric(name);
  SR_REQUIRE(b != nullptr, invalid_input, "the program has no metric '", name, "'");
  const DType dtype = type_of(*b).dtype;
  alignas(8) char element[8];
  device_.copy_out(element, data_of(*b), size_of(dtype));
  double value = 0;
  convert(element, dtype, &value, DType::f64, 1);
  return value;
}

std::string_view Executor::implementation(size_t step) const {
  return ready_.at(step).kernel ? ready_[step].kernel->impl : std::string_view();
}

int64_t Executor::bytes_sent(size_t step) const {
  if (!ready_.at(step).collective) return 0;
  const Step& of = program_.steps[step];
  return shardrun::bytes_sent(*of.collective, ready_[step].in[0].type.dtype, program_.rank);
}

}  // namespace shardrun
