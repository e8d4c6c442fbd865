// Which all_reduces one call can do.
#include "program/combine_collectives.h"

#include <algorithm>

#include "program/memory.h"
#include "program/step_uses.h"

namespace shardrun {
namespace {

bool is_all_reduce(const Step& step) {
  return step.kind == Step::Kind::collective &&
         step.collective->kind == Collective::Kind::all_reduce;
}

bool go_together(const Program& program, const Step& a, const Step& b) {
  return a.phase == b.phase && a.collective->axes == b.collective->axes &&
         a.collective->op == b.collective->op &&
         type_of(program, a.in[0]).dtype == type_of(program, b.in[0]).dtype;
}

/// The steps in the order in which calls do them.
class Calls {
 public:
  explicit Calls(const Program& program)
      : program_(program),
        uses_(program),
        in_place_(runs_in_place(program)),
        call_of_(program.steps.size(), program.steps.size()) {}

  std::vector<Step> run() {
    std::vector<Step> out;
    int32_t call = 0;
    for (size_t first = 0; first < call_of_.size(); ++first) {
      if (call_of_[first] < first) continue;
      const std::vector<size_t> together = call_from(first);
      if (together.size() > 1) ++call;
      for (size_t s : together) {
        call_of_[s] = first;
        out.push_back(program_.steps[s]);
        if (together.size() > 1) out.back().call = call;
      }
    }
    return out;
  }

 private:
  bool may_join(size_t s) const {
    const Step& step = program_.steps[s];
    return is_all_reduce(step) && in_place_[s] && uses_.lives_to(step.out[0], s + 1, s);
  }

  /// A step, and those behind it that its call can do. No kernel stands between them.
  std::vector<size_t> call_from(size_t first) const {
    std::vector<size_t> out{first};
    if (!may_join(first)) return out;
    const std::vector<Step>& steps = program_.steps;
    for (size_t s = first + 1; s < steps.size() && steps[s].kind == Step::Kind::collective; ++s) {
      if (call_of_[s] == steps.size() && may_join(s) &&
          go_together(program_, steps[first], steps[s]) && stands_at(first, s))
        out.push_back(s);
    }
    return out;
  }

  /// May step `s` be run where `first` is? Nothing from there on touches what it sums, but what is
  /// run before anyway, as others' calls.
  bool stands_at(size_t first, size_t s) const {
    const auto touched = [&](const std::vector<size_t>& by) {
      return std::any_of(by.begin(), by.end(),
                         [&](size_t t) { return t >= first && t < s && call_of_[t] >= first; });
    };
    const BufferId from = program_.steps[s].in[0], to = program_.steps[s].out[0];
    return !touched(uses_.makers(from)) && !touched(uses_.readers(from)) &&
           !touched(uses_.makers(to)) && !touched(uses_.readers(to));
  }

  const Program& program_;
  const Uses uses_;
  const std::vector<bool> in_place_;
  std::vector<size_t> call_of_;  // by step: the first of the call that does it; else their number
};

}  // namespace

void combine_collectives(Program& program) { program.steps = Calls(program).run(); }

}  // namespace shardrun
