// Exact reductions of a Problem.
#include "planner/solver/presolve/reductions.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "planner/solver/bytes_over_time.h"
#include "planner/solver/deadline.h"

namespace shardrun {
namespace {

/// Which strategies of a node are tried against all others, whether they beat them: good ones are
/// likely to.
struct RivalSettings {
  size_t small_node = 64;  // strategies: of so many or fewer all
  size_t rivals = 24;      // of more so many
};
constexpr RivalSettings kRivals;

bool is_constant(const std::vector<int64_t>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [&](int64_t b) { return b == bytes.front(); });
}

/// Claims that live at the same times become one.
void add_up(std::vector<Problem::Claim>& claims) {
  const auto key = [](const Problem::Interval& live) { return std::pair(live.first, live.last); };
  const auto before = [&](const Problem::Claim& x, const Problem::Claim& y) {
    return std::lexicographical_compare(
        x.live.begin(), x.live.end(), y.live.begin(), y.live.end(),
        [&](const auto& a, const auto& b) { return key(a) < key(b); });
  };
  std::sort(claims.begin(), claims.end(), before);
  size_t kept = 0;
  for (size_t c = 1; c < claims.size(); ++c) {
    if (claims[c].live == claims[kept].live) {
      for (size_t a = 0; a < claims[c].bytes.size(); ++a)
        claims[kept].bytes[a] += claims[c].bytes[a];
    } else if (++kept != c) {
      claims[kept] = std::move(claims[c]);
    }
  }
  if (!claims.empty()) claims.resize(kept + 1);
}

template <class T>
std::vector<T> filtered(const std::vector<T>& values, const std::vector<bool>& keep) {
  std::vector<T> result;
  for (size_t i = 0; i < values.size(); ++i) {
    if (keep[i]) result.push_back(values[i]);
  }
  return result;
}

}  // namespace

Reducer::Reducer(const Problem& problem)
    : limit_(problem.memory_limit), limited_(problem.limited()) {
  fixed_.name = "fixed";
  fixed_.cost = {0.0};
  for (const Problem::Node& node : problem.nodes) {
    WorkNode work;
    work.cost = node.cost;
    work.label.resize(node.cost.size());
    std::iota(work.label.begin(), work.label.end(), 0);
    if (limited_) work.claims = node.claims;
    nodes_.push_back(std::move(work));
    names_.push_back(node.name);
    original_sizes_.push_back(node.cost.size());
  }
  for (const Problem::Edge& edge : problem.edges) add_edge(edge.from, edge.to, edge.cost);
}

void Reducer::touch(int i) { at(i).dirty = true; }

void Reducer::touch_around(int i) {
  touch(i);
  for (int e : at(i).edges) touch(edge_at(e).other(i));
}

int Reducer::find_edge(int i, int j) const {
  for (int e : nodes_[static_cast<size_t>(i)].edges) {
    if (edges_[static_cast<size_t>(e)].other(i) == j) return e;
  }
  return -1;
}

void Reducer::add_edge(int i, int j, std::vector<double> cost) {
  const int known = find_edge(i, j);
  if (known < 0) {
    const int id = static_cast<int>(edges_.size());
    edges_.push_back({true, i, j, std::move(cost)});
    at(i).edges.push_back(id);
    at(j).edges.push_back(id);
    return;
  }
  WorkEdge& edge = edge_at(known);
  if (edge.a != i) cost = transposed(cost, at(i).size(), at(j).size());
  for (size_t k = 0; k < cost.size(); ++k) edge.cost[k] += cost[k];
}

void Reducer::detach(int e) {
  WorkEdge& edge = edge_at(e);
  edge.alive = false;
  std::erase(at(edge.a).edges, e);
  std::erase(at(edge.b).edges, e);
  edge.cost = {};
}

std::vector<double> Reducer::oriented(const WorkEdge& edge, int row_node) const {
  if (edge.a == row_node) return edge.cost;
  return transposed(edge.cost, nodes_[static_cast<size_t>(edge.a)].size(),
                    nodes_[static_cast<size_t>(edge.b)].size());
}

std::vector<int> Reducer::positions(int i) const {
  const WorkNode& node = nodes_[static_cast<size_t>(i)];
  std::vector<int> result(original_sizes_[static_cast<size_t>(i)], -1);
  for (size_t p = 0; p < node.label.size(); ++p)
    result[static_cast<size_t>(node.label[p])] = static_cast<int>(p);
  return result;
}

void Reducer::keep_only(int i, const std::vector<bool>& keep) {
  WorkNode& node = at(i);
  for (int e : node.edges) {
    WorkEdge& edge = edge_at(e);
    const size_t rows = at(edge.a).size(), columns = at(edge.b).size();
    std::vector<double> cost;
    cost.reserve(edge.cost.size());
    for (size_t x = 0; x < rows; ++x) {
      if (edge.a == i && !keep[x]) continue;
      for (size_t y = 0; y < columns; ++y) {
        if (edge.a == i || keep[y]) cost.push_back(edge.cost[x * columns + y]);
      }
    }
    count_work(kSearchWork.table + 2 * static_cast<double>(rows * columns));
    edge.cost = std::move(cost);
  }
  node.cost = filtered(node.cost, keep);
  node.label = filtered(node.label, keep);
  for (Problem::Claim& claim : node.claims) claim.bytes = filtered(claim.bytes, keep);
  touch_around(i);
}

bool Reducer::prune_infeasible(int i) {
  WorkNode& node = at(i);
  std::vector<bool> keep(node.size());
  for (size_t x = 0; x < node.size(); ++x) keep[x] = node.cost[x] != kInfeasible;
  for (int e : node.edges) {
    const WorkEdge& edge = edge_at(e);
    const size_t rows = at(edge.a).size(), columns = at(edge.b).size();
    count_work(static_cast<double>(rows * columns));
    std::vector<bool> possible(node.size(), false);
    for (size_t x = 0; x < rows; ++x) {
      for (size_t y = 0; y < columns; ++y) {
        if (edge.cost[x * columns + y] != kInfeasible) possible[edge.a == i ? x : y] = true;
      }
    }
    for (size_t x = 0; x < node.size(); ++x) keep[x] = keep[x] && possible[x];
  }
  if (std::find(keep.begin(), keep.end(), false) == keep.end()) return false;
  keep_only(i, keep);
  return true;
}

bool Reducer::prune_dominated(int i) {
  WorkNode& node = at(i);
  const size_t size = node.size();
  if (size < 2) return false;
  std::vector<std::vector<double>> costs, least_of;  // the latter by own strategy
  std::vector<size_t> widths;
  std::vector<double> optimistic = node.cost;
  for (int e : node.edges) {
    costs.push_back(oriented(edge_at(e), i));
    count_work(kSearchWork.table + 2 * static_cast<double>(costs.back().size()));
    widths.push_back(costs.back().size() / size);
    std::vector<double>& least = least_of.emplace_back(size);
    for (size_t x = 0; x < size; ++x) {
      const double* row = costs.back().data() + x * widths.back();
      least[x] = *std::min_element(row, row + widths.back());
      optimistic[x] += least[x];
    }
  }
  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t x, size_t y) { return optimistic[x] < optimistic[y]; });
  const size_t rivals = size <= kRivals.small_node ? size : kRivals.rivals;
  const auto beats = [&](size_t b, size_t a) {
    for (const Problem::Claim& claim : node.claims) {
      if (claim.bytes[b] > claim.bytes[a]) return false;
    }
    // An edge makes no more of the gap than the least costs of both do.
    double gap = node.cost[a] - node.cost[b], most = optimistic[a] - optimistic[b];
    const double rounding = kRounding * std::abs(optimistic[b]);
    for (size_t k = 0; k < costs.size(); ++k) {
      if (most < -rounding) return false;
      const double* row_a = costs[k].data() + a * widths[k];
      const double* row_b = costs[k].data() + b * widths[k];
      double least = kInfeasible;
      count_work(static_cast<double>(widths[k]));
      for (size_t y = 0; y < widths[k]; ++y) {
        if (row_a[y] == kInfeasible) continue;
        least = std::min(least, row_a[y] - row_b[y]);
      }
      gap += least;
      if (gap == -kInfeasible) return false;
      most += least - (least_of[k][a] - least_of[k][b]);
    }
    return gap >= 0;
  };
  std::vector<bool> keep(size, true);
  bool changed = false;
  for (size_t r = 0; r < rivals; ++r) {
    const size_t b = order[r];
    if (!keep[b]) continue;
    for (size_t q = size; q-- > 0;) {
      const size_t a = order[q];
      if (a == b || !keep[a] || !beats(b, a)) continue;
      keep[a] = false;
      node.beaten.push_back({node.label[a], node.label[b]});
      changed = true;
    }
  }
  if (changed) keep_only(i, keep);
  return changed;
}

/// Merges one neighbour j into i if each strategy of i leaves exactly one of j's.
bool Reducer::merge_determined(int i) {
  WorkNode& node = at(i);
  for (int e : node.edges) {
    const int j = edge_at(e).other(i);
    WorkNode& merged = at(j);
    const size_t columns = merged.size();
    const std::vector<double> cost = oriented(edge_at(e), i);
    count_work(2 * static_cast<double>(cost.size()));
    std::vector<size_t> follows(node.size());
    bool determined = true;
    for (size_t x = 0; x < node.size() && determined; ++x) {
      int finite = 0;
      for (size_t y = 0; y < columns; ++y) {
        if (cost[x * columns + y] == kInfeasible) continue;
        ++finite;
        follows[x] = y;
      }
      determined = finite == 1;
    }
    if (!determined) continue;
    Record record{j, i, -1, positions(i), {}, 1, {}};
    for (size_t x = 0; x < node.size(); ++x) {
      node.cost[x] += cost[x * columns + follows[x]] + merged.cost[follows[x]];
      record.choice.push_back(merged.label[follows[x]]);
    }
    for (const Problem::Claim& claim : merged.claims) {
      Problem::Claim moved{{}, claim.live};
      for (size_t x = 0; x < node.size(); ++x) moved.bytes.push_back(claim.bytes[follows[x]]);
      node.claims.push_back(std::move(moved));
    }
    records_.push_back(std::move(record));
    detach(e);
    const std::vector<int> rest = merged.edges;
    for (int f : rest) {
      const int k = edge_at(f).other(j);
      const std::vector<double> old = oriented(edge_at(f), j);
      const size_t width = at(k).size();
      std::vector<double> moved(node.size() * width);
      for (size_t x = 0; x < node.size(); ++x) {
        std::copy_n(old.begin() + static_cast<std::ptrdiff_t>(follows[x] * width), width,
                    moved.begin() + static_cast<std::ptrdiff_t>(x * width));
      }
      detach(f);
      add_edge(i, k, std::move(moved));
    }
    merged.alive = false;
    touch_around(i);
    return true;
  }
  return false;
}

bool Reducer::eliminate(int i, double max_work) {
  WorkNode& node = at(i);
  if (node.edges.size() > 2 || !node.claims.empty()) return false;
  const size_t size = node.size();
  std::vector<int> others;
  std::vector<std::vector<double>> costs;  // [other's strategy][own]
  double work = static_cast<double>(size);
  for (int e : node.edges) {
    others.push_back(edge_at(e).other(i));
    work *= static_cast<double>(at(others.back()).size());
  }
  if (work > max_work) return false;
  count_work(kSearchWork.removal + 2 * work);
  for (size_t k = 0; k < others.size(); ++k)
    costs.push_back(oriented(edge_at(node.edges[k]), others[k]));

  Record record{i, others.empty() ? -1 : others[0], others.size() < 2 ? -1 : others[1], {}, {}, 1,
                {}};
  const size_t rows = others.empty() ? 1 : at(others[0]).size();
  const size_t columns = others.size() < 2 ? 1 : at(others[1]).size();
  if (!others.empty()) record.pos1 = positions(others[0]);
  if (others.size() > 1) record.pos2 = positions(others[1]);
  record.columns = columns;
  std::vector<double> table(rows * columns);
  std::vector<double> base(size);
  for (size_t x = 0; x < rows; ++x) {
    for (size_t a = 0; a < size; ++a)
      base[a] = node.cost[a] + (others.empty() ? 0.0 : costs[0][x * size + a]);
    for (size_t y = 0; y < columns; ++y) {
      double best = kInfeasible;
      size_t best_a = 0;
      const double* row = others.size() < 2 ? nullptr : costs[1].data() + y * size;
      for (size_t a = 0; a < size; ++a) {
        const double cost = base[a] + (row == nullptr ? 0.0 : row[a]);
        if (cost < best) {
          best = cost;
          best_a = a;
        }
      }
      table[x * columns + y] = best;
      record.choice.push_back(node.label[best_a]);
    }
  }
  records_.push_back(std::move(record));
  const std::vector<int> gone = node.edges;
  for (int e : gone) detach(e);
  node.alive = false;
  if (others.empty()) {
    fixed_.cost[0] += table[0];
  } else if (others.size() == 1) {
    for (size_t x = 0; x < rows; ++x) at(others[0]).cost[x] += table[x];
    touch_around(others[0]);
  } else {
    add_edge(others[0], others[1], std::move(table));
    touch_around(others[0]);
    touch_around(others[1]);
  }
  return true;
}

/// Moves claims that no longer depend on a choice to the fixed node, and drops what lives only at
/// times that cannot overflow even if every node takes its largest strategy.
void Reducer::settle_memory() {
  if (!limited_) return;
  for (WorkNode& node : nodes_) {
    if (!node.alive) continue;
    const size_t before = node.claims.size();
    if (node.dirty) add_up(node.claims);
    std::erase_if(node.claims, [&](const Problem::Claim& claim) {
      if (!is_constant(claim.bytes)) return false;
      fixed_.claims.push_back({{claim.bytes.front()}, claim.live});
      return true;
    });
    if (node.claims.size() != before) node.dirty = true;
  }
  const auto each = [&](auto&& visit) {
    for (WorkNode& node : nodes_) {
      if (node.alive) {
        for (const Problem::Claim& claim : node.claims) visit(claim);
      }
    }
    for (const Problem::Claim& claim : fixed_.claims) visit(claim);
  };
  BytesOverTime largest, smallest;
  each([&](const Problem::Claim& claim) {
    const auto [low, high] = std::minmax_element(claim.bytes.begin(), claim.bytes.end());
    for (const Problem::Interval& live : claim.live) {
      largest.add(live.first, live.last + 1, *high);
      smallest.add(live.first, live.last + 1, *low);
    }
  });
  const std::vector<int64_t> most = largest.values(), least = smallest.values();
  std::vector<int> tight_before(most.size() + 1, 0);  // times before t that could overflow
  for (size_t t = 0; t < most.size(); ++t) {
    if (least[t] > limit_) fits_ = false;
    tight_before[t + 1] = tight_before[t] + (most[t] > limit_ ? 1 : 0);
  }
  for (WorkNode& node : nodes_) {
    if (!node.alive) continue;
    for (Problem::Claim& claim : node.claims) {
      std::erase_if(claim.live, [&](const Problem::Interval& live) {
        return live.first > live.last || tight_before[static_cast<size_t>(live.last) + 1] ==
                                             tight_before[static_cast<size_t>(live.first)];
      });
    }
    if (std::erase_if(node.claims, [](const Problem::Claim& claim) { return claim.live.empty(); }) >
        0) {
      node.dirty = true;
    }
  }
}

bool Reducer::run(double max_work, const std::function<bool()>& late) {
  for (WorkNode& node : nodes_) {
    if (node.alive && node.size() == 0) return false;
    node.dirty = true;
  }
  bool changed = true, stop = false;
  while (changed && !stop) {
    changed = false;
    settle_memory();
    if (!fits_) return false;
    for (int i = 0; i < static_cast<int>(nodes_.size()) && !stop; ++i) {
      if (!at(i).alive || !at(i).dirty) continue;
      stop = late && late();
      at(i).dirty = false;
      changed |= prune_infeasible(i);
      if (at(i).size() == 0) return false;
      changed |= prune_dominated(i);
      while (!stop && merge_determined(i)) {
        changed = true;
        stop = late && late();
      }
      changed |= eliminate(i, max_work);
    }
  }
  build_core();
  return true;
}

void Reducer::build_core() {
  core_ = {};
  core_.memory_limit = limit_;
  core_to_work_ = {-1};
  core_edge_to_work_.clear();
  core_.nodes.push_back(fixed_);
  std::vector<int> core_id(nodes_.size(), -1);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].alive) continue;
    core_id[i] = static_cast<int>(core_.nodes.size());
    core_to_work_.push_back(static_cast<int>(i));
    core_.nodes.push_back({names_[i], nodes_[i].cost, nodes_[i].claims});
  }
  for (const WorkEdge& edge : edges_) {
    if (!edge.alive) continue;
    core_edge_to_work_.push_back(static_cast<int>(&edge - edges_.data()));
    core_.edges.push_back(
        {core_id[static_cast<size_t>(edge.a)], core_id[static_cast<size_t>(edge.b)], edge.cost});
  }
}

void Reducer::remove(int core_node, const std::vector<bool>& removed) {
  std::vector<bool> keep = removed;
  keep.flip();
  keep_only(core_to_work_[static_cast<size_t>(core_node)], keep);
}

void Reducer::forbid(int core_edge, const std::vector<bool>& pairs) {
  WorkEdge& edge = edge_at(core_edge_to_work_[static_cast<size_t>(core_edge)]);
  for (size_t k = 0; k < pairs.size(); ++k) {
    if (pairs[k]) edge.cost[k] = kInfeasible;
  }
}

std::optional<Solution> Reducer::restrict(const Solution& solution) const {
  Solution result{0};
  for (size_t c = 1; c < core_to_work_.size(); ++c) {
    const size_t i = static_cast<size_t>(core_to_work_[c]);
    const WorkNode& node = nodes_[i];
    const auto& labels = node.label;
    int label = solution[i];
    auto found = std::find(labels.begin(), labels.end(), label);
    if (found == labels.end()) {
      for (const auto& [worse, better] : node.beaten) {  // in the order in which they went
        if (worse == label) label = better;
      }
      found = std::find(labels.begin(), labels.end(), label);
    }
    if (found == labels.end()) return std::nullopt;
    result.push_back(static_cast<int>(found - labels.begin()));
  }
  return result;
}

Solution Reducer::expand(const Solution& core_solution) const {
  Solution labels(nodes_.size(), 0);
  for (size_t c = 1; c < core_to_work_.size(); ++c) {
    const size_t i = static_cast<size_t>(core_to_work_[c]);
    labels[i] = nodes_[i].label[static_cast<size_t>(core_solution[c])];
  }
  for (size_t r = records_.size(); r-- > 0;) {
    const Record& record = records_[r];
    size_t index = 0;
    if (record.first >= 0) {
      const int position =
          record.pos1[static_cast<size_t>(labels[static_cast<size_t>(record.first)])];
      index = static_cast<size_t>(position) * record.columns;
    }
    if (record.second >= 0) {
      index += static_cast<size_t>(
          record.pos2[static_cast<size_t>(labels[static_cast<size_t>(record.second)])]);
    }
    labels[static_cast<size_t>(record.node)] = record.choice[index];
  }
  return labels;
}

}  // namespace shardrun
