// Boxes, pieces and sums.
#include "tests/support/strategy_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include "graph/node_exchanges.h"
#include "kernels/kernel.h"
#include "planner/rules/numbered_rows.h"

namespace shardrun::test {
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

int64_t partial_count(const Sharding& s, const Mesh& mesh) {
  return partial_position(s, mesh, Coordinates(static_cast<size_t>(mesh.axis_count()), 0)).second;
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

/// One summand of a result while it is put together.
struct Joined {
  Tensor values;     // f64
  Tensor magnitude;  // f64: of the terms of each element
  Tensor seen;       // u8: how many ranks made an element
};

/// A rank's rows of a dim with named rows, in its order: its own, then those of others that its
/// numbers name.
class LocalRows {
 public:
  LocalRows(const Tensor& numbers, int64_t extent, const Axes& axes, const Mesh& mesh,
            int64_t rank) {
    std::vector<bool> named(static_cast<size_t>(extent), false);
    for (int64_t row : numbers.to_ints()) {
      if (row >= 0 && row < extent) named[static_cast<size_t>(row)] = true;
    }
    std::vector<int64_t> others;
    for (int64_t member : mesh.group(rank, axes.list())) {
      const Range range = local_box({extent}, {{axes}, {}}, mesh, mesh.coordinates(member))[0];
      for (int64_t row = range.begin; row < range.end(); ++row) {
        if (member == rank) rows_.push_back(row);
        if (member != rank && named[static_cast<size_t>(row)]) others.push_back(row);
      }
    }
    rows_.insert(rows_.end(), others.begin(), others.end());
  }

  /// These rows, the dim `dim`, out of a tensor with all of them; garbage behind them up to
  /// `count`.
  Tensor taken(const Tensor& all, int dim, int64_t count) const {
    Shape shape = all.shape();
    shape[static_cast<size_t>(dim)] = count;
    Tensor out({all.dtype(), shape});
    if (out.count() > 0) std::memset(out.data(), 0x7f, static_cast<size_t>(byte_size(out.type())));
    const int64_t bytes = row_bytes(all, dim);
    for (size_t i = 0; i < rows_.size(); ++i)
      std::memcpy(out.as<char>() + static_cast<int64_t>(i) * bytes,
                  all.as<char>() + rows_[i] * bytes, static_cast<size_t>(bytes));
    return out;
  }

  Tensor renumbered(const Tensor& numbers) const {
    std::vector<int64_t> values = numbers.to_ints();
    for (int64_t& v : values) {
      const auto found = std::find(rows_.begin(), rows_.end(), v);
      v = found == rows_.end() ? -1 : found - rows_.begin();
    }
    return convert(Tensor::from(numbers.shape(), values, DType::i64), numbers.dtype());
  }

  /// Reduces what a rank made of its rows into the sum of all ranks'.
  void reduce_into(const Tensor& local, int dim, ReduceOp op, Tensor& sum,
                   std::vector<bool>& made) const {
    const int64_t width = row_bytes(sum, dim) / size_of(sum.dtype());
    for (size_t i = 0; i < rows_.size(); ++i) {
      for (int64_t k = 0; k < width; ++k) {
        const double term = local.at(static_cast<int64_t>(i) * width + k);
        double& to = sum.as<double>()[rows_[i] * width + k];
        to = !made[static_cast<size_t>(rows_[i])] ? term
             : op == ReduceOp::sum                ? to + term
             : op == ReduceOp::prod               ? to * term
             : op == ReduceOp::max                ? std::max(to, term)
                                                  : std::min(to, term);
      }
      made[static_cast<size_t>(rows_[i])] = true;
    }
  }

 private:
  static int64_t row_bytes(const Tensor& t, int dim) {
    return row_major_strides(t.shape())[static_cast<size_t>(dim)] * size_of(t.dtype());
  }
  std::vector<int64_t> rows_;
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

  std::string check(const Tensor& wanted, const Sharding& s, double tolerance) const {
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
    if (same_values(got, wanted, tolerance, &scale)) return "";
    int64_t worst = 0;
    for (int64_t i = 0; i < got.count(); ++i) {
      const auto off = [&](int64_t k) { return std::abs(got.at(k) - wanted.at(k)); };
      if (!(off(i) <= off(worst))) worst = i;
    }
    return str("element ", worst, " of ", got.count(), " is ", got.at(worst), ", not ",
               wanted.at(worst));
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
                         uint64_t seed, const RunShard& shard, double tolerance) {
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
    const int64_t parts = partial_count(s, mesh);
    summands[i] = split_value(operands[i], s.partial[0].op, parts, Evidence::Data::mixed, seed + i);
  }
  std::vector<Join> joins;
  for (size_t r = 0; r < wanted.size(); ++r) {
    bool adds = false;
    for (const Halo& halo : plan.halos)
      adds = adds || (halo.of.result && halo.of.index == static_cast<int>(r));
    joins.emplace_back(wanted[r].type(), adds);
  }
  // Results with rows, by the box of the ranks that reduce together: their other dims.
  struct Reduced {
    Tensor sum;
    Box box;
    std::vector<bool> made;  // per row
  };
  std::vector<std::map<Coordinates, Reduced>> reduced(wanted.size());
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
      Box box = boxes.in[i];
      const Rows* rows = rows_of(plan, false, static_cast<int>(i));
      if (rows != nullptr) {
        const auto d = static_cast<size_t>(rows->of.dim);
        box[d] = {0, whole.shape()[d]};
      }
      local.push_back(cut_tensor(whole, box));
    }
    std::optional<LocalRows> rows_here;
    for (const Rows& rows : plan.rows) {
      const auto of = static_cast<size_t>(rows.of.index), d = static_cast<size_t>(rows.of.dim);
      const Sharding& s = (rows.of.result ? plan.out : plan.in)[of];
      rows_here.emplace(local[static_cast<size_t>(rows.by.index)],
                        (rows.of.result ? out_shapes : in_shapes)[of][d], s.dims[d], mesh, rank);
      if (!rows.of.result)
        local[of] = rows_here->taken(local[of], rows.of.dim, boxes.in[of][d].size);
    }
    if (rows_here) {
      Tensor& numbers = local[static_cast<size_t>(plan.rows[0].by.index)];
      numbers = rows_here->renumbered(numbers);
    }
    Node node = small.node;
    if (def.localise != nullptr)
      node.attrs = def.localise(small.node, small.in, {boxes.in, boxes.out});
    const std::vector<Tensor> results = shard(node, local);
    for (size_t r = 0; r < wanted.size(); ++r) {
      const Box& box = boxes.out[r];
      if (results[r].shape() != box_shape(box)) {
        return str("result ", r, " of rank ", rank, " has shape ", to_string(results[r].shape()),
                   ", wanted ", to_string(box_shape(box)));
      }
      if (const Rows* rows = rows_of(plan, true, static_cast<int>(r))) {
        Box whole = box;
        const auto d = static_cast<size_t>(rows->of.dim);
        whole[d] = {0, out_shapes[r][d]};
        Sharding others = plan.out[r];
        others.dims[d].clear();
        if (!replicas[r].emplace(essential(plan.out[r], at), Tensor()).second) continue;
        const auto [it, first] = reduced[r].try_emplace(
            essential(others, at),
            Reduced{Tensor({DType::f64, box_shape(whole)}), whole,
                    std::vector<bool>(static_cast<size_t>(whole[d].size), false)});
        rows_here->reduce_into(results[r], rows->of.dim, rows->op, it->second.sum, it->second.made);
        continue;
      }
      const auto [replica, fresh] = replicas[r].emplace(essential(plan.out[r], at), results[r]);
      if (!fresh) {
        if (!same_values(replica->second, results[r], tolerance))
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
    std::map<Coordinates, std::vector<Tensor>> summands;  // along the axes where it stays partial
    for (const auto& [place, part] : reduced[r]) {
      Coordinates begin;
      for (const Range& range : part.box) begin.push_back(range.begin);
      summands[begin].push_back(convert(part.sum, wanted[r].dtype()));
      if (summands[begin].size() < static_cast<size_t>(partial_count(plan.out[r], mesh))) continue;
      const Tensor got = plan.out[r].partial.empty()
                             ? summands[begin][0]
                             : reduce_tensors(summands[begin], plan.out[r].partial[0].op);
      if (!same_values(got, cut_tensor(wanted[r], part.box), tolerance))
        return str("result ", r, " differs in a row");
    }
    if (!reduced[r].empty()) continue;
    const std::string wrong = joins[r].check(wanted[r], plan.out[r], tolerance);
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

Sampled sampled(const OpDef& op, size_t sample, RuleCache& rules, uint64_t seed, DType numbers) {
  const OpDef::Sample& of = op.samples[sample];
  Sampled out;
  Node node;
  node.op = op.name;
  node.attrs = of.attrs;
  out.rule = rules.rule(node, of.in);
  if (const auto rows = op.numbered_rows ? op.numbered_rows(node, of.in) : std::nullopt) {
    const std::vector<SpmdRule::Option> options = row_options(out.rule, *rows);
    out.by_rows = options.size();
    out.rule.options.insert(out.rule.options.end(), options.begin(), options.end());
  }
  out.small = in_f64(op.name, of.attrs, of.in);
  out.operands = random_operands(out.small.node, out.small.in,
                                 sample % 2 == 0 ? Evidence::Data::mixed : Evidence::Data::positive,
                                 seed + sample);
  for (Tensor& t : out.operands) {
    if (t.dtype() == DType::f64) t = convert(convert(t, numbers), DType::f64);
  }
  out.wanted = run_reference(out.small.node, out.operands);
  return out;
}

std::vector<Strategy> strategies_of(const Sampled& s, const Mesh& mesh, const Cluster& cluster) {
  return enumerate_strategies(s.small.node, s.small.in, s.small.out, s.rule, mesh, cluster,
                              /*leave_empty=*/false, [&](NodePlan& plan) {
                                const Rows& first = plan.rows[0];
                                count_rows(s.operands[static_cast<size_t>(first.by.index)],
                                           s.small.in, s.small.out, mesh, plan);
                                return int64_t{1};
                              });
}

}  // namespace shardrun::test
