// shardrun bench collectives: each against a copy of its bytes and against MPI's own. Threads are
// measured here; MPI's ranks by this same command, started once more under mpirun.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/table.h"
#include "options.h"
#include "process/child.h"
#include "report.h"
#include "shardrun/bench.h"

namespace shardrun::cli {
namespace {

constexpr int64_t kSizeStep = 4;  // of FIRST..LAST

struct CollectivesOptions {
  std::optional<int> ranks;
  std::string sizes = "1KiB..64MiB", mpirun = kMpirun, json;
  std::vector<std::string> backends = {"local", "mpi"};
  int repeats = 7;
};

[[noreturn]] void refuse_call(const std::string& sentence) {
  throw Failure(Failure::Kind::call, sentence);
}

/// "1KiB..64MiB" (each four times the one before, and the last), or sizes with commas.
std::vector<int64_t> parse_sizes(const std::string& text) {
  const std::string flag = "--sizes " + text;
  if (const size_t dots = text.find(".."); dots != std::string::npos) {
    const int64_t first = parse_bytes(text.substr(0, dots), flag),
                  last = parse_bytes(text.substr(dots + 2), flag);
    if (first > last) refuse_call(flag + ": the first size is more than the last");
    std::vector<int64_t> sizes;
    for (int64_t size = first; size < last; size *= kSizeStep) sizes.push_back(size);
    sizes.push_back(last);
    return sizes;
  }
  std::vector<int64_t> sizes;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    sizes.push_back(parse_bytes(text.substr(at, comma - at), flag));
    at = comma + 1;
  }
  return sizes;
}

std::string size_text(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 20) return number(value / 0x1p20, "%.4g MiB");
  if (bytes >= int64_t{1} << 10) return number(value / 0x1p10, "%.4g KiB");
  return number(value, "%.0f B");
}

nlohmann::json to_json(const std::string& backend, int ranks, const CollectiveTimes& times) {
  const double seconds = quantile(times.ours, 0.5), copy = quantile(times.copy, 0.5);
  const auto bytes = static_cast<double>(times.bytes);
  nlohmann::json row = {{"backend", backend},
                        {"collective", times.name},
                        {"ranks", ranks},
                        {"bytes", times.bytes},
                        {"seconds", seconds},
                        {"quartiles", {quantile(times.ours, 0.25), quantile(times.ours, 0.75)}},
                        {"bus_bytes_per_s", times.bus * bytes / seconds},
                        {"memcpy_bytes_per_s", bytes / copy},
                        {"of_memcpy", times.bus * copy / seconds}};
  if (!times.plain.empty()) {
    const double plain = quantile(times.plain, 0.5);
    row["mpi_seconds"] = plain;
    row["mpi_bus_bytes_per_s"] = times.bus * bytes / plain;
    row["times_mpi"] = plain / seconds;
  }
  return row;
}

class Collectives {
 public:
  explicit Collectives(const CollectivesOptions& options)
      : o_(options), sizes_(parse_sizes(o_.sizes)) {
    for (const std::string& backend : o_.backends) {
      if (backend != "local" && backend != "mpi")
        refuse_call("--backends: got '" + backend + "', wanted local or mpi");
    }
    mpirun_ = shell_words(o_.mpirun, "--mpirun");
  }

  int run() {
    if (launched_processes() > 1) return run_launched();
    if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr)
      refuse_call(
          "bench collectives measures between ranks, and mpirun started one; start two or more");
    World alone = World::threads(1);
    check_outputs(alone, {{"--json", o_.json}}, {});
    const int ranks = o_.ranks.value_or(2);
    head(ranks);
    for (const std::string& backend : o_.backends) {
      if (backend == "local") {
        World world = World::threads(ranks);
        measure(world, "local");
      } else {
        run_mpirun(ranks);
      }
    }
    return 0;
  }

 private:
  /// As one of mpirun's processes.
  int run_launched() {
    World world = World::launched();
    try {
      if (o_.ranks && *o_.ranks != world.size()) {
        throw Failure(Failure::Kind::call,
                      "--ranks " + std::to_string(*o_.ranks) + ": mpirun started " +
                          std::to_string(world.size()) + "; leave out one of the two",
                      true);
      }
      check_outputs(world, {{"--json", o_.json}}, {});
      if (world.leader()) head(world.size());
      measure(world, "mpi");
      return 0;
    } catch (const std::exception& e) {
      return world.fail(e);
    }
  }

  void run_mpirun(int ranks) {
    if (!program_exists(mpirun_[0])) {
      std::printf("mpi: left out, there is no program '%s' (--mpirun names another)\n",
                  mpirun_[0].c_str());
      return;
    }
    const TemporaryFolder folder;
    const std::string file = folder.path() + "/mpi.json";
    std::vector<std::string> words = launcher_words(o_.mpirun);
    for (const std::string& word :
         {std::string("-np"), std::to_string(ranks), own_program(), std::string("bench"),
          std::string("collectives"), std::string("--sizes"), o_.sizes, std::string("--repeats"),
          std::to_string(o_.repeats), std::string("--json"), file}) {
      words.push_back(word);
    }
    const ChildResult child = run_child(words);
    std::ifstream in(file, std::ios::binary);
    const nlohmann::json output = nlohmann::json::parse(in, nullptr, false);
    if (child.status != 0 || !output.is_object())
      throw Failure(Failure::Kind::run, shell_line(words) + ": " + sentence_of(child));
    for (const nlohmann::json& row : output.at("rows")) add(row);
    if (!o_.json.empty()) write_json();
  }

  void measure(World& world, const std::string& backend) {
    for (const int64_t size : sizes_) {  // one by one, so that rows are seen as they come
      const auto all = measure_collective_calls(world, {{size}, o_.repeats});
      if (!world.leader()) continue;
      for (const CollectiveTimes& times : all) add(to_json(backend, world.size(), times));
      if (!o_.json.empty()) write_json();
    }
  }

  void head(int ranks) {
    machine_ = this_machine();
    std::printf(
        "collectives of f32 between %d rank%s, medians of %d; bus: bytes that a rank must send, a "
        "second\n%s%s",
        ranks, ranks == 1 ? "" : "s", o_.repeats, describe(machine_).c_str(),
        table_.head().c_str());
    std::fflush(stdout);
  }

  void add(const nlohmann::json& row) {
    const auto gigabytes = [&](const char* field) {
      return row.contains(field) ? number(row[field].get<double>() / 1e9, "%.3g") : "-";
    };
    std::printf("%s", table_
                          .row({row["backend"], row["collective"], size_text(row["bytes"]),
                                number(row["seconds"].get<double>() * 1e6, "%.1f"),
                                gigabytes("bus_bytes_per_s"), gigabytes("memcpy_bytes_per_s"),
                                number(row["of_memcpy"], "%.2g"), gigabytes("mpi_bus_bytes_per_s"),
                                row.contains("times_mpi") ? number(row["times_mpi"], "%.2f") : "-"})
                          .c_str());
    std::fflush(stdout);
    rows_.push_back(row);
  }

  void write_json() const {
    const nlohmann::json all = {{"bench", "collectives"},
                                {"repeats", o_.repeats},
                                {"machine", to_json(machine_)},
                                {"rows", rows_}};
    write_output(o_.json, all.dump(1) + "\n");
  }

  CollectivesOptions o_;
  std::vector<int64_t> sizes_;
  std::vector<std::string> mpirun_;
  Machine machine_;
  nlohmann::json rows_ = nlohmann::json::array();
  Table table_{{{"backend", 7, true},
                {"collective", 21, true},
                {"bytes", 8},
                {"us", 9},
                {"bus GB/s", 8},
                {"memcpy GB/s", 8},
                {"of memcpy", 9},
                {"MPI bus GB/s", 8},
                {"x MPI", 6}}};
};

}  // namespace

Bench add_bench_collectives(CLI::App& bench) {
  auto options = std::make_shared<CollectivesOptions>();
  CollectivesOptions& o = *options;
  CLI::App* app = bench.add_subcommand(
      "collectives",
      "Every collective, between threads and between processes, against a copy of its bytes and "
      "against MPI's own");
  app->add_option("--ranks", o.ranks, "How many (default: 2, or mpirun's)")
      ->check(CLI::Range(2, 1024));
  app->add_option("--sizes", o.sizes,
                  "FIRST..LAST, in steps of four, or some with commas: bytes of the largest tensor "
                  "that a rank gives or gets")
      ->capture_default_str();
  app->add_option("--repeats", o.repeats, "Samples of each, whose median counts")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->add_option("--backends", o.backends, "local (threads), mpi, or both with a comma")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--mpirun", o.mpirun, "The command that starts ranks; -np N comes behind it")
      ->capture_default_str();
  app->add_option("--json", o.json, "Write the table to this file too");
  return {app, [options] { return Collectives(*options).run(); }, /*on_all=*/true};
}

}  // namespace shardrun::cli
