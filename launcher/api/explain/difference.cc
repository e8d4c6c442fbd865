// What two plans of one model do differently.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <sstream>

#include "explain/explain.h"
#include "explain/names.h"
#include "explain/plan_costs.h"
#include "explain/planned_steps.h"
#include "explain/text.h"
#include "graph/collective.h"

namespace shardrun {
namespace {

/// Whole nanoseconds of a plan's step, by what takes them. They add up to the step's: what rounding
/// leaves goes to the parts that lose most by it.
std::map<std::string, int64_t> nanoseconds_of(const Explained& of) {
  std::map<std::string, double> parts = plan_costs(of.graph, of.plan, of.cluster).parts;
  const Program program = of.program(0);
  parts["kernels of several nodes"] =
      PlannedSteps(of.graph, of.plan, of.cluster, program).seconds_of_kernels() - parts["compute"];
  double rest = of.plan.seconds;
  for (const auto& [name, seconds] : parts) rest -= seconds;
  // A file may say another time than its plan, cluster and model have.
  if (std::abs(rest) > 1e-9 * of.plan.seconds) parts["otherwise, as its file says"] = rest;
  std::map<std::string, int64_t> out;
  std::vector<std::pair<double, std::string>> lost;
  int64_t left = std::llround(of.plan.seconds * 1e9);
  for (const auto& [name, seconds] : parts) {
    const double down = std::floor(seconds * 1e9);
    out[name] = static_cast<int64_t>(down);
    left -= out[name];
    lost.emplace_back(down - seconds * 1e9, name);
  }
  std::sort(lost.begin(), lost.end());
  for (size_t i = 0; left > 0 && i < lost.size(); ++i, --left) ++out[lost[i].second];
  return out;
}

/// "compute", "resharding by all_gather", "exchange by halo_exchange".
std::string part_name(const std::string& part) {
  for (const CollectiveTraits& traits : kCollectives) {
    if (traits.name == part)
      return (traits.is_exchange() ? "exchange by " : "resharding by ") + part;
  }
  return part;
}

/// Where the difference of the predicted steps comes from: rows that add up to it, to the last
/// digit.
std::string split_text(const Explained& a, const Explained& b) {
  const std::map<std::string, int64_t> mine = nanoseconds_of(a), its = nanoseconds_of(b);
  std::map<std::string, std::pair<int64_t, int64_t>> rows;
  for (const auto& [name, ns] : mine) rows[part_name(name)].first = ns;
  for (const auto& [name, ns] : its) rows[part_name(name)].second = ns;
  const auto row = [](const std::string& name, int64_t first, int64_t second) {
    const auto text = [](const char* pattern, int64_t ns) {
      return right(format(pattern, static_cast<double>(ns) / 1e6), 15);
    };
    return str("  ", left(name, 30), text("%.6f", first), text("%.6f", second),
               text("%+.6f", second - first), "\n");
  };
  std::string out = str("  ", left("ms of a step", 30), right("this", 15), right("other", 15),
                        right("difference", 15), "\n");
  int64_t first = 0, second = 0;
  for (const auto& [name, ns] : rows) {
    out += row(name, ns.first, ns.second);
    first += ns.first;
    second += ns.second;
  }
  return out + row("step", first, second);
}

/// The values that lie otherwise, those of layers that are alike in one row.
std::string values_text(const Plan& a, const Plan& b) {
  std::ostringstream out;
  struct Change {
    std::string name, mine, its;
    int times = 0;
  };
  std::map<std::string, Change> changes;
  int count = 0;
  for (const auto& [name, sharding] : a.values) {
    const auto theirs = b.values.find(name);
    const std::string mine = to_string(sharding, a.mesh);
    const std::string its =
        theirs == b.values.end() ? "not there" : to_string(theirs->second, b.mesh);
    if (mine == its) continue;
    ++count;
    Change& c = changes[str(folded(name), ": ", mine, " -> ", its)];
    if (c.times++ == 0) c = {name, mine, its, 1};
    if (c.times > 1) c.name = folded(name);
  }
  out << count << " of " << a.values.size() << " values lie differently\n";
  for (const auto& [key, c] : changes) {
    out << wrapped("  " + left(c.name + (c.times > 1 ? str("  x", c.times) : ""), 40) + "  ",
                   c.mine + " -> " + c.its);
  }
  return out.str();
}

}  // namespace

std::string difference_text(const Explained& this_one, const Explained& other) {
  const Plan &a = this_one.plan, &b = other.plan;
  std::ostringstream out;
  out << wrapped("this:  ", plan_line(a)) << wrapped("other: ", plan_line(b));
  const auto change = [](double mine, double theirs) {
    return mine > 0 ? format("%+.2f %%", 100 * (theirs / mine - 1)) : std::string("-");
  };
  out << "other is " << change(a.seconds, b.seconds) << " in time (compute "
      << change(a.compute_seconds, b.compute_seconds) << ", communication "
      << change(a.comm_seconds, b.comm_seconds) << "), "
      << change(static_cast<double>(a.bytes), static_cast<double>(b.bytes)) << " in bytes\n"
      << split_text(this_one, other);
  return out.str() + values_text(a, b);
}

}  // namespace shardrun
