// The CSV, and from a row to its plan.
#include "simulate/rows.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <exception>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "process/child.h"
#include "shardrun/input.h"
#include "shardrun/models.h"
#include "simulate/constants.h"

namespace shardrun::cli {
namespace {

struct RowField {
  const char* name;
  int64_t MeasuredRow::*value;
  int64_t most;
  bool needed = true;
};
constexpr RowField kRowFields[] = {{"gpus", &MeasuredRow::gpus, 1 << 16},
                                   {"micro_batch", &MeasuredRow::micro_batch, 1 << 16},
                                   {"hidden", &MeasuredRow::hidden, 1 << 20},
                                   {"heads", &MeasuredRow::heads, 1 << 20},
                                   {"layers", &MeasuredRow::layers, 1 << 10},
                                   {"sequence", &MeasuredRow::sequence, 1 << 24},
                                   {"tp", &MeasuredRow::tp, 1 << 16},
                                   {"dp", &MeasuredRow::dp, 1 << 16},
                                   {"pp", &MeasuredRow::pp, 1 << 16},
                                   {"micro_batches", &MeasuredRow::micro_batches, 1 << 16},
                                   {"vocabulary", &MeasuredRow::vocabulary, 1 << 24, false}};
constexpr char kMilliseconds[] = "iteration_ms";
constexpr double kLeastMilliseconds = 1e-6, kMostMilliseconds = 1e9;  // a kernel's ns, 12 days
constexpr char kByteOrderMark[] = "\xEF\xBB\xBF";  // with which spreadsheets begin a file
constexpr int64_t kAnyMemory = int64_t{2} << 40;   // they ran, so they fitted

[[noreturn]] void refuse_row(const std::string& where, const std::string& what) {
  throw Failure(Failure::Kind::call, where + ": " + what);
}

/// Of a line as RFC 4180 has it, but that spaces outside of quotes do not count. A quoted cell ends
/// on its line.
std::vector<std::string> cells_of(const std::string& line, const std::string& where) {
  std::vector<std::string> out(1);
  bool quoted = false;
  for (size_t c = 0; c < line.size(); ++c) {
    if (line[c] == '"') {
      const bool doubled = quoted && c + 1 < line.size() && line[c + 1] == '"';
      if (doubled) out.back() += line[c++];
      if (!doubled) quoted = !quoted;
    } else if (line[c] == ',' && !quoted) {
      out.emplace_back();
    } else if (quoted || (line[c] != ' ' && line[c] != '\r')) {
      out.back() += line[c];
    }
  }
  if (quoted) refuse_row(where, "a quote is not closed");
  return out;
}

/// All of the text, as one number above 0.
template <class T>
bool read_positive(const std::string& text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  return code == std::errc() && stop == end && value > 0 &&
         std::isfinite(static_cast<double>(value));
}

class RowReader {
 public:
  RowReader(std::string path, int line, const std::string& header)
      : path_(std::move(path)), line_(line), header_(header), names_(cells_of(header, at(line))) {
    std::set<std::string> seen;
    for (const std::string& name : names_) {
      if (!seen.insert(name).second)
        refuse_row(at(line), "column '" + shortened(name) + "' is there twice");
    }
    for (const RowField& field : kRowFields) {
      if (field.needed && seen.count(field.name) == 0) missing(field.name);
    }
    if (seen.count(kMilliseconds) == 0) missing(kMilliseconds);
  }

  MeasuredRow row(int line, const std::string& text) const {
    const std::vector<std::string> cells = cells_of(text, at(line));
    if (cells.size() != names_.size())
      refuse_row(at(line), std::to_string(cells.size()) + " fields, the header has " +
                               std::to_string(names_.size()));
    MeasuredRow out;
    out.line = line;
    for (size_t c = 0; c < cells.size(); ++c) {
      const auto wrong = [&](const std::string& wanted) {
        refuse_row(at(line), names_[c] + " is '" + shortened(cells[c]) + "', wanted " + wanted);
      };
      if (names_[c] == kMilliseconds &&
          (!read_positive(cells[c], out.milliseconds) || out.milliseconds < kLeastMilliseconds ||
           out.milliseconds > kMostMilliseconds))
        wrong("milliseconds from 1e-6 to 1e9");
      for (const RowField& field : kRowFields) {
        if (names_[c] == field.name &&
            (!read_positive(cells[c], out.*field.value) || out.*field.value > field.most))
          wrong("a whole number from 1 to " + std::to_string(field.most));
      }
    }
    check(out);
    return out;
  }

 private:
  std::string at(int line) const { return path_ + ":" + std::to_string(line); }
  [[noreturn]] void missing(const std::string& name) const {
    refuse_row(at(line_),
               "there is no column '" + name + "' in '" + shortened(header_) +
                   "', wanted names as docs/simulation.md has them, with commas between");
  }
  void check(const MeasuredRow& r) const {
    if (r.tp * r.dp * r.pp != r.gpus)
      refuse_row(at(r.line), "gpus is " + std::to_string(r.gpus) + ", not tp x dp x pp");
    if (r.hidden % r.heads != 0)
      refuse_row(at(r.line), "hidden is " + std::to_string(r.hidden) + ", no multiple of heads, " +
                                 std::to_string(r.heads));
    if (r.layers < r.pp)
      refuse_row(at(r.line), "layers is " + std::to_string(r.layers) + ", fewer than pp, " +
                                 std::to_string(r.pp));
  }

  std::string path_;
  int line_ = 0;  // of the header
  std::string header_;
  std::vector<std::string> names_;
};

void write_model(const MeasuredRow& row, const std::string& path) {
  GptModel gpt;
  gpt.layers = row.layers, gpt.hidden = row.hidden, gpt.heads = row.heads;
  gpt.vocab = row.vocabulary, gpt.context = row.sequence;
  gpt.weights = false;
  write_gpt(gpt, path);
}

/// Axes of more than one rank, and their baselines.
void set_mesh(const MeasuredRow& row, PlanRequest& request) {
  request.mesh.clear(), request.planner.clear();
  const auto add = [&](const char* axis, int64_t size, const char* planner) {
    if (size == 1) return;
    request.mesh += (request.mesh.empty() ? "" : ",") + (axis + ("=" + std::to_string(size)));
    request.planner += (request.planner.empty() ? "" : "+") + std::string(planner);
  };
  add("data", row.dp, "dp");
  add("model", row.tp, "megatron");
  if (request.mesh.empty()) request.mesh = "1", request.planner = "auto";
}

}  // namespace

bool MeasuredRow::is_copy_of(const MeasuredRow& other) const {
  return milliseconds == other.milliseconds &&
         std::all_of(std::begin(kRowFields), std::end(kRowFields), [&](const RowField& field) {
           return this->*field.value == other.*field.value;
         });
}

std::vector<MeasuredRow> read_rows(const NamedFile& file) {
  constexpr int64_t kMostBytes = 16 << 20;
  std::string text = read_input(file, "a CSV of measured steps", kMostBytes);
  if (const size_t zero = text.find('\0'); zero != std::string::npos) {
    const auto lines = std::count(text.begin(), text.begin() + static_cast<int64_t>(zero), '\n');
    refuse_row(file.path + ":" + std::to_string(1 + lines),
               "has a byte of 0, wanted text in UTF-8");
  }
  if (text.starts_with(kByteOrderMark)) text.erase(0, sizeof kByteOrderMark - 1);
  const char line_end = text.find('\n') == std::string::npos ? '\r' : '\n';  // of old Macs
  std::optional<RowReader> reader;
  std::vector<MeasuredRow> out;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line, line_end); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (reader) {
      out.push_back(reader->row(number, line));
    } else {
      reader.emplace(file.path, number, line);
    }
  }
  if (!reader) refuse_row(file.name + ": '" + file.path + "'", "has no rows, nor a header");
  return out;
}

SimulatedRows::SimulatedRows(World& world, RowSettings settings)
    : world_(world), settings_(std::move(settings)) {
  (void)cluster_of(1);
}

std::string SimulatedRows::cluster_of(int64_t gpus) {
  const auto known = clusters_.find(gpus);
  if (known != clusters_.end()) return known->second;
  return clusters_.emplace(gpus, cluster_of_devices(settings_.cluster, gpus)).first->second;
}

std::string SimulatedRows::plan_key(const MeasuredRow& r) {
  std::string out = cluster_of(r.gpus) + (r.micro_batches == 1 ? " once" : "");
  for (int64_t value :
       {r.micro_batch, r.hidden, r.heads, r.layers, r.sequence, r.vocabulary, r.tp, r.dp})
    out += " " + std::to_string(value);
  return out;
}

std::string SimulatedRows::key(const MeasuredRow& row) {
  return plan_key(row) + " " + std::to_string(row.pp);
}

const ModelAndPlan& SimulatedRows::planned(const MeasuredRow& row) {
  const std::string key = plan_key(row);
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/model.onnx";
  write_model(row, path);
  ModelOptions options;
  options.batch = row.micro_batch * row.dp, options.dtype = settings_.dtype;
  options.accumulate = row.micro_batches == 1 ? 1 : 2;  // more of them run the same program
  PlanRequest request;
  request.cluster = cluster_of(row.gpus), request.with_evaluation = false;
  request.memory_bytes = kAnyMemory;
  request.ranks = static_cast<int>(row.dp * row.tp);
  set_mesh(row, request);
  Model model = load_model(world_, path, options);
  TrainingPlan plan = make_plan(world_, model, request);
  return plans_.emplace(key, ModelAndPlan{std::move(model), std::move(plan), ""}).first->second;
}

std::vector<MeasuredRow> SimulatedRows::plan(const std::string& path,
                                             const std::vector<MeasuredRow>& rows,
                                             const std::function<void(int line)>& begins) {
  SimulateRequest request;
  request.assume = settings_.assume;
  std::vector<MeasuredRow> kept;
  for (const MeasuredRow& row : rows) {
    begins(row.line);
    try {
      request.stages = static_cast<int>(row.pp);
      if (simulations_.count(key(row)) == 0) {
        const ModelAndPlan& of = planned(row);
        simulations_.emplace(key(row), Resimulation(world_, of.model, of.plan, request));
      }
      kept.push_back(row);
    } catch (const Failure& failure) {
      left_out_.push_back(path + ":" + std::to_string(row.line) + ": " + failure.what());
    }
  }
  return kept;
}

std::vector<double> SimulatedRows::milliseconds(const std::vector<MeasuredRow>& rows,
                                                const SimulateConstants& constants) {
  std::map<Resimulation*, std::map<int64_t, std::vector<size_t>>> by_simulation;
  for (size_t r = 0; r < rows.size(); ++r)
    by_simulation[&simulations_.at(key(rows[r]))][rows[r].micro_batches].push_back(r);
  const std::vector<std::pair<Resimulation*, std::map<int64_t, std::vector<size_t>>>> work(
      by_simulation.begin(), by_simulation.end());
  std::vector<double> out(rows.size(), 0);
  std::atomic<size_t> next = 0;
  std::exception_ptr failed;
  std::atomic_flag has_failed;
  const auto simulate_some = [&] {
    for (size_t w = next++; w < work.size(); w = next++) {
      try {
        for (const auto& [micro_batches, same] : work[w].second) {
          const double seconds = work[w].first->seconds(constants, static_cast<int>(micro_batches));
          for (size_t r : same) out[r] = seconds * 1e3;
        }
      } catch (...) {
        if (!has_failed.test_and_set()) failed = std::current_exception();
      }
    }
  };
  std::vector<std::jthread> threads;  // are joined even if the next one is not lent
  for (unsigned t = 1; t < std::max(1u, std::thread::hardware_concurrency()); ++t)
    threads.emplace_back(simulate_some);
  simulate_some();
  threads.clear();
  if (failed) std::rethrow_exception(failed);
  return out;
}

}  // namespace shardrun::cli
