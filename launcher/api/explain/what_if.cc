// What it would cost if values lay otherwise: each alone, and all together.
#include <sstream>

#include "explain/explain.h"
#include "explain/local_changes.h"
#include "explain/text.h"
#include "planner/space/requests.h"

namespace shardrun {
namespace {

/// A row of the table: what the step takes more, what a rank holds more, and of what.
std::string change_row(const std::string& seconds, const std::string& bytes,
                       const std::string& text) {
  return wrapped(right(seconds, 12) + right(bytes, 14) + "  ", text);
}

std::string row_of(const Explained& of, LocalChanges& changes, ValueId id,
                   const Sharding& sharding) {
  const Value& value = of.graph.value(id);
  const Sharding& now = of.plan.values.at(value.name);
  if (now == sharding) return change_row("-", "-", value.name + ", which lies so");
  const std::string name = str(value.name, ", now ", to_string(now, of.plan.mesh));
  const auto change = changes.lies_as(id, sharding);
  if (change) return change_row(signed_ms(change->seconds), signed_mib(change->bytes), name);
  const Node& maker = of.graph.node(changes.maker(id));
  return change_row("no way", "",
                    str(name, ": ", maker.op, " '", maker.name, "' cannot leave it so"));
}

}  // namespace

std::string what_if_text(const Explained& of, const std::string& shard,
                         const std::function<Plan()>& together) {
  const Request request = find_request(shard, of.graph, of.plan.mesh, "--what-if");
  const bool of_values =
      request.cuts.empty() && request.copies.empty() && request.lies[0].node < 0 && !is_hint(shard);
  SR_REQUIRE(of_values, invalid_input, request.by,
             ": asks of nodes or copies, or is a hint; wanted REGEX=SHARDING, of values");
  std::ostringstream out;
  out << wrapped("", plan_line(of.plan));
  out << wrapped("", str("if ", shard.substr(0, shard.rfind('=')), " lay as ",
                         shard.substr(shard.rfind('=') + 1), ", one by one, all else as planned:"));
  out << change_row("step", "a rank holds", "value");
  LocalChanges changes(of.graph, of.plan, of.cluster);
  for (const Request::Lies& asked : request.lies)
    out << row_of(of, changes, asked.value, asked.sharding);
  const std::string all =
      request.lies.size() == 1 ? "it" : str("all ", request.lies.size(), " together");
  try {
    const Plan other = together();
    const double more = other.seconds - of.plan.seconds;
    out << "planned anew:\n";
    out << change_row(signed_ms(more), "",
                      str(all, ": step ", ms(other.seconds), " (",
                          format("%+.2f %%", 100 * more / of.plan.seconds), "), ", mib(other.bytes),
                          " a rank (", signed_mib(other.bytes - of.plan.bytes), ")"));
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::out_of_memory && e.kind() != ErrorKind::invalid_input) throw;
    out << wrapped("planned anew: ", str("none with ", all, "; ", e.what()));
  }
  return out.str();
}

}  // namespace shardrun
