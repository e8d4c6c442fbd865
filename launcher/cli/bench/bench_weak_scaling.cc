// shardrun bench weak-scaling: MetaDist's figure 8 on the machine at hand. Each row of each round
// is a run of `shardrun train` of its own, under mpirun or on threads, so that one that fails costs
// only its row; its --report says what it was.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/bench.h"
#include "bench/bench_models.h"
#include "bench/machine.h"
#include "bench/plot.h"
#include "bench/table.h"
#include "options.h"
#include "process/child.h"
#include "report.h"
#include "run_report.h"

namespace shardrun::cli {
namespace {

constexpr int kWarmUp = 2;  // steps that do not count: first touch, caches

struct WeakScalingOptions {
  std::string model, scale = "small", launcher, mpirun = kMpirun;
  std::vector<int> ranks = {1, 2, 4, 8};
  std::vector<std::string> planners = {"ilp", "beam", "dp", "fsdp", "megatron"};
  int steps = 10, rounds = 1;
  std::optional<int> threads;
  std::string dtype = "f32", memory, cluster;
  double plan_seconds = 10;
  uint64_t seed = 0;
  std::string json, plot, folder;
};

struct Row {
  enum class State { measured, out_of_memory, refused, failed };
  int ranks = 1;
  std::string planner, command;
  State state = State::failed;
  std::string why;                           // a sentence, where nothing was measured
  nlohmann::json report;                     // the run's own
  std::vector<std::vector<double>> step_ms;  // by round
  std::vector<double> load;                  // before each

  double number(const char* field) const { return report.value(field, 0.0); }
  double most(const char* field) const {
    const auto all = report.value(field, std::vector<double>());
    return all.empty() ? 0 : *std::max_element(all.begin(), all.end());
  }
  std::vector<double> all_steps() const {
    std::vector<double> all;
    for (const auto& round : step_ms) all.insert(all.end(), round.begin(), round.end());
    return all;
  }
  double flops_per_s(const std::vector<double>& steps, double q = 0.5) const {
    return number("flops") / quantile(steps, q) * 1e3;
  }
};

const char* to_string(Row::State state) {
  switch (state) {
    case Row::State::measured: return "measured";
    case Row::State::out_of_memory: return "out of memory";
    case Row::State::refused: return "refused";
    case Row::State::failed: return "failed";
  }
  return "failed";
}

class WeakScaling {
 public:
  explicit WeakScaling(const WeakScalingOptions& options) : o_(options) {
    check();
    if (o_.folder.empty()) folder_.emplace();
  }

  int run() {
    head();
    for (int round = 0; round < o_.rounds; ++round) {
      if (o_.rounds > 1) std::printf("round %d of %d\n", round + 1, o_.rounds);
      each_row([&](const BenchModel& model, const std::string& file, Row& row) {
        if (round == 0 || row.state == Row::State::measured) measure(model, file, row);
        print(row, round);
        write();  // what is there stays, whatever becomes of the rest
      });
    }
    if (o_.rounds > 1) {
      std::printf(
          "all %d rounds: all steps, the median of `a rank`, and from where to where it went\n",
          o_.rounds);
      each_row([&](const BenchModel&, const std::string&, Row& row) { print(row, std::nullopt); });
    }
    return 0;
  }

 private:
  const std::string& folder() const { return folder_ ? folder_->path() : o_.folder; }

  static void refuse(const std::string& sentence) { throw Failure(Failure::Kind::call, sentence); }

  void check() {
    if (launched_processes() > 1 || std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
      refuse(
          "bench weak-scaling starts its ranks itself; run it without mpirun, and say with "
          "--mpirun how ranks are started, as --mpirun 'mpirun --hostfile hosts'");
    }
    for (const int ranks : o_.ranks) {
      if (ranks < 1 || ranks > 65536)
        refuse("--ranks: got " + std::to_string(ranks) + ", wanted 1 to 65536");
    }
    std::sort(o_.ranks.begin(), o_.ranks.end());
    o_.ranks.erase(std::unique(o_.ranks.begin(), o_.ranks.end()), o_.ranks.end());
    for (const int ranks : o_.ranks) bench_model(o_.model, o_.scale, ranks);
    if (!o_.memory.empty()) parse_bytes(o_.memory, "--memory");
    const bool found = program_exists(shell_words(o_.mpirun, "--mpirun")[0]);
    if (o_.launcher.empty()) o_.launcher = found ? "mpirun" : "threads";
    if (o_.launcher == "mpirun") mpirun_ = launcher_words(o_.mpirun);
    machine_ = this_machine();
    if (!o_.threads) o_.threads = std::max(1, machine_.cores / o_.ranks.back());
    check_plot(o_.plot);
    World alone = World::threads(1);
    check_outputs(alone, {{"--json", o_.json}, {"--plot", o_.plot}}, {});
  }

  void head() const {
    std::printf(
        "weak scaling of %s (%s), %s, %d thread%s a rank, %d steps a row after %d, seed %llu\n",
        o_.model.c_str(), o_.scale.c_str(), o_.dtype.c_str(), *o_.threads,
        *o_.threads == 1 ? "" : "s", o_.steps, kWarmUp, static_cast<unsigned long long>(o_.seed));
    std::printf("ranks started by: %s\n",
                o_.launcher == "mpirun" ? shell_line(mpirun_).c_str() : "threads of one process");
    std::printf("%s\n%s", describe(machine_).c_str(), table_.head().c_str());
    std::fflush(stdout);
  }

  /// Calls f(model, file, row) for all rows in their order, which are made when first asked for.
  template <class F>
  void each_row(const F& f) {
    size_t next = 0;
    for (const int ranks : o_.ranks) {
      const BenchModel model = bench_model(o_.model, o_.scale, ranks);
      const std::string file = folder() + "/" + o_.model + "-" + std::to_string(ranks) + ".onnx";
      if (next == rows_.size()) model.write(file);
      std::printf("%d rank%s: %s\n", ranks, ranks == 1 ? "" : "s", model.size.c_str());
      for (const std::string& planner : o_.planners) {
        if (next == rows_.size()) {
          Row& row = rows_.emplace_back();
          row.ranks = ranks;
          row.planner = planner;
        }
        f(model, file, rows_[next++]);
      }
    }
  }

  /// One more round of a row.
  void measure(const BenchModel& model, const std::string& file, Row& row) const {
    const std::string report = folder() + "/report.json";
    std::vector<std::string> words;
    const auto add = [&](std::initializer_list<std::string> more) {
      words.insert(words.end(), more);
    };
    const std::string count = std::to_string(row.ranks);
    if (o_.launcher == "mpirun") {
      words = mpirun_;
      add({"-np", count});
    }
    add({own_program(), "train", file});
    if (o_.launcher == "threads") add({"--ranks", count});
    add({"--threads", std::to_string(*o_.threads), "--planner", row.planner, "--steps",
         std::to_string(o_.steps + kWarmUp), "--validation", "0", "--clip", "0", "--dtype",
         o_.dtype, "--seed", std::to_string(o_.seed), "--report", report});
    words.insert(words.end(), model.train.begin(), model.train.end());
    if (!o_.memory.empty()) add({"--memory", o_.memory});
    if (!o_.cluster.empty()) add({"--cluster", o_.cluster});
    add({"--plan-seconds", cli::number(o_.plan_seconds, "%g")});

    row.command = shell_line(words);
    row.load.push_back(this_machine().load);
    std::remove(report.c_str());
    const ChildResult child = run_child(words);
    std::ifstream in(report, std::ios::binary);
    row.report = nlohmann::json::parse(in, nullptr, false);
    if (!row.report.is_object()) row.report = nlohmann::json::object();
    judge(child, row);
  }

  void judge(const ChildResult& child, Row& row) const {
    const auto steps = row.report.value("step_ms", std::vector<double>());
    if (child.status == 0 && steps.size() == static_cast<size_t>(o_.steps + kWarmUp)) {
      row.state = Row::State::measured;
      row.step_ms.emplace_back(steps.begin() + kWarmUp, steps.end());
      return;
    }
    row.why = row.report.value("failure", sentence_of(child));
    row.state = child.status != 2                                      ? Row::State::failed
                : row.report.value("failure_kind", "") == kOutOfMemory ? Row::State::out_of_memory
                                                                       : Row::State::refused;
  }

  /// FLOP/s a rank, of those of the planner's row with the fewest ranks, in each round that both
  /// have.
  std::vector<double> fractions(const Row& row) const {
    std::vector<double> fractions;
    const Row& first = *std::find_if(rows_.begin(), rows_.end(), [&](const Row& other) {
      return other.planner == row.planner && !other.step_ms.empty();
    });
    for (size_t i = 0; i < std::min(row.step_ms.size(), first.step_ms.size()); ++i)
      fractions.push_back(row.flops_per_s(row.step_ms[i]) / row.ranks /
                          (first.flops_per_s(first.step_ms[i]) / first.ranks));
    return fractions;
  }

  /// A round of a row, or all of them.
  void print(const Row& row, std::optional<size_t> round) const {
    if (row.state != Row::State::measured) {
      std::printf("%5d  %-9s  %s: %s\n", row.ranks, row.planner.c_str(), to_string(row.state),
                  row.why.c_str());
    } else {
      const auto steps = round ? row.step_ms[*round] : row.all_steps();
      const auto mib = [](double bytes) { return cli::number(bytes / 0x1p20, "%.1f"); };
      const auto ms = [&](double q) { return cli::number(quantile(steps, q), "%.1f"); };
      auto of_first = fractions(row);
      if (round && *round < of_first.size()) of_first = {of_first[*round]};
      const auto fraction = [&](double q) {
        return cli::number(100 * quantile(of_first, q), "%.0f %%");
      };
      std::vector<std::string> cells = {std::to_string(row.ranks),
                                        row.planner,
                                        row.report.value("mesh", ""),
                                        ms(0.5),
                                        ms(0.25) + "-" + ms(0.75),
                                        cli::number(row.number("predicted_ms"), "%.1f"),
                                        cli::number(row.flops_per_s(steps) / 1e9, "%.1f"),
                                        fraction(0.5),
                                        mib(row.most("allocated_bytes")),
                                        mib(row.most("sent_bytes")),
                                        cli::number(row.number("planning_seconds"), "%.2f")};
      if (!round) cells.push_back(fraction(0) + " to " + fraction(1));
      std::printf("%s", table_.row(cells).c_str());
    }
    std::fflush(stdout);
  }

  void write() const {
    if (!o_.json.empty()) write_output(o_.json, json().dump(1) + "\n");
    if (!o_.plot.empty()) write_output(o_.plot, svg(plot()));
  }

  nlohmann::json json() const {
    nlohmann::json rows = nlohmann::json::array();
    for (const Row& row : rows_) {
      nlohmann::json r = {{"ranks", row.ranks},
                          {"planner", row.planner},
                          {"state", to_string(row.state)},
                          {"command", row.command},
                          {"load", row.load}};
      if (row.state != Row::State::measured) {
        r["why"] = row.why;
      } else {
        r["mesh"] = row.report.value("mesh", "");
        r["threads"] = row.report.value("threads", 0);
        const std::vector<double> steps = row.all_steps();
        r["step_ms"] = row.step_ms;
        r["median_ms"] = quantile(steps, 0.5);
        r["quartiles_ms"] = {quantile(steps, 0.25), quantile(steps, 0.75)};
        r["predicted_ms"] = row.number("predicted_ms");
        r["flops"] = row.number("flops");
        r["flops_per_s"] = row.flops_per_s(steps);
        r["efficiencies"] = fractions(row);  // by round
        r["efficiency"] = quantile(fractions(row), 0.5);
        r["bytes"] = row.report.value("allocated_bytes", std::vector<int64_t>());
        r["sent_bytes"] = row.report.value("sent_bytes", std::vector<int64_t>());
        r["planning_seconds"] = row.number("planning_seconds");
      }
      rows.push_back(std::move(r));
    }
    return {{"bench", "weak-scaling"},
            {"model", o_.model},
            {"scale", o_.scale},
            {"dtype", o_.dtype},
            {"steps", o_.steps},
            {"rounds", o_.rounds},
            {"threads", *o_.threads},
            {"launcher", o_.launcher},
            {"memory", o_.memory},
            {"seed", o_.seed},
            {"machine", to_json(machine_)},
            {"rows", rows}};
  }

  /// Aggregated FLOP/s by ranks, and what the slowest of the first rows would be without loss.
  Plot plot() const {
    Plot plot;
    plot.title = "Weak scaling of " + o_.model + ", " + o_.dtype + ", " +
                 std::to_string(*o_.threads) + (*o_.threads == 1 ? " thread" : " threads") +
                 " a rank";
    plot.x_label = "ranks (the model grows with them)";
    plot.y_label = "GFLOP/s of all ranks, median step";
    plot.missing_label = "out of memory, refused or failed";
    double first = 0;
    for (const std::string& planner : o_.planners) {
      Plot::Line line;
      line.name = planner;
      for (const Row& row : rows_) {
        if (row.planner != planner) continue;
        if (row.state != Row::State::measured) {
          line.missing.push_back(row.ranks);
          continue;
        }
        const auto gflops = [&](double q) { return row.flops_per_s(row.all_steps(), q) / 1e9; };
        line.points.push_back(
            {static_cast<double>(row.ranks), gflops(0.5), gflops(0.75), gflops(0.25)});
        if (row.ranks == o_.ranks.front()) first = std::max(first, line.points.back().y);
      }
      plot.lines.push_back(std::move(line));
    }
    if (first > 0 && o_.ranks.size() > 1) {
      Plot::Line line;
      line.name = "without loss";
      line.dashed = true;
      for (const int ranks : o_.ranks)
        line.points.push_back({static_cast<double>(ranks), first * ranks / o_.ranks.front()});
      plot.lines.push_back(std::move(line));
    }
    return plot;
  }

  WeakScalingOptions o_;
  std::vector<std::string> mpirun_;
  Machine machine_;
  std::optional<TemporaryFolder> folder_;
  std::vector<Row> rows_;
  Table table_{{{"ranks", 5},
                {"planner", 9, true},
                {"mesh", 10, true},
                {"step, ms", 9},
                {"quartiles", 11},
                {"predicted", 9},
                {"GFLOP/s", 8},
                {"a rank", 6},
                {"MiB a rank", 10},
                {"MiB sent", 8},
                {"plan, s", 7}}};
};

}  // namespace

Bench add_bench_weak_scaling(CLI::App& bench) {
  auto options = std::make_shared<WeakScalingOptions>();
  WeakScalingOptions& o = *options;
  CLI::App* app = bench.add_subcommand(
      "weak-scaling",
      "Train a model that grows with the number of ranks, by several planners (MetaDist's figure "
      "8): step time, FLOP/s, bytes");
  const auto names = bench_models();
  app->add_option("--model", o.model, "gpt, wide-resnet or gat")
      ->required()
      ->check(CLI::IsMember(names));
  app->add_option("--ranks", o.ranks, "How many, with commas")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option(
         "--scale", o.scale,
         "tiny: to see that it works; small: models that a machine of two cores can train; "
         "paper: MetaDist's, for 1, 2, 4 and 8 ranks of a cluster")
      ->check(CLI::IsMember(bench_scales()))
      ->capture_default_str();
  app->add_option("--planners", o.planners, "With commas; whatever train's --planner takes")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--steps", o.steps, "Of each row, after two that do not count")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app->add_option("--rounds", o.rounds,
                  "So many times all rows, one after the other: what slows the machine for a while "
                  "then slows all of them")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--threads", o.threads,
                  "Of each rank, the same in all rows (default: the cores over the most ranks)")
      ->check(CLI::Range(1, 4096));
  app->add_option("--dtype", o.dtype, "f32 or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  app->add_option("--memory", o.memory, "Limit of a rank's memory, as 2GiB (train's --memory)");
  app->add_option("--cluster", o.cluster, "What to plan for (train's --cluster)");
  app->add_option("--plan-seconds", o.plan_seconds, "Work of each search (train's --plan-seconds)")
      ->check(below_0, "")
      ->capture_default_str();
  app->add_option("--seed", o.seed)->capture_default_str();
  app->add_option("--launcher", o.launcher,
                  "mpirun or threads (default: mpirun where there is one)")
      ->check(CLI::IsMember({"mpirun", "threads"}));
  app->add_option("--mpirun", o.mpirun, "The command that starts ranks; -np N comes behind it")
      ->capture_default_str();
  app->add_option("--json", o.json, "Write everything to this file, all steps too");
  app->add_option("--plot", o.plot, "Write an SVG of FLOP/s by ranks to this file");
  app->add_option("--folder", o.folder,
                  "Where models and reports go; a folder that all nodes see (default: a temporary "
                  "one)")
      ->check(CLI::ExistingDirectory);
  return {app, [options] { return WeakScaling(*options).run(); }};
}

}  // namespace shardrun::cli
