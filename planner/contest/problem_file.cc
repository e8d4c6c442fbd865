// A scanner for Problems. The contest's files hold tens of millions of numbers, so they are read
// straight into the Problem: a general JSON tree would take several times the memory and seconds.
#include "planner/contest/problem_file.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <memory>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files/input_file.h"

namespace shardrun {
namespace {

constexpr double kForbiddenFrom = 1e18;       // the contest's: this much or more
constexpr double kExact = 1LL << 53;          // every whole number up to this is a double
constexpr size_t kArraysBetweenLooks = 1024;  // at the clock
constexpr size_t kDeepest = 64;               // levels of lists and objects
constexpr int kManyTimes =
    1 << 22;  // then only those times count at which something begins or ends

struct TooLate {};

class Scanner {
 public:
  Scanner(const std::string& text, const std::string& name, const std::function<bool()>& late)
      : name_(name), late_(late), begin_(text.data()), at_(begin_), end_(begin_ + text.size()) {}

  /// "problem.nodes.costs[3][1]".
  std::string place() const {
    std::string place;
    for (const Step& step : path_) {
      if (!step.key.empty()) {
        place += (place.empty() ? "" : ".") + step.key;
      } else {
        place += "[" + std::to_string(step.index) + "]";
      }
    }
    return place;
  }
  [[noreturn]] void fail(const std::string& what) const {
    const std::string here = place();
    throw Error(ErrorKind::invalid_input, name_ + ": " + here + (here.empty() ? "" : " ") +
                                              "at byte " + std::to_string(at_ - begin_) + ": " +
                                              what);
  }
  /// "got 'x1', wanted a number": what stands here, up to the next mark.
  [[noreturn]] void fail_here(const std::string& wanted) {
    peek();
    const char* p = at_;
    while (p < end_ && p - at_ < 20 &&
           (std::isalnum(static_cast<unsigned char>(*p)) != 0 || *p == '-' || *p == '+' ||
            *p == '.' || *p == '"'))
      ++p;
    if (p == at_ && p < end_) ++p;
    std::string found(at_, p);
    for (char& c : found) {
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
    }
    fail((found.empty() ? "got the end" : "got '" + found + "'") + ", wanted " + wanted);
  }
  char peek() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
    return at_ < end_ ? *at_ : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail_here(std::string("'") + c + "'");
  }
  bool at_end() { return peek() == '\0' && at_ >= end_; }

  std::string string() {
    expect('"');
    std::string result;
    while (at_ < end_ && *at_ != '"') {
      if (*at_ != '\\') {
        result.push_back(*at_++);
        continue;
      }
      if (++at_ >= end_) break;
      switch (*at_) {
        case 'n': result.push_back('\n'); break;
        case 't': result.push_back('\t'); break;
        case 'u':
          result += "\\u";  // names only: kept as written
          break;
        default: result.push_back(*at_);
      }
      ++at_;
    }
    if (at_ >= end_) fail("a string does not end");
    ++at_;
    return result;
  }

  double number() {
    peek();
    if (end_ - at_ >= 4 && std::string_view(at_, 4) == "null") {
      at_ += 4;
      return kInfeasible;
    }
    // Short integers, nearly all there is, by hand.
    const char* p = at_;
    int64_t digits = 0;
    while (p < end_ && *p >= '0' && *p <= '9' && p - at_ < 16) digits = digits * 10 + (*p++ - '0');
    if (p > at_ && (p == end_ || *p == ',' || *p == ']' || *p == '}' || *p == ' ' || *p == '\n')) {
      at_ = p;
      return static_cast<double>(digits);
    }
    double value = 0;
    const auto [rest, error] = std::from_chars(at_, end_, value);
    if (error == std::errc::result_out_of_range)
      fail_here("a number that fits into 64-bit floating point");
    if (error != std::errc() || !std::isfinite(value)) fail_here("a number, or null for forbidden");
    at_ = rest;
    return value;
  }
  /// A cost of `forbidden` or more is infinite. The first that a double rounds is remembered.
  double cost(double forbidden) {
    peek();
    const char* begin = at_;
    const double value = number();
    if (value >= forbidden) return kInfeasible;
    if (std::abs(value) < kExact || !rounded_.empty()) return value;
    int64_t whole = 0;
    const auto [rest, error] = std::from_chars(begin, at_, whole);
    const bool held = error == std::errc() && std::abs(value) < 0x1p63;
    if (rest == at_ && (!held || static_cast<int64_t>(value) != whole)) {
      char text[320];  // the longest has 310
      char* end = std::to_chars(text, std::end(text), value, std::chars_format::fixed, 0).ptr;
      rounded_ =
          place() + " is " + std::string(begin, at_) + " and is taken as " + std::string(text, end);
    }
    return value;
  }
  const std::string& rounded() const { return rounded_; }
  int64_t integer() {
    peek();
    int64_t value = 0;
    const auto [rest, error] = std::from_chars(at_, end_, value);
    if (error == std::errc::result_out_of_range && *at_ != '-') {
      // More than 64 bits hold is more than any limit.
      at_ = rest;
      return std::numeric_limits<int64_t>::max();
    }
    if (error != std::errc() || (rest < end_ && (*rest == '.' || *rest == 'e' || *rest == 'E')))
      fail_here("an integer");
    at_ = rest;
    return value;
  }

  template <typename Visit>
  void array(Visit&& visit) {
    expect('[');
    if (take(']')) return;
    enter({});
    if (++arrays_ % kArraysBetweenLooks == 0 && late_ && late_()) throw TooLate{};
    do {
      visit();
      ++path_.back().index;
    } while (take(','));
    path_.pop_back();
    expect(']');
  }
  template <typename Visit>
  void object(Visit&& visit) {
    expect('{');
    if (take('}')) return;
    do {
      const std::string key = string();
      expect(':');
      enter({key, 0});
      visit(key);
      path_.pop_back();
    } while (take(','));
    expect('}');
  }
  /// A list whose key must not come twice: `list` is filled only once.
  template <typename List, typename Visit>
  void list_once(const List& list, Visit&& visit) {
    if (!list.empty()) fail("the field is there twice");
    array(visit);
  }
  /// For a key of our own form, whose misspelling must not pass for its absence.
  [[noreturn]] void fail_key(const char* wanted) {
    fail(std::string("there is no such field, wanted ") + wanted);
  }
  void skip() {
    switch (peek()) {
      case '{': return object([&](const std::string&) { skip(); });
      case '[': return array([&] { skip(); });
      case '"': string(); return;
      case 't':
      case 'n': at_ += std::min<std::ptrdiff_t>(4, end_ - at_); return;
      case 'f': at_ += std::min<std::ptrdiff_t>(5, end_ - at_); return;
      default: number();
    }
  }
  std::vector<double> costs(double forbidden = kInfeasible) {
    std::vector<double> result;
    array([&] { result.push_back(cost(forbidden)); });
    result.shrink_to_fit();
    return result;
  }
  std::vector<int64_t> integers() {
    std::vector<int64_t> result;
    array([&] { result.push_back(integer()); });
    result.shrink_to_fit();
    return result;
  }
  std::pair<int, int> pair() {
    const std::vector<int64_t> two = integers();
    if (two.size() != 2) fail("got " + std::to_string(two.size()) + " numbers, wanted a pair");
    for (int64_t x : two) {
      if (x < std::numeric_limits<int>::min() / 2 || x > std::numeric_limits<int>::max() / 2)
        fail("got " + std::to_string(x) + ", wanted an index or a time below 2^30");
    }
    return {static_cast<int>(two[0]), static_cast<int>(two[1])};
  }

 private:
  /// A field, or a place in a list.
  struct Step {
    std::string key;
    size_t index = 0;
  };
  void enter(Step step) {
    if (path_.size() >= kDeepest) fail("more than " + std::to_string(kDeepest) + " levels deep");
    path_.push_back(std::move(step));
  }

  const std::string& name_;
  const std::function<bool()>& late_;
  size_t arrays_ = 0;
  std::string rounded_;
  std::vector<Step> path_;
  const char* begin_;
  const char* at_;
  const char* end_;
};

int64_t read_limit(Scanner& scan) {
  const int64_t limit = scan.integer();
  if (limit < 0) scan.fail("got " + std::to_string(limit) + ", wanted a limit of 0 or more");
  return limit;
}

void read_contest(Scanner& scan, Problem& problem) {
  bool has_nodes = false, has_edges = false;
  std::vector<std::pair<int, int>> intervals;
  std::vector<std::vector<int64_t>> usages;
  scan.object([&](const std::string& key) {
    if (key == "nodes") {
      has_nodes = true;
      scan.object([&](const std::string& part) {
        if (part == "intervals") {
          scan.list_once(intervals, [&] { intervals.push_back(scan.pair()); });
        } else if (part == "costs") {
          scan.list_once(problem.nodes, [&] {
            problem.nodes.push_back({"", scan.costs(kForbiddenFrom), {}});
          });
        } else if (part == "usages") {
          scan.list_once(usages, [&] { usages.push_back(scan.integers()); });
        } else {
          scan.skip();
        }
      });
    } else if (key == "edges") {
      if (has_edges) scan.fail("the field is there twice");
      has_edges = true;
      std::vector<std::pair<int, int>> ends;
      std::vector<std::vector<double>> costs;
      scan.object([&](const std::string& part) {
        if (part == "nodes") {
          scan.list_once(ends, [&] { ends.push_back(scan.pair()); });
        } else if (part == "costs") {
          scan.list_once(costs, [&] { costs.push_back(scan.costs(kForbiddenFrom)); });
        } else {
          scan.skip();
        }
      });
      if (ends.size() != costs.size()) {
        scan.fail("edges have " + std::to_string(ends.size()) + " pairs of nodes and " +
                  std::to_string(costs.size()) + " costs");
      }
      for (size_t e = 0; e < ends.size(); ++e)
        problem.edges.push_back({ends[e].first, ends[e].second, std::move(costs[e])});
    } else if (key == "usage_limit" && scan.peek() != 'n') {
      problem.memory_limit = read_limit(scan);
    } else {
      scan.skip();
    }
  });
  if (!has_nodes || !has_edges)
    scan.fail(std::string("the problem has no field '") + (has_nodes ? "edges" : "nodes") + "'");
  if (intervals.size() != problem.nodes.size() || usages.size() != problem.nodes.size()) {
    scan.fail("nodes have " + std::to_string(intervals.size()) + " intervals, " +
              std::to_string(problem.nodes.size()) + " costs and " + std::to_string(usages.size()) +
              " usages");
  }
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    problem.nodes[i].name = std::to_string(i);
    if (intervals[i].first < intervals[i].second) {
      problem.nodes[i].claims.push_back(
          {std::move(usages[i]), {{intervals[i].first, intervals[i].second - 1}}});
    }
  }
}

void read_own_node(Scanner& scan, Problem::Node& node) {
  scan.object([&](const std::string& key) {
    if (key == "name") {
      node.name = scan.string();
    } else if (key == "cost") {
      node.cost = scan.costs();
    } else if (key == "claims") {
      scan.array([&] {
        Problem::Claim& claim = node.claims.emplace_back();
        scan.object([&](const std::string& part) {
          if (part == "bytes") {
            claim.bytes = scan.integers();
          } else if (part == "live") {
            scan.array([&] {
              const auto [first, last] = scan.pair();
              claim.live.push_back({first, last});
            });
          } else {
            scan.fail_key("'bytes' or 'live'");
          }
        });
      });
    } else {
      scan.fail_key("'name', 'cost' or 'claims'");
    }
  });
}

void read_own_edge(Scanner& scan, Problem::Edge& edge) {
  bool has_from = false, has_to = false, has_cost = false;
  scan.object([&](const std::string& key) {
    const auto once = [&](bool& has) {
      if (has) scan.fail("the field is there twice");
      has = true;
    };
    if (key == "from" || key == "to") {
      once(key == "from" ? has_from : has_to);
      const int64_t node = scan.integer();
      if (node < 0 || node > std::numeric_limits<int>::max())
        scan.fail("node " + std::to_string(node) + " is out of range");
      (key == "from" ? edge.from : edge.to) = static_cast<int>(node);
    } else if (key == "cost") {
      once(has_cost);
      edge.cost = scan.costs();
    } else {
      scan.fail_key("'from', 'to' or 'cost'");
    }
  });
  const char* missing = !has_from ? "from" : !has_to ? "to" : !has_cost ? "cost" : nullptr;
  if (missing != nullptr) scan.fail(std::string("the edge has no field '") + missing + "'");
}

/// Edges from a node to itself are node costs; a strategy too large by itself is forbidden.
void settle(Problem& problem, const std::string& name) {
  std::erase_if(problem.edges, [&](const Problem::Edge& edge) {
    if (edge.from != edge.to || edge.from < 0 ||
        static_cast<size_t>(edge.from) >= problem.nodes.size())
      return false;
    std::vector<double>& cost = problem.nodes[static_cast<size_t>(edge.from)].cost;
    if (edge.cost.size() != cost.size() * cost.size()) return false;
    for (size_t a = 0; a < cost.size(); ++a) cost[a] += edge.cost[a * cost.size() + a];
    return true;
  });
  try {
    SR_REQUIRE(!problem.nodes.empty(), invalid_input, "the problem has no nodes");
    for (const Problem::Node& node : problem.nodes) {
      SR_REQUIRE(!node.cost.empty(), invalid_input, "node '", node.name,
                 "' has no strategy: its costs are empty or missing");
    }
    check_problem(problem);
  } catch (const Error& error) {
    throw Error(ErrorKind::invalid_input, name + ": " + error.what());
  }
  if (!problem.limited()) return;
  long double most = 0;
  for (Problem::Node& node : problem.nodes) {
    for (Problem::Claim& claim : node.claims) {
      int64_t largest = 0;
      const bool lives = std::any_of(claim.live.begin(), claim.live.end(),
                                     [](const auto& live) { return live.first <= live.last; });
      for (size_t a = 0; a < claim.bytes.size(); ++a) {
        if (claim.bytes[a] > problem.memory_limit) {
          if (lives) node.cost[a] = kInfeasible;
          claim.bytes[a] = problem.memory_limit;
        }
        largest = std::max(largest, claim.bytes[a]);
      }
      most += static_cast<long double>(largest) * static_cast<long double>(claim.live.size());
    }
  }
  if (most > 9e18L) {
    throw Error(ErrorKind::unsupported,
                name +
                    ": the usages of all nodes may add up to more than 64 bits hold; divide "
                    "usages and limit by a common factor");
  }
}

/// Of very many times only those are kept at which something begins or ends, in their order.
void compress_times(Problem& problem) {
  std::vector<int> marks;
  const auto each = [&](auto&& visit) {
    for (Problem::Node& node : problem.nodes) {
      for (Problem::Claim& claim : node.claims) {
        for (Problem::Interval& live : claim.live) {
          if (live.first <= live.last) visit(live);
        }
      }
    }
  };
  each([&](const Problem::Interval& live) { marks.insert(marks.end(), {live.first, live.last}); });
  if (marks.empty() || *std::max_element(marks.begin(), marks.end()) < kManyTimes) return;
  std::sort(marks.begin(), marks.end());
  marks.erase(std::unique(marks.begin(), marks.end()), marks.end());
  const auto rank = [&](int time) {
    return static_cast<int>(std::lower_bound(marks.begin(), marks.end(), time) - marks.begin());
  };
  each([&](Problem::Interval& live) { live = {rank(live.first), rank(live.last)}; });
}

Problem parse(const std::string& text, const std::string& name, const std::function<bool()>& late,
              std::string* rounded) {
  Scanner scan(text, name, late);
  Problem problem;
  bool contest = false, has_nodes = false, has_edges = false;
  std::string unknown;  // the contest's files may say more than we read
  scan.object([&](const std::string& key) {
    if (key == "problem") {
      if (contest || has_nodes || has_edges) scan.fail("a problem is there twice");
      contest = true;
      read_contest(scan, problem);
    } else if (!contest && key == "nodes") {
      has_nodes = true;
      scan.list_once(problem.nodes, [&] { read_own_node(scan, problem.nodes.emplace_back()); });
    } else if (!contest && key == "edges") {
      has_edges = true;
      scan.list_once(problem.edges, [&] { read_own_edge(scan, problem.edges.emplace_back()); });
    } else if (!contest && key == "memory_limit" && scan.peek() != 'n') {
      problem.memory_limit = read_limit(scan);
    } else {
      if (key != "memory_limit" && unknown.empty()) unknown = key;
      scan.skip();
    }
  });
  if (!scan.at_end()) scan.fail("something follows the problem");
  if (!contest && (!has_nodes || !has_edges)) {
    scan.fail(std::string("there is no field '") +
              (has_nodes ? "edges'" : "problem' (the contest's form) or 'nodes' (our own)"));
  }
  if (!contest && !unknown.empty())
    scan.fail("there is no field '" + unknown + "', wanted 'nodes', 'edges' or 'memory_limit'");
  if (rounded != nullptr) *rounded = scan.rounded();
  settle(problem, name);
  compress_times(problem);
  return problem;
}

}  // namespace

Problem parse_problem(const std::string& text, const std::string& name) {
  return parse(text, name, nullptr, nullptr);
}

std::optional<Problem> read_problem(const std::string& path, const std::function<bool()>& late,
                                    std::string* rounded) {
  constexpr size_t kMostBytes = size_t{4} << 30;  // the contest's largest has 1 % of it
  const InputFile given(path, "a problem");
  const InputFile::Use use(given);
  // zlib reads a file that is not gzipped as it is.
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzdopen(::dup(use.descriptor()), "rb"),
                                                        gzclose);
  SR_REQUIRE(file, invalid_input, path, ": cannot open the file");
  gzbuffer(file.get(), 1 << 20);
  std::string text;
  size_t filled = 0;
  for (;;) {
    if (filled == text.size()) text.resize(std::max<size_t>(text.size() * 2, 1 << 22));
    const int got = gzread(file.get(), text.data() + filled,
                           static_cast<unsigned>(std::min<size_t>(text.size() - filled, 1 << 30)));
    SR_REQUIRE(got >= 0, invalid_input, path, ": the file is damaged or cannot be read");
    if (got == 0) break;
    if (late && late()) return std::nullopt;
    filled += static_cast<size_t>(got);
    SR_REQUIRE(filled <= kMostBytes, invalid_input, path, ": has more than ", kMostBytes,
               " bytes once it is inflated");
  }
  text.resize(filled);
  try {
    return parse(text, path, late, rounded);
  } catch (const TooLate&) {
    return std::nullopt;
  }
}

}  // namespace shardrun
