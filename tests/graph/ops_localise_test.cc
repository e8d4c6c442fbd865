// OpDef::localise: nodes cut by hand, run part by part, must make the parts of the whole result.
#include <gtest/gtest.h>

#include "kernels/kernel.h"
#include "tests/graph/op_samples.h"

namespace shardrun {
namespace {

using test::random_operands;

constexpr int kWhole = -1;    // every rank holds all of it
constexpr int kPartial = -2;  // a result: the ranks' values add up

/// Which dim of each operand and result is cut.
struct Cut {
  std::string op;
  Attrs attrs;
  std::vector<TensorType> in;
  std::vector<int> in_dims, out_dims;
};

Box part_of(const Shape& shape, int dim, int64_t ranks, int64_t rank) {
  Box box = full_box(shape);
  if (dim >= 0) {
    box[static_cast<size_t>(dim)] = shard_range(shape[static_cast<size_t>(dim)], ranks, rank);
  }
  return box;
}

Tensor take(const Tensor& whole, const Box& box) {
  Tensor part({whole.dtype(), box_shape(box)});
  copy_box(whole.data(), full_box(whole.shape()), part.data(), box, box, size_of(whole.dtype()));
  return part;
}

void check(const Cut& cut, int64_t ranks) {
  Node node;
  node.op = cut.op;
  node.attrs = cut.attrs;
  const OpDef& def = op_def(cut.op);
  ASSERT_NE(def.localise, nullptr);
  OpDef::Sample sample{cut.in, cut.attrs};
  const std::vector<Tensor> in = random_operands(def, node, sample, 3);
  const std::vector<Tensor> expected = run_reference(node, in);
  std::vector<std::vector<double>> sums(expected.size());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<Box> in_boxes, out_boxes;
    std::vector<Tensor> parts;
    for (size_t i = 0; i < in.size(); ++i) {
      in_boxes.push_back(part_of(in[i].shape(), cut.in_dims[i], ranks, rank));
      parts.push_back(take(in[i], in_boxes.back()));
    }
    for (size_t r = 0; r < expected.size(); ++r) {
      out_boxes.push_back(part_of(expected[r].shape(), cut.out_dims[r], ranks, rank));
    }
    Node local = node;
    local.attrs = def.localise(node, cut.in, {in_boxes, out_boxes});
    const std::vector<Tensor> out = run_reference(local, parts);
    for (size_t r = 0; r < expected.size(); ++r) {
      SCOPED_TRACE(
          str("rank ", rank, " of ", ranks, " result ", r, " {", to_string(local.attrs), "}"));
      ASSERT_EQ(to_string(out[r].shape()), to_string(box_shape(out_boxes[r])));
      sums[r].resize(static_cast<size_t>(out[r].count()));
      const Tensor wanted = take(expected[r], out_boxes[r]);
      for (int64_t i = 0; i < out[r].count(); ++i) {
        sums[r][static_cast<size_t>(i)] += out[r].at(i);
        if (cut.out_dims[r] == kPartial) continue;
        EXPECT_EQ(out[r].at(i), wanted.at(i)) << "element " << i;
      }
    }
  }
  for (size_t r = 0; r < expected.size(); ++r) {
    for (int64_t i = 0; cut.out_dims[r] == kPartial && i < expected[r].count(); ++i) {
      EXPECT_NEAR(sums[r][static_cast<size_t>(i)], expected[r].at(i), 1e-12) << "element " << i;
    }
  }
}

using Ints = std::vector<int64_t>;

TensorType f(Shape shape) { return {DType::f64, std::move(shape)}; }
TensorType i(Shape shape) { return {DType::i64, std::move(shape)}; }

TEST(OpsLocalise, PartsAreThePartsOfTheWhole) {
  const std::string f64 = "f64";
  const Cut cuts[] = {
      {"reshape", {{"shape", Ints{6, 2, 3}}}, {f({6, 6})}, {0}, {0}},
      {"expand", {{"shape", Ints{4, 7}}}, {f({4, 1})}, {0}, {0}},
      {"expand", {{"shape", Ints{4, 7}}}, {f({4, 1})}, {kWhole}, {1}},
      {"slice",
       {{"starts", Ints{0, 2}}, {"ends", Ints{5, 6}}, {"steps", Ints{1, 1}}},
       {f({5, 7})},
       {0},
       {0}},
      {"slice",
       {{"starts", Ints{0, 2}}, {"ends", Ints{5, 9}}, {"steps", Ints{1, 2}}},
       {f({5, 9})},
       {kWhole},
       {1}},
      {"slice",
       {{"starts", Ints{6}}, {"ends", Ints{-1}}, {"steps", Ints{-1}}},
       {f({7})},
       {kWhole},
       {0}},
      {"pad", {{"before", Ints{0, 1}}, {"after", Ints{0, 2}}}, {f({5, 4})}, {0}, {0}},
      {"pad", {{"before", Ints{0, 1}}, {"after", Ints{0, 2}}}, {f({5, 4})}, {1}, {kPartial}},
      {"split", {{"axis", int64_t{1}}, {"sizes", Ints{2, 3}}}, {f({4, 5})}, {0}, {0, 0}},
      {"tile", {{"repeats", Ints{1, 5}}}, {f({4, 1})}, {kWhole}, {1}},
      {"tile", {{"repeats", Ints{1, 5}}}, {f({4, 2})}, {0}, {0}},
      {"iota",
       {{"shape", Ints{7, 2}},
        {"dtype", f64},
        {"axis", int64_t{0}},
        {"start", int64_t{5}},
        {"step", int64_t{3}}},
       {},
       {},
       {0}},
      {"fill", {{"shape", Ints{7}}, {"dtype", f64}, {"value", 2.0}}, {}, {}, {0}},
      {"trilu", {{"upper", int64_t{1}}, {"k", int64_t{1}}}, {f({5, 7})}, {0}, {0}},
      {"trilu", {{"upper", int64_t{0}}, {"k", int64_t{0}}}, {f({2, 5, 7})}, {2}, {2}},
      {"gather", {{"axis", int64_t{0}}}, {f({7, 3}), i({2, 5})}, {0, kWhole}, {kPartial}},
      {"gather", {{"axis", int64_t{0}}}, {f({7, 3}), i({5})}, {kWhole, 0}, {0}},
      {"gather_grad",
       {{"axis", int64_t{0}}, {"size", int64_t{7}}},
       {f({5, 3}), i({5})},
       {kWhole, kWhole},
       {0}},
      {"gather_grad",
       {{"axis", int64_t{0}}, {"size", int64_t{7}}},
       {f({5, 3}), i({5})},
       {0, 0},
       {kPartial}},
      {"cross_entropy_sums",
       {{"classes", int64_t{7}}, {"ignore_index", int64_t{2}}},
       {f({5, 7}), i({5}), f({5})},
       {1, kWhole, kWhole},
       {kPartial}},
      {"cross_entropy_sums",
       {{"classes", int64_t{7}}},
       {f({5, 7}), i({5}), f({5})},
       {0, 0, 0},
       {0}},
  };
  for (const Cut& cut : cuts) {
    for (int64_t ranks : {2, 3, 4}) {
      SCOPED_TRACE(str(cut.op, " {", to_string(cut.attrs), "}"));
      check(cut, ranks);
    }
  }
}

/// Shrunk attributes must fit the shrunk operands.
TEST(OpsShrink, LeavesAValidNode) {
  int shrunk_ops = 0;
  for (const OpDef* def : all_ops()) {
    if (def->shrink == nullptr) continue;
    for (OpDef::Sample sample : def->samples) {
      Node node = test::sample_node(*def, sample);
      std::vector<TensorType> in = sample.in;
      for (TensorType& t : in) {
        for (int64_t& size : t.shape) size = size <= 3 ? size : size == 4 ? 6 : 5;
      }
      SCOPED_TRACE(test::describe(*def, sample));
      ASSERT_NO_THROW(node.attrs = def->shrink(node, sample.in, in));
      EXPECT_NO_THROW(infer_types(node, in)) << "{" << to_string(node.attrs) << "}";
    }
    ++shrunk_ops;
  }
  EXPECT_GT(shrunk_ops, 10);
}

}  // namespace
}  // namespace shardrun
