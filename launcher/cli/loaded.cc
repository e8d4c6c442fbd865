// Loading and planning, and what is printed meanwhile.
#include "loaded.h"

#include <chrono>
#include <cstdio>

#include "report.h"

namespace shardrun::cli {
namespace {

/// One line that says what planning does, on a terminal, from the first second on. It goes when
/// planning ends.
class PlanningLine {
 public:
  explicit PlanningLine(bool shown) : shown_(shown) {}
  ~PlanningLine() { clear(); }
  PlanningLine(const PlanningLine&) = delete;
  PlanningLine& operator=(const PlanningLine&) = delete;

  void show(const std::string& what) {
    if (!shown_) return;
    using Seconds = std::chrono::duration<double>;
    const auto now = std::chrono::steady_clock::now();
    if (Seconds(now - begin_).count() < kPatience || Seconds(now - last_).count() < kApart) return;
    last_ = now;
    written_ = true;
    constexpr size_t kWidth = 60;  // the line must not wrap
    std::printf("\r\033[Kplanning, %.0f s: %s", Seconds(now - begin_).count(),
                what.substr(0, kWidth).c_str());
    std::fflush(stdout);
  }
  void clear() {
    if (written_) std::printf("\r\033[K");
    written_ = false;
  }

 private:
  static constexpr double kPatience = 1, kApart = 0.1;  // seconds
  bool shown_, written_ = false;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), last_;
};

}  // namespace

ModelAndPlan load_and_plan(World& world, const Arguments& args,
                           const std::function<void(const Model&)>& checked) {
  const bool tells = world.leader() && !args.quiet;
  PlanningLine line(tells && on_terminal());
  PlanRequest request = args.plan;
  request.on_progress = [&](const std::string& what) { line.show(what); };
  ModelAndPlan out =
      load_and_plan(world, args.model, args.model_options, request, [&](const Model& model) {
        if (tells && !args.recipe.empty()) std::printf("%s\n", args.recipe.c_str());
        if (tells) print_model(model, args.verbose);
        if (checked) checked(model);
        std::fflush(stdout);
      });
  line.clear();
  if (tells) std::printf("%s%s", out.plan.summary().c_str(), out.tried.c_str());
  return out;
}

void take_ranks_of_plan(Arguments& args) {
  if (!args.ranks && launched_processes() <= 1 && !args.plan.plan_file.empty())
    args.ranks = read_planned_model(args.plan.plan_file).ranks;
}

}  // namespace shardrun::cli
