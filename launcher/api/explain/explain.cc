// A plan as a table, layer by layer; layers that are alike are printed once.
#include "explain/explain.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "explain/names.h"
#include "explain/text.h"
#include "graph/passes/recompute.h"

namespace shardrun {
namespace {

enum class Section { parameters, forward, backward, update };
constexpr const char* kTitles[] = {"parameter", "forward", "backward", "update"};

/// A line of a layer's table.
struct Row {
  Section section = Section::forward;
  std::string what;  // "matmul mlp.c_fc.weight", "> all_gather mlp.c_fc.weight"
  std::string lies;  // Shardings, of a parameter its type too
  double seconds = 0;
  int times = 1;

  bool alike(const Row& other) const {
    return section == other.section && what == other.what && lies == other.lies &&
           times == other.times;
  }
};

/// One layer's rows, in the order of the graph.
struct Layer {
  std::string name;
  std::vector<Row> rows;
  double compute = 0, communication = 0;
  int64_t held_bytes = 0;  // of its parameters on the fullest rank

  bool alike(const Layer& other) const {
    return name.empty() == other.name.empty() && held_bytes == other.held_bytes &&
           std::equal(rows.begin(), rows.end(), other.rows.begin(), other.rows.end(),
                      [](const Row& a, const Row& b) { return a.alike(b); });
  }
};

/// "[-], [-], [{m}]" -> "2 x [-], [{m}]".
std::string list(const NodePlan& plan, bool results, const Mesh& mesh) {
  std::vector<std::pair<std::string, int>> runs;
  for (size_t i = 0; i < (results ? plan.out : plan.in).size(); ++i) {
    std::string text = to_string(plan, results, static_cast<int>(i), mesh);
    if (runs.empty() || runs.back().first != text) runs.emplace_back(std::move(text), 0);
    ++runs.back().second;
  }
  std::string out;
  for (const auto& [text, count] : runs)
    out += str(out.empty() ? "" : ", ", count > 1 ? str(count, " x ") : "", text);
  return out.empty() ? "nothing" : out;
}

class Table {
 public:
  Table(const Graph& graph, const Plan& plan, const PlanAnalysis& analysis)
      : graph_(graph),
        plan_(plan),
        analysis_(analysis),
        in_front_of_(graph.nodes().size() + 1),
        layers_of_(layers_of(graph)),
        subjects_(subjects_of(graph)),
        parts_(parts_of(graph)) {
    for (PlannedCollective& c : chained(analysis.collectives))
      in_front_of_[static_cast<size_t>(c.before)].push_back(std::move(c));
  }

  std::vector<Layer> layers() {
    add_parameters();
    const auto nodes = static_cast<NodeId>(graph_.nodes().size());
    for (NodeId n = 0; n < nodes; ++n) {
      add_collectives(n, n);
      add_node(n);
    }
    add_collectives(nodes, nodes - 1);
    for (Layer& layer : layers_) gather_updates(layer);
    return std::move(layers_);
  }

 private:
  Layer& layer(const std::string& name) {
    const auto it = std::find_if(layers_.begin(), layers_.end(),
                                 [&](const Layer& l) { return l.name == name; });
    if (it != layers_.end()) return *it;
    layers_.push_back({name, {}, 0, 0, 0});
    return layers_.back();
  }

  Section section_of(NodeId node) const {
    const StepPart part = parts_[static_cast<size_t>(node)];
    return part == StepPart::update    ? Section::update
           : part == StepPart::forward ? Section::forward
                                       : Section::backward;
  }

  void add_parameters() {
    for (const Value& value : graph_.values()) {
      if (value.role != Role::parameter) continue;
      const std::string name = layer_in(value.name);
      const Sharding& lies = plan_.values.at(value.name);
      const int64_t bytes = max_local_bytes(value.type, lies, plan_.mesh);
      Layer& l = layer(name);
      l.held_bytes += bytes;
      l.rows.push_back({Section::parameters, within(value.name, name),
                        str(to_string(value.type), " as ", to_string(lies, plan_.mesh)), 0, 1});
    }
  }

  /// What a node is called within its layer, numbers folded: "matmul mlp.c_fc.weight".
  std::string title(NodeId node) const {
    const std::string& subject = subjects_[static_cast<size_t>(node)];
    const std::string& name = layers_of_[static_cast<size_t>(node)];
    const bool again = graph_.node(node).name.rfind(kAgain, 0) == 0;
    const std::string op = (again ? "again " : "") + graph_.node(node).op;
    if (subject.empty()) return op;
    const bool gradient = subject.rfind("d ", 0) == 0;
    return str(op, gradient ? " d " : " ", within(gradient ? subject.substr(2) : subject, name));
  }

  void add_node(NodeId id) {
    const Node& node = graph_.node(id);
    const NodePlan& np = plan_.nodes.at(node.name);
    const double seconds = analysis_.node_seconds[static_cast<size_t>(id)];
    Layer& l = layer(layers_of_[static_cast<size_t>(id)]);
    add(l, {section_of(id), title(id),
            list(np, false, plan_.mesh) + " -> " + list(np, true, plan_.mesh), seconds, 1});
    l.compute += seconds;
  }

  /// Those in front of a node, of which a Program may run another first. They stand with the node
  /// that they are for; those for nobody with their maker, or with `other`.
  void add_collectives(NodeId before, NodeId other) {
    for (const PlannedCollective& c : in_front_of_[static_cast<size_t>(before)]) {
      const NodeId maker = graph_.value(c.of).producer;
      const NodeId with = c.reader >= 0 && !c.follows ? c.reader : maker >= 0 ? maker : other;
      const std::string& name = layers_of_[static_cast<size_t>(with)];
      Layer& l = layer(name);
      add(l, {section_of(with), "> " + c.kind + " " + value_title(c.of, name),
              c.from + " -> " + c.to, c.seconds, 1});
      l.communication += c.seconds;
    }
  }

  /// A parameter, or of what the value is the result.
  std::string value_title(ValueId id, const std::string& layer) const {
    const Value& value = graph_.value(id);
    if (value.role != Role::computed) return within(value.name, layer);
    return "of " + title(value.producer);
  }

  static void add(Layer& layer, Row row) {
    Row* last = layer.rows.empty() ? nullptr : &layer.rows.back();
    if (last != nullptr && last->section == row.section && last->what == row.what &&
        last->lies == row.lies) {
      last->seconds += row.seconds;
      ++last->times;
      return;
    }
    layer.rows.push_back(std::move(row));
  }

  /// Of an update the order does not matter: equal rows become one.
  static void gather_updates(Layer& layer) {
    std::vector<Row> rows;
    for (Row& row : layer.rows) {
      if (row.section == Section::update && row.what.rfind("> ", 0) != 0)
        row.what = row.what.substr(0, row.what.find(' '));
      const auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& other) {
        return row.section == Section::update && other.section == row.section &&
               other.what == row.what && other.lies == row.lies;
      });
      if (same == rows.end()) {
        rows.push_back(std::move(row));
      } else {
        same->seconds += row.seconds;
        same->times += row.times;
      }
    }
    std::stable_sort(rows.begin(), rows.end(),
                     [](const Row& a, const Row& b) { return a.section < b.section; });
    layer.rows = std::move(rows);
  }

  const Graph& graph_;
  const Plan& plan_;
  const PlanAnalysis& analysis_;
  std::vector<std::vector<PlannedCollective>> in_front_of_;  // by node, and at the end
  const std::vector<std::string> layers_of_, subjects_;
  const std::vector<StepPart> parts_;
  std::vector<Layer> layers_;
};

std::string row_text(const Row& row, const char* mark) {
  constexpr size_t kWhat = 34;
  std::string what = row.what;
  if (row.times > 1) what += str("  x", row.times);
  const std::string time =
      row.section == Section::parameters ? "" : format("%.4f", row.seconds * 1e3);
  const std::string head = str(mark, right(time, 9), "  ");
  if (what.size() <= kWhat) return wrapped(head + left(what, kWhat) + "  ", row.lies);
  return head + what + "\n" + wrapped(std::string(head.size() + kWhat + 2, ' '), row.lies);
}

std::string rows_text(const std::vector<Row>& rows) {
  std::string out;
  std::optional<Section> section;
  for (const Row& row : rows) {
    if (section != row.section) {
      section = row.section;
      const char* of =
          *section == Section::parameters ? "type and sharding" : "operands -> results";
      out += str("\n  ", right(*section == Section::parameters ? "" : "ms", 9), "  ",
                 left(kTitles[static_cast<int>(*section)], 34), "  ", of, "\n");
    }
    out += row_text(row, "  ");
  }
  return out;
}

/// The rows of one layer that another has not, and the other way round, in order: the longest
/// common subsequence is left out.
struct Difference {
  std::vector<std::pair<char, const Row*>> rows;  // '-': only in the first, '+': only in the second
};
Difference difference(const Layer& a, const Layer& b) {
  const size_t n = a.rows.size(), m = b.rows.size();
  std::vector<std::vector<int>> common(n + 1, std::vector<int>(m + 1, 0));
  for (size_t i = n; i-- > 0;) {
    for (size_t j = m; j-- > 0;) {
      common[i][j] = a.rows[i].alike(b.rows[j]) ? common[i + 1][j + 1] + 1
                                                : std::max(common[i + 1][j], common[i][j + 1]);
    }
  }
  Difference out;
  size_t i = 0, j = 0;
  while (i < n || j < m) {
    if (i < n && j < m && a.rows[i].alike(b.rows[j])) {
      ++i, ++j;
    } else if (i < n && (j == m || common[i + 1][j] >= common[i][j + 1])) {
      out.rows.emplace_back('-', &a.rows[i++]);
    } else {
      out.rows.emplace_back('+', &b.rows[j++]);
    }
  }
  return out;
}

/// "h.1 to h.10", "h.1, h.3": numbers that follow each other are a range.
std::string names_text(const std::vector<std::string>& names) {
  const auto number = [](const std::string& name) {
    const std::string digits = name.substr(name.find_last_not_of("0123456789") + 1);
    return digits.size() < 16 ? std::stoll(digits) : -1;
  };
  const auto stem = [](const std::string& name) {
    return name.substr(0, name.find_last_not_of("0123456789") + 1);
  };
  std::string out;
  for (size_t i = 0; i < names.size();) {
    size_t end = i + 1;
    while (end < names.size() && stem(names[end]) == stem(names[i]) &&
           number(names[end]) == number(names[end - 1]) + 1) {
      ++end;
    }
    out += (out.empty() ? "" : ", ") + names[i];
    if (end - i > 2) {
      out += " to " + names[end - 1];
      i = end;
    } else {
      ++i;
    }
  }
  return out;
}

class Explanation {
 public:
  explicit Explanation(std::vector<Layer> layers) : layers_(std::move(layers)) {}

  std::string text() {
    std::vector<bool> printed(layers_.size(), false);
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (printed[i]) continue;
      std::vector<std::string> names;
      for (size_t j = i; j < layers_.size(); ++j) {
        if (printed[j] || !layers_[j].alike(layers_[i])) continue;
        printed[j] = true;
        names.push_back(layers_[j].name);
      }
      tell(layers_[i], names);
    }
    return out_.str();
  }

 private:
  void tell(const Layer& layer, const std::vector<std::string>& names) {
    const bool many = names.size() > 1;
    std::string head = layer.name.empty() ? "outside layers"
                                          : str(many ? str(names.size(), " layers ") : "layer ",
                                                names_text(names));
    head += str(": ", many ? "each " : "", "compute ", ms(layer.compute), ", communication ",
                ms(layer.communication), ", parameters ", mib(layer.held_bytes), " a rank");
    const Layer* like = nullptr;
    Difference least;
    for (const Layer* other : shown_) {
      Difference d = difference(*other, layer);
      if (3 * d.rows.size() > layer.rows.size() || (like && d.rows.size() >= least.rows.size()))
        continue;
      like = other;
      least = std::move(d);
    }
    if (like != nullptr) {
      out_ << "\n" << wrapped("", head + ", as " + like->name + " but for");
      for (const auto& [mark, row] : least.rows) out_ << row_text(*row, mark == '-' ? "- " : "+ ");
    } else {
      out_ << "\n" << wrapped("", head) << rows_text(layer.rows);
    }
    if (!layer.name.empty()) shown_.push_back(&layer);
  }

  std::vector<Layer> layers_;
  std::vector<const Layer*> shown_;
  std::ostringstream out_;
};

}  // namespace

std::string table_text(const Explained& of, const std::string& recomputed) {
  const PlanAnalysis analysis = analyse(of);
  const Graph& graph = of.graph;
  std::vector<Layer> layers = Table(graph, of.plan, analysis).layers();
  const std::string all =
      graph.micro_batches > 1 ? str(" for all ", graph.micro_batches, " micro-batches") : "";
  return wrapped("", plan_line(of.plan)) + (recomputed.empty() ? "" : wrapped("", recomputed)) +
         "(times of one rank" + all +
         ", as predicted; rows with > move data, for the row below)\n" +
         Explanation(std::move(layers)).text();
}

}  // namespace shardrun
