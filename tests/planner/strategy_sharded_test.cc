// Every strategy that the planner may choose, of every op and sample: cut the operands, run the
// ranks' shares with the reference kernel, put the results together, compare with the unsharded op
// in f64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "planner/strategy.h"
#include "planner/trial.h"

namespace shardrun {
namespace {

constexpr uint64_t kSeed = 20240;
constexpr size_t kMostOnThreeAxes = 64;  // of one sample's strategies: evenly taken

/// Partial axes of a sharding with this rank's position among them, and how many positions there
/// are.
std::pair<int64_t, int64_t> partial_position(const Sharding& s, const Mesh& mesh,
                                             const std::vector<int64_t>& at) {
  int64_t index = 0, count = 1;
  for (const auto& p : s.partial) {
    index = index * mesh.axis_size(p.axis) + at[static_cast<size_t>(p.axis)];
    count *= mesh.axis_size(p.axis);
  }
  return {index, count};
}

std::string describe(const Strategy& s, const Mesh& mesh) {
  std::string text;
  for (const auto& in : s.in) text += to_string(in, mesh) + " ";
  text += "->";
  for (const auto& out : s.out) text += " " + to_string(out, mesh);
  return text;
}

/// Runs all ranks under the strategy. Returns what is wrong, or "".
std::string run_sharded(const SmallNode& small, std::span<const Tensor> operands,
                        std::span<const Tensor> wanted, const Strategy& strategy,
                        const Mesh& mesh) {
  const OpDef& def = op_def(small.node.op);
  std::vector<std::vector<Tensor>> summands(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    const Sharding& s = strategy.in[i];
    if (s.partial.empty()) continue;
    const int64_t parts =
        partial_position(s, mesh, std::vector<int64_t>(static_cast<size_t>(mesh.axis_count()), 0))
            .second;
    summands[i] =
        split_value(operands[i], s.partial[0].op, parts, Evidence::Data::mixed, kSeed + i);
  }
  // Results as assembled so far: by position along the partial axes, which elements are there.
  std::vector<std::map<int64_t, Tensor>> joined(wanted.size()), filled(wanted.size());
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int64_t> at = mesh.coordinates(rank);
    std::vector<Box> in_boxes, out_boxes;
    std::vector<Tensor> local;
    for (size_t i = 0; i < operands.size(); ++i) {
      const Sharding& s = strategy.in[i];
      in_boxes.push_back(local_box(operands[i].shape(), s, mesh, at));
      const Tensor& whole =
          s.partial.empty() ? operands[i]
                            : summands[i][static_cast<size_t>(partial_position(s, mesh, at).first)];
      local.push_back(cut_tensor(whole, in_boxes.back()));
    }
    for (size_t r = 0; r < wanted.size(); ++r) {
      out_boxes.push_back(local_box(wanted[r].shape(), strategy.out[r], mesh, at));
    }
    Node node = small.node;
    if (def.localise != nullptr)
      node.attrs = def.localise(small.node, small.in, {in_boxes, out_boxes});
    const std::vector<Tensor> results = run_reference(node, local);
    for (size_t r = 0; r < wanted.size(); ++r) {
      if (results[r].shape() != box_shape(out_boxes[r])) {
        return str("result ", r, " of rank ", rank, " has shape ", to_string(results[r].shape()),
                   ", wanted ", to_string(box_shape(out_boxes[r])));
      }
      const int64_t position = partial_position(strategy.out[r], mesh, at).first;
      Tensor& whole = joined[r].emplace(position, Tensor(wanted[r].type())).first->second;
      Tensor& seen =
          filled[r].emplace(position, Tensor({DType::u8, wanted[r].shape()})).first->second;
      if (results[r].count() == 0) continue;
      const Tensor before = cut_tensor(seen, out_boxes[r]);
      if (before.int_at(0) != 0 &&
          !same_values(cut_tensor(whole, out_boxes[r]), results[r], 1e-9)) {
        return str("result ", r, " of rank ", rank, " differs from its replica");
      }
      const Box all = full_box(wanted[r].shape());
      copy_box(results[r].data(), out_boxes[r], whole.data(), all, out_boxes[r],
               size_of(wanted[r].dtype()));
      Tensor ones({DType::u8, box_shape(out_boxes[r])});
      std::memset(ones.data(), 1, static_cast<size_t>(ones.count()));
      copy_box(ones.data(), out_boxes[r], seen.data(), all, out_boxes[r], 1);
    }
  }
  for (size_t r = 0; r < wanted.size(); ++r) {
    std::vector<Tensor> parts;
    for (const auto& [position, whole] : joined[r]) {
      const Tensor& seen = filled[r].at(position);
      for (int64_t i = 0; i < seen.count(); ++i) {
        if (seen.int_at(i) == 0) return str("no rank makes element ", i, " of result ", r);
      }
      parts.push_back(whole);
    }
    const Sharding& s = strategy.out[r];
    const Tensor got = s.partial.empty() ? parts[0] : reduce_tensors(parts, s.partial[0].op);
    Tensor scale({DType::f64, wanted[r].shape()});  // what a sum is exact relative to
    for (const Tensor& part : parts) {
      for (int64_t i = 0; i < scale.count(); ++i) scale.as<double>()[i] += std::abs(part.at(i));
    }
    if (!same_values(got, wanted[r], 1e-9, &scale)) return str("result ", r, " differs");
  }
  return "";
}

SmallNode sample_in_f64(const OpDef& def, const OpDef::Sample& sample) {
  SmallNode small;
  small.node.op = def.name;
  small.node.name = "sample";
  small.node.attrs = sample.attrs;
  for (const auto& [name, attr] : sample.attrs.all()) {
    const auto* text = std::get_if<std::string>(&attr);
    if (text != nullptr && *text == "f32") small.node.attrs.set(name, std::string("f64"));
  }
  for (TensorType t : sample.in) {
    if (is_float(t.dtype)) t.dtype = DType::f64;
    small.in.push_back(t);
  }
  small.out = infer_types(small.node, small.in);
  return small;
}

TEST(StrategySharded, EveryStrategyOfEveryOpEqualsUnsharded) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  const std::vector<Mesh> meshes = {Mesh::parse("2"),   Mesh::parse("3"),   Mesh::parse("4"),
                                    Mesh::parse("2x2"), Mesh::parse("2x3"), Mesh::parse("2x2x2")};
  const Cluster cluster = host_cluster();
  RuleCache rules;
  size_t total = 0;
  for (const OpDef* def : all_ops()) {
    size_t tested = 0, cut = 0;
    for (size_t k = 0; k < def->samples.size(); ++k) {
      const OpDef::Sample& sample = def->samples[k];
      Node node;
      node.op = def->name;
      node.attrs = sample.attrs;
      const SpmdRule& rule = rules.rule(node, sample.in);
      const SmallNode small = sample_in_f64(*def, sample);
      const std::vector<Tensor> operands =
          random_operands(small.node, small.in,
                          k % 2 == 0 ? Evidence::Data::mixed : Evidence::Data::positive, kSeed + k);
      const std::vector<Tensor> wanted = run_reference(small.node, operands);
      for (const Mesh& mesh : meshes) {
        const std::vector<Strategy> strategies =
            enumerate_strategies(small.node, small.in, small.out, rule, mesh, cluster);
        ASSERT_FALSE(strategies.empty());
        const size_t stride = mesh.axis_count() < 3 ? 1 : strategies.size() / kMostOnThreeAxes + 1;
        for (size_t i = k % stride; i < strategies.size(); i += stride) {
          const bool replicated = i == 0;
          std::string wrong;
          try {
            wrong = run_sharded(small, operands, wanted, strategies[i], mesh);
          } catch (const std::exception& e) {
            wrong = e.what();
          }
          EXPECT_EQ(wrong, "") << def->name << " sample " << k << " {" << to_string(sample.attrs)
                               << "} on mesh " << mesh.to_string() << ": "
                               << describe(strategies[i], mesh);
          ++tested;
          cut += replicated ? 0 : 1;
        }
      }
    }
    std::printf("%-20s %3zu samples %5zu strategies, %5zu of them cut\n", def->name.c_str(),
                def->samples.size(), tested, cut);
    EXPECT_GT(cut, 0u) << def->name << " has no strategy but replication";
    total += tested;
  }
  std::printf("%zu strategies in all\n", total);
}

}  // namespace
}  // namespace shardrun
