// Taking a plan apart: time by op and collective, bytes by what they hold.
#include "explain/analysis.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/round_up.h"
#include "explain/critical_path.h"
#include "explain/names.h"
#include "explain/planned_steps.h"
#include "explain/text.h"
#include "graph/collective.h"
#include "program/memory.h"

namespace shardrun {
namespace {

class Analyst {
 public:
  explicit Analyst(const Explained& of) : of_(of), graph_(of.graph) {
    for (size_t v = 0; v < graph_.values().size(); ++v)
      values_.emplace(graph_.values()[v].name, static_cast<ValueId>(v));
    for (size_t n = 0; n < graph_.nodes().size(); ++n)
      nodes_.emplace(graph_.nodes()[n].name, static_cast<NodeId>(n));
  }

  PlanAnalysis run() {
    // The rank at the mesh's origin has the largest shards, so its times are the plan's.
    program_ = of_.program(0);
    out_.node_seconds.assign(graph_.nodes().size(), 0.0);
    for (const Step& step : program_.steps) stepped_.insert(step.node.name);
    const PlannedSteps planned(graph_, of_.plan, of_.cluster, program_);
    std::vector<double> seconds;
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      const Step& step = program_.steps[s];
      PlannedStep of_step = planned.of(s);
      seconds.push_back(of_step.seconds);
      of_step.seconds *= static_cast<double>(program_.runs(step));
      if (step.kind == Step::Kind::kernel) add_kernel(step, of_step.seconds);
      if (step.kind == Step::Kind::collective) add_collective(s, of_step);
    }
    add_timeline(seconds);
    const auto fullest = std::max_element(of_.bytes.begin(), of_.bytes.end());
    out_.rank = fullest == of_.bytes.end() ? 0 : fullest - of_.bytes.begin();
    if (out_.rank != 0) program_ = of_.program(out_.rank);
    count_bytes();
    return std::move(out_);
  }

 private:
  const Buffer& buffer(BufferId id) const { return program_.buffers[static_cast<size_t>(id)]; }

  /// The value that a buffer holds a form of; a resharded copy is called value@[sharding].
  ValueId value_of(const std::string& name) const {
    if (const auto it = values_.find(name); it != values_.end()) return it->second;
    const auto it = values_.find(name.substr(0, name.rfind("@[")));
    return it == values_.end() ? kNoValue : it->second;
  }

  /// Steps one after the other, unless the plan counts on collectives that overlap with kernels.
  void add_timeline(const std::vector<double>& seconds) {
    std::vector<double> starts;
    critical_path(program_, seconds, &starts);
    double end = 0;
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      const Step& step = program_.steps[s];
      const bool collective = step.kind == Step::Kind::collective;
      const bool next_phase = s > 0 && step.phase != program_.steps[s - 1].phase;
      if (next_phase) end *= static_cast<double>(program_.runs(program_.steps[s - 1]));
      out_.timeline.push_back(
          {collective ? step.source : step.node.name,
           collective ? std::string(step.collective->traits().name) : step.node.op, collective,
           of_.plan.hidden_seconds > 0 ? starts[s] : end, seconds[s], program_.runs(step)});
      end += seconds[s];
    }
  }

  void add_kernel(const Step& step, double seconds) {
    out_.compute[step.node.op] += seconds;
    out_.calls[step.node.op] += program_.runs(step);
    if (const auto it = nodes_.find(step.node.name); it != nodes_.end())
      out_.node_seconds[static_cast<size_t>(it->second)] = seconds;
  }

  void add_collective(size_t index, const PlannedStep& planned) {
    const Step& step = program_.steps[index];
    PlannedCollective line;
    const ValueId value = values_.at(step.source);
    const CollectiveTraits& kind = step.collective->traits();
    line.kind = kind.name;
    line.value = step.source;
    line.of = value;
    line.exchange = kind.is_exchange();
    line.follows = kind.place == CollectiveTraits::Place::after_node;
    line.runs = program_.runs(step);
    out_.sent_bytes +=
        line.runs * bytes_sent(*step.collective, buffer(step.in[0]).type.dtype, program_.rank);
    line.seconds = planned.seconds;
    line.from = planned.in.at(0);
    line.to = planned.out.at(0);
    line.producer = maker(value);
    line.consumer = reader(step.out[0], index, value, line.reader);
    line.before = runs_before(index);
    out_.communication[line.kind] += line.seconds;
    if (!joins_call(program_, index)) out_.calls[line.kind] += line.runs;
    out_.collectives.push_back(std::move(line));
  }

  /// The Graph node in front of which a step runs, as PlannedCollective::before says.
  NodeId runs_before(size_t index) const {
    const Phase phase = program_.steps[index].phase;
    for (size_t s = index + 1; s < program_.steps.size(); ++s) {
      if (program_.steps[s].phase != phase) break;
      const auto node = nodes_.find(program_.steps[s].node.name);
      if (node != nodes_.end()) return node->second;
    }
    const std::vector<Node>& nodes = graph_.nodes();
    const auto next = std::find_if(nodes.begin(), nodes.end(),
                                   [&](const Node& node) { return node.phase > phase; });
    return static_cast<NodeId>(next - nodes.begin());
  }

  std::string maker(ValueId id) const {
    const Value& value = graph_.value(id);
    static const char* const names[] = {"", "batch", "scalar", "parameter", "state", "constant"};
    if (value.role != Role::computed)
      return str(names[static_cast<int>(value.role)], " '", value.name, "'");
    const Node& node = graph_.node(value.producer);
    return str(node.op, " '", node.name, "'");
  }

  /// The Graph's node that a step stands for where it reads `of`: one of those that were fused; -1
  /// if there is none.
  NodeId node_reading(const Step& step, ValueId of) const {
    const auto reads = [&](const Node& node) {
      return std::find(node.inputs.begin(), node.inputs.end(), of) != node.inputs.end();
    };
    const auto own = nodes_.find(step.node.name);
    if (own != nodes_.end() && reads(graph_.node(own->second))) return own->second;
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      const Node& node = graph_.nodes()[n];
      if (reads(node) && stepped_.count(node.name) == 0) return static_cast<NodeId>(n);
    }
    return -1;
  }

  /// The first kernel that reads a buffer with what was `of`, through further collectives; `node`
  /// is the Graph's.
  std::string reader(BufferId id, size_t after, ValueId of, NodeId& node) const {
    for (size_t s = after + 1; s < program_.steps.size(); ++s) {
      const Step& step = program_.steps[s];
      if (std::find(step.in.begin(), step.in.end(), id) == step.in.end()) continue;
      if (step.kind == Step::Kind::collective) return reader(step.out[0], s, of, node);
      node = node_reading(step, of);
      const Node& shown = node < 0 ? step.node : graph_.node(node);
      return str(shown.op, " '", shown.name, "'");
    }
    for (const auto* list : {&program_.outputs, &program_.metrics}) {
      for (const Binding& b : *list) {
        if (b.buffer == id) return str("the report of '", b.name, "'");
      }
    }
    for (const Binding& b : program_.bindings) {
      if (b.buffer == id) return str("the update of '", b.name, "'");
    }
    return "nobody";
  }

  /// Buffers by what they are for, and the steps during which they hold it, both inclusive: -1 is
  /// before the first, the number of steps behind the last.
  struct Uses {
    std::vector<std::string> kind;
    std::vector<int> first, last;
    std::vector<bool> persistent;
  };

  void count_bytes() {
    Uses uses = kinds_of_computed();
    count_bindings(uses);
    count_kept(uses);
    find_lives(uses);
    const int64_t peak = count_peak(uses);
    out_.arena_bytes = program_.arena_bytes;
    const int64_t gaps =
        program_.arena_bytes - program_.persistent_bytes - std::max<int64_t>(peak, 0);
    SR_REQUIRE(gaps >= 0, internal, "what is alive in step '", out_.peak_step, "' is ", -gaps,
               " bytes more than the arena has");
    if (gaps > 0) out_.bytes["gaps"] = gaps;
  }

  Uses kinds_of_computed() const {
    const std::set<ValueId> activations = forward_values(graph_);
    const size_t count = program_.buffers.size();
    Uses uses{std::vector<std::string>(count),
              std::vector<int>(count, static_cast<int>(program_.steps.size())),
              std::vector<int>(count, -1), std::vector<bool>(count, false)};
    for (size_t b = 0; b < count; ++b) {
      const ValueId value = value_of(program_.buffers[b].name);
      uses.kind[b] =
          value != kNoValue && activations.count(value) > 0 ? "activations" : "gradients";
    }
    return uses;
  }

  void count_bindings(Uses& uses) {
    for (const Binding& b : program_.bindings) {
      const auto at = static_cast<size_t>(b.buffer);
      uses.first[at] = -1;
      uses.last[at] = static_cast<int>(program_.steps.size());
      uses.persistent[at] = is_persistent(b.role);
      uses.kind[at] = b.role == Role::parameter ? "parameters"
                      : b.zeroed_each_step      ? (graph_.loss != kNoValue ? "accumulated gradients"
                                                                           : "kept keys and values")
                      : b.role == Role::state   ? "optimizer state"
                      : b.role == Role::constant ? "constants"
                                                 : "batches";
      if (!uses.persistent[at]) continue;
      out_.bytes[uses.kind[at]] += round_up(byte_size(buffer(b.buffer).type), kArenaAlignment);
      out_.at_peak.push_back(alive_buffer(at, uses.kind[at]));
    }
  }

  AliveBuffer alive_buffer(size_t b, const std::string& kind) const {
    const Buffer& of = program_.buffers[b];
    return {of.name, kind, to_string(of.type), round_up(byte_size(of.type), kArenaAlignment)};
  }

  /// What the setup makes, and what kernels keep.
  void count_kept(Uses& uses) {
    for (const Step& step : program_.setup) {
      for (BufferId b : step.out) {
        uses.persistent[static_cast<size_t>(b)] = true;
        out_.at_peak.push_back(alive_buffer(
            static_cast<size_t>(b),
            step.node.op == "cast" ? "weights in bf16" : "weights in kernels' layouts"));
        out_.bytes[out_.at_peak.back().kind] += out_.at_peak.back().bytes;
      }
    }
    for (const Step& step : program_.steps) {
      if (step.needs.kept > 0)
        out_.bytes["tables of kernels"] += round_up(step.needs.kept, kArenaAlignment);
    }
  }

  void find_lives(Uses& uses) const {
    const int end = static_cast<int>(program_.steps.size());
    std::vector<int>& last = uses.last;
    for (int s = 0; s < end; ++s) {
      for (BufferId b : program_.steps[static_cast<size_t>(s)].in)
        last[static_cast<size_t>(b)] = std::max(last[static_cast<size_t>(b)], s);
      for (BufferId b : program_.steps[static_cast<size_t>(s)].out) {
        uses.first[static_cast<size_t>(b)] = std::min(uses.first[static_cast<size_t>(b)], s);
        last[static_cast<size_t>(b)] = std::max(last[static_cast<size_t>(b)], s);
      }
    }
    for (const auto* list : {&program_.outputs, &program_.metrics}) {
      for (const Binding& b : *list) last[static_cast<size_t>(b.buffer)] = end;
    }
    const std::vector<BufferId> holders = memory_holders(program_);
    for (size_t b = 0; b < holders.size(); ++b) {
      int& held = last[static_cast<size_t>(holders[b])];
      held = std::max(held, last[b]);
    }
  }

  /// Buffers of the arena by the step that they begin to hold something in, and end to.
  struct Turns {
    std::vector<std::vector<size_t>> born, dies;
  };
  Turns turns_of(const Uses& uses) const {
    const int end = static_cast<int>(program_.steps.size());
    const std::vector<BufferId> holders = memory_holders(program_);
    Turns turns;
    turns.born.resize(static_cast<size_t>(end) + 1);
    turns.dies.resize(static_cast<size_t>(end) + 1);
    for (size_t b = 0; b < uses.kind.size(); ++b) {
      // What lies in persistent memory took it over from what it was made of.
      if (uses.persistent[b] || program_.buffers[b].offset < program_.persistent_bytes ||
          uses.last[b] < 0 || uses.first[b] >= end || holders[b] != static_cast<BufferId>(b) ||
          byte_size(program_.buffers[b].type) == 0)
        continue;
      turns.born[static_cast<size_t>(std::max(uses.first[b], 0))].push_back(b);
      turns.dies[static_cast<size_t>(std::min(uses.last[b], end))].push_back(b);
    }
    return turns;
  }

  /// Counts what is alive in the step with the most; returns its bytes, -1 without steps.
  int64_t count_peak(const Uses& uses) {
    const Turns turns = turns_of(uses);
    std::map<std::string, int64_t> now, most;
    std::map<int64_t, size_t> alive;  // by offset: what runs in place counts once
    int64_t sum = 0, peak = -1;
    std::vector<size_t> at_peak;  // buffers
    std::optional<AliveBuffer> scratch_at_peak;
    const auto add = [&](size_t b, int sign) {
      const int64_t bytes = sign * round_up(byte_size(program_.buffers[b].type), kArenaAlignment);
      now[uses.kind[b]] += bytes;
      sum += bytes;
    };
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      for (size_t b : turns.born[s]) {
        const auto [it, fresh] = alive.try_emplace(program_.buffers[b].offset, b);
        if (!fresh) add(std::exchange(it->second, b), -1);
        add(b, 1);
      }
      const Step& step = program_.steps[s];
      const int64_t scratch = round_up(step.needs.workspace, kArenaAlignment);
      out_.alive_bytes.push_back(program_.persistent_bytes + sum + scratch);
      if (sum + scratch > peak) {
        at_peak.clear();
        for (const auto& [offset, b] : alive) at_peak.push_back(b);
        scratch_at_peak.reset();
        if (scratch > 0) scratch_at_peak = AliveBuffer{step.node.name, "workspace", "", scratch};
        peak = sum + scratch;
        most = now;
        if (scratch > 0)
          most[step.kind == Step::Kind::collective ? "staging" : "workspace"] += scratch;
        out_.peak_step = step.node.name;
      }
      for (size_t b : turns.dies[s]) {
        const auto it = alive.find(program_.buffers[b].offset);
        if (it == alive.end() || it->second != b) continue;
        add(b, -1);
        alive.erase(it);
      }
    }
    std::erase_if(most, [](const auto& kind_bytes) { return kind_bytes.second == 0; });
    for (const auto& [name, bytes] : most) out_.bytes[name] += bytes;
    for (size_t b : at_peak) out_.at_peak.push_back(alive_buffer(b, uses.kind[b]));
    if (scratch_at_peak) out_.at_peak.push_back(*scratch_at_peak);
    std::stable_sort(out_.at_peak.begin(), out_.at_peak.end(),
                     [](const AliveBuffer& a, const AliveBuffer& b) { return a.bytes > b.bytes; });
    return peak;
  }

  const Explained& of_;
  const Graph& graph_;
  Program program_;
  std::map<std::string, ValueId> values_;
  std::map<std::string, NodeId> nodes_;
  std::set<std::string> stepped_;  // nodes whose name a step has
  PlanAnalysis out_;
};

}  // namespace

std::string hidden_text(const Plan& plan) {
  return plan.hidden_seconds > 0 ? ", hidden " + ms(plan.hidden_seconds) : "";
}

std::string plan_line(const Plan& plan) {
  return str("mesh ", plan.mesh.to_string(), ", planner ", plan.planner, ": step ",
             ms(plan.seconds), " (compute ", ms(plan.compute_seconds), ", communication ",
             ms(plan.comm_seconds), hidden_text(plan), "), ", mib(plan.bytes), " a rank");
}

std::vector<PlannedCollective> chained(const std::vector<PlannedCollective>& collectives) {
  std::vector<PlannedCollective> out;
  std::string last;  // kind
  for (const PlannedCollective& c : collectives) {
    const bool goes_on = !out.empty() && !c.exchange && !out.back().exchange &&
                         out.back().of == c.of && out.back().before == c.before &&
                         out.back().to == c.from;
    if (!goes_on) {
      out.push_back(c);
    } else {
      PlannedCollective& chain = out.back();
      if (c.kind != last) chain.kind += ", " + c.kind;
      chain.to = c.to;
      chain.consumer = c.consumer;
      chain.reader = c.reader;
      chain.seconds += c.seconds;
    }
    last = c.kind;
  }
  return out;
}

PlanAnalysis analyse(const Explained& of) { return Analyst(of).run(); }

}  // namespace shardrun
