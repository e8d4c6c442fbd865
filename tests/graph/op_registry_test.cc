// What must hold of every op in the registry.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "graph/ops/families.h"
#include "kernels/kernel.h"
#include "tests/graph/op_samples.h"

namespace shardrun {
namespace {

using test::describe;
using test::random_operands;
using test::sample_node;

TEST(OpRegistry, EveryOpHasSamplesThatItsShapeRuleAndReferenceKernelAccept) {
  ASSERT_GT(all_ops().size(), 90u);
  for (const OpDef* def : all_ops()) {
    EXPECT_FALSE(def->samples.empty()) << def->name << " has no sample";
    for (const OpDef::Sample& sample : def->samples) {
      SCOPED_TRACE(describe(*def, sample));
      const Node node = sample_node(*def, sample);
      const std::vector<Tensor> in = random_operands(*def, node, sample, 1);
      std::vector<Tensor> out;
      ASSERT_NO_THROW(out = run_reference(node, in));
      const std::vector<TensorType> types = infer_types(node, sample.in);
      ASSERT_FALSE(out.empty());
      for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i].type(), types[i]);
      EXPECT_GE(node_flops(node, sample.in, types), 0);
      for (const auto& [result, operand] : def->in_place) {
        EXPECT_LT(static_cast<size_t>(result), out.size());
        EXPECT_GE(operand, 0);
      }
    }
  }
}

TEST(OpRegistry, EveryOpStatesItsPrecisionAndItsCost) {
  for (const OpDef* def : all_ops()) {
    EXPECT_NE(def->precision, Precision::unstated) << def->name;
    EXPECT_NE(def->cost, CostClass::unstated) << def->name;
  }
}

/// An op widens if and only if a sample of it does.
TEST(OpRegistry, OpsThatWidenHaveASampleThatDoes) {
  for (const OpDef* def : all_ops()) {
    const bool sampled =
        std::any_of(def->samples.begin(), def->samples.end(),
                    [](const OpDef::Sample& sample) { return sample.attrs.has("out_dtype"); });
    EXPECT_EQ(def->widens, sampled) << def->name;
  }
}

bool has_operand(const OpDef::Sample& sample, int operand) {
  return operand >= 0 && static_cast<size_t>(operand) < sample.in.size();
}

/// What typed_like names must be of the other's type, so that a bf16 model needs the cast.
TEST(OpRegistry, OperandsTypedLikeOthersHaveToBe) {
  for (const OpDef* def : all_ops()) {
    for (const auto& [operand, other] : def->typed_like) {
      EXPECT_EQ(def->precision, Precision::mixed) << def->name << ": all operands are cast anyway";
      bool seen = false;
      for (const OpDef::Sample& sample : def->samples) {
        ASSERT_TRUE(has_operand(sample, other)) << describe(*def, sample);
        if (!has_operand(sample, operand)) continue;
        seen = true;
        OpDef::Sample narrow = sample;
        narrow.in[static_cast<size_t>(other)].dtype = DType::bf16;
        EXPECT_THROW(infer_types(sample_node(*def, narrow), narrow.in), Error)
            << describe(*def, narrow);
        narrow.in[static_cast<size_t>(operand)].dtype = DType::bf16;
        EXPECT_NO_THROW(infer_types(sample_node(*def, narrow), narrow.in))
            << describe(*def, narrow);
      }
      EXPECT_TRUE(seen) << def->name << ": no sample has operand " << operand;
    }
  }
}

/// Whoever makes random numbers of nothing else says so.
TEST(OpRegistry, OpsThatDrawHaveASeedAndNothingToDrawFor) {
  for (const OpDef* def : all_ops()) {
    const bool draws =
        !def->samples.empty() &&
        std::all_of(def->samples.begin(), def->samples.end(), [](const OpDef::Sample& sample) {
          return sample.attrs.has("seed") &&
                 std::none_of(sample.in.begin(), sample.in.end(),
                              [](const TensorType& type) { return is_float(type.dtype); });
        });
    EXPECT_EQ(def->draws, draws) << def->name;
  }
}

TEST(OpRegistry, OpsThatAddDo) {
  for (const OpDef* def : all_ops()) {
    for (const OpDef::Sample& sample : def->samples) {
      if (!def->adds) continue;
      ASSERT_EQ(sample.in.size(), 2u);
      if (sample.in[0] != sample.in[1] || !is_float(sample.in[0].dtype)) continue;
      const Node node = sample_node(*def, sample);
      const std::vector<Tensor> in = random_operands(*def, node, sample, 1);
      const Tensor sum = std::move(run_reference(node, in)[0]);
      for (int64_t i = 0; i < sum.count(); ++i)
        EXPECT_NEAR(sum.at(i), in[0].at(i) + in[1].at(i), 1e-6) << describe(*def, sample);
    }
  }
}

/// What evaluation_form makes of a node fits where the node stood.
/// Of distinct elements, which of operand 0's the results have, and how many of others.
TEST(OpRegistry, OpsThatTakeElementsDo) {
  for (const OpDef* def : all_ops()) {
    EXPECT_TRUE(!def->reshapes || def->elements == Elements::all) << def->name;
    for (const OpDef::Sample& sample : def->samples) {
      if (def->elements == Elements::unstated) continue;
      const Node node = sample_node(*def, sample);
      const DType made = infer_types(node, sample.in)[0].dtype;
      if (sample.in[0].dtype == DType::boolean || made == DType::boolean)
        continue;  // of two values
      SCOPED_TRACE(describe(*def, sample));
      std::vector<Tensor> in = random_operands(*def, node, sample, 1);
      // Small whole numbers, so that casts keep them.
      std::vector<double> numbers(static_cast<size_t>(in[0].count()));
      std::iota(numbers.begin(), numbers.end(), 1.0);
      in[0] = convert(Tensor::from(in[0].shape(), numbers, DType::f64), in[0].dtype());
      std::map<double, int> left;
      for (int64_t i = 0; i < in[0].count(); ++i) ++left[in[0].at(i)];
      int64_t others = 0;
      for (const Tensor& out : run_reference(node, in)) {
        for (int64_t i = 0; i < out.count(); ++i) {
          const auto known = left.find(out.at(i));
          known == left.end() ? ++others : --known->second;
        }
      }
      if (def->elements == Elements::among) continue;
      EXPECT_EQ(others, 0);
      for (const auto& [number, count] : left)
        EXPECT_TRUE(count == 0 || def->elements == Elements::some) << number;
      if (!def->reshapes) continue;
      const Tensor out = std::move(run_reference(node, in)[0]);
      EXPECT_EQ(out.shape(), node.attrs.ints("shape"));
      for (int64_t i = 0; i < out.count(); ++i) EXPECT_EQ(out.at(i), in[0].at(i)) << i;
    }
  }
}

TEST(OpRegistry, EvaluationFits) {
  for (const OpDef* def : all_ops()) {
    const OpDef::Evaluation& form = def->evaluation;
    bool dropped = false;
    for (const OpDef::Sample& sample : def->samples) {
      SCOPED_TRACE(describe(*def, sample));
      const Node node = sample_node(*def, sample);
      const std::vector<TensorType> out = infer_types(node, sample.in);
      std::set<int> results;
      for (const auto& [result, operand] : form.passes) {
        results.insert(result);
        ASSERT_TRUE(has_operand(sample, operand));
        EXPECT_EQ(out.at(static_cast<size_t>(result)), sample.in[static_cast<size_t>(operand)]);
      }
      EXPECT_TRUE(results.empty() || results.size() == out.size()) << "some results are left";
      for (const auto& [now, average] : form.averages) {
        ASSERT_TRUE(has_operand(sample, now) && has_operand(sample, average));
        EXPECT_EQ(sample.in[static_cast<size_t>(now)], sample.in[static_cast<size_t>(average)]);
      }
      for (const int statistic : form.statistics) EXPECT_TRUE(has_operand(sample, statistic));
      const std::string& drops = form.drops;
      if (drops.empty() || sample.attrs.f(drops, 0.0) == 0) continue;
      dropped = true;
      OpDef::Sample whole = sample;
      whole.attrs.set(drops, 0.0);
      whole.in.pop_back();
      EXPECT_EQ(infer_types(sample_node(*def, whole), whole.in), out);
    }
    EXPECT_EQ(dropped, !form.drops.empty()) << def->name;
  }
}

/// Are there indices, and nothing that one could point at?
bool points_into_nothing(const OpDef& def, const Node& node, const OpDef::Sample& sample) {
  for (size_t i = 0; def.index_bound != nullptr && i < sample.in.size(); ++i) {
    const bool indices = !is_float(sample.in[i].dtype) && element_count(sample.in[i].shape) > 0;
    if (indices && def.index_bound(node, sample.in, i) == 0) return true;
  }
  return false;
}

/// A shard may be empty: with every dim of one size emptied, at least one choice of the size must
/// be taken by the shape rule, and then the kernel must run.
TEST(OpRegistry, EveryOpTakesEmptyOperands) {
  for (const OpDef* def : all_ops()) {
    bool has_dims = false, accepted = false;
    for (const OpDef::Sample& sample : def->samples) {
      std::set<int64_t> sizes;
      for (const TensorType& t : sample.in) sizes.insert(t.shape.begin(), t.shape.end());
      for (int64_t size : sizes) {
        has_dims = true;
        OpDef::Sample empty = sample;
        for (TensorType& t : empty.in)
          std::replace(t.shape.begin(), t.shape.end(), size, int64_t{0});
        if (empty.attrs.has("shape")) {
          Shape shape = empty.attrs.ints("shape");
          std::replace(shape.begin(), shape.end(), size, int64_t{0});
          empty.attrs.set("shape", shape);
        }
        const Node node = sample_node(*def, empty);
        try {
          infer_types(node, empty.in);
        } catch (const Error& e) {
          EXPECT_EQ(e.kind(), ErrorKind::invalid_input)
              << describe(*def, empty) << ": " << e.what();
          continue;
        }
        accepted = true;
        if (points_into_nothing(*def, node, empty)) continue;
        SCOPED_TRACE(describe(*def, empty));
        EXPECT_NO_THROW(run_reference(node, random_operands(*def, node, empty, 1)));
      }
    }
    EXPECT_TRUE(accepted || !has_dims) << def->name << " takes no empty operand";
  }
}

/// What OpDef::in_place promises: a kernel that is given one memory for both computes the same.
TEST(OpRegistry, InPlacePairsComputeTheSameInPlace) {
  int tried = 0;
  for (const OpDef* def : all_ops()) {
    for (const OpDef::Sample& sample : def->samples) {
      const Node node = sample_node(*def, sample);
      const std::vector<TensorType> types = infer_types(node, sample.in);
      for (const auto& [result, operand] : def->in_place) {
        const auto r = static_cast<size_t>(result), o = static_cast<size_t>(operand);
        if (o >= sample.in.size() || byte_size(types[r]) != byte_size(sample.in[o])) continue;
        SCOPED_TRACE(describe(*def, sample));
        const std::vector<Tensor> expected =
            run_reference(node, random_operands(*def, node, sample, 5));
        const std::vector<Tensor> in = random_operands(*def, node, sample, 5);
        std::vector<Tensor> out;
        std::vector<TensorView> in_views, out_views;
        for (const Tensor& t : in) in_views.push_back(t.view());
        for (size_t i = 0; i < types.size(); ++i) {
          out.emplace_back(types[i]);
          out_views.push_back(i == r ? TensorView{in[o].data(), types[i]} : out[i].view());
        }
        const KernelList* lists[] = {&reference_kernels()};
        const PreparedKernel kernel = select_kernel(lists, {node, sample.in, types});
        std::vector<char> workspace(static_cast<size_t>(kernel.workspace_bytes) + 64);
        kernel.run({in_views, out_views, workspace.data()});
        EXPECT_EQ(0, std::memcmp(in[o].data(), expected[r].data(),
                                 static_cast<size_t>(byte_size(types[r]))))
            << "result " << result << " over operand " << operand;
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 100);
}

/// Nothing here names them: they are there because kernels are linked.
TEST(OpRegistry, HasTheOpsThatOnlyProgramsHave) {
  for (const char* op :
       {"matmul_post", "conv_post", "conv_data_grad_post", "pack_weights", "adamw_packed",
        "sgd_packed", "group_rows", "add_rows", "cross_entropy_and_grad"})
    EXPECT_NE(find_op(op), nullptr) << op;
}

TEST(OpRegistry, AnUnknownOpIsNamed) {
  EXPECT_EQ(find_op("no_such_op"), nullptr);
  try {
    op_def("no_such_op");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(e.what()).find("no_such_op"), std::string::npos);
  }
}

TEST(OpRegistry, AUsersOpRunsAndItsNameIsTakenOnce) {
  OpDef def;
  def.name = "test_triple";
  EXPECT_THROW(register_op(def), Error);  // no shape rule
  def.infer = [](const Node&, std::span<const TensorType> in) {
    return std::vector<TensorType>{in[0]};
  };
  def.samples = {{{{DType::f32, {3}}}}};
  register_op(def);
  EXPECT_THROW(register_op(def), Error);
  EXPECT_EQ(op_def("test_triple").precision, Precision::follows);
  EXPECT_EQ(op_def("test_triple").cost, CostClass::streamed);

  KernelImpl impl;
  impl.op = "test_triple";
  impl.name = "user";
  impl.prepare = [](const KernelCall&) {
    PreparedKernel prepared;
    prepared.run = [](const KernelArgs& args) {
      for (int64_t i = 0; i < args.out[0].count(); ++i) {
        args.out[0].as<float>()[i] = 3 * args.in[0].as<float>()[i];
      }
    };
    return prepared;
  };
  register_reference_kernel(impl);
  EXPECT_THROW(register_reference_kernel(impl), Error);
  Node node;
  node.op = "test_triple";
  const std::vector<Tensor> in{Tensor::from<float>({2}, {1, -2}, DType::f32)};
  EXPECT_EQ(run_reference(node, in)[0].at(1), -6);
}

TEST(SelectKernel, EveryRefusalIsReported) {
  KernelImpl picky;
  picky.op = "add";
  picky.name = "picky";
  picky.refuses = [](const KernelCall&) { return std::optional<std::string>("it is tuesday"); };
  picky.prepare = [](const KernelCall&) { return PreparedKernel{}; };
  const KernelList only_picky{picky};
  const TensorType type{DType::f32, {2}};
  const std::vector<TensorType> in{type, type}, out{type};
  Node node;
  node.op = "add";
  const KernelList* both[] = {&only_picky, &reference_kernels()};
  EXPECT_EQ(select_kernel(both, {node, in, out}).impl, "reference");
  const KernelList* one[] = {&only_picky};
  try {
    select_kernel(one, {node, in, out});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("picky: it is tuesday"), std::string::npos);
  }
}

}  // namespace
}  // namespace shardrun
