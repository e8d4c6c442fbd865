// Convolution and pooling cut in space, over a grid of kernels, strides, paddings, dilations,
// groups, images and both layouts of them: every strategy that is offered equals the whole, forward
// and all gradients, and which are offered is printed. A sample of the grid, or with
// SHARDRUN_SPATIAL_GRID=all (the target spatial_grid) all of it.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string_view>

#include "planner/rules/placing.h"
#include "planner/space/strategy.h"
#include "tests/support/strategy_run.h"

namespace shardrun {
namespace {

using Ints = std::vector<int64_t>;

constexpr uint32_t kSeed = 90210;
constexpr size_t kConvolutions = 24, kPools = 18;  // settings, with kImages images each
constexpr size_t kImages = 3;

enum class Family { conv, max_pool, sum_pool };

struct Setting {
  int64_t kernel, stride, low, high, dilation;
  int64_t groups;  // 1, 2, or 3: as many as channels
  bool last;       // the images' channels
};

std::vector<Setting> settings(Family family) {
  std::vector<Setting> out;
  const std::pair<int64_t, int64_t> paddings[] = {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {1, 2}, {3, 0}};
  for (int64_t kernel : {1, 2, 3, 5, 7}) {
    for (int64_t stride : {1, 2, 3}) {
      for (const auto& [low, high] : paddings) {
        for (int64_t dilation : {1, 2}) {
          for (int64_t groups : {1, 2, 3}) {
            if (groups > 1 && family != Family::conv) continue;
            for (bool last : {false, true})
              out.push_back({kernel, stride, low, high, dilation, groups, last});
          }
        }
      }
    }
  }
  return out;
}

/// One op of a case on its real operands, and which dim of which tensors is an image's height (the
/// width is the next one).
struct Op {
  std::string name;
  Attrs attrs;
  std::vector<TensorType> in;
  std::vector<Tensor> operands;
  std::vector<size_t> images_in, images_out;
  int height = 2;
};

int64_t results_of(const Setting& s, int64_t size) {
  const int64_t span = (s.kernel - 1) * s.dilation + 1, slack = size + s.low + s.high - span;
  return slack < 0 ? 0 : slack / s.stride + 1;
}

std::vector<Tensor> random_data(const std::string& op, const Attrs& attrs,
                                const std::vector<TensorType>& in, uint64_t seed) {
  Node node;
  node.op = op;
  node.attrs = attrs;
  return random_operands(node, in, Evidence::Data::mixed, seed);
}

/// The op and its gradients.
std::vector<Op> ops_of(Family family, const Setting& s, int64_t height, int64_t width,
                       uint64_t seed) {
  const int64_t out_height = results_of(s, height), out_width = results_of(s, width);
  Attrs shared{{"strides", Ints{s.stride, s.stride}},
               {"dilations", Ints{s.dilation, s.dilation}},
               {"pads_low", Ints{s.low, s.low}}};
  if (s.last) shared.set("channels_last", int64_t{1});
  const auto with = [&](const Attrs& attrs, const char* name, Ints value) {
    Attrs out = attrs;
    out.set(name, std::move(value));
    return out;
  };
  const auto height_of = [&](const Shape& lead) { return s.last ? size_t{1} : lead.size(); };
  const auto image = [&](Shape lead, int64_t h, int64_t w) {
    lead.insert(lead.begin() + static_cast<std::ptrdiff_t>(height_of(lead)), {h, w});
    return TensorType{DType::f64, lead};
  };
  std::vector<Op> ops;
  if (family == Family::conv) {
    const Shape x_lead = s.groups == 1   ? Shape{1, 2}
                         : s.groups == 2 ? Shape{1, 2, 2}
                                         : Shape{1, 3, 1};
    const Shape y_lead = s.groups == 1   ? Shape{1, 3}
                         : s.groups == 2 ? Shape{1, 2, 1}
                                         : Shape{1, 3, 1};
    const Shape w_lead = s.groups == 1   ? Shape{3, 2}
                         : s.groups == 2 ? Shape{2, 1, 2}
                                         : Shape{3, 1, 1};
    const auto weights = [&](Shape lead) {
      lead.insert(lead.end(), {s.kernel, s.kernel});
      return TensorType{DType::f64, lead};
    };
    const TensorType x = image(x_lead, height, width), y = image(y_lead, out_height, out_width),
                     w = weights(w_lead);
    ops = {
        {"conv", with(shared, "pads_high", {s.high, s.high}), {x, w}, {}, {0}, {0}},
        {"conv_data_grad", with(shared, "size", {height, width}), {y, w}, {}, {0}, {0}},
        {"conv_weight_grad", with(shared, "kernel", {s.kernel, s.kernel}), {x, y}, {}, {0, 1}, {}}};
    for (Op& op : ops) {
      op.height = static_cast<int>(height_of(x_lead));
      op.operands = random_data(op.name, op.attrs, op.in, seed);
    }
    return ops;
  }
  shared.set("kernel", Ints{s.kernel, s.kernel});
  const bool max = family == Family::max_pool;
  const std::string name = max ? "max_pool" : "sum_pool";
  const TensorType x = image({1, 2}, height, width), y = image({1, 2}, out_height, out_width);
  Op forward{name, with(shared, "pads_high", {s.high, s.high}), {x}, {}, {0}, {0}};
  forward.operands = random_data(name, forward.attrs, forward.in, seed);
  Op backward{name + "_grad", with(shared, "size", {height, width}), {y}, {}, {0}, {0}};
  backward.operands = random_data(backward.name, backward.attrs, backward.in, seed + 1);
  if (max) {
    Node node;
    node.op = name;
    node.attrs = forward.attrs;
    backward.operands.push_back(run_reference(node, forward.operands)[1]);
    backward.in.push_back(backward.operands[1].type());
    backward.images_in = {0, 1};
    forward.images_out = {0, 1};
  }
  forward.height = backward.height = static_cast<int>(height_of({1, 2}));
  return {forward, backward};
}

/// Only the options that cut height or width.
SpmdRule spatial(const SpmdRule& rule, int height) {
  SpmdRule out;
  for (const SpmdRule::Option& option : rule.options) {
    const auto cuts = [&](const Placement& p) {
      return p.kind == Placement::Kind::shard && (p.dim == height || p.dim == height + 1);
    };
    const bool partial_in = std::any_of(option.in.begin(), option.in.end(), [](const Placement& p) {
      return p.kind == Placement::Kind::partial;
    });
    if (!partial_in && (std::any_of(option.in.begin(), option.in.end(), cuts) ||
                        std::any_of(option.out.begin(), option.out.end(), cuts)))
      out.options.push_back(option);
  }
  return out;
}

/// Are all of the op's images cut, along these dims by these axes?
bool cuts_images(const Op& op, const NodePlan& plan, const std::vector<std::vector<int>>& axes) {
  const auto cut = [&](const Sharding& s) {
    for (size_t k = 0; k < axes.size(); ++k) {
      if (s.dims[static_cast<size_t>(op.height) + k] != axes[k]) return false;
    }
    return true;
  };
  return std::all_of(op.images_in.begin(), op.images_in.end(),
                     [&](size_t i) { return cut(plan.in[i]); }) &&
         std::all_of(op.images_out.begin(), op.images_out.end(),
                     [&](size_t r) { return cut(plan.out[r]); });
}

struct Cut {
  std::string name;
  Mesh mesh;
  std::vector<std::vector<int>> axes;  // of height and width
};

std::vector<Cut> all_cuts() {
  std::vector<Cut> out;
  for (int r : {2, 3, 4}) {
    const std::string n = std::to_string(r);
    out.push_back({"height " + n, Mesh::parse("h=" + n), {{0}, {}}});
    out.push_back({"width " + n, Mesh::parse("w=" + n), {{}, {0}}});
    out.push_back({"both " + n + "x" + n, Mesh::parse("h=" + n + ",w=" + n), {{0}, {1}}});
  }
  out.push_back({"height 2x2", Mesh::parse("a=2,b=2"), {{0, 1}, {}}});
  return out;
}

/// Does every rank have a row of the result along the cut dims?
bool every_rank_has_a_row(const Setting& s, int64_t height, int64_t width, const Cut& cut) {
  return leaves_none_empty(results_of(s, height), cut.axes[0], cut.mesh) &&
         leaves_none_empty(results_of(s, width), cut.axes[1], cut.mesh);
}

struct Tally {
  int64_t cases = 0, offered = 0, strategies = 0;
  std::map<std::string, std::string> missing;  // an example
};

/// Every strategy, and every single option on meshes of one axis: of two with the same Shardings
/// enumerate_strategies keeps the cheaper.
std::vector<NodePlan> plans_of(const SmallNode& node, const SpmdRule& rule, const Mesh& mesh) {
  std::vector<NodePlan> plans;
  for (const Strategy& s :
       enumerate_strategies(node.node, node.in, node.out, rule, mesh, host_cluster()))
    plans.push_back(s.node_plan());
  if (mesh.axis_count() > 1) return plans;
  for (const SpmdRule::Option& option : rule.options) {
    NodePlan plan = replicated_node(node.in, node.out);
    place(plan, option.in, option.out, 0);
    if (std::find(plans.begin(), plans.end(), plan) == plans.end())
      plans.push_back(std::move(plan));
  }
  return plans;
}

void check_case(Family family, const Setting& s, int64_t height, int64_t width, RuleCache& rules,
                std::map<std::pair<std::string, std::string>, Tally>& tallies) {
  static const std::vector<Cut> cuts = all_cuts();
  if (results_of(s, height) < 1 || results_of(s, width) < 1) return;
  const std::string text = str("kernel ", s.kernel, " stride ", s.stride, " padding ", s.low, ",",
                               s.high, " dilation ", s.dilation, " groups ", s.groups,
                               s.last ? " channels last" : "", " image ", height, "x", width);
  for (const Op& op : ops_of(family, s, height, width, kSeed)) {
    SmallNode node = test::in_f64(op.name, op.attrs, op.in);
    const SpmdRule rule = spatial(rules.rule(node.node, node.in), op.height);
    const std::vector<Tensor> wanted = run_reference(node.node, op.operands);
    for (const Cut& cut : cuts) {
      Tally& tally = tallies[{op.name, cut.name}];
      bool offered = false;
      for (const NodePlan& plan : plans_of(node, rule, cut.mesh)) {
        if (plan == replicated_node(node.in, node.out)) continue;
        ++tally.strategies;
        std::string wrong;
        try {
          wrong = test::run_strategy(node, op.operands, wanted, plan, cut.mesh, kSeed);
        } catch (const std::exception& e) {
          wrong = e.what();
        }
        ASSERT_EQ(wrong, "") << op.name << " " << text << " on mesh " << cut.mesh.to_string()
                             << ": " << test::describe(plan, cut.mesh);
        offered = offered || cuts_images(op, plan, cut.axes);
      }
      if (!every_rank_has_a_row(s, height, width, cut)) continue;
      ++tally.cases;
      tally.offered += offered ? 1 : 0;
      if (!offered) tally.missing.emplace(op.name, text);
    }
  }
}

void check_family(Family family) {
  const char* const wanted = std::getenv("SHARDRUN_SPATIAL_GRID");
  const bool all = wanted != nullptr && std::string_view(wanted) == "all";
  std::printf("seed %u, %s\n", kSeed, all ? "the whole grid" : "a sample of the grid");
  std::mt19937 random(kSeed);
  std::map<std::pair<std::string, std::string>, Tally> tallies;
  size_t cases = 0;
  std::vector<Setting> grid = settings(family);
  if (!all) {
    std::shuffle(grid.begin(), grid.end(), random);
    grid.resize(family == Family::conv ? kConvolutions : kPools);
  }
  for (const Setting& s : grid) {
    RuleCache rules;
    std::vector<int64_t> images;
    for (int64_t size = 5; size <= 17; ++size) images.push_back(size);
    if (!all) {
      std::shuffle(images.begin(), images.end(), random);
      images.resize(kImages);
    }
    for (int64_t height : images) {
      // The width runs through the sizes in another order.
      check_case(family, s, height, 5 + (height * 5 + 3) % 13, rules, tallies);
      ++cases;
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  std::printf("%zu settings with images; cases where each rank has a row of the result:\n", cases);
  std::printf("%-18s %-11s %8s %8s %8s %11s\n", "op", "cut", "cases", "offered", "fraction",
              "strategies");
  int64_t total = 0, offered = 0, strategies = 0;
  for (const auto& [key, tally] : tallies) {
    std::printf("%-18s %-11s %8lld %8lld %7.2f%% %11lld\n", key.first.c_str(), key.second.c_str(),
                static_cast<long long>(tally.cases), static_cast<long long>(tally.offered),
                tally.cases == 0
                    ? 100.0
                    : 100.0 * static_cast<double>(tally.offered) / static_cast<double>(tally.cases),
                static_cast<long long>(tally.strategies));
    for (const auto& [name, text] : tally.missing)
      std::printf("    not offered: %s %s\n", name.c_str(), text.c_str());
    total += tally.cases;
    offered += tally.offered;
    strategies += tally.strategies;
    EXPECT_GE(static_cast<double>(tally.offered), 0.95 * static_cast<double>(tally.cases))
        << key.first << " " << key.second;
  }
  std::printf("%lld cases, %lld offered (%.2f %%), %lld strategies run, all equal to the whole\n",
              static_cast<long long>(total), static_cast<long long>(offered),
              100.0 * static_cast<double>(offered) / static_cast<double>(total),
              static_cast<long long>(strategies));
  EXPECT_GT(total, 300);
  EXPECT_GT(strategies, 2000);
}

// Every strategy that is offered equals the whole.
TEST(SpatialGrid, Convolution) { check_family(Family::conv); }
TEST(SpatialGrid, MaxPool) { check_family(Family::max_pool); }
TEST(SpatialGrid, SumPool) { check_family(Family::sum_pool); }

}  // namespace
}  // namespace shardrun
