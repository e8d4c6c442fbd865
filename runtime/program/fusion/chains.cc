// Runs of neighbours that a backend can fuse, and what memory leaves of them.
#include "program/fusion/chains.h"

#include <algorithm>

#include "program/fusion/chains_within.h"

namespace shardrun {
namespace {

/// Runs of at least two steps of which each `goes_with` the first.
template <class GoesWith>
std::vector<FusedSteps> runs_of(const Program& program, FusedSteps::Kind kind,
                                const GoesWith& goes_with) {
  std::vector<FusedSteps> runs;
  for (size_t first = 0; first < program.steps.size(); ++first) {
    size_t end = first;
    while (end < program.steps.size() && goes_with(first, end)) ++end;
    if (end < first + 2) continue;
    runs.push_back({kind, first, end - first});
    first = end - 1;
  }
  return runs;
}

void add(Program& program, std::vector<FusedSteps> chains) {
  program.fused.insert(program.fused.end(), chains.begin(), chains.end());
  std::sort(program.fused.begin(), program.fused.end(),
            [](const FusedSteps& a, const FusedSteps& b) { return a.first < b.first; });
}

/// What the backend says of each kernel's step; of others nothing.
std::vector<StepFusion> asked(const Program& program, const FusionOf& fusion) {
  std::vector<StepFusion> out;
  for (const Step& step : program.steps)
    out.push_back(step.kind == Step::Kind::kernel ? fusion(program, step) : StepFusion());
  for (const FusedSteps& taken : program.fused) {
    for (size_t s = taken.first; s < taken.end(); ++s) out[s] = StepFusion();
  }
  return out;
}

}  // namespace

void fuse_elements(Program& program, const FusionOf& fusion) {
  if (!fusion) return;
  const std::vector<StepFusion> can = asked(program, fusion);
  const auto shape = [&](size_t s) -> const Shape& {
    return type_of(program, program.steps[s].out[0]).shape;
  };
  const std::vector<FusedSteps> runs =
      runs_of(program, FusedSteps::Kind::elements, [&](size_t first, size_t s) {
        return can[s].elements != nullptr && can[s].elements == can[first].elements &&
               program.steps[s].out.size() == 1 && element_count(shape(s)) > 0 &&
               shape(s) == shape(first) && program.steps[s].phase == program.steps[first].phase;
      });
  add(program, element_chains_within(program, Places(program), runs));
}

void fuse_rows(Program& program, const FusionOf& fusion) {
  if (!fusion) return;
  const std::vector<StepFusion> can = asked(program, fusion);
  for (size_t s = 0; s < can.size(); ++s) program.steps[s].rows = can[s].rows;
  const std::vector<FusedSteps> runs =
      runs_of(program, FusedSteps::Kind::rows, [&](size_t first, size_t s) {
        const int64_t rows = rows_of(program, program.steps[s]);
        return rows > 0 && rows == rows_of(program, program.steps[first]) &&
               program.steps[s].phase == program.steps[first].phase;
      });
  add(program, row_chains_within(program, Places(program), runs));
}

void cut_chains(Program& program) {
  if (program.fused.empty()) return;
  const auto middle = std::stable_partition(
      program.fused.begin(), program.fused.end(),
      [](const FusedSteps& f) { return f.kind == FusedSteps::Kind::elements; });
  const Places places(program);
  std::vector<FusedSteps> elements =
      element_chains_within(program, places, {program.fused.begin(), middle});
  std::vector<FusedSteps> rows = row_chains_within(program, places, {middle, program.fused.end()});
  program.fused.clear();
  add(program, std::move(elements));
  add(program, std::move(rows));
}

}  // namespace shardrun
