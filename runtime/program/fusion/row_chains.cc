// Chains of row-wise steps: from each step on as many as may take turns, row by row.
#include <algorithm>
#include <set>

#include "program/fusion/chains_within.h"

namespace shardrun {
namespace {

constexpr int64_t kCacheBytes = int64_t{256} << 10;  // of what goes through a chain at once
constexpr int64_t kWorthBytes = int64_t{128} << 10;  // of a chain's largest result

/// What the step goes through row by row.
const TensorType& whole_of(const Program& program, const Step& step) {
  return type_of(program, step.rows == RowWise::operand ? step.in[0] : step.out[0]);
}

std::vector<Access> accesses(const Program& program, const Places& places, size_t s) {
  const Step& step = program.steps[s];
  std::vector<Access> out;
  for (BufferId id : step.in) {
    const bool by_rows = type_of(program, id).shape == whole_of(program, step).shape;
    out.push_back(places.access(id, false, by_rows, s));
  }
  for (BufferId id : step.out) out.push_back(places.access(id, true, true, s));
  return out;
}

bool may_take_turns(const Access& a, const Access& b) {
  if ((!a.write && !b.write) || !a.overlaps(b)) return true;
  return a.matching && b.matching && a.begin == b.begin && a.bytes == b.bytes;
}

/// How many steps from `first` on, before `end`, give the same results as a chain.
size_t length(const Program& program, const Places& places, size_t first, size_t end) {
  std::vector<Access> before;
  for (size_t s = first; s < end; ++s) {
    if (rows_of(program, program.steps[s]) != rows_of(program, program.steps[first]))
      return s - first;
    const std::vector<Access> now = accesses(program, places, s);
    for (const Access& a : before) {
      for (const Access& b : now) {
        if (!may_take_turns(a, b)) return s - first;
      }
    }
    before.insert(before.end(), now.begin(), now.end());
  }
  return end - first;
}

/// How many rows of all that the chain touches fit into cache.
int64_t rows_in_cache(const Program& program, const Places& places, const FusedSteps& chain) {
  const int64_t rows = rows_of(program, program.steps[chain.first]);
  std::set<int64_t> seen;
  int64_t row_bytes = 0;
  for (size_t s = chain.first; s < chain.end(); ++s) {
    for (const Access& access : accesses(program, places, s)) {
      if (access.matching && seen.insert(access.begin).second) row_bytes += access.bytes / rows;
    }
  }
  return kCacheBytes / std::max<int64_t>(row_bytes, 1);
}

int64_t largest_bytes(const Program& program, const FusedSteps& chain) {
  int64_t most = 0;
  for (size_t s = chain.first; s < chain.end(); ++s)
    most = std::max(most, byte_size(whole_of(program, program.steps[s])));
  return most;
}

}  // namespace

int64_t rows_of(const Program& program, const Step& step) {
  if (step.rows == RowWise::none) return 0;
  const Shape& shape = whole_of(program, step).shape;
  return shape.empty() || shape.back() == 0 ? 0 : element_count(shape) / shape.back();
}

std::vector<FusedSteps> row_chains_within(const Program& program, const Places& places,
                                          std::span<const FusedSteps> runs) {
  std::vector<FusedSteps> out;
  for (const FusedSteps& run : runs) {
    for (size_t first = run.first; first + 1 < run.end(); ++first) {
      FusedSteps chain{FusedSteps::Kind::rows, first, length(program, places, first, run.end())};
      if (chain.size < 2) continue;
      if (places.placed()) chain.rows_at_once = rows_in_cache(program, places, chain);
      if (places.placed() &&
          (chain.rows_at_once < 1 || largest_bytes(program, chain) < kWorthBytes))
        continue;
      first = chain.end() - 1;
      out.push_back(std::move(chain));
    }
  }
  return out;
}

}  // namespace shardrun
