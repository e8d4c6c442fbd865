// Problems of `solve`.
#include "planner/contest/problem_file.h"
#include "tests/hostile/bad_file.h"

namespace shardrun::test {
namespace {

/// Two nodes of two strategies in our own form, with one text in it replaced.
std::string own(const std::string& text, const std::string& by) {
  std::string out =
      R"({"nodes": [{"name": "a", "cost": [1, 2], "claims": [{"bytes": [4, 8], "live": [[0, 3]]}]},
    {"name": "b", "cost": [3, 4]}], "edges": [{"from": 0, "to": 1, "cost": [0, 1, 1, 0]}],
    "memory_limit": 8})";
  const size_t at = out.find(text);
  if (at == std::string::npos) throw std::runtime_error("no " + text);
  return out.replace(at, text.size(), by);
}

}  // namespace

std::vector<BadFile> bad_problems() {
  BadFiles files("problem.json", [](const std::string& path) { read_problem(path); });
  files.add("as it should be", own("8}", "8}"), {});
  files.add("nothing", "", {"at byte 0", "got the end"});
  files.add("a list", "[1]", {"got '[', wanted '{'"});
  files.add("deep lists", "{\"nodes\": " + std::string(100'000, '['), {"nodes"});
  files.add("what is cut short", own("8}", "8").substr(0, 60),
            {"nodes[0].claims[0] at byte 60", "got the end"});
  files.add("a text for a cost", own("[1, 2]", "[\"one\", 2]"),
            {"nodes[0].cost[0]", "got '\"one\"'"});
  files.add("a cost that is not finite", own("[1, 2]", "[1e999, 2]"), {"nodes[0].cost[0]"});
  files.add("no strategies", own("[3, 4]", "[]"), {"'b' has no strategy"});
  files.add("too few costs", own("[0, 1, 1, 0]", "[0, 1]"), {"edge 0 has 2 costs, wanted 4"});
  files.add("a node that is not there", own("\"to\": 1", "\"to\": 7"), {"nodes 0 and 7 of 2"});
  files.add("node -1", own("\"to\": 1", "\"to\": -1"), {"edges[0].to", "node -1"});
  files.add("less than no bytes", own("[4, 8]", "[4, -8]"), {"'a' holds -8 bytes"});
  files.add("half a byte", own("[4, 8]", "[4, 8.5]"), {"nodes[0].claims[0].bytes[1]", "8.5"});
  files.add("claims of one strategy", own("[4, 8]", "[4]"), {"'a' has 2 strategies"});
  files.add("a limit below nothing", own("\"memory_limit\": 8", "\"memory_limit\": -8"),
            {"memory_limit", "-8"});
  files.add("a time beyond 32 bits", own("[[0, 3]]", "[[0, 99999999999]]"),
            {"nodes[0].claims[0].live[0]", "99999999999"});
  files.add("a time before all", own("[[0, 3]]", "[[-5, 3]]"), {"'a' lives from time -5"});
  files.add("a field twice", own("\"to\": 1", "\"to\": 1, \"to\": 0"), {"edges[0].to", "twice"});
  files.add("a field that is not known", own("\"memory_limit\"", "\"memory\""), {"'memory'"});
  files.add("more behind the end", own("8}", "8}") + "x", {"something follows"});
  files.add("what is no gzip", std::string("\x1f\x8b\x08\0\0\0\0\0\0\0garbage", 17),
            {"problem.json: the file is damaged"});
  return files.take();
}

}  // namespace shardrun::test
