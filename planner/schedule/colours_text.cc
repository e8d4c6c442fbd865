// Colours, conflicts and rules in words.
#include <algorithm>
#include <map>

#include "base/at.h"
#include "planner/schedule/colours.h"

namespace shardrun {
namespace {

std::string list(const std::vector<int>& sides) {
  std::string out = "[";
  for (const int& side : sides) {
    out += str(&side == &sides[0] ? "" : ", ", side >= 0               ? str("S", side)
                                               : side == Way::kPartial ? std::string("P")
                                                                       : std::string("-"));
  }
  return out + "]";
}

/// "f32[8,16], f32[16,64]".
std::string types_text(const Graph& graph, const std::vector<ValueId>& values) {
  std::string out;
  for (ValueId id : values) out += str(out.empty() ? "" : ", ", graph.type(id));
  return out;
}

std::string ways_text(std::span<const Way> ways, const SpmdRule& rule) {
  std::string out;
  for (size_t w = 0; w < ways.size(); ++w) {
    const bool parallel =
        std::any_of(ways[w].out.begin(), ways[w].out.end(), [](int side) { return side >= 0; });
    const auto option = std::find_if(rule.options.begin(), rule.options.end(), [&](const auto& o) {
      const Way way = way_of(o);
      return way.in == ways[w].in && way.out == ways[w].out;
    });
    out += str("  ", w, parallel ? "  parallel   " : "  reduction  ", to_string(*option), '\n');
  }
  return out.empty() ? "  no way to cut it\n" : out;
}

}  // namespace

std::string to_string(const Way& way) { return list(way.in) + " -> " + list(way.out); }

std::string to_string(const Colours& colours, const Graph& graph) {
  std::map<int, std::vector<std::string>> dims;
  std::map<int, int64_t> size;
  for (size_t v = 0; v < graph.values().size(); ++v) {
    const Value& value = graph.values()[v];
    for (size_t d = 0; d < value.type.shape.size(); ++d) {
      const int colour = colours.of(static_cast<ValueId>(v), d);
      dims[colour].push_back(str(value.name, ".", d));
      size[colour] = std::max(size[colour], value.type.shape[d]);
    }
  }
  std::string out;
  for (size_t g = 0; g < colours.alike().size(); ++g) {
    const std::vector<int>& group = colours.alike()[g];
    const std::vector<std::string>& of_first = dims[group[0]];
    out += str("#", g, ": ", group.size() > 1 ? str(group.size(), " alike, ") : std::string(),
               size[group[0]], " long, ", of_first.size(), " dims: ", of_first[0],
               of_first.size() > 1 ? ", " + of_first[1] : std::string(),
               of_first.size() > 2 ? ", …" : "");
    for (int digit : colours.digits_of(static_cast<int>(g))) {
      for (const Colours::Set& set : colours.sets()) {
        if (set.digit != digit) continue;
        out += str("\n    ", set.resolutions, " resolutions of");
        for (int c : set.conflicts) {
          const Conflict& conflict = colours.conflicts()[at(c)];
          out += ' ' + (conflict.node < 0 ? graph.value(conflict.input).name
                                          : graph.node(conflict.node).name);
        }
        break;
      }
    }
    out += '\n';
  }
  return out;
}

std::string rules_text(const Colours& colours, const Graph& graph, const RuleOf& rule_of) {
  struct Alike {
    std::string first;
    int count = 0;
  };
  std::vector<std::string> order;
  std::map<std::string, Alike> alike;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const auto id = static_cast<NodeId>(n);
    const Node& node = graph.nodes()[n];
    const std::string text =
        str(types_text(graph, node.inputs), " -> ", types_text(graph, node.outputs), '\n',
            ways_text(colours.ways(id), rule_of(id)));
    const std::string key = node.op + ' ' + text;
    const auto [it, fresh] = alike.emplace(key, Alike{node.name, 0});
    if (fresh) order.push_back(key);
    ++it->second.count;
  }
  std::string out;
  for (const std::string& key : order) {
    const Alike& of = alike.at(key);
    out += str("'", of.first, "'", of.count > 1 ? str(" and ", of.count - 1, " alike") : "", ": ",
               key);
  }
  return out;
}

}  // namespace shardrun
