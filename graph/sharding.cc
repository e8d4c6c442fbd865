// Sharding: local boxes, printing and parsing.
#include "graph/sharding.h"

#include <algorithm>
#include <set>

namespace shardrun {

std::string_view to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::max: return "max";
    case ReduceOp::min: return "min";
    case ReduceOp::prod: return "prod";
  }
  return "?";
}

bool Sharding::is_uncut() const {
  return std::all_of(dims.begin(), dims.end(), [](const auto& axes) { return axes.empty(); });
}
bool Sharding::is_replicated() const { return partial.empty() && is_uncut(); }

Box local_box(const Shape& shape, const Sharding& sharding, const Mesh& mesh,
              const std::vector<int64_t>& coordinates) {
  SR_REQUIRE(sharding.dims.size() == shape.size(), internal, "sharding ", to_string(sharding, mesh),
             " has ", sharding.dims.size(), " dims, the value ", to_string(shape), " has ",
             shape.size());
  Box box = full_box(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    for (int axis : sharding.dims[d]) {
      const Range part =
          shard_range(box[d].size, mesh.axis_size(axis), coordinates[static_cast<size_t>(axis)]);
      box[d] = {box[d].begin + part.begin, part.size};
    }
  }
  return box;
}

int64_t max_local_count(const Shape& shape, const Sharding& sharding, const Mesh& mesh) {
  int64_t count = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t extent = shape[d];
    for (int axis : sharding.dims[d]) extent = shard_range(extent, mesh.axis_size(axis), 0).size;
    count *= extent;
  }
  return count;
}

int64_t max_local_bytes(const TensorType& type, const Sharding& sharding, const Mesh& mesh) {
  return max_local_count(type.shape, sharding, mesh) * size_of(type.dtype);
}

std::string to_string(const Sharding& sharding, const Mesh& mesh) {
  auto name = [&](int axis) { return mesh.axes().at(static_cast<size_t>(axis)).name; };
  std::string out = "[";
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    out += d ? ", " : "";
    if (sharding.dims[d].empty()) {
      out += "-";
      continue;
    }
    out += "{";
    for (size_t i = 0; i < sharding.dims[d].size(); ++i) {
      if (i > 0) out += ",";
      out += name(sharding.dims[d][i]);
    }
    out += "}";
  }
  out += "]";
  for (ReduceOp op : kReduceOps) {
    std::string axes;
    for (const auto& p : sharding.partial) {
      if (p.op == op) axes += (axes.empty() ? "" : ",") + name(p.axis);
    }
    if (!axes.empty()) out += " partial(" + std::string(to_string(op)) + ": " + axes + ")";
  }
  return out;
}

namespace {

/// A cursor over the text of a sharding.
struct Reader {
  std::string_view text;
  const Mesh& mesh;
  size_t at = 0;

  [[noreturn]] void wrong(const std::string& what) const {
    const auto& axes = mesh.axes();
    if (axes.empty())
      fail(ErrorKind::invalid_input, "sharding '", text, "': ", what, "; write [-]");
    fail(ErrorKind::invalid_input, "sharding '", text, "': ", what, "; write [{", axes.front().name,
         "}, -] or [-] partial(sum: ", axes.back().name, ")");
  }
  void skip() {
    while (at < text.size() && text[at] == ' ') ++at;
  }
  bool eat(std::string_view word) {
    skip();
    if (text.substr(at, word.size()) != word) return false;
    at += word.size();
    return true;
  }
  void expect(std::string_view word) {
    if (!eat(word)) wrong(str("expected '", word, "' at position ", at));
  }
  /// Up to the next mark or space.
  std::string_view word() {
    skip();
    const size_t end = std::min(text.find_first_of(" ,+{}[]()", at), text.size());
    const std::string_view out = text.substr(at, end - at);
    at = end;
    return out;
  }
  /// Adds the axis of the name that follows, or its sub-axes.
  void axes_into(Axes& axes) {
    const std::string name(word());
    const std::vector<int> known = mesh.named(name);
    if (known.empty()) wrong(str("axis '", name, "' is not in the mesh ", mesh.to_string()));
    axes.append(known);
  }
};

}  // namespace

Sharding parse_sharding(std::string_view text, const Mesh& mesh) {
  Reader r{text, mesh};
  Sharding out;
  r.expect("[");
  if (!r.eat("]")) {
    do {
      Axes axes;
      const size_t begin = r.at;
      r.word();  // a dim may bear a name: batch{data}
      if (r.eat("{")) {
        do r.axes_into(axes);
        while (r.eat(","));
        r.expect("}");
      } else {
        r.at = begin;
        if (!r.eat("-")) {
          do r.axes_into(axes);
          while (r.eat("+"));
        }
      }
      out.dims.push_back(axes);
    } while (r.eat(","));
    r.expect("]");
  }
  while (r.eat("partial(")) {
    const auto* named = std::find_if(std::begin(kReduceOps), std::end(kReduceOps),
                                     [&](ReduceOp op) { return r.eat(to_string(op)); });
    if (named == std::end(kReduceOps)) r.wrong("wanted sum, max, min or prod after 'partial('");
    const ReduceOp op = *named;
    r.expect(":");
    Axes axes;
    do r.axes_into(axes);
    while (r.eat(","));
    r.expect(")");
    for (int axis : axes) out.partial.push_back({axis, op});
  }
  r.skip();
  if (r.at != text.size()) r.wrong(str("unexpected '", text.substr(r.at), "'"));
  std::sort(out.partial.begin(), out.partial.end());
  check_sharding(out, mesh, out.dims.size());
  return out;
}

void check_sharding(const Sharding& sharding, const Mesh& mesh, size_t rank) {
  SR_REQUIRE(sharding.dims.size() == rank, invalid_input, "sharding has ", sharding.dims.size(),
             " dims, the value has ", rank);
  std::set<int> seen;
  auto use = [&](int axis) {
    SR_REQUIRE(axis >= 0 && axis < mesh.axis_count(), invalid_input, "sharding names axis ", axis,
               ", the mesh ", mesh.to_string(), " has ", mesh.axis_count());
    SR_REQUIRE(seen.insert(axis).second, invalid_input, "sharding ", to_string(sharding, mesh),
               " uses axis '", mesh.axes()[static_cast<size_t>(axis)].name, "' twice");
  };
  for (const auto& axes : sharding.dims) {
    for (int axis : axes) use(axis);
  }
  for (const auto& p : sharding.partial) use(p.axis);
}

}  // namespace shardrun
