// Meshes as text: unknown sizes, sub-axes, and what is refused.
#include "graph/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "graph/sharding.h"

namespace shardrun {
namespace {

std::string refusal(const std::string& text, int64_t ranks = 0) {
  try {
    return "mesh " + Mesh::parse(text, ranks).to_string();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input) << e.what();
    return e.what();
  }
}

TEST(MeshText, OneSizeFollowsFromTheRanks) {
  EXPECT_EQ(Mesh::parse("data=?,model=4", 8), Mesh::parse("data=2,model=4"));
  EXPECT_EQ(Mesh::parse("data=2,model=?", 8), Mesh::parse("data=2,model=4"));
  EXPECT_EQ(Mesh::parse("2x?x2", 12), Mesh::parse("2x3x2"));
  EXPECT_EQ(Mesh::parse("data=?", 1), Mesh::parse("data=1"));
  EXPECT_EQ(Mesh::parse("model=?*2", 8), Mesh::parse("model=4*2"));
  EXPECT_TRUE(Mesh::has_unknown_size("data=?,model=4"));
  EXPECT_FALSE(Mesh::has_unknown_size("data=2,model=4"));
}

TEST(MeshText, UnknownSizesThatNothingTells) {
  EXPECT_EQ(refusal("data=?,model=?", 8),
            "mesh 'data=?,model=?': the sizes of 'data' and 'model' are both unknown; give one of "
            "them");
  EXPECT_EQ(refusal("data=?,model=3", 8),
            "mesh 'data=?,model=3': 8 ranks do not divide by 3, what the other axes have, so no "
            "size of 'data' fits");
  EXPECT_EQ(refusal("data=?,model=16", 8).substr(0, 48),
            "mesh 'data=?,model=16': 8 ranks do not divide by");
  EXPECT_EQ(refusal("data=?,model=4"),
            "mesh 'data=?,model=4': the size of 'data' follows from the number of ranks, which is "
            "not known here; give the size");
}

TEST(MeshText, SubAxes) {
  const Mesh mesh = Mesh::parse("data=2,model=4*2");
  EXPECT_EQ(mesh.to_string(), "data=2,model.0=4,model.1=2");
  EXPECT_EQ(Mesh::parse(mesh.to_string()), mesh);
  EXPECT_EQ(mesh.named("model"), (std::vector{1, 2}));
  EXPECT_EQ(mesh.named("model.1"), (std::vector{2}));
  EXPECT_EQ(mesh.named("data"), (std::vector{0}));
  EXPECT_TRUE(mesh.named("seq").empty());
  EXPECT_EQ(Mesh::parse("2x4*3").to_string(), "a=2,b.0=4,b.1=3");
  EXPECT_EQ(refusal("model=4*x").substr(0, 51),
            "mesh 'model=4*x': 'x' is not a positive axis size; ");
  EXPECT_EQ(refusal("model=4*").substr(0, 50),
            "mesh 'model=4*': '' is not a positive axis size; w");
}

/// What a list in one word does, beside one in a vector: in any order, at any place.
TEST(MeshAxes, AListIsOneWord) {
  for (const std::vector<int>& order : {std::vector<int>{0}, {2, 0, 1}, {14, 3, 0, 7}}) {
    for (size_t place = 0; place <= order.size(); ++place) {
      Axes axes = order;
      std::vector<int> wanted = order;
      axes.insert(place, 9);
      const auto behind = static_cast<std::ptrdiff_t>(place);
      wanted.insert(wanted.begin() + behind, 9);
      EXPECT_EQ(axes.list(), wanted);
      EXPECT_EQ(axes.size(), wanted.size());
      for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(axes[i], wanted[i]);
      for (int axis = 0; axis < Axes::kMost; ++axis)
        EXPECT_EQ(axes.contains(axis), std::ranges::count(wanted, axis) == 1);
      EXPECT_EQ(axes < Axes(order), wanted < order);
      EXPECT_NE(axes, Axes(order));
      EXPECT_EQ(axes.from(place), Axes(std::vector(wanted.begin() + behind, wanted.end())));
      Axes first = axes, placed;
      first.cut_to(place);
      EXPECT_EQ(first, Axes(std::vector(wanted.begin(), wanted.begin() + behind)));
      for (size_t i = wanted.size(); i-- > 0;) placed.put(i, wanted[i]);
      EXPECT_EQ(placed, axes);
      Axes erased = axes;
      erased.erase(place);
      EXPECT_EQ(erased, Axes(order));
      erase_if(axes, [](int axis) { return axis == 9; });
      EXPECT_EQ(axes, Axes(order));
    }
  }
  EXPECT_TRUE(Axes().empty());
  EXPECT_EQ(Axes().size(), 0U);
}

TEST(MeshAxes, AreFifteenAtMost) {
  std::string text = "1";
  Axes all = {0};
  for (int axis = 1; axis < Axes::kMost; ++axis) {
    text += "x1";
    all.push_back(axis);
  }
  EXPECT_EQ(Mesh::parse(text).axis_count(), Axes::kMost);
  EXPECT_EQ(all.size(), static_cast<size_t>(Axes::kMost));
  EXPECT_EQ(all.list().back(), Axes::kMost - 1);
  EXPECT_THROW(all.push_back(0), Error);
  try {
    Mesh::parse(text + "x1");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "mesh: has 16 axes; at most 15 are supported");
  }
}

/// The name alone means all sub-axes, in order.
TEST(MeshText, ShardingsBySubAxes) {
  const Mesh mesh = Mesh::parse("data=2,model=4*2");
  EXPECT_EQ(to_string(parse_sharding("[model,-]", mesh), mesh), "[{model.0,model.1}, -]");
  EXPECT_EQ(to_string(parse_sharding("[data+model,-]", mesh), mesh), "[{data,model.0,model.1}, -]");
  EXPECT_EQ(to_string(parse_sharding("[model.1,model.0]", mesh), mesh), "[{model.1}, {model.0}]");
  EXPECT_EQ(to_string(parse_sharding("[-] partial(sum: model)", mesh), mesh),
            "[-] partial(sum: model.0,model.1)");
  EXPECT_THROW(parse_sharding("[model,model.0]", mesh), Error);
}

}  // namespace
}  // namespace shardrun
