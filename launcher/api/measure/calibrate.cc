// shardrun calibrate: what is measured, in what order, and the file that keeps it.
#include "measure/calibrate.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <tuple>

#include "base/clock.h"
#include "base/files/output_file.h"
#include "measure/cluster.h"
#include "planner/cost/cluster_file.h"
#include "ranks/backend.h"
#include "ranks/capacity.h"
#include "ranks/ranks.h"
#include "ranks/world.h"
#include "shardrun/calibrate.h"

namespace shardrun {
namespace {

constexpr const char* kSource = "shardrun calibrate";
constexpr double kKernelPatience =
    0.25;  // of the time: what kernels may wait for a disturbed machine

std::string processor() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "a processor";
}

/// 1, 2, 4 … up to `most`, and `most`.
std::vector<int> doubling(int first, int most) {
  std::vector<int> out;
  for (int n = first; n < most; n *= 2) out.push_back(n);
  if (most >= first) out.push_back(most);
  return out;
}

/// measure(comm, on) of rank 0, by rank threads of this process.
template <class Measure>
auto measure_threads(int ranks, const Measure& measure) {
  decltype(measure(std::declval<Communicator&>(), std::declval<RankDevice&>())) out{};
  std::mutex mutex;
  World world = World::threads(ranks);
  run_ranks(world, [&](Communicator& comm) {
    const std::unique_ptr<RankDevice> on = backend().open(comm);
    auto own = measure(comm, *on);
    const std::lock_guard lock(mutex);
    if (comm.rank() == 0) out = std::move(own);
  });
  return out;
}

/// measure_communicators, of ranks with devices of their own whose libraries take memory; none of
/// others.
std::optional<int64_t> communicator_bytes(Communicator& host, RankDevice& on) {
  const std::vector<DeviceCapacity> capacities = gather_capacities(host, on.capacity());
  if (!capacities[0].libraries || !have_own_devices(capacities)) return std::nullopt;
  return measure_communicators(on.comm(), on.device());
}

/// The most that was measured, of any number of ranks, is what is put aside.
void put_aside(Cluster& cluster, std::optional<int64_t> communicators, int ranks) {
  const std::string field = "communicator_bytes";
  if (!communicators) return;
  const int64_t bytes = with_margin(*communicators);
  if (cluster.sources.count(field) > 0 && cluster.communicator_bytes >= bytes) return;
  cluster.communicator_bytes = bytes;
  cluster.sources[field] = str(kSource, ": communicators of ", ranks, " ranks took ",
                               *communicators, " bytes, ", kMarginInWords);
}

/// Teams that measure kernels: on the CPU as many ranks as share its cores, each with so many
/// threads if that was asked, of a GPU one.
std::vector<RankTeam> rank_teams(std::optional<int> each) {
  std::vector<RankTeam> out;
  const std::shared_ptr<Device> device = device_alone();
  if (!device->is_host()) {
    out.emplace_back(device, 1);
    return out;
  }
  const int n = backend().devices();
  for (const int jobs : doubling(1, std::max(1, n / each.value_or(1))))
    out.emplace_back(jobs, each.value_or(std::max(1, n / jobs)));
  return out;
}

/// "a processor, 2 cores"
std::string measured_devices(const RankTeam& team) {
  const int n = backend().devices();
  return team.device().is_host() ? str(processor(), ", ", n, n == 1 ? " core" : " cores")
                                 : str(n, n == 1 ? " GPU, " : " GPUs, ", team.device().name());
}

/// Says that a part of what is measured begins; what hears more of it.
Tells begin_part(const CalibrateRequest& request, const std::string& part) {
  if (!request.on_progress) return nullptr;
  request.on_progress(part, "");
  return [&on = request.on_progress, part](const std::string& what) { on(part, what); };
}

std::string kernels_of(const RankTeam& team) {
  if (!team.device().is_host()) return "kernels of " + team.device().name();
  const int ranks = team.ranks(), threads = team.threads();
  return str("kernels of ", ranks, ranks == 1 ? " rank, " : " ranks, ", threads,
             threads == 1 ? " thread" : " threads", ranks == 1 ? "" : " each");
}

std::string collectives_between(int ranks) { return str("collectives between ", ranks, " ranks"); }

/// The figures of the formulas, from the measurements: those of ranks that have a core each, or a
/// GPU. `extent`: how large products were.
void summarise(Cluster& cluster, const Extent& extent) {
  const std::string source = kSource;
  const MeasuredKernels& kernels = cluster.measured.kernels.back();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto grid = kernels.grids.find({"matmul", "nn", dtype});
    if (grid == kernels.grids.end()) continue;
    double edge = 0;
    for (const double n : grid->second.sizes[0])
      edge = 2 * n * n * n <= extent.flops(dtype) ? n : edge;
    if (edge == 0) continue;
    cluster.flops[dtype] = {2 * edge * edge * edge /
                            grid->second.at({edge, edge, edge}, {1, 1, 1})};
    cluster.sources.erase(str("flops.", to_string(dtype), ".reached"));
    cluster.sources[str("flops.", to_string(dtype), ".peak")] =
        str(source, ": matmul of ", edge, " cubed");
  }
  if (const MeasuredKernels::Op* op = kernels.streaming(DType::f32)) {
    const auto& [bytes, seconds] = op->curve.points.back();
    cluster.memory_bandwidth = {bytes / seconds};
    cluster.kernel_latency = op->curve.points.front().second;
    cluster.sources.erase("memory_bandwidth.reached");
    cluster.sources["memory_bandwidth.peak"] =
        str(source, ": the largest ", MeasuredKernels::kStreaming);
    cluster.sources["kernel_latency"] = str(source, ": the smallest ", MeasuredKernels::kStreaming);
  }
  for (const MeasuredCollective& c : cluster.measured.collectives) {
    if (c.kind != Collective::Kind::all_gather || c.group != 2) continue;
    const auto &first = c.curve.points.front(), &last = c.curve.points.back();
    cluster.sources.erase("within.call_latency");
    cluster.sources.erase("within.reduce_bandwidth_by_ranks");
    cluster.within = {0.5 * last.first / last.second, first.second};
    cluster.sources["within.bandwidth"] = source + ": the largest all_gather of two ranks";
    cluster.sources["within.latency"] = source + ": the smallest all_gather of two ranks";
    break;
  }
}

/// What is known so far, if anything.
Cluster known(const std::string& path) {
  std::error_code missing;
  if (std::filesystem::exists(path, missing)) {
    try {
      Cluster cluster = read_cluster_file(path);
      if (cluster.name == backend().measured_name) return cluster;
    } catch (const Error&) {  // it will be written anew
    }
  }
  return backend().cluster(1);
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

void replace(std::vector<MeasuredCollective>& all, const std::string& backend, int64_t ranks,
             std::vector<MeasuredCollective> fresh) {
  std::erase_if(all, [&](const MeasuredCollective& c) {
    return c.backend == backend && (ranks == 0 || c.ranks == ranks);
  });
  all.insert(all.end(), std::make_move_iterator(fresh.begin()),
             std::make_move_iterator(fresh.end()));
}

/// Throws invalid_input if measurements cannot be made or kept there; makes the folder.
void prepare_output(const std::string& path, const CalibrateRequest& request, bool mpi) {
  check_device();
  SR_REQUIRE(!path.empty(), invalid_input,
             "there is no place for the calibration ($HOME is not set, SHARDRUN_CACHE=off or "
             "SHARDRUN_CALIBRATION=none); name a file with -o");
  SR_REQUIRE(request.seconds > 0, invalid_input, "--seconds is ", request.seconds,
             ", wanted more than 0");
  SR_REQUIRE(!mpi || !known(path).measured.kernels.empty(), invalid_input, path,
             ": no kernels were measured yet; run 'shardrun calibrate' alone first, then under "
             "mpirun");
  if (request.output.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  }
}

/// Under mpirun: what passes between the ranks.
struct BetweenRanks {
  std::vector<MeasuredCollective> collectives;
  std::optional<int64_t> communicators;
  Disturbance disturbance;
};

BetweenRanks measure_between(Communicator& host, const CalibrateRequest& request, double end) {
  BetweenRanks out;
  Tells tells;
  if (host.rank() == 0) tells = begin_part(request, collectives_between(host.size()));
  const std::unique_ptr<RankDevice> on = backend().open(host);
  out.communicators = communicator_bytes(host, *on);
  Watch watch = watch_ranks(on->comm(), on->device(), kKernelPatience * request.seconds);
  out.collectives = measure_collectives(on->comm(), on->device(), "mpi", watch, end, tells);
  out.disturbance = watch.disturbance();
  return out;
}

void keep_between(Cluster& cluster, BetweenRanks measured, int ranks) {
  replace(cluster.measured.collectives, "mpi", ranks, std::move(measured.collectives));
  put_aside(cluster, measured.communicators, ranks);
  const std::string field = str("measured.mpi.", ranks);
  cluster.sources.erase(field);
  if (measured.disturbance.disturbed > 0) cluster.sources[field] = measured.disturbance.text();
}

/// Without mpirun: kernels, and collectives of rank threads.
class Alone {
 public:
  /// `begin`: when the time of `request` began.
  Alone(std::optional<int> threads_each, double begin, const CalibrateRequest& request)
      : each_(threads_each),
        begin_(begin),
        request_(request),
        teams_(rank_teams(threads_each)),
        // Ranks may be more than cores; of GPUs each has one (several on one: under mpirun).
        groups_(doubling(2, is_host() ? 2 * devices_ : devices_)),
        watch_(reference_of(
                   is_host() ? std::make_shared<RankTeam>(devices_, 1)
                             : std::shared_ptr<RankTeam>(std::shared_ptr<RankTeam>(), &teams_[0]),
                   0),
               now_seconds, kKernelPatience * request.seconds) {}

  /// Anew, but for what `before` knows of other numbers of threads and of mpirun.
  Cluster run(Cluster before, CalibrateReport& report) {
    std::vector<MeasuredKernels> others = std::move(before.measured.kernels);
    std::erase_if(others, [&](const MeasuredKernels& k) { return !each_ || k.threads == *each_; });
    cluster_ = backend().cluster(1);
    cluster_.measured.collectives = std::move(before.measured.collectives);
    if (const auto was = before.sources.find("communicator_bytes"); was != before.sources.end()) {
      cluster_.communicator_bytes = before.communicator_bytes;
      cluster_.sources.insert(*was);
    }
    begin_kernels();
    count_libraries();
    measure_collectives_of_threads(report);
    finish_kernels(others, report);
    describe();
    return std::move(cluster_);
  }
  const Disturbance& disturbance() const { return disturbance_; }

 private:
  bool is_host() const { return teams_[0].device().is_host(); }
  double end() const { return begin_ + request_.seconds + watch_.waited(); }

  void begin_kernels() {
    const auto parts = static_cast<double>(teams_.size());
    for (size_t i = 0; i < teams_.size(); ++i) {
      const double until = begin_ + 0.8 * request_.seconds * static_cast<double>(i + 1) / parts;
      const Tells tells = begin_part(request_, kernels_of(teams_[i]));
      begun_.push_back(measure_kernels(teams_[i], watch_, until, tells));
    }
  }

  void count_libraries() {
    if (is_host() || watch_.disturbance().figures == 0) return;
    const int64_t taken = measure_libraries(teams_[0]);
    cluster_.library_bytes = with_margin(taken);
    cluster_.sources["library_bytes"] =
        str(kSource, ": kernels and a noted step took ", taken, " bytes, ", kMarginInWords);
  }

  void measure_collectives_of_threads(CalibrateReport& report) {
    replace(cluster_.measured.collectives, "threads", 0, {});
    // Before any other: what one has loaded, the next finds there.
    if (!groups_.empty())
      put_aside(cluster_, measure_threads(groups_.back(), communicator_bytes), groups_.back());
    last_ = end();
    for (const int ranks : groups_) {
      const bool same = is_host() && ranks >= devices_;  // as many cores have the same reference
      const Tells tells = begin_part(request_, collectives_between(ranks));
      const double patience = kKernelPatience * (last_ - now_seconds());  // one of all ranks
      auto [fresh, disturbed, least] =
          measure_threads(ranks, [&](Communicator& comm, RankDevice& on) {
            Watch ours = watch_ranks(on.comm(), on.device(), patience,
                                     same ? watch_.least() : Watch::kUnknown);
            auto measured = measure_collectives(on.comm(), on.device(), "threads", ours, last_,
                                                comm.rank() == 0 ? tells : nullptr);
            return std::tuple(std::move(measured), ours.disturbance(), ours.least());
          });
      if (same) watch_.learn(least);
      report.collectives += static_cast<int>(fresh.size());
      replace(cluster_.measured.collectives, "threads", ranks, std::move(fresh));
      disturbance_ += disturbed;
    }
  }

  void finish_kernels(const std::vector<MeasuredKernels>& others, CalibrateReport& report) {
    if (watch_.disturbance().disturbed > 0)
      begin_part(request_, "kernels again where something disturbed them");
    watch_.repeat(last_);
    disturbance_ += watch_.disturbance();
    std::vector<MeasuredKernels>& kernels = cluster_.measured.kernels;
    for (const auto& measured : begun_) {
      kernels.push_back(measured());
      report.kernels += static_cast<int>(kernels.back().ops.size() + kernels.back().grids.size());
    }
    kernels.insert(kernels.end(), others.begin(), others.end());
    std::sort(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) {
      return std::pair(a.ranks, a.threads) < std::pair(b.ranks, b.threads);
    });
  }

  void describe() {
    cluster_.name = backend().measured_name;
    cluster_.devices = devices_;
    cluster_.about = str(measured_devices(teams_[0]), ", measured on ", today());
    if (disturbance_.disturbed > 0) cluster_.about += ": " + disturbance_.text();
    cluster_.sources["devices"] =
        is_host() ? "the cores that the process may run on" : "the GPUs that the process sees";
    summarise(cluster_, teams_[0].extent());
  }

  const int devices_ = backend().devices();
  const std::optional<int> each_;
  const double begin_;
  const CalibrateRequest& request_;
  std::vector<RankTeam> teams_;
  const std::vector<int> groups_;  // of ranks
  Watch watch_;
  Cluster cluster_;
  std::vector<std::function<MeasuredKernels()>> begun_;
  double last_ = 0;  // when collectives and repetitions end
  Disturbance disturbance_;
};

}  // namespace

CalibrateReport calibrate(World& world, const CalibrateRequest& request) {
  CalibrateReport report;
  report.path = request.output.empty() ? calibration_path() : request.output;
  const double begin = now_seconds(), end = begin + request.seconds;
  const bool mpi = world.impl().mpi && world.size() > 1;
  std::optional<OutputFile> file;  // rank 0's
  decide_on_rank0(world, [&] {
    prepare_output(report.path, request, mpi);
    file.emplace(report.path);  // before it takes long
    return std::string();
  });
  BetweenRanks between;
  at_boundary([&] {
    share_cores(world.impl());
    if (mpi) between = measure_between(*world.impl().mpi, request, end);
  });
  Disturbance disturbance = between.disturbance;
  decide_on_rank0(world, [&] {
    Cluster cluster = known(report.path);
    if (mpi) {
      report.collectives = static_cast<int>(between.collectives.size());
      keep_between(cluster, std::move(between), world.size());
    } else {
      Alone alone(world.impl().asked, begin, request);
      cluster = alone.run(std::move(cluster), report);
      disturbance = alone.disturbance();
    }
    file->stream() << cluster_json(cluster);
    file->finish();
    return std::string();
  });
  report.disturbed = disturbance.text();
  report.seconds = now_seconds() - begin;
  return report;
}

}  // namespace shardrun
