// Timing collectives in groups of every size.
#include <algorithm>
#include <memory>

#include "calibrate.h"
#include "exec/executor.h"
#include "planner/reshard.h"

namespace shardrun {
namespace {

constexpr double kBudget = 10e-3;   // s of a measurement
constexpr double kLongest = 60e-3;  // s of a call; after one larger ones are left out
constexpr int64_t kMostRuns = 300;
constexpr int kAlternations = 8;
// Of 64 floats each. Calls of a device are waited for together, and take less time each.
constexpr int64_t kMostRows = 1 << 16, kMostRowsOfDevice = 1 << 20;

/// f32[count] before and after the collective, over a mesh of one axis.
struct Case {
  Collective::Kind kind;
  const char *before, *after;
};
constexpr Case kCases[] = {
    {Collective::Kind::all_gather, "[{a}, -]", "[-, -]"},
    {Collective::Kind::reduce_scatter, "[-, -] partial(sum: a)", "[{a}, -]"},
    {Collective::Kind::all_reduce, "[-, -] partial(sum: a)", "[-, -]"},
    {Collective::Kind::all_to_all, "[{a}, -]", "[-, {a}]"},
};

/// Each value over all ranks; `world` is for memory of the host.
void over_ranks(Communicator& world, std::vector<double>& values, Reduction op) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<char> staging(static_cast<size_t>(world.all_reduce_staging(count, DType::f64) + 64));
  void* aligned = staging.data();
  size_t space = staging.size();
  std::align(64, staging.size() - 64, aligned, space);
  world.all_reduce(values.data(), count, DType::f64, op, aligned);
}

double largest(Communicator& world, double own) {
  std::vector<double> one = {own};
  over_ranks(world, one, Reduction::max);
  return one[0];
}

/// A group's consecutive ranks, and, if that is not all of them, one of as many ranks whose place
/// in their groups is the same: the groups of a mesh's two axes.
struct Groups {
  std::unique_ptr<Communicator> along, across;
};

Groups groups_of(Communicator& world, int size) {
  const int count = world.size() / size;
  std::vector<std::vector<int>> along(static_cast<size_t>(count)), across = along;
  for (int rank = 0; rank < world.size(); ++rank) {
    along[static_cast<size_t>(rank / size)].push_back(rank);
    across[static_cast<size_t>(rank % count)].push_back(rank);
  }
  Groups out;
  out.along = world.split(along);
  if (count > 1) out.across = world.split(across);
  return out;
}

/// Lower quartile of what a call takes from when the last rank has come: what the quickest rank
/// sees, for the others also wait. Of groups that are not all ranks, calls along one axis of a mesh
/// and along the other alternate, as in a step, until the slowest rank has done some: where ranks
/// share cores, a group that happens to run alone says little. A device is asked for several calls
/// and waited for once.
double measure(Communicator& world, Device& device, const Groups& groups, const Case& c,
               int64_t rows) {
  Communicator& host = world.host();
  Communicator& group = *groups.along;
  const Mesh mesh({{"a", group.size()}});
  const Shape shape = {rows, 64};
  ReshardStep step;
  step.kind = c.kind;
  step.axes = {0};
  step.to_dim = c.kind == Collective::Kind::all_to_all ? 1 : 0;
  const Sharding before = parse_sharding(c.before, mesh);
  step.after = parse_sharding(c.after, mesh);
  const Collective collective = collective_of(step, shape, before, mesh, group.rank());
  const CollectiveStep run(collective, DType::f32, group.rank(), device);
  const auto me = static_cast<size_t>(group.rank());
  const int64_t in_count = element_count(box_shape(collective.in_boxes[me])),
                out_count = element_count(box_shape(collective.out_boxes[me]));
  const auto padded = [](int64_t floats) {
    return (floats * 4 + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  };
  // As in a step, all of it lies in an arena.
  const Arena arena(padded(in_count) + padded(out_count) + run.workspace_bytes(), world);
  char* in = arena.data();
  char* out = arena.data() + padded(in_count);
  char* workspace = out + padded(out_count);
  const float one = 1;
  device.fill(in, in_count, &one, sizeof one);
  // In a step the operand was just written, and lies in its writer's cache.
  const auto write = [&] {
    if (!device.is_host()) return;
    for (int64_t i = 0; i < in_count; i += 16) reinterpret_cast<float*>(in)[i] += 1;
  };
  const int rounds = groups.across || !device.is_host() ? kAlternations : 1;
  const int calls = groups.across ? 2 * rounds : rounds;
  const auto call = [&] {
    if (!groups.across) write();
    device.synchronize();
    host.barrier();
    const double begin = now_seconds();
    for (int i = 0; i < rounds; ++i) {
      for (Communicator* axis : {groups.along.get(), groups.across.get()}) {
        if (axis == nullptr) continue;
        if (groups.across) write();
        run.run(in, out, workspace, axis);
      }
    }
    device.synchronize();
    return (now_seconds() - begin) / calls;
  };
  call();
  // Every rank makes as many calls.
  const double once = largest(host, std::max(call(), call())), sample = calls * once;
  const auto runs = std::clamp(static_cast<int64_t>(kBudget / sample), int64_t{5}, kMostRuns);
  std::vector<double> samples;
  for (int64_t i = 0; i < runs; ++i) samples.push_back(call());
  over_ranks(host, samples, groups.across ? Reduction::max : Reduction::min);
  const auto quartile = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 4);
  std::nth_element(samples.begin(), quartile, samples.end());
  return *quartile;
}

}  // namespace

std::vector<MeasuredCollective> measure_collectives(Communicator& world, Device& of,
                                                    const std::string& backend, double deadline) {
  Device& device = of.side() != nullptr ? *of.side() : of;
  const int64_t most_rows = device.is_host() ? kMostRows : kMostRowsOfDevice;
  std::vector<MeasuredCollective> out;
  for (int size = world.size(); size >= 2; --size) {
    if (world.size() % size != 0) continue;
    const Groups groups = groups_of(world, size);
    for (const Case& c : kCases) {
      MeasuredCollective measured{backend, world.size(), size, c.kind, {}};
      double last = 0;
      for (int64_t rows = 4; rows <= most_rows; rows *= 4) {
        // Rank 0's clock counts.
        double late = world.rank() == 0 && (now_seconds() > deadline || last > kLongest) ? 1 : 0;
        if (largest(world.host(), late) > 0) break;
        last = rounded(measure(world, device, groups, c, rows));
        const double part = c.kind == Collective::Kind::all_to_all ? size : 1;
        measured.curve.points.emplace_back(static_cast<double>(rows * 64 * 4) / part, last);
      }
      make_monotone(measured.curve);
      if (!measured.curve.points.empty()) out.push_back(std::move(measured));
    }
  }
  return out;
}

}  // namespace shardrun
