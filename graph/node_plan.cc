// NodePlan: windows, boxes and checks.
#include "graph/node_plan.h"

#include <algorithm>
#include <set>

#include "graph/ops/window.h"

namespace shardrun {
namespace {

bool is_at(const NodeDim& at, bool result, int index) {
  return at.result == result && at.index == index;
}

/// What a file may say of windows: sums of their numbers stay far from 64 bits.
constexpr int64_t kFarthest = int64_t{1} << 40;

std::string name_of(const NodeDim& at) {
  return str(at.result ? "result " : "operand ", at.index, " dim ", at.dim);
}

/// Checks a plan against the shapes of its node: windows, blocks, rows, then what these are of.
class NodePlanCheck {
 public:
  NodePlanCheck(const NodePlan& plan, const std::vector<Shape>& in, const std::vector<Shape>& out,
                const Mesh& mesh)
      : plan_(plan), in_(in), out_(out), mesh_(mesh) {}

  void run() {
    for (size_t i = 0; i < in_.size(); ++i) check_sharding(plan_.in[i], mesh_, in_[i].size());
    for (size_t r = 0; r < out_.size(); ++r) check_sharding(plan_.out[r], mesh_, out_[r].size());
    for (const Halo& halo : plan_.halos) check(halo);
    for (const Blocks& blocks : plan_.blocks) check(blocks);
    for (const Rows& rows : plan_.rows) check(rows);
    check_anchors();
  }

 private:
  void check_dim(const NodeDim& at) const {
    const std::vector<Shape>& shapes = at.result ? out_ : in_;
    SR_REQUIRE(at.index >= 0 && static_cast<size_t>(at.index) < shapes.size() && at.dim >= 0 &&
                   static_cast<size_t>(at.dim) < shapes[static_cast<size_t>(at.index)].size(),
               invalid_input, name_of(at), " is not there");
  }

  void check(const Halo& halo) {
    check_dim(halo.of);
    check_dim(halo.anchor);
    const HaloWindow& w = halo.window;
    SR_REQUIRE(w.num > 0 && w.den > 0, invalid_input, "the window of ", name_of(halo.of),
               " has stride ", w.num, " / ", w.den, ", wanted a positive one");
    SR_REQUIRE(std::max({w.num, w.den, w.low, w.high}) <= kFarthest &&
                   std::min(w.low, w.high) >= -kFarthest,
               invalid_input, "the window of ", name_of(halo.of), " reaches from ", w.low, " to ",
               w.high, " at stride ", w.num, " / ", w.den, ", wanted numbers of at most ",
               kFarthest);
    SR_REQUIRE(special_.insert(halo.of).second, invalid_input, name_of(halo.of),
               " has two windows");
    SR_REQUIRE(axes_of(plan_, halo.of) == axes_of(plan_, halo.anchor), invalid_input,
               name_of(halo.of), " is in windows of ", name_of(halo.anchor),
               ", which other axes cut");
  }

  void check(const Blocks& blocks) {
    check_dim(blocks.result);
    SR_REQUIRE(blocks.result.result, invalid_input, "the blocks of ", name_of(blocks.result),
               ": only results come out in blocks");
    SR_REQUIRE(
        std::none_of(special_.begin(), special_.end(),
                     [&](const NodeDim& dim) { return is_at(dim, true, blocks.result.index); }),
        invalid_input, name_of(blocks.result),
        " is in blocks, and so can have no other dim in blocks or windows");
    special_.insert(blocks.result);
    int64_t rows = 0;
    for (const NodeDim& of : blocks.of) {
      check_dim(of);
      SR_REQUIRE(!of.result, invalid_input, "a block of ", name_of(blocks.result), " is of ",
                 name_of(of), ", wanted an operand");
      SR_REQUIRE(axes_of(plan_, of) == axes_of(plan_, blocks.result), invalid_input,
                 name_of(blocks.result), " is in blocks of ", name_of(of),
                 ", which other axes cut");
      rows += in_[static_cast<size_t>(of.index)][static_cast<size_t>(of.dim)];
    }
    const int64_t extent =
        out_[static_cast<size_t>(blocks.result.index)][static_cast<size_t>(blocks.result.dim)];
    SR_REQUIRE(rows == extent, invalid_input, "the blocks of ", name_of(blocks.result), " are ",
               rows, " rows, the dim has ", extent);
  }

  void check(const Rows& rows) {
    check_dim(rows.of);
    check_dim(rows.by);
    SR_REQUIRE(!rows.by.result, invalid_input, "the rows of ", name_of(rows.of),
               " are named by a result, wanted an operand");
    SR_REQUIRE(std::none_of(special_.begin(), special_.end(),
                            [&](const NodeDim& dim) {
                              return is_at(dim, rows.of.result, rows.of.index) ||
                                     is_at(dim, false, rows.by.index);
                            }),
               invalid_input, name_of(rows.of), " has named rows, and so neither it nor ",
               name_of(rows.by), " can be in windows, blocks or other rows");
    SR_REQUIRE(axes_of(plan_, rows.of) == axes_of(plan_, rows.by), invalid_input, name_of(rows.of),
               " has rows that ", name_of(rows.by), " names, which other axes cut");
    const Shape& shape = (rows.of.result ? out_ : in_)[static_cast<size_t>(rows.of.index)];
    const int64_t extent = shape[static_cast<size_t>(rows.of.dim)];
    SR_REQUIRE(rows.most_named >= 0 && rows.most_named <= extent && rows.most_owned >= 0 &&
                   rows.most_owned <= extent * mesh_.size(),
               invalid_input, name_of(rows.of), " has bounds of ", rows.most_named, " and ",
               rows.most_owned, " rows, wanted 0 to ", extent, " and 0 to ", extent * mesh_.size());
    special_.insert(rows.of);
  }

  /// What windows and blocks are of lies in shards itself.
  void check_anchors() const {
    for (const Halo& halo : plan_.halos) {
      SR_REQUIRE(special_.count(halo.anchor) == 0, invalid_input, name_of(halo.of),
                 " is in windows of ", name_of(halo.anchor), ", which is not in shards itself");
    }
    for (const Blocks& blocks : plan_.blocks) {
      for (const NodeDim& of : blocks.of) {
        SR_REQUIRE(special_.count(of) == 0, invalid_input, name_of(blocks.result),
                   " is in blocks of ", name_of(of), ", which is in windows");
      }
    }
  }

  const NodePlan& plan_;
  const std::vector<Shape>& in_;
  const std::vector<Shape>& out_;
  const Mesh& mesh_;
  std::set<NodeDim> special_;  // in windows, blocks or named rows
};

}  // namespace

Axes axes_of(const NodePlan& plan, const NodeDim& at) {
  const Sharding& s = (at.result ? plan.out : plan.in)[static_cast<size_t>(at.index)];
  return s.dims[static_cast<size_t>(at.dim)];
}

Range HaloWindow::of(Range rows, int64_t extent) const {
  const int64_t begin = std::clamp<int64_t>(floor_div(num * rows.begin + low, den), 0, extent);
  if (rows.size == 0) return {begin, 0};
  const int64_t end =
      std::clamp<int64_t>(floor_div(num * (rows.end() - 1) + high, den) + 1, begin, extent);
  return {begin, end - begin};
}

std::string to_string(const HaloWindow& w) {
  // Rows a to b - 1 are the rows num / den a to num / den b of the dim; beyond it lie -low / den
  // below and (high + den - num) / den above.
  std::string out =
      str(floor_div(-w.low + w.den - 1, w.den), ",", floor_div(w.high + w.den - w.num, w.den));
  if (w.num != w.den) out += str(" stride ", w.num);
  if (w.den != 1) out += str("/", w.den);
  return out;
}

NodeBoxes node_boxes(const NodePlan& plan, const std::vector<Shape>& in,
                     const std::vector<Shape>& out, const Mesh& mesh,
                     const std::vector<int64_t>& coordinates) {
  NodeBoxes boxes;
  for (size_t i = 0; i < in.size(); ++i)
    boxes.in.push_back(local_box(in[i], plan.in[i], mesh, coordinates));
  for (size_t r = 0; r < out.size(); ++r)
    boxes.out.push_back(local_box(out[r], plan.out[r], mesh, coordinates));
  boxes.blocks.resize(out.size());
  const NodeBoxes shards = boxes;
  const auto range = [](auto& of, const NodeDim& at) -> auto& {
    return (at.result ? of.out : of.in)[static_cast<size_t>(at.index)][static_cast<size_t>(at.dim)];
  };
  for (const Halo& halo : plan.halos) {
    const Shape& shape = (halo.of.result ? out : in)[static_cast<size_t>(halo.of.index)];
    range(boxes, halo.of) =
        halo.window.of(range(shards, halo.anchor), shape[static_cast<size_t>(halo.of.dim)]);
  }
  for (const Rows& rows : plan.rows)
    range(boxes, rows.of) = {0, range(shards, rows.of).size + rows.most_named};
  for (const Blocks& blocks : plan.blocks) {
    int64_t offset = 0, rows = 0;
    for (const NodeDim& of : blocks.of) {
      const Range shard = range(shards, of);
      boxes.blocks[static_cast<size_t>(blocks.result.index)].push_back(
          {offset + shard.begin, shard.size});
      offset += in[static_cast<size_t>(of.index)][static_cast<size_t>(of.dim)];
      rows += shard.size;
    }
    range(boxes, blocks.result) = {0, rows};
  }
  return boxes;
}

std::vector<int> exchange_axes(const NodePlan& plan, bool result, int index) {
  std::set<int> axes;
  for (const Halo& halo : plan.halos) {
    if (is_at(halo.of, result, index))
      axes.insert(axes_of(plan, halo.of).begin(), axes_of(plan, halo.of).end());
  }
  for (const Blocks& blocks : plan.blocks) {
    if (is_at(blocks.result, result, index))
      axes.insert(axes_of(plan, blocks.result).begin(), axes_of(plan, blocks.result).end());
  }
  for (const Rows& rows : plan.rows) {
    if (is_at(rows.of, result, index))
      axes.insert(axes_of(plan, rows.of).begin(), axes_of(plan, rows.of).end());
  }
  return {axes.begin(), axes.end()};
}

std::string to_string(const NodePlan& plan, bool result, int index, const Mesh& mesh) {
  std::string out = to_string((result ? plan.out : plan.in)[static_cast<size_t>(index)], mesh);
  for (const Halo& halo : plan.halos) {
    if (!is_at(halo.of, result, index)) continue;
    out += str(result ? " add " : " halo ", to_string(halo.window), " in dim ", halo.of.dim);
  }
  for (const Blocks& blocks : plan.blocks) {
    if (!is_at(blocks.result, result, index)) continue;
    out += str(" ", blocks.of.size(), " blocks in dim ", blocks.result.dim);
  }
  for (const Rows& rows : plan.rows) {
    if (is_at(rows.of, result, index)) out += str(" named rows in dim ", rows.of.dim);
  }
  return out;
}

void check_node_plan(const NodePlan& plan, const std::vector<Shape>& in,
                     const std::vector<Shape>& out, const Mesh& mesh) {
  NodePlanCheck(plan, in, out, mesh).run();
}

}  // namespace shardrun
