// Boxes, pieces and sums.
#include "tests/support/strategy_run.h"

#include <cmath>
#include <cstring>
#include <map>

#include "kernels/kernel.h"

namespace shardrun::testing {
namespace {

using Coordinates = std::vector<int64_t>;

/// A rank's position among those of its partial group, and how many there are.
std::pair<int64_t, int64_t> partial_position(const Sharding& s, const Mesh& mesh,
                                             const Coordinates& at) {
  int64_t index = 0, count = 1;
  for (const auto& p : s.partial) {
    index = index * mesh.axis_size(p.axis) + at[static_cast<size_t>(p.axis)];
    count *= mesh.axis_size(p.axis);
  }
  return {index, count};
}

/// What tells a rank from its replicas: coordinates along the axes that cut the value or leave it
/// partial.
Coordinates essential(const Sharding& s, const Coordinates& at) {
  Coordinates out;
  for (const auto& axes : s.dims) {
    for (int axis : axes) out.push_back(at[static_cast<size_t>(axis)]);
  }
  for (const auto& p : s.partial) out.push_back(at[static_cast<size_t>(p.axis)]);
  return out;
}

std::vector<Shape> shapes_of(std::span<const TensorType> types) {
  std::vector<Shape> shapes;
  for (const TensorType& t : types) shapes.push_back(t.shape);
  return shapes;
}

/// One summand of a result while it is put together.
struct Joined {
  Tensor values;     // f64
  Tensor magnitude;  // f64: of the terms of each element
  Tensor seen;       // u8: how many ranks made an element
};

class Join {
 public:
  Join(const TensorType& type, bool adds) : type_(type), adds_(adds) {}

  /// Elements `region` (global) from a tensor that holds `local`.
  void put(int64_t position, const Tensor& from, const Box& local, const Box& region) {
    if (is_empty(region)) return;
    Joined& j = parts_
                    .try_emplace(position, Joined{Tensor({DType::f64, type_.shape}),
                                                  Tensor({DType::f64, type_.shape}),
                                                  Tensor({DType::u8, type_.shape})})
                    .first->second;
    Tensor placed({DType::f64, type_.shape}), mark({DType::u8, type_.shape});
    const Box all = full_box(type_.shape);
    const Tensor f64 = convert(from, DType::f64);
    copy_box(f64.data(), local, placed.data(), all, region, size_of(DType::f64));
    Tensor ones({DType::u8, box_shape(region)});
    std::memset(ones.data(), 1, static_cast<size_t>(ones.count()));
    copy_box(ones.data(), region, mark.data(), all, region, 1);
    for (int64_t i = 0; i < placed.count(); ++i) {
      if (mark.as<uint8_t>()[i] == 0) continue;
      j.values.as<double>()[i] += placed.as<double>()[i];
      j.magnitude.as<double>()[i] += std::abs(placed.as<double>()[i]);
      ++j.seen.as<uint8_t>()[i];
    }
  }

  std::string check(const Tensor& wanted, const Sharding& s) const {
    std::vector<Tensor> values;
    Tensor scale({DType::f64, type_.shape});
    for (const auto& [position, j] : parts_) {
      for (int64_t i = 0; i < scale.count(); ++i) {
        const int made = j.seen.as<uint8_t>()[i];
        if (!adds_ && made != 1) return str(made, " ranks make element ", i);
        scale.as<double>()[i] += j.magnitude.as<double>()[i];
      }
      values.push_back(convert(j.values, type_.dtype));
    }
    if (values.empty()) {
      if (wanted.count() > 0 && !adds_) return "no rank makes anything";
      values.emplace_back(type_);
    }
    const Tensor got = s.partial.empty() ? values[0] : reduce_tensors(values, s.partial[0].op);
    return same_values(got, wanted, 1e-9, &scale) ? "" : "it differs";
  }

 private:
  TensorType type_;
  bool adds_;
  std::map<int64_t, Joined> parts_;  // by position along the partial axes
};

}  // namespace

std::string describe(const NodePlan& plan, const Mesh& mesh) {
  std::string text;
  for (size_t i = 0; i < plan.in.size(); ++i)
    text += (i ? ", " : "") + to_string(plan, false, static_cast<int>(i), mesh);
  text += " ->";
  for (size_t r = 0; r < plan.out.size(); ++r)
    text += (r ? ", " : " ") + to_string(plan, true, static_cast<int>(r), mesh);
  return text;
}

std::string run_strategy(const SmallNode& small, std::span<const Tensor> operands,
                         std::span<const Tensor> wanted, const NodePlan& plan, const Mesh& mesh,
                         uint64_t seed) {
  const OpDef& def = op_def(small.node.op);
  const std::vector<Shape> in_shapes = shapes_of(small.in), out_shapes = shapes_of(small.out);
  try {
    check_node_plan(plan, in_shapes, out_shapes, mesh);
  } catch (const Error& e) {
    return e.what();
  }
  std::vector<std::vector<Tensor>> summands(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    const Sharding& s = plan.in[i];
    if (s.partial.empty()) continue;
    const int64_t parts =
        partial_position(s, mesh, Coordinates(static_cast<size_t>(mesh.axis_count()), 0)).second;
    summands[i] = split_value(operands[i], s.partial[0].op, parts, Evidence::Data::mixed, seed + i);
  }
  std::vector<Join> joins;
  for (size_t r = 0; r < wanted.size(); ++r) {
    bool adds = false;
    for (const Halo& halo : plan.halos)
      adds = adds || (halo.of.result && halo.of.index == static_cast<int>(r));
    joins.emplace_back(wanted[r].type(), adds);
  }
  std::vector<std::map<Coordinates, Tensor>> replicas(wanted.size());
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const Coordinates at = mesh.coordinates(rank);
    const NodeBoxes boxes = node_boxes(plan, in_shapes, out_shapes, mesh, at);
    std::vector<Tensor> local;
    for (size_t i = 0; i < operands.size(); ++i) {
      const Sharding& s = plan.in[i];
      const Tensor& whole =
          s.partial.empty() ? operands[i]
                            : summands[i][static_cast<size_t>(partial_position(s, mesh, at).first)];
      local.push_back(cut_tensor(whole, boxes.in[i]));
    }
    Node node = small.node;
    if (def.localise != nullptr)
      node.attrs = def.localise(small.node, small.in, {boxes.in, boxes.out});
    const std::vector<Tensor> results = run_reference(node, local);
    for (size_t r = 0; r < wanted.size(); ++r) {
      const Box& box = boxes.out[r];
      if (results[r].shape() != box_shape(box)) {
        return str("result ", r, " of rank ", rank, " has shape ", to_string(results[r].shape()),
                   ", wanted ", to_string(box_shape(box)));
      }
      const auto [replica, fresh] = replicas[r].emplace(essential(plan.out[r], at), results[r]);
      if (!fresh) {
        if (!same_values(replica->second, results[r], 1e-9))
          return str("result ", r, " of rank ", rank, " differs from its replica");
        continue;
      }
      const int64_t position = partial_position(plan.out[r], mesh, at).first;
      const std::vector<Range>& blocks = boxes.blocks[r];
      if (blocks.empty()) joins[r].put(position, results[r], box, box);
      int64_t row = 0;
      for (const Range& block : blocks) {
        for (const Blocks& b : plan.blocks) {
          if (b.result.index != static_cast<int>(r)) continue;
          const auto d = static_cast<size_t>(b.result.dim);
          Box held = box, region = box;
          held[d].begin = block.begin - row;
          region[d] = block;
          joins[r].put(position, results[r], held, region);
        }
        row += block.size;
      }
    }
  }
  for (size_t r = 0; r < wanted.size(); ++r) {
    const std::string wrong = joins[r].check(wanted[r], plan.out[r]);
    if (!wrong.empty()) return str("result ", r, ": ", wrong);
  }
  return "";
}

SmallNode in_f64(const std::string& op, const Attrs& attrs, std::span<const TensorType> in) {
  SmallNode small;
  small.node.op = op;
  small.node.name = "sample";
  small.node.attrs = attrs;
  for (const auto& [name, attr] : attrs.all()) {
    const auto* text = std::get_if<std::string>(&attr);
    if (text != nullptr && *text == "f32") small.node.attrs.set(name, std::string("f64"));
  }
  for (TensorType t : in) {
    if (is_float(t.dtype)) t.dtype = DType::f64;
    small.in.push_back(t);
  }
  small.out = infer_types(small.node, small.in);
  return small;
}

}  // namespace shardrun::testing
