// Timing collectives in groups of every size.
#include <algorithm>
#include <deque>
#include <memory>

#include "base/clock.h"
#include "base/round_up.h"
#include "exec/executor.h"
#include "measure/calibrate.h"
#include "planner/reshard/reshard.h"
#include "ranks/backend.h"

namespace shardrun {
namespace {

constexpr double kCollectiveBudget = 10e-3;   // s of a measurement
constexpr double kLongestCollective = 60e-3;  // s of a call; after one larger ones are left out
constexpr double kMoment = 1.25;  // times as long as a little later: the first was disturbed
constexpr int64_t kMostRuns = 300;
constexpr int kAlternations = 8;
// Of 64 floats each. Calls of a device are waited for together, and take less time each.
constexpr int64_t kMostRows = 1 << 16, kMostRowsOfDevice = 1 << 20;

/// f32[count] before and after the collective, over a mesh of one axis.
struct Case {
  Collective::Kind kind;
  const char *before, *after;
  int to_dim = 0;
  bool cut = false;  // on the side that CollectiveTraits::sized names
};
constexpr Case kCases[] = {
    {Collective::Kind::all_gather, "[{a}, -]", "[-, -]"},
    {Collective::Kind::reduce_scatter, "[-, -] partial(sum: a)", "[{a}, -]"},
    {Collective::Kind::all_reduce, "[-, -] partial(sum: a)", "[-, -]"},
    {Collective::Kind::all_to_all, "[{a}, -]", "[-, {a}]", 1, true},
};

static_assert(std::all_of(kCollectives.begin(), kCollectives.end(),
                          [](const CollectiveTraits& traits) {
                            return traits.is_measured() ==
                                   std::any_of(
                                       std::begin(kCases), std::end(kCases),
                                       [&](const Case& c) { return c.kind == traits.kind; });
                          }),
              "kCases has each kind that is measured");

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

  std::vector<Communicator*> both() const {
    return across ? std::vector{along.get(), across.get()} : std::vector{along.get()};
  }
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

/// A group's collective of `rows` times 64 floats, whose memory lies in an arena as in a step.
/// Collective over `world`.
class Trial {
 public:
  Trial(Communicator& world, Device& device, Communicator& group, const Case& c, int64_t rows)
      : group_(group),
        rank_(static_cast<size_t>(group.rank())),
        collective_(collective_of_case(group, c, rows)),
        step_(collective_, DType::f32, group.rank(), device),
        in_count_(element_count(box_shape(collective_.in_boxes[rank_]))),
        in_bytes_(padded(in_count_)),
        out_bytes_(padded(element_count(box_shape(collective_.out_boxes[rank_])))),
        arena_(in_bytes_ + out_bytes_ + step_.workspace_bytes(), world) {
    const float one = 1;
    device.fill(arena_.data(), in_count_, &one, sizeof one);
  }
  void run() const {
    char* const out = arena_.data() + in_bytes_;
    step_.run(arena_.data(), out, out + out_bytes_, &group_);
  }
  /// On the host. In a step the operand was just written, and lies in its writer's cache.
  void write() const {
    for (int64_t i = 0; i < in_count_; i += 16) reinterpret_cast<float*>(arena_.data())[i] += 1;
  }

 private:
  static int64_t padded(int64_t floats) { return round_up(floats * 4, kArenaAlignment); }
  static Collective collective_of_case(const Communicator& group, const Case& c, int64_t rows) {
    const Mesh mesh({{"a", group.size()}});
    ReshardStep step;
    step.kind = c.kind;
    step.axes = {0};
    step.to_dim = c.to_dim;
    step.after = parse_sharding(c.after, mesh);
    return collective_of(step, {rows, 64}, parse_sharding(c.before, mesh), mesh, group.rank());
  }

  Communicator& group_;
  size_t rank_;
  Collective collective_;
  CollectiveStep step_;
  int64_t in_count_, in_bytes_, out_bytes_;
  Arena arena_;
};

/// Lower quartile of what a call takes from when the last rank has come: what the quickest rank
/// sees, for the others also wait. Of groups that are not all ranks, calls along one axis of a mesh
/// and along the other alternate, as in a step, until the slowest rank has done some: where ranks
/// share cores, a group that happens to run alone says little. A device is asked for several calls
/// and waited for once.
double measure(Communicator& world, Device& device, const Groups& groups, const Case& c,
               int64_t rows) {
  Communicator& host = world.host();
  std::vector<std::unique_ptr<const Trial>> trials;  // each rank has a place of its own in each
  for (Communicator* group : groups.both())
    trials.push_back(std::make_unique<const Trial>(world, device, *group, c, rows));
  const int rounds = groups.across || !device.is_host() ? kAlternations : 1;
  const int calls = rounds * static_cast<int>(trials.size());
  const auto write = [&](const Trial& trial) {
    if (device.is_host()) trial.write();
  };
  const auto call = [&] {
    if (!groups.across) write(*trials[0]);
    device.synchronize();
    host.barrier();
    const double begin = now_seconds();
    for (int i = 0; i < rounds; ++i) {
      for (const auto& trial : trials) {
        if (groups.across) write(*trial);
        trial->run();
      }
    }
    device.synchronize();
    return (now_seconds() - begin) / calls;
  };
  call();
  // Every rank makes as many calls.
  const double once = largest(host, std::max(call(), call())), sample = calls * once;
  const auto runs =
      std::clamp(static_cast<int64_t>(kCollectiveBudget / sample), int64_t{5}, kMostRuns);
  std::vector<double> samples;
  for (int64_t i = 0; i < runs; ++i) samples.push_back(call());
  over_ranks(host, samples, groups.across ? Reduction::max : Reduction::min);
  const auto quartile = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 4);
  std::nth_element(samples.begin(), quartile, samples.end());
  return *quartile;
}

}  // namespace

int64_t measure_communicators(Communicator& world, Device& of) {
  constexpr int64_t kFew = 4, kMany = 1 << 16;  // rows; kinds of calls may differ by size
  Device& device = of.side() != nullptr ? *of.side() : of;
  const int64_t before = device.free_bytes();
  std::vector<Groups> all;
  for (int size = world.size(); size >= 2; --size) {
    if (world.size() % size != 0) continue;
    all.push_back(groups_of(world, size));
    for (const Case& c : kCases) {
      for (int64_t rows : {kFew, kMany}) {
        for (Communicator* group : all.back().both()) {
          const Trial trial(world, device, *group, c, rows);
          trial.run();
          device.synchronize();
          world.host().barrier();  // before anybody's memory goes
        }
      }
    }
  }
  return static_cast<int64_t>(
      largest(world.host(), static_cast<double>(before - device.free_bytes())));
}

Watch watch_ranks(Communicator& world, Device& device, double patience, double least) {
  std::function<Reference()> own = [] { return Reference{}; };
  if (world.rank() < backend().devices()) {  // others would take a core from them
    const std::shared_ptr<Device> alone(std::shared_ptr<Device>(), &device);
    own = reference_of(std::make_shared<RankTeam>(alone, 1), world.rank());
  }
  return Watch(
      [own, &world] {
        world.host().barrier();
        const Reference reference = own();
        std::vector<double> slowest = {reference.taken, reference.least};
        over_ranks(world.host(), slowest, Reduction::max);
        return Reference{slowest[0], slowest[1]};
      },
      [&world] { return largest(world.host(), world.rank() == 0 ? now_seconds() : 0); }, patience,
      least);
}

std::vector<MeasuredCollective> measure_collectives(Communicator& world, Device& of,
                                                    const std::string& backend, Watch& watch,
                                                    double deadline, const Tells& tells) {
  Device& device = of.side() != nullptr ? *of.side() : of;
  deadline = largest(world.host(), world.rank() == 0 ? deadline : 0);  // as the watch's now()
  const int64_t most_rows = device.is_host() ? kMostRows : kMostRowsOfDevice;
  struct Begun {
    int size;
    Collective::Kind kind;
    std::vector<std::pair<double, const double*>> points;
    std::vector<const double*> again;  // a little later: a moment's disturbance has gone by
  };
  std::vector<Begun> all;
  std::deque<Groups> each;
  for (int size = world.size(); size >= 2; --size) {
    if (world.size() % size != 0) continue;
    const Groups& groups = each.emplace_back(groups_of(world, size));
    for (const Case& c : kCases) {
      Begun begun{size, c.kind, {}, {}};
      const auto take = [&](int64_t rows) -> const double& {
        if (tells) tells(str(to_string(c.kind), " in groups of ", size));
        return watch.take([&world, &device, &groups, &c, rows] {
          return measure(world, device, groups, c, rows);
        });
      };
      for (int64_t rows = 4; rows <= most_rows; rows *= 4) {
        const auto& points = begun.points;
        if (watch.now() > deadline ||
            (!points.empty() && *points.back().second > kLongestCollective))
          break;
        const double part = c.cut ? size : 1;
        begun.points.emplace_back(static_cast<double>(rows * 64 * 4) / part, &take(rows));
      }
      for (int64_t rows = 4; begun.again.size() < begun.points.size(); rows *= 4) {
        if (watch.now() > deadline) break;
        begun.again.push_back(&take(rows));
      }
      if (!begun.points.empty()) all.push_back(std::move(begun));
    }
  }
  const double now = watch.now();
  if (tells) tells("again where something disturbed it");
  watch.repeat(now + (deadline - now) / 2);
  std::vector<MeasuredCollective> out;
  for (Begun& begun : all) {
    for (size_t i = 0; i < begun.again.size(); ++i)
      if (*begun.again[i] < *begun.points[i].second / kMoment)
        begun.points[i].second = begun.again[i];
    out.push_back({backend, world.size(), begun.size, begun.kind, curve_of(begun.points)});
  }
  return out;
}

}  // namespace shardrun
