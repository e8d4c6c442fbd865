// Where a plan's time and bytes go, and why its most expensive collectives are there.
#include <algorithm>
#include <sstream>

#include "explain/explain.h"
#include "explain/local_changes.h"
#include "explain/names.h"
#include "explain/text.h"

namespace shardrun {
namespace {

constexpr size_t kMostExpensive = 5;
constexpr double kSmallest = 0.01;  // of a whole: smaller parts are summed up

struct Part {
  std::string name, remark;
  double amount = 0;
};

/// Rows of parts, the largest first, small ones in one row.
std::string part_rows(std::vector<Part> parts, double whole,
                      const std::function<std::string(double)>& text) {
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.amount > b.amount; });
  std::string out;
  double rest = 0;
  int others = 0;
  for (const Part& part : parts) {
    if (part.amount < kSmallest * whole) {
      rest += part.amount;
      ++others;
    } else {
      out += part_row(4, part.name, text(part.amount), percent(part.amount, whole), part.remark);
    }
  }
  if (others > 0)
    out += part_row(4, str(others, others == 1 ? " other" : " others"), text(rest),
                    percent(rest, whole));
  return out;
}

std::vector<Part> timed(const std::map<std::string, double>& seconds,
                        const std::map<std::string, int64_t>& calls) {
  std::vector<Part> parts;
  for (const auto& [name, part] : seconds)
    parts.push_back({name, str(calls.at(name), calls.at(name) == 1 ? " call" : " calls"), part});
  return parts;
}

double total(const std::map<std::string, double>& by_name) {
  double sum = 0;
  for (const auto& [name, part] : by_name) sum += part;
  return sum;
}

/// What the search proves, it proves of its own times: of nodes alone, and without what is hidden.
std::string gap_text(const PlanReport& report, const Plan& plan) {
  if (report.nodes == 0 || report.cost <= 0) return "";  // a plan from a file
  if (!report.has_bound) return "of the strategies looked at; no bound";
  if (report.lower_bound <= 0) return "not compared with a bound";
  const double gap = std::max(0.0, report.cost / report.lower_bound - 1);
  const char* const by =
      plan.hidden_seconds > 0 ? ", by times that hide nothing" : ", by the search's times";
  return gap < 1e-6
             ? str("proven the least on this mesh", by)
             : str("at most ", format("%.2g %%", gap * 100), " above the best on this mesh", by);
}

std::string operations(double flops) {
  return flops < 1e11 ? format("%.4g GFLOP", flops / 1e9) : format("%.4g TFLOP", flops / 1e12);
}

int64_t parameter_count(const Graph& graph) {
  int64_t count = 0;
  for (ValueId id : graph.with_role(Role::parameter)) count += element_count(graph.type(id).shape);
  return count;
}

/// Collectives that are alike in every layer.
struct Group {
  const PlannedCollective* first = nullptr;
  double seconds = 0;
  int64_t times = 0;
};

std::vector<Group> most_expensive(const std::vector<PlannedCollective>& collectives) {
  std::map<std::string, Group> groups;
  for (const PlannedCollective& c : collectives) {
    if (c.seconds <= 0) continue;
    Group& group = groups[str(c.kind, folded(c.producer), c.from, c.to, folded(c.consumer))];
    if (group.times == 0) group.first = &c;
    group.times += c.runs;
    group.seconds += c.seconds;
  }
  std::vector<Group> sorted;
  for (const auto& [key, group] : groups) sorted.push_back(group);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Group& x, const Group& y) { return x.seconds > y.seconds; });
  if (sorted.size() > kMostExpensive) sorted.resize(kMostExpensive);
  return sorted;
}

/// Says of a collective what one would pay to be without it.
class Reasons {
 public:
  explicit Reasons(const Explained& of)
      : graph_(of.graph), plan_(of.plan), changes_(of.graph, of.plan, of.cluster) {}

  std::string of(const PlannedCollective& c) {
    return c.exchange ? of_exchange(c) : of_resharding(c);
  }

 private:
  static std::string row(const char* what, const std::string& text) {
    return wrapped(std::string(11, ' ') + left(what, 11), text);
  }

  std::string cost(const LocalChanges::Change& change) const {
    std::string out = signed_ms(change.seconds);
    if (change.bytes != 0) out += " and " + signed_mib(change.bytes) + " a rank";
    return out;
  }

  std::string of_resharding(const PlannedCollective& c) {
    const Mesh& mesh = plan_.mesh;
    const Sharding& made = plan_.values.at(c.value);
    const Value& value = graph_.value(c.of);
    const bool held = value.role != Role::computed;
    std::string out =
        row(held ? "held by" : "left by", c.producer + " as " + to_string(made, mesh));
    if (c.reader < 0) {
      return out + row("wanted by", c.consumer + " as " + c.to);
    }
    const Node& reader = graph_.node(c.reader);
    const NodePlan& np = plan_.nodes.at(reader.name);
    std::vector<size_t> operands;
    for (size_t k = 0; k < reader.inputs.size(); ++k) {
      if (reader.inputs[k] == c.of) operands.push_back(k);
    }
    const Sharding wanted = np.in[operands[0]];
    out += row("wanted by",
               c.consumer + " as " + to_string(np, false, static_cast<int>(operands[0]), mesh));
    const auto taken = changes_.cheapest(c.reader, [&](const NodePlan& other) {
      return std::all_of(operands.begin(), operands.end(),
                         [&](size_t k) { return other.in[k] == made; });
    });
    out += row("instead", taken ? cost(*taken) + " if " + reader.op + " took it as it lies"
                                : reader.op + " has no way to take it as it lies");
    const NodeId maker = changes_.maker(c.of);
    if (maker < 0) return out;
    const size_t result = changes_.result_of(c.of, maker);
    const auto left_so = changes_.cheapest(
        maker, [&](const NodePlan& other) { return other.out[result] == wanted; });
    const std::string who = held ? "it" : graph_.node(maker).op;
    out += row("", left_so ? cost(*left_so) + " if " + who +
                                 (held ? " were held as it is wanted" : " left it as it is wanted")
                           : who + (held ? " cannot be held as it is wanted"
                                         : " has no way to leave it as it is wanted"));
    return out;
  }

  std::string of_exchange(const PlannedCollective& c) {
    const NodeId id = c.follows ? graph_.value(c.of).producer : c.reader;
    // Numbers of rows are routed once for all the nodes that take or add such rows.
    if (id < 0) return row("wanted by", c.consumer + ", for the nodes that name those rows");
    const Node& node = graph_.node(id);
    std::string out = row(
        c.follows ? "left by" : "wanted by",
        str(node.op, " '", node.name, "', which works on ", c.follows ? c.from : c.to, " of it"));
    const auto without = changes_.cheapest(id, [](const NodePlan& np) { return !np.exchanges(); });
    return out + row("instead", without ? cost(*without) + " if it ran without exchange"
                                        : "it has no way to run without exchange");
  }

  const Graph& graph_;
  const Plan& plan_;
  LocalChanges changes_;
};

}  // namespace

std::vector<ExpensiveCollective> expensive_collectives(const Explained& of,
                                                       const PlanAnalysis& analysis) {
  const std::vector<PlannedCollective> collectives = chained(analysis.collectives);
  const std::vector<Group> groups = most_expensive(collectives);
  std::vector<ExpensiveCollective> out;
  if (groups.empty()) return out;
  Reasons reasons(of);
  for (const Group& group : groups) {
    const PlannedCollective& c = *group.first;
    const std::string times =
        group.times > 1 ? str(group.times, " x ", c.kind, ", one of '") : c.kind + " of '";
    out.push_back(
        {str(times, c.value, "' ", to_string(of.graph.type(c.of)), ": ", c.from, " -> ", c.to),
         reasons.of(c), group.seconds});
  }
  return out;
}

std::string details_text(const Explained& of, const PlanReport& report,
                         const std::map<std::string, double>& flops) {
  const PlanAnalysis a = analyse(of);
  const double compute = total(a.compute), communication = total(a.communication);
  const double whole = of.plan.seconds;
  std::ostringstream out;
  out << part_row(0, "time of a step", ms(whole), "", gap_text(report, of.plan));
  out << part_row(2, "compute", ms(compute), percent(compute, whole));
  out << part_rows(timed(a.compute, a.calls), whole, ms);
  out << part_row(2, "communication", ms(communication), percent(communication, whole),
                  a.sent_bytes > 0 ? "rank 0 sends " + mib(a.sent_bytes) : "");
  out << part_rows(timed(a.communication, a.calls), whole, ms);
  if (of.plan.hidden_seconds > 0)
    out << part_row(2, "hidden", ms(-of.plan.hidden_seconds),
                    percent(-of.plan.hidden_seconds, whole), "collectives while kernels run");

  const Graph& graph = of.graph;
  std::vector<Part> work;
  for (const auto& [op, part] : flops) work.push_back({op, "", part});
  out << part_row(0, "arithmetic of a step", operations(total(flops)), "",
                  str("of all ranks; ", parameter_count(graph), " elements in parameters"));
  out << part_rows(std::move(work), total(flops), operations);

  const auto text = [](double bytes) { return mib(static_cast<int64_t>(bytes)); };
  std::vector<Part> bytes;
  for (const auto& [name, part] : a.bytes) bytes.push_back({name, "", static_cast<double>(part)});
  const double most = static_cast<double>(a.arena_bytes);
  out << part_row(0, str("bytes of rank ", a.rank, " at the peak"), text(most), "",
                  "in step '" + a.peak_step + "'");
  out << part_rows(std::move(bytes), most, text);

  const std::vector<ExpensiveCollective> expensive = expensive_collectives(of, a);
  if (expensive.empty()) return out.str();
  out << "most expensive collectives:\n";
  for (const ExpensiveCollective& c : expensive)
    out << wrapped(right(ms(c.seconds), 10) + " ", c.title) << c.reasons;
  out << "('instead': what the step would take more, all else as planned)\n";
  return out.str();
}

}  // namespace shardrun
