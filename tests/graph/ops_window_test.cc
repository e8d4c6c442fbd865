// Convolutions and pools cut in space by hand: each rank gets the rows that its results read, runs
// the op with its local padding, and makes exactly its rows of the whole result.
#include <gtest/gtest.h>

#include "graph/ops/window.h"
#include "kernels/kernel.h"
#include "tests/graph/op_samples.h"

namespace shardrun {
namespace {

using test::random_operands;
using Ints = std::vector<int64_t>;

TEST(Window, CountsAndInvertsPositions) {
  const Window w{3, 2, 1, 1, 1};  // results o read 2o-1, 2o, 2o+1
  EXPECT_EQ(w.count(8), 4);
  EXPECT_EQ(w.count(9), 5);
  EXPECT_EQ(w.count(0), 0);
  EXPECT_EQ(w.reads({1, 2}, 8), (Range{1, 5}));  // 1 … 5
  EXPECT_EQ(w.reads({0, 1}, 8), (Range{0, 2}));
  EXPECT_EQ(w.reads({3, 2}, 9), (Range{5, 4}));  // 5 … 9, of which 9 is padding
  EXPECT_EQ(w.read_by({4, 1}, 4), (Range{2, 1}));
  EXPECT_EQ(w.read_by({5, 1}, 4), (Range{2, 2}));
  EXPECT_EQ(w.inside(0, 8, 4), (Range{1, 3}));
  EXPECT_EQ(w.inside(2, 8, 4), (Range{0, 4}));
  EXPECT_EQ(w.local_low({3, 5}, {2, 2}), 0);
  EXPECT_EQ(w.high_for(8, 4), 0);
  EXPECT_EQ((Window{3, 2, 1, 1, w.high_for(8, 0)}).count(8), 0);
}

TEST(Window, InverseAgreesWithTheRelationItself) {
  for (int64_t kernel : {1, 2, 3, 5}) {
    for (int64_t stride : {1, 2, 3}) {
      for (int64_t dilation : {1, 2}) {
        for (int64_t low : {-1, 0, 2}) {
          const Window w{kernel, stride, dilation, low, 1};
          const int64_t size = 11, count = w.count(size);
          for (int64_t i = 0; i < size; ++i) {
            int64_t first = count, last = -1;
            for (int64_t o = 0; o < count; ++o) {
              const int64_t from = o * stride - low;
              if (i >= from && i < from + w.span()) first = std::min(first, o), last = o;
            }
            const Range got = w.read_by({i, 1}, count);
            EXPECT_EQ(got.size, std::max<int64_t>(0, last - first + 1));
            if (got.size > 0) {
              EXPECT_EQ(got.begin, first);
            }
          }
          for (int64_t k = 0; k < kernel; ++k) {
            const Range inside = w.inside(k, size, count);
            for (int64_t o = 0; o < count; ++o) {
              const int64_t i = o * stride + k * dilation - low;
              EXPECT_EQ(i >= 0 && i < size, o >= inside.begin && o < inside.end());
            }
          }
        }
      }
    }
  }
}

Tensor take(const Tensor& whole, const Box& box) {
  Tensor part({whole.dtype(), box_shape(box)});
  copy_box(whole.data(), full_box(whole.shape()), part.data(), box, box, size_of(whole.dtype()));
  return part;
}

/// One spatial dim of every operand and result, and the part of each that a rank holds.
struct Parts {
  std::vector<Range> in, out;
  bool sums = false;  // ranks' results add up
};

/// Runs the op part by part. `dims`: the cut dim of each operand (-1: whole); results are cut along
/// `out_dim`. `parts(rank)` says which ranges.
template <class F>
int check(const Node& node, const std::vector<TensorType>& types, const std::vector<int>& dims,
          int out_dim, int64_t ranks, F&& parts) {
  const OpDef& def = op_def(node.op);
  const std::vector<Tensor> in = random_operands(def, node, {types, node.attrs}, 5);
  const std::vector<Tensor> wanted = run_reference(node, in);
  std::vector<double> sums(static_cast<size_t>(wanted[0].count()));
  int compared = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Parts p = parts(rank);
    std::vector<Box> in_boxes, out_boxes;
    std::vector<Tensor> local;
    for (size_t i = 0; i < in.size(); ++i) {
      in_boxes.push_back(full_box(in[i].shape()));
      if (dims[i] >= 0) in_boxes[i][static_cast<size_t>(dims[i])] = p.in[i];
      local.push_back(take(in[i], in_boxes[i]));
    }
    for (size_t r = 0; r < wanted.size(); ++r) {
      out_boxes.push_back(full_box(wanted[r].shape()));
      if (out_dim >= 0) out_boxes[r][static_cast<size_t>(out_dim)] = p.out[r];
    }
    Node part = node;
    part.attrs = def.localise(node, types, {in_boxes, out_boxes});
    const std::vector<Tensor> got = run_reference(part, local);
    for (size_t r = 0; r < wanted.size(); ++r) {
      SCOPED_TRACE(str(node.op, " {", to_string(node.attrs), "} rank ", rank, " of ", ranks, ": {",
                       to_string(part.attrs), "}"));
      EXPECT_EQ(to_string(got[r].shape()), to_string(box_shape(out_boxes[r])));
      if (got[r].shape() != box_shape(out_boxes[r])) return compared;
      const Tensor want = take(wanted[r], out_boxes[r]);
      for (int64_t i = 0; i < got[r].count(); ++i, ++compared) {
        if (p.sums) {
          sums[static_cast<size_t>(i)] += got[r].at(i);
        } else if (got[r].at(i) != want.at(i)) {  // -infinity is, where a window is all padding
          EXPECT_NEAR(got[r].at(i), want.at(i), 1e-12) << "element " << i;
        }
      }
      if (!p.sums || rank + 1 < ranks) continue;
      for (int64_t i = 0; i < want.count(); ++i)
        EXPECT_NEAR(sums[static_cast<size_t>(i)], want.at(i), 1e-12) << "element " << i;
    }
  }
  return compared;
}

TEST(OpsWindow, PartsOfAnImageMakePartsOfTheResult) {
  int compared = 0;
  for (int64_t kernel : {1, 2, 3, 5}) {
    for (int64_t stride : {1, 2, 3}) {
      for (int64_t dilation : {1, 2}) {
        for (const auto& [low, high] :
             {std::pair<int64_t, int64_t>{0, 0}, {1, 1}, {2, 0}, {0, 3}}) {
          for (int64_t size : {7, 10}) {
            const Window w{kernel, stride, dilation, low, high};
            const int64_t count = w.count(size);
            if (count == 0) continue;
            const Attrs shared{
                {"strides", Ints{stride}}, {"dilations", Ints{dilation}}, {"pads_low", Ints{low}}};
            Attrs forward = shared, back = shared, weights = shared;
            forward.set("pads_high", Ints{high});
            back.set("size", Ints{size});
            weights.set("kernel", Ints{kernel});
            const TensorType x{DType::f64, {2, 3, size}}, k{DType::f64, {2, 3, kernel}},
                y{DType::f64, {2, 2, count}};
            for (int64_t ranks : {2, 3}) {
              auto forward_part = [&](int64_t rank) {
                const Range out = shard_range(count, ranks, rank);
                const Range in = w.reads(out, size);
                return Parts{{in}, {out, out}};
              };
              auto back_part = [&](int64_t rank) {
                const Range dx = shard_range(size, ranks, rank);
                const Range dy = w.read_by(dx, count);
                return Parts{{dy, dy}, {dx}};
              };
              // Each rank's own rows of dy, with the rows of x that they read.
              auto weight_part = [&](int64_t rank) {
                const Range dy = shard_range(count, ranks, rank);
                return Parts{{w.reads(dy, size), dy}, {Range{}}, true};
              };
              Node node;
              node.op = "conv", node.attrs = forward;
              compared += check(node, {x, k}, {2, -1}, 2, ranks, forward_part);
              node.op = "conv_data_grad", node.attrs = back;
              compared += check(node, {y, k}, {2, -1}, 2, ranks, back_part);
              node.op = "conv_weight_grad", node.attrs = weights;
              compared += check(node, {x, y}, {2, 2}, -1, ranks, weight_part);
              forward.set("kernel", Ints{kernel});
              back.set("kernel", Ints{kernel});
              const TensorType plane{DType::f64, {2, size}}, pooled{DType::f64, {2, count}};
              for (const char* op : {"max_pool", "sum_pool"}) {
                node.op = op, node.attrs = forward;
                compared += check(node, {plane}, {1}, 1, ranks, forward_part);
              }
              node.op = "max_pool_grad", node.attrs = back;
              compared +=
                  check(node, {pooled, {DType::u8, {2, count}}}, {1, 1}, 1, ranks, back_part);
              node.op = "sum_pool_grad", node.attrs = back;
              compared += check(node, {pooled}, {1}, 1, ranks, back_part);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 60000);
}

}  // namespace
}  // namespace shardrun
