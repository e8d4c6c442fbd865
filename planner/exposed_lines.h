// ExposedLines: for which fraction of exposed sums a search is worth making next.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace shardrun {

/// For how many fractions is searched, and where there is no use.
struct ExposedSettings {
  int searches = 5;          // at most
  int few_searches = 2;      // the same where they take long; one more if one finds a faster plan
  double gained = 1e-5;      // relative: what is less better than both neighbours is one of them
  double worthwhile = 1.01;  // times the bound: a plan that takes less is good enough
  double solved = 1.001;  // cost over bound: of searches that come to their end, as quick ones do
};
inline constexpr ExposedSettings kExposed;

/// A solution, by what it takes where a fraction of gradients' sums is exposed, the rest hidden
/// behind kernels. That grows evenly with the fraction. In seconds.
struct ExposedLine {
  double hidden = 0;  // where none is exposed
  double shown = 0;   // where all are
  double step = 0;    // of its plan, whose own fraction is known then
  double at(double exposed) const { return hidden + exposed * (shown - hidden); }
};

/// How much is exposed depends on the plan, and the plan on how much is taken to be exposed. So
/// the search goes on where the fastest plan so far and its neighbour cost the same: what it finds
/// there is better than both for some fractions, or nothing between the two is.
///
///     ExposedLines lines;
///     lines.add(...), lines.add(...);
///     while (const auto next = lines.next()) ... lines.add(...) ...
class ExposedLines {
 public:
  struct Crossing {
    size_t left = 0, right = 0;  // by when they were added
    double exposed = 0;          // the fraction at which both take so long:
    double seconds = 0;
  };

  void add(const ExposedLine& line) { all_.push_back(line); }
  /// By when it was added, whose plan is the fastest; the first of several.
  size_t fastest() const;
  double least_step() const { return all_[fastest()].step; }
  /// Of those next to the fastest plan, among the lines that take least for some fraction, the one
  /// whose other plan is the faster; each once. nullopt: there is none left.
  std::optional<Crossing> next();

 private:
  std::vector<size_t> least() const;

  std::vector<ExposedLine> all_;
  std::set<std::pair<size_t, size_t>> given_;
};

}  // namespace shardrun
