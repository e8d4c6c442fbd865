// A plan as loops over the mesh's axes, node by node, as PartIR writes them.
#include <cctype>
#include <sstream>

#include "explain/explain.h"

namespace shardrun {
namespace {

/// A name as it is, in quotes if it could be taken for something else.
std::string quoted(const std::string& name) {
  bool plain = !name.empty();
  for (const char c : name) {
    plain = plain && (std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                      std::string_view("%_./:@-").find(c) != std::string_view::npos);
  }
  if (plain) return name;
  std::string out = "'";
  for (const char c : name) out += c == '\'' || c == '\\' ? str('\\', c) : std::string(1, c);
  return out + "'";
}

class Loops {
 public:
  explicit Loops(const Explained& of) : graph_(of.graph), plan_(of.plan) {}

  std::string text() {
    out_ << "mesh " << plan_.mesh.to_string() << "\n";
    for (const std::string& node : plan_.recompute) out_ << "recompute " << quoted(node) << "\n";
    for (const Value& value : graph_.values()) {
      if (value.role != Role::computed) result("hold ", value, plan_.values.at(value.name), "");
    }
    for (const Node& node : graph_.nodes()) add(node);
    for (const auto& [name, sharding] : plan_.redistributed)
      result("copy ", graph_.value(graph_.find(name)), sharding, "");
    for (const std::string& name : plan_.regathered) out_ << "anew " << quoted(name) << "\n";
    return out_.str();
  }

 private:
  const std::string& axis(int number) const {
    return plan_.mesh.axes()[static_cast<size_t>(number)].name;
  }

  /// "slice 0 b slice 0 a x": x cut along dim 0 by a, and what is left by b.
  std::string operand(const std::string& name, const Sharding& sharding) const {
    std::string out;
    for (size_t d = 0; d < sharding.dims.size(); ++d) {
      for (int a : sharding.dims[d]) out = str("slice ", d, " ", axis(a), " ") + out;
    }
    for (const Sharding::Partial& p : sharding.partial)
      out = str("part ", to_string(p.op), " ", axis(p.axis), " ") + out;
    return out + quoted(name);
  }

  /// "f32[8,4]"
  static std::string type(const TensorType& of) {
    std::string out = to_string(of);
    std::erase(out, ' ');
    return out;
  }

  /// "x : f32[8,4] = tile 0 a { tile 0 b { BODY } }"; what is held has itself as the body.
  void result(const char* begin, const Value& value, const Sharding& sharding,
              const std::string& body) {
    std::string open, close;
    const auto loop = [&](const auto&... head) {
      open += str(head..., " { ");
      close += " }";
    };
    for (size_t d = 0; d < sharding.dims.size(); ++d) {
      for (int a : sharding.dims[d]) loop("tile ", d, " ", axis(a));
    }
    for (const Sharding::Partial& p : sharding.partial) loop(to_string(p.op), " ", axis(p.axis));
    out_ << begin << quoted(value.name) << " : " << type(value.type) << " = " << open
         << (body.empty() ? quoted(value.name) : body) << close << "\n";
  }

  static std::string dim(const NodeDim& at) {
    return str(at.result ? "result " : "operand ", at.index, " dim ", at.dim);
  }

  void add(const Node& node) {
    const NodePlan& np = plan_.nodes.at(node.name);
    out_ << "node " << quoted(node.name) << "\n";
    std::string body = node.op + "(";
    for (size_t k = 0; k < node.inputs.size(); ++k)
      body += (k > 0 ? ", " : "") + operand(graph_.value(node.inputs[k]).name, np.in[k]);
    body += ")";
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      result("  ", graph_.value(node.outputs[r]), np.out[r], r == 0 ? body : str("result ", r));
    }
    for (const Halo& h : np.halos) {
      out_ << "  window " << dim(h.of) << " by " << dim(h.anchor) << " : " << h.window.num << " "
           << h.window.den << " " << h.window.low << " " << h.window.high << "\n";
    }
    for (const Blocks& b : np.blocks) {
      out_ << "  blocks " << dim(b.result) << " :";
      for (const NodeDim& of : b.of) out_ << " " << dim(of);
      out_ << "\n";
    }
    for (const Rows& r : np.rows) {
      out_ << "  rows " << dim(r.of) << " by " << dim(r.by) << " : " << to_string(r.op) << " "
           << r.most_named << " " << r.most_owned << "\n";
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  std::ostringstream out_;
};

}  // namespace

std::string loops_text(const Explained& of) { return Loops(of).text(); }

}  // namespace shardrun
