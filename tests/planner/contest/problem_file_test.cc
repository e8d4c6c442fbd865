// Problems as files: both forms, and what is said of files that hold no problem.
#include "planner/contest/problem_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "base/error.h"
#include "tests/support/problem_json.h"

namespace shardrun {
namespace {

constexpr char kContest[] = R"({"problem": {"name": "tiny", "nodes": {
  "intervals": [[0, 2], [1, 3], [0, 0]], "costs": [[1, 5], [2, 3], [0, 1000000000000000000]],
  "usages": [[10, 4], [10, 7], [99, 1]]},
  "edges": {"nodes": [[0, 1], [1, 2], [0, 1]], "costs": [[0, 1, 2, 3], [0, 0, 0, 0], [1, 1, 1, 1]]},
  "usage_limit": 15}})";

std::string replaced(const std::string& what, const std::string& by) {
  std::string text = kContest;
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

std::string message(const std::string& text) {
  try {
    parse_problem(text, "p.json");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_input);
    return error.what();
  }
}

void expect_said(const std::string& text, const std::string& wanted) {
  const std::string said = message(text);
  EXPECT_NE(said.find("p.json: "), std::string::npos) << said;
  EXPECT_NE(said.find(wanted), std::string::npos) << "said: " << said << "\nwanted: " << wanted;
}

TEST(ProblemFile, ReadsTheContestsForm) {
  const Problem problem = parse_problem(kContest);
  ASSERT_EQ(problem.nodes.size(), 3u);
  ASSERT_EQ(problem.edges.size(), 3u);
  EXPECT_EQ(problem.memory_limit, 15);
  EXPECT_EQ(problem.nodes[0].claims[0].live[0], (Problem::Interval{0, 1}));
  EXPECT_TRUE(problem.nodes[2].claims.empty());  // [0, 0] holds nothing
  EXPECT_EQ(problem.nodes[2].cost[1], kInfeasible);
  // At time 1 both live: 10 + 10 is too much. [1, 0]: 5 + 2 + 2 + 1 = 10.
  EXPECT_EQ(evaluate(problem, {0, 0, 0}).cost, kInfeasible);
  EXPECT_EQ(evaluate(problem, {1, 0, 0}).cost, 10);
}

TEST(ProblemFile, OwnFormComesBackEqual) {
  const std::string text = R"({"nodes": [
    {"name": "a", "cost": [1.5, null], "claims": [{"bytes": [4, 8], "live": [[0, 3], [5, 5]]}]},
    {"name": "b", "cost": [-2, 1e-3, 7]}],
    "edges": [{"from": 1, "to": 0, "cost": [0, 1, 2, 3, null, 5]}], "memory_limit": 8})";
  const Problem problem = parse_problem(text);
  EXPECT_EQ(problem.nodes[0].cost[1], kInfeasible);
  EXPECT_EQ(problem.edges[0].cost[4], kInfeasible);
  EXPECT_EQ(problem.nodes[0].claims[0].live[1], (Problem::Interval{5, 5}));
  const std::string printed = test::problem_json(problem);
  EXPECT_EQ(test::problem_json(parse_problem(printed)), printed);
}

/// An edge that says no node is no edge of node 0, a limit that is misspelt no absence of one.
TEST(ProblemFile, OwnFormHasNoOtherFieldsAndWholeEdges) {
  const auto own = [](const std::string& node, const std::string& edge, const std::string& rest) {
    return R"({"nodes": [{"name": "a", "cost": [1, 2]}, {"cost": [3, 4])" + node +
           R"(}], "edges": [{"from": 0, "to": 1, "cost": [0, 1, 2, 3]}, {)" + edge + "}]" + rest +
           "}";
  };
  const std::string edge = R"("from": 1, "to": 0, "cost": [0, 0, 0, 0])";
  EXPECT_EQ(message(own("", edge, "")), "");
  EXPECT_EQ(message(own("", edge, R"(, "memory_limit": null)")), "");
  expect_said(own("", R"("from": 1, "cost": [0, 0, 0, 0])", ""), "edges[1] ");
  expect_said(own("", R"("from": 1, "cost": [0, 0, 0, 0])", ""), "the edge has no field 'to'");
  expect_said(own("", R"("to": 1, "cost": [0, 0, 0, 0])", ""), "the edge has no field 'from'");
  expect_said(own("", R"("from": 1, "to": 0)", ""), "the edge has no field 'cost'");
  expect_said(own("", edge + R"(, "from": 0)", ""), "edges[1].from at byte");
  expect_said(own("", edge + R"(, "form": 0)", ""), "edges[1].form at byte");
  expect_said(own(R"(, "claim": [])", edge, ""), "nodes[1].claim at byte");
  expect_said(own(R"(, "claims": [{"byte": [1, 2]}])", edge, ""), "nodes[1].claims[0].byte");
  expect_said(own("", edge, R"(, "memory_limitt": 8)"), "no field 'memory_limitt', wanted 'nodes'");
  EXPECT_EQ(message(replaced("\"usage_limit\"", "\"source\": {\"by\": [1]}, \"usage_limit\"")), "");
}

/// 2^53 + 1 lies between two doubles. Above 2^53 those that are doubles are exact as well.
TEST(ProblemFile, SaysWhichCostIsRounded) {
  const std::string path = testing::TempDir() + "rounded_" + std::to_string(::getpid()) + ".json";
  const auto rounded = [&](const std::string& text) {
    std::ofstream(path) << text;
    std::string said = "?";
    EXPECT_TRUE(read_problem(path, nullptr, &said));
    std::remove(path.c_str());
    return said;
  };
  EXPECT_EQ(rounded(kContest), "");
  EXPECT_EQ(rounded(replaced("[1, 5]", "[1, 9007199254740992]")), "");
  EXPECT_EQ(rounded(replaced("[1, 5]", "[1, 9007199254740994]")), "");
  EXPECT_EQ(rounded(replaced("[1, 5]", "[1, 1152921504606846977]")), "");  // forbidden
  EXPECT_EQ(rounded(replaced("[1, 5]", "[1, 9007199254740993]")),
            "problem.nodes.costs[0][1] is 9007199254740993 and is taken as 9007199254740992");
  EXPECT_EQ(rounded(replaced("[0, 1, 2, 3]", "[0, 1, 2, -100000000000000001]")),
            "problem.edges.costs[0][3] is -100000000000000001 and is taken as -100000000000000000");
  EXPECT_EQ(rounded(R"({"nodes": [{"cost": [123456789012345678901234567890]}], "edges": []})"),
            "nodes[0].cost[0] is 123456789012345678901234567890 and is taken as "
            "123456789012345677877719597056");
  EXPECT_EQ(rounded(R"({"nodes": [{"cost": [1)" + std::string(50, '0') + R"(]}], "edges": []})"),
            "nodes[0].cost[0] is 1" + std::string(50, '0') +
                " and is taken as 100000000000000007629769841091887003294964970946560");
}

TEST(ProblemFile, NamesFieldAndValueOfWhatIsWrong) {
  expect_said("", "at byte 0: got the end, wanted '{'");
  expect_said("  \n", "got the end, wanted '{'");
  expect_said("[1, 2]", "got '[', wanted '{'");
  expect_said("{}", "there is no field 'problem'");
  expect_said(std::string(kContest).substr(0, 90), "problem.nodes.costs at byte 90: got the end");
  expect_said(std::string(kContest) + "x", "something follows the problem");
  expect_said(replaced("[1, 5]", "[1, x]"), "problem.nodes.costs[0][1]");
  expect_said(replaced("[1, 5]", "[1, x]"), "got 'x', wanted a number");
  expect_said(replaced("[1, 5]", "[1, NaN]"), "got 'NaN', wanted a number");
  expect_said(replaced("[1, 5]", "[1, -Infinity]"), "got '-Infinity', wanted a number");
  expect_said(replaced("[1, 5]", "[1e999, 5]"), "problem.nodes.costs[0][0]");
  expect_said(replaced("[1, 5]", "{\"a\": 1}"), "problem.nodes.costs[0] at byte");
  expect_said(replaced("[10, 7]", "[10, 7.5]"), "problem.nodes.usages[1][1]");
  expect_said(replaced("[10, 7]", "[10, 7.5]"), "got '7.5', wanted an integer");
  expect_said(replaced("[10, 7]", "[10, \"7\"]"), "got '\"7\"', wanted an integer");
  expect_said(replaced("[10, 7]", "[10, null]"), "got 'null', wanted an integer");
  expect_said(replaced("[10, 7]", "[10, -7]"), "node '1' holds -7 bytes");
  expect_said(replaced("[10, 7]", "[10]"), "node '1' has 2 strategies, a claim on memory has 1");
  expect_said(replaced("[[10, 4],", "["), "3 intervals, 3 costs and 2 usages");
  expect_said(replaced("[0, 1000000000000000000]", "[]"), "node '2' has no strategy");
  expect_said(replaced("[0, 2]", "[-1, 2]"), "node '0' lives from time -1");
  expect_said(replaced("[0, 2]", "[0, 99999999999]"), "problem.nodes.intervals[0]");
  expect_said(replaced("[1, 2], [0, 1]]", "[1, 9], [0, 1]]"), "edge 1 joins nodes 1 and 9 of 3");
  expect_said(replaced("[1, 2], [0, 1]]", "[1, -2], [0, 1]]"), "edge 1 joins nodes 1 and -2 of 3");
  expect_said(replaced("[1, 2], [0, 1]]", "[1, 2, 0], [0, 1]]"), "problem.edges.nodes[1]");
  expect_said(replaced("[0, 1, 2, 3]", "[0, 1, 2]"), "edge 0 has 3 costs, wanted 4");
  expect_said(replaced("15", "-15"), "problem.usage_limit at byte");
  expect_said(replaced("15", "\"15\""), "problem.usage_limit at byte");
  expect_said(replaced("\"edges\"", "\"edge\""), "the problem has no field 'edges'");
  expect_said(replaced("\"usages\"", "\"costs\""), "problem.nodes.costs at byte");
  expect_said(R"({"nodes": [{"costs": [1]}], "edges": []})", "nodes[0].costs at byte");
  expect_said(R"({"nodes": [{"name": "a"}], "edges": []})", "has no strategy");
  expect_said(R"({"nodes": [{"cost": [1]}], "edges": [{"from": 0, "to": 4, "cost": [1]}]})",
              "joins nodes 0 and 4 of 1");
  expect_said("{\"a\": " + std::string(1000000, '['), "levels deep");
  std::string binary;
  for (int c = 0; c < 256; ++c) binary.push_back(static_cast<char>(c));
  expect_said(binary, "at byte 0");
}

TEST(ProblemFile, FarTimesCostNothing) {
  // [0, 10^9) and [5, 10^9 - 1): both live at time 5 and nowhere is more needed.
  const Problem problem = parse_problem(
      replaced("[[0, 2], [1, 3], [0, 0]]", "[[0, 1000000000], [5, 999999999], [0, 0]]"));
  EXPECT_EQ(evaluate(problem, {0, 0, 0}).peak_bytes, 20);
  EXPECT_EQ(evaluate(problem, {1, 0, 0}).peak_bytes, 14);
  EXPECT_LT(problem.nodes[0].claims[0].live[0].last, 10);
}

TEST(ProblemFile, AMissingFileIsNamed) { EXPECT_THROW(read_problem("/nowhere/p.json"), Error); }

}  // namespace
}  // namespace shardrun
