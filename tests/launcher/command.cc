// Shells, folders, and the parsing of what the command prints.
#include "tests/launcher/command.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/sanitizer.h"

namespace shardrun::test {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

constexpr std::string_view kName = "shardrun: ";

/// Also for who runs the test program by hand.
void default_environment() {
  for (const char* name :
       {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_mpi_yield_when_idle",
        "OMPI_MCA_rmaps_base_oversubscribe", "OMP_NUM_THREADS"}) {
    setenv(name, "1", 0);
  }
  for (const char* name : {"OMPI_MCA_hwloc_base_binding_policy", "SHARDRUN_CALIBRATION"})
    setenv(name, "none", 0);
}

}  // namespace

std::string describe(const Outcome& o) {
  std::ostringstream text;
  text << "$ " << o.command << "\nstatus " << o.status << "\n" << o.out << o.err;
  return text.str();
}

int messages(const Outcome& outcome) {
  int count = 0;
  for (const std::string& line : lines_of(outcome.err)) count += line.rfind(kName, 0) == 0;
  return count;
}

std::string message(const Outcome& outcome) {
  for (const std::string& line : lines_of(outcome.err)) {
    if (line.rfind(kName, 0) == 0) return line.substr(kName.size());
  }
  return "";
}

Workspace::Workspace() {
  default_environment();
  std::string pattern = (std::filesystem::temp_directory_path() / "shardrun-test-XXXXXX").string();
  if (!mkdtemp(pattern.data())) throw std::runtime_error("cannot make " + pattern);
  path_ = pattern;
}

Workspace::~Workspace() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void Workspace::write(const std::string& name, const std::string& bytes) const {
  std::ofstream out(path_ + "/" + name, std::ios::binary);
  out << bytes;
}

std::string Workspace::read(const std::string& name) const { return read_file(path_ + "/" + name); }
bool Workspace::exists(const std::string& name) const {
  return std::filesystem::exists(path_ + "/" + name);
}

Outcome Workspace::sh(const std::string& command) const {
  constexpr int kSeconds = 240 * testing::kSlower;
  Outcome outcome;
  outcome.command = command;
  write(".command", command + "\n");
  const int status = std::system(("cd " + path_ + " && timeout " + std::to_string(kSeconds) +
                                  " sh .command >.out 2>.err </dev/null")
                                     .c_str());
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = read(".out");
  outcome.err = read(".err");
  constexpr int kTimedOut = 124;  // timeout's own
  if (outcome.status == kTimedOut)
    ADD_FAILURE() << "ended after " << kSeconds << " s\n" << describe(outcome);
  return outcome;
}

std::string Workspace::line(Ranks ranks, const std::string& arguments) {
  const std::string command = std::string(SHARDRUN_COMMAND) + " " + arguments;
  if (!ranks.mpi) return command + " --ranks " + std::to_string(ranks.count);
  return std::string(SHARDRUN_MPIEXEC) + " -np " + std::to_string(ranks.count) + " " + command;
}

Outcome Workspace::shardrun(const std::string& arguments) const {
  return sh(std::string(SHARDRUN_COMMAND) + " " + arguments);
}

Outcome Workspace::shardrun(Ranks ranks, const std::string& arguments) const {
  return sh(line(ranks, arguments));
}

TrainingRun train(const Workspace& at, Ranks ranks, const std::string& arguments) {
  TrainingRun run;
  run.outcome = at.shardrun(ranks, arguments + " --metrics .metrics");
  EXPECT_EQ(run.outcome.status, 0) << describe(run.outcome);
  if (run.outcome.status != 0) return run;
  for (const std::string& line : lines_of(at.read(".metrics"))) {
    const nlohmann::json entry = nlohmann::json::parse(line, nullptr, false);
    if (!entry.is_object()) {
      ADD_FAILURE() << "not JSON: " << line << "\n" << describe(run.outcome);
      return run;
    }
    if (entry.contains("val_loss")) {
      run.evals.emplace_back(entry["step"].get<int64_t>(), entry["val_loss"].get<double>());
      continue;
    }
    const size_t begin = line.find("\"loss\":") + 7;
    run.loss_texts.push_back(line.substr(begin, line.find(',', begin) - begin));
    run.losses.push_back(entry["loss"].get<double>());
  }
  for (const std::string& line : lines_of(run.outcome.out)) {
    long long rank = 0, predicted = 0, allocated = 0;
    double mib = 0;
    if (std::sscanf(line.c_str(), "rank %lld: predicted %lld B (%lf MiB), allocated %lld B", &rank,
                    &predicted, &mib, &allocated) == 4) {
      run.predicted.push_back(predicted);
      run.allocated.push_back(allocated);
    }
  }
  EXPECT_EQ(run.allocated.size(), static_cast<size_t>(ranks.count)) << describe(run.outcome);
  EXPECT_EQ(run.predicted, run.allocated) << describe(run.outcome);
  return run;
}

double largest_difference(const TrainingRun& a, const TrainingRun& b) {
  if (a.losses.empty() || a.losses.size() != b.losses.size()) return 1e9;
  double most = 0;
  for (size_t i = 0; i < a.losses.size(); ++i) {
    const double difference = std::abs(a.losses[i] - b.losses[i]) / std::abs(b.losses[i]);
    if (!(difference <= most)) most = difference;
  }
  return most;
}

std::string prose(size_t bytes) {
  static const char* const kWords[] = {"the ",  "mesh ",  "cuts ",   "a ",      "tensor ",
                                       "over ", "its ",   "ranks, ", "and ",    "each ",
                                       "rank ", "holds ", "one ",    "shard.\n"};
  std::string text;
  uint64_t state = 12345;
  while (text.size() < bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    text += kWords[(state >> 33) % std::size(kWords)];
  }
  text.resize(bytes);
  return text;
}

std::string tokens(size_t count, unsigned vocabulary) {
  std::string bytes;
  uint64_t state = 54321;
  unsigned token = 0;
  for (size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto draw = static_cast<unsigned>(state >> 40);
    token = draw % 4 == 0 ? draw / 4 % vocabulary
                          : (token * 5 + 1) % vocabulary;  // most follow from the last
    bytes += static_cast<char>(token & 255);
    bytes += static_cast<char>(token >> 8);
  }
  return bytes;
}

}  // namespace shardrun::test
