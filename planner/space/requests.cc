// Reading requests, and finding what their names mean.
#include "planner/space/requests.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/at.h"
#include "base/regex.h"
#include "graph/passes/channels_last.h"
#include "graph/passes/recompute.h"

namespace shardrun {
namespace {

constexpr size_t kNearNames = 3, kComparedLetters = 200;
constexpr std::string_view kOfNode = "()", kAnew = "anew", kShared = "shared";
constexpr std::string_view kSpecial = R"(\.+*?()|[]{}^$>)";  // of regular expressions and requests

/// Levenshtein's distance of what begins them.
size_t distance(std::string_view a, std::string_view b) {
  a = a.substr(0, kComparedLetters);
  b = b.substr(0, kComparedLetters);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, changed});
    }
  }
  return row[b.size()];
}

/// Names that `regex` occurs in, then those that are spelled like it.
std::string near_names(const std::vector<std::string>& names, const Regex& regex) {
  std::vector<std::tuple<bool, size_t, std::string>> all;
  for (const std::string& name : names)
    all.emplace_back(!regex.occurs_in(name), distance(regex.pattern(), name), name);
  const size_t shown = std::min(kNearNames, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(shown), all.end());
  std::string out;
  for (size_t i = 0; i < shown; ++i) out += str(i > 0 ? ", '" : "'", std::get<2>(all[i]), "'");
  return out;
}

bool matches(const Regex& regex, std::string_view name) {
  return regex.matches(name) || (!name.empty() && name[0] == '%' && regex.matches(name.substr(1)));
}

/// The one name that a pattern without operators matches, a % in front apart.
std::optional<std::string> plain_name(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool quoted = pattern[i] == '\\' && i + 1 < pattern.size() &&
                        kSpecial.find(pattern[i + 1]) != std::string_view::npos;
    if (quoted) ++i;
    if (!quoted && kSpecial.find(pattern[i]) != std::string_view::npos) return std::nullopt;
    out += pattern[i];
  }
  return out;
}

/// What is computed again is called as it is otherwise.
std::string without_again(const std::string& name) {
  const std::string again = "%" + kAgain;
  return name.starts_with(again) ? "%" + name.substr(again.size()) : name;
}

/// The > between a value and a node; npos: there is none.
size_t find_reader(std::string_view names) {
  for (size_t i = names.size(); i-- > 1;) {
    if (names[i] == '>' && names[i - 1] != '\\') return i;
  }
  return std::string_view::npos;
}

}  // namespace

/// A text taken apart.
struct RequestFinder::Parts {
  std::string by, value, node;
  Sharding sharding;
  bool of_node = false;            // node()
  std::optional<bool> regathered;  // of copies
  bool lies = true;                // has a Sharding
};

RequestFinder::RequestFinder(const Graph& graph, const Mesh& mesh, std::string flag)
    : graph_(graph), mesh_(mesh), flag_(std::move(flag)), moved_(moved_channels(graph)) {
  for (size_t n = 0; n < graph.nodes().size(); ++n)
    nodes_.emplace(graph.nodes()[n].name, static_cast<NodeId>(n));
}

RequestFinder::Parts RequestFinder::take_apart(const std::string& text) const {
  Parts out;
  out.by = flag_ + " '" + text + "'";
  const std::string rest = required(text);
  const size_t equals = rest.rfind('=');
  SR_REQUIRE(equals != std::string::npos && equals > 0, invalid_input, out.by,
             ": is not REGEX=SHARDING, as 'h.0.mlp.c_fc.weight=[-,model]' is");
  const std::string names = rest.substr(0, equals);
  const std::string_view all = std::string_view(rest).substr(equals + 1);
  std::string_view what = all;
  if (all == kAnew || all.starts_with(kShared)) {
    out.regathered = all == kAnew;
    what.remove_prefix(*out.regathered ? all.size() : kShared.size());
    out.lies = !what.empty();
  }
  if (out.lies) {
    try {
      out.sharding = parse_sharding(what, mesh_);
    } catch (const Error& error) {
      throw error.with_context(out.by);
    }
  }
  // Over an axis of one rank nothing is cut.
  for (Axes& axes : out.sharding.dims)
    erase_if(axes, [&](int axis) { return mesh_.axis_size(axis) == 1; });
  std::erase_if(out.sharding.partial,
                [&](const Sharding::Partial& p) { return mesh_.axis_size(p.axis) == 1; });
  out.of_node = names.size() > kOfNode.size() && names.ends_with(kOfNode);
  const size_t reader = find_reader(names);
  SR_REQUIRE(!out.regathered || (!out.of_node && reader == std::string::npos), invalid_input,
             out.by, ": is of a node, and '", all,
             "' is how copies of a value are made for its readers; ", "wanted REGEX=", all);
  if (out.of_node) {
    out.node = names.substr(0, names.size() - kOfNode.size());
    SR_REQUIRE(out.sharding.partial.empty(), invalid_input, out.by,
               ": a node is cut by its ways, one of which leaves parts of a sum: give that the "
               "axis, and leave out partial(…)");
  } else if (reader != std::string::npos) {
    out.value = names.substr(0, reader);
    out.node = names.substr(reader + 1);
  } else {
    out.value = names;
  }
  return out;
}

class RequestFinder::Reading {
 public:
  Reading(const RequestFinder& finder, Parts parts)
      : parts_(std::move(parts)), finder_(finder), graph_(finder.graph_) {
    out_.by = parts_.by;
  }

  Request run() {
    if (parts_.of_node) {
      for (NodeId n : nodes()) out_.cuts.push_back({n, parts_.sharding.dims});
    } else if (!parts_.node.empty()) {
      find_readers();
    } else {
      find_values();
    }
    return std::move(out_);
  }

 private:
  std::vector<NodeId> nodes() const {
    std::vector<NodeId> out;
    if (const std::optional<std::string> name = plain_name(parts_.node)) {
      for (const std::string& own : {*name, "%" + *name}) {
        const auto known = finder_.nodes_.find(own);
        if (known != finder_.nodes_.end()) out.push_back(known->second);
      }
      std::sort(out.begin(), out.end());
      if (!out.empty()) return out;
    }
    const Regex regex(finder_.flag_, parts_.node);
    std::vector<std::string> names;
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      names.push_back(graph_.nodes()[n].name);
      if (matches(regex, names.back())) out.push_back(static_cast<NodeId>(n));
    }
    SR_REQUIRE(!out.empty(), invalid_input, parts_.by, ": no node's whole name matches; near are ",
               near_names(names, regex));
    return out;
  }

  void find_readers() {
    const std::vector<NodeId> readers = nodes();
    const std::optional<std::string> plain = plain_name(parts_.value);
    const std::optional<Regex> regex =
        plain ? std::nullopt : std::optional<Regex>(std::in_place, finder_.flag_, parts_.value);
    const auto is_meant = [&](const std::string& name) {
      return plain ? name == *plain || name == "%" + *plain : matches(*regex, name);
    };
    for (NodeId n : readers) {
      const Node& node = graph_.node(n);
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        const std::string& name = graph_.value(node.inputs[k]).name;
        if (is_meant(name) || is_meant(without_again(name)))
          out_.lies.push_back({node.inputs[k], of(node.inputs[k], true), n, k});
      }
    }
    SR_REQUIRE(!out_.lies.empty(), invalid_input, parts_.by,
               ": no operand's whole name matches: ", operands(readers));
  }

  std::string operands(const std::vector<NodeId>& readers) const {
    std::string out;
    for (NodeId n : readers) {
      const Node& node = graph_.node(n);
      out += str(out.empty() ? "" : ", ", "node '", node.name, "' reads");
      for (size_t k = 0; k < node.inputs.size(); ++k)
        out += str(k > 0 ? ", '" : " '", graph_.value(node.inputs[k]).name, "'");
    }
    return out;
  }

  bool may_lie(ValueId id) const {
    const Value& value = graph_.value(id);
    return value.role != Role::computed || value.producer >= 0;
  }

  void find_values() {
    for (ValueId id : values()) {
      if (parts_.regathered) {
        out_.copies.push_back(
            {id, *parts_.regathered, parts_.lies ? std::optional(of(id)) : std::nullopt});
      } else {
        out_.lies.push_back({id, of(id)});
      }
    }
  }

  std::vector<ValueId> values() const {
    std::vector<ValueId> out;
    if (const std::optional<std::string> name = plain_name(parts_.value)) {
      for (const std::string& own : {*name, "%" + *name}) {
        const ValueId id = graph_.find(own);
        if (id != kNoValue && may_lie(id)) out.push_back(id);
      }
      std::sort(out.begin(), out.end());
      if (!out.empty()) return out;
    }
    const Regex regex(finder_.flag_, parts_.value);
    std::vector<std::string> names;
    for (size_t v = 0; v < graph_.values().size(); ++v) {
      const auto id = static_cast<ValueId>(v);
      if (!may_lie(id)) continue;
      names.push_back(graph_.value(id).name);
      if (matches(regex, names.back())) out.push_back(id);
    }
    SR_REQUIRE(!out.empty(), invalid_input, parts_.by, ": no value's whole name matches; near are ",
               near_names(names, regex));
    return out;
  }

  /// The Sharding as the value lies inside, whose dims the text names as the file has them.
  /// `read`: by a node, which may take one rank's as the only summand.
  Sharding of(ValueId id, bool read = false) const {
    const Value& value = graph_.value(id);
    const Sharding& asked = parts_.sharding;
    SR_REQUIRE(asked.dims.size() == value.type.shape.size(), invalid_input, parts_.by, ": names ",
               asked.dims.size(), " dims, value '", value.name, "' is ", value.type,
               "; give each of its ", value.type.shape.size(), " dims an axis or -");
    const auto is_sum = [](const Sharding::Partial& p) { return p.op == ReduceOp::sum; };
    const bool adds_up =  // from zero, which is zero in all parts
        graph_.zeroed_each_step.count(id) > 0 &&
        std::all_of(asked.partial.begin(), asked.partial.end(), is_sum);
    SR_REQUIRE(value.role == Role::computed || read || adds_up || asked.partial.empty(),
               invalid_input, parts_.by, ": value '", value.name,
               "' is made by no node, so it cannot be partial");
    SR_REQUIRE(value.role != Role::scalar || asked.is_replicated(), invalid_input, parts_.by,
               ": value '", value.name, "' is one number, which every rank has");
    Sharding as_it_lies = asked;
    const std::vector<int64_t>& moved = finder_.moved_[at(id)];
    for (size_t d = 0; d < moved.size(); ++d) as_it_lies.dims[d] = asked.dims[at(moved[d])];
    return as_it_lies;
  }

  const Parts parts_;
  const RequestFinder& finder_;
  const Graph& graph_;
  Request out_;
};

Request RequestFinder::find(const std::string& text) const {
  return Reading(*this, take_apart(text)).run();
}

Request find_request(const std::string& text, const Graph& graph, const Mesh& mesh,
                     const std::string& flag) {
  return RequestFinder(graph, mesh, flag).find(text);
}

bool names_axes(std::string_view text) {
  std::string_view what = text.substr(std::min(text.rfind('='), text.size()));
  if (what.size() > 0) what.remove_prefix(1);
  if (what == kAnew) return false;
  if (what.starts_with(kShared)) what.remove_prefix(kShared.size());
  return what.find_first_not_of("[]-, ") != std::string_view::npos;
}

bool is_hint(std::string_view text) { return !text.empty() && text[0] == '?'; }

std::string required(std::string_view text) {
  return std::string(is_hint(text) ? text.substr(1) : text);
}

bool follows(const Plan& plan, const Graph& graph, const Request& request) {
  const auto copied_so = [&](const Request::Copies& copies) {
    const std::string& name = graph.value(copies.value).name;
    const auto from = plan.redistributed.find(name);
    return (plan.regathered.count(name) > 0) == copies.regathered &&
           (from == plan.redistributed.end() ? !copies.from : copies.from == from->second);
  };
  return request.cuts.empty() &&
         std::all_of(request.copies.begin(), request.copies.end(), copied_so) &&
         std::all_of(request.lies.begin(), request.lies.end(), [&](const Request::Lies& asked) {
           if (asked.node < 0) {
             const auto lies = plan.values.find(graph.value(asked.value).name);
             return lies != plan.values.end() && lies->second == asked.sharding;
           }
           const auto node = plan.nodes.find(graph.node(asked.node).name);
           return node != plan.nodes.end() && node->second.in[asked.operand] == asked.sharding;
         });
}

std::string quoted_name(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (kSpecial.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace shardrun
