// The lower envelope of lines, and where two of it cross.
#include "planner/exposed_lines.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace shardrun {
namespace {

/// Where both take as long, if the second has less hidden seconds and more shown ones.
double crossing(const ExposedLine& left, const ExposedLine& right) {
  const double falls = left.hidden - right.hidden, rises = right.shown - left.shown;
  return falls / (falls + rises);
}

}  // namespace

/// From all exposed to none.
std::vector<size_t> ExposedLines::least() const {
  std::vector<size_t> order(all_.size()), out;
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(all_[a].shown, all_[a].hidden) < std::pair(all_[b].shown, all_[b].hidden);
  });
  for (size_t next : order) {
    if (!out.empty() && all_[next].hidden >= all_[out.back()].hidden) continue;
    // The last is above the other two wherever they cross.
    while (out.size() > 1 && crossing(all_[out[out.size() - 2]], all_[next]) >=
                                 crossing(all_[out[out.size() - 2]], all_[out.back()]))
      out.pop_back();
    out.push_back(next);
  }
  return out;
}

size_t ExposedLines::fastest() const {
  const auto least =
      std::min_element(all_.begin(), all_.end(),
                       [](const ExposedLine& a, const ExposedLine& b) { return a.step < b.step; });
  return static_cast<size_t>(least - all_.begin());
}

std::optional<ExposedLines::Crossing> ExposedLines::next() {
  const std::vector<size_t> lines = least();
  const auto fastest = std::min_element(
      lines.begin(), lines.end(), [&](size_t a, size_t b) { return all_[a].step < all_[b].step; });
  const auto place = static_cast<size_t>(fastest - lines.begin());
  double step = std::numeric_limits<double>::infinity();  // of the neighbour
  std::optional<Crossing> out;
  for (size_t i = place == 0 ? 0 : place - 1; i <= place && i + 1 < lines.size(); ++i) {
    const size_t left = lines[i], right = lines[i + 1];
    const double its = all_[left == *fastest ? right : left].step;
    if (given_.contains({left, right}) || step <= its) continue;
    step = its;
    const double exposed = crossing(all_[left], all_[right]);
    out = {left, right, exposed, all_[left].at(exposed)};
  }
  if (out) given_.emplace(out->left, out->right);
  return out;
}

}  // namespace shardrun
