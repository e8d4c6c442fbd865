// A rank's events as Chrome's trace format has them: complete events ("ph": "X") with begin and
// duration in microseconds, nested by their times.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "profile/profile.h"

namespace shardrun {
namespace {

using Json = nlohmann::ordered_json;

class Trace {
 public:
  Trace(const RankProfile& profile, double zero) : profile_(profile), zero_(zero) {
    const std::string place = profile.place.empty() ? "" : " (" + profile.place + ")";
    add({{"name", "process_name"},
         {"ph", "M"},
         {"pid", profile.rank},
         {"tid", 0},
         {"args", {{"name", str("rank ", profile.rank, place)}}}});
    add({{"name", "thread_name"},
         {"ph", "M"},
         {"pid", profile.rank},
         {"tid", 0},
         {"args", {{"name", "steps"}}}});
  }

  void add_runs(const std::vector<Timeline::Run>& runs, const std::vector<StepFacts>& facts,
                const char* what) {
    std::vector<Json> args;  // of every step: what does not change
    for (const StepFacts& f : facts) args.push_back(fixed_args(f));
    for (const Timeline::Run& run : runs) {
      add_event(str(what, " ", run.number), what, run.begin, run.end, Json::object());
      for (const Timeline::Event& e : run.events) {
        if (e.step == Timeline::kReading) {
          add_event("read batch", "host", e.begin, e.end, Json::object());
        } else if (e.step == Timeline::kZeroing) {
          add_event("zero gradients", "host", e.begin, e.end, Json::object());
        } else if (e.count == 1) {
          add_step(facts[e.step], args[e.step], e.begin, e.end);
        } else {
          add_chain(facts, args, e);
        }
      }
    }
  }

  std::string take() { return std::move(text_); }

 private:
  static Json fixed_args(const StepFacts& f) {
    Json args = {{"op", f.op}, {"source", f.source}};
    if (!f.collective) args["kernel"] = f.kernel;
    args[f.collective ? "bytes_sent" : "bytes"] = std::llround(f.bytes);
    if (!f.collective) args["flops"] = std::llround(f.flops);
    args["in"] = f.in;
    args["out"] = f.out;
    args["predicted_us"] = microseconds(f.predicted);
    return args;
  }

  static double microseconds(double seconds) { return std::round(seconds * 1e9) / 1e3; }
  int64_t nanoseconds(double at) const { return std::llround((at - zero_) * 1e9); }

  void add_step(const StepFacts& f, Json args, double begin, double end) {
    args["measured_us"] = microseconds(end - begin);
    if (f.predicted > 0)
      args["measured_to_predicted"] = std::round((end - begin) / f.predicted * 1e3) / 1e3;
    add_event(f.name, f.collective ? "collective" : "kernel", begin, end, args);
  }

  /// Steps that ran interleaved, a few rows of each in turn, or in one call of a Communicator. Each
  /// is shown with its fraction of the time, by bytes.
  void add_chain(const std::vector<StepFacts>& facts, const std::vector<Json>& args,
                 const Timeline::Event& e) {
    const char* const what = facts[e.step].collective ? "call of " : "chain of ";
    add_event(str(what, e.count), "chain", e.begin, e.end, Json::object());
    double at = e.begin;
    for (size_t s = e.step; s < e.step + e.count; ++s) {
      const double end = s + 1 == e.step + e.count
                             ? e.end
                             : std::min(e.end, at + share_of(s, e, facts) * (e.end - e.begin));
      Json own = args[s];
      own["chained"] = e.count;
      add_step(facts[s], std::move(own), at, end);
      at = end;
    }
  }

  void add_event(const std::string& name, const char* category, double begin, double end,
                 const Json& args) {
    const int64_t from = nanoseconds(begin), to = nanoseconds(end);
    add({{"name", name},
         {"cat", category},
         {"ph", "X"},
         {"ts", static_cast<double>(from) / 1e3},
         {"dur", static_cast<double>(to - from) / 1e3},
         {"pid", profile_.rank},
         {"tid", 0},
         {"args", args}});
  }

  void add(const Json& event) {
    if (!text_.empty()) text_ += ",\n";
    text_ += event.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  const RankProfile& profile_;
  double zero_;
  std::string text_;
};

}  // namespace

std::string trace_events(const RankProfile& profile, double zero) {
  Trace trace(profile, zero);
  trace.add_runs(profile.steps, profile.training, "step");
  trace.add_runs(profile.passes, profile.validation, "validation batch");
  return trace.take();
}

}  // namespace shardrun
