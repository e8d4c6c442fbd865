// Which steps may be interleaved, and the loop over tiles of rows.
#include "exec/row_chain.h"

#include <algorithm>
#include <set>

namespace shardrun {
namespace {

constexpr int64_t kCacheBytes = int64_t{256} << 10;  // of what a tile touches
constexpr int64_t kWorthBytes = int64_t{128} << 10;  // of a chain's largest result

struct Access {
  const char* begin;
  int64_t bytes;
  bool write, by_rows;  // else all of it, for any row
};

/// What the step goes through row by row.
const TensorType& whole_of(const RowStep& step) {
  return step.kernel->rows_of_operand ? step.in[0].type : step.out[0].type;
}

std::vector<Access> accesses(const RowStep& step) {
  std::vector<Access> out;
  const auto add = [&](const TensorView& view, bool write, bool by_rows) {
    out.push_back({static_cast<const char*>(view.data), byte_size(view.type), write, by_rows});
  };
  for (const TensorView& view : step.in) add(view, false, view.type.shape == whole_of(step).shape);
  for (const TensorView& view : step.out) add(view, true, true);
  return out;
}

int64_t rows_of(const RowStep& step) {
  const Shape& shape = whole_of(step).shape;
  return shape.empty() || shape.back() == 0 ? 0 : element_count(shape) / shape.back();
}

bool may_interleave(const Access& a, const Access& b) {
  if (!a.write && !b.write) return true;
  if (a.bytes == 0 || b.bytes == 0) return true;
  if (a.begin + a.bytes <= b.begin || b.begin + b.bytes <= a.begin) return true;
  return a.by_rows && b.by_rows && a.begin == b.begin && a.bytes == b.bytes;
}

int64_t tile_rows(std::span<const RowStep> steps, int64_t rows) {
  std::set<const char*> seen;
  int64_t row_bytes = 0;
  for (const RowStep& step : steps) {
    for (const Access& access : accesses(step)) {
      if (access.by_rows && seen.insert(access.begin).second) row_bytes += access.bytes / rows;
    }
  }
  return kCacheBytes / std::max<int64_t>(row_bytes, 1);
}

}  // namespace

size_t RowChain::length(std::span<const RowStep> steps) {
  std::vector<Access> before;
  for (size_t n = 0; n < steps.size(); ++n) {
    const RowStep& step = steps[n];
    if (step.kernel == nullptr || step.kernel->run_rows == nullptr || rows_of(step) == 0 ||
        rows_of(step) != rows_of(steps[0]))
      return n;
    const std::vector<Access> now = accesses(step);
    for (const Access& a : before) {
      for (const Access& b : now) {
        if (!may_interleave(a, b)) return n;
      }
    }
    before.insert(before.end(), now.begin(), now.end());
  }
  return steps.size();
}

bool RowChain::pays(std::span<const RowStep> steps) {
  if (steps.size() < 2) return false;
  int64_t most = 0;
  for (const RowStep& step : steps) most = std::max(most, byte_size(whole_of(step)));
  return most >= kWorthBytes && tile_rows(steps, rows_of(steps[0])) >= 1;
}

RowChain::RowChain(std::vector<RowStep> steps)
    : steps_(std::move(steps)),
      rows_(rows_of(steps_[0])),
      tile_(std::max<int64_t>(1, tile_rows(steps_, rows_))) {}

void RowChain::run() const {
  const int64_t tiles = (rows_ + tile_ - 1) / tile_;
#pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t begin = t * tile_, end = std::min(begin + tile_, rows_);
    for (const RowStep& step : steps_)
      step.kernel->run_rows(KernelArgs{step.in, step.out, nullptr}, begin, end);
  }
}

}  // namespace shardrun
