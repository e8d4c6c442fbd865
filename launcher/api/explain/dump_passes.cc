// The passes that make a rank's Program, a file each.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "explain/explain.h"

namespace shardrun {
namespace {

/// Lines of a Program in order, and each without the numbers of buffers, places and bytes in the
/// arena, which change with every step that goes, or with placing.
struct Lines {
  std::vector<std::string> whole, plain;
};

/// Drops "%12 ", "@4096", " workspace 64@0" and " keeps 64@0".
std::string without_numbers(std::string_view line) {
  const auto digits = [&](size_t at) {
    const size_t end = line.find_first_not_of("0123456789", at);
    return (end == std::string_view::npos ? line.size() : end) - at;
  };
  std::string out;
  for (size_t i = 0; i < line.size();) {
    size_t numbered = 0;  // what is dropped from here
    for (const std::string_view word : {"%", "@", " workspace ", " keeps "}) {
      if (line.compare(i, word.size(), word) != 0 || digits(i + word.size()) == 0) continue;
      numbered = word.size() + digits(i + word.size());
    }
    if (numbered > 0 && line[i] == '%' && i + numbered < line.size() && line[i + numbered] == ' ')
      ++numbered;
    if (numbered == 0) out += line[i];
    i += std::max<size_t>(numbered, 1);
  }
  return out;
}

Lines lines_of(const Program& program) {
  Lines lines;
  std::istringstream in(to_string(program));
  for (std::string line; std::getline(in, line);) {
    lines.plain.push_back(without_numbers(line));
    lines.whole.push_back(std::move(line));
  }
  return lines;
}

/// By line of `a` the same line of `b`, the first for the first of equal ones; none: -1.
std::vector<int64_t> matched(const Lines& a, const Lines& b) {
  std::map<std::string_view, std::deque<int64_t>> there;
  for (size_t i = 0; i < b.plain.size(); ++i) there[b.plain[i]].push_back(static_cast<int64_t>(i));
  std::vector<int64_t> out;
  for (const std::string& line : a.plain) {
    std::deque<int64_t>& at = there[line];
    out.push_back(at.empty() ? -1 : at.front());
    if (!at.empty()) at.pop_front();
  }
  return out;
}

/// Of numbers that differ, which to leave out (no fewer would do) for the others to ascend; -1 is
/// left out and not among them.
std::set<size_t> out_of_order(const std::vector<int64_t>& numbers) {
  std::vector<size_t> ends;  // by length, the end of an ascending row: the least there is
  std::vector<int64_t> before(numbers.size(), -1);
  std::set<size_t> out;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < 0) continue;
    out.insert(i);
    const auto at = std::lower_bound(ends.begin(), ends.end(), i,
                                     [&](size_t a, size_t b) { return numbers[a] < numbers[b]; });
    if (at != ends.begin()) before[i] = static_cast<int64_t>(*std::prev(at));
    if (at == ends.end()) {
      ends.push_back(i);
    } else {
      *at = i;
    }
  }
  for (int64_t i = ends.empty() ? -1 : static_cast<int64_t>(ends.back()); i >= 0;
       i = before[static_cast<size_t>(i)])
    out.erase(static_cast<size_t>(i));
  return out;
}

/// Lines that went, came, or stand elsewhere among those that stayed.
std::string changes(const Lines& before, const Lines& after) {
  std::ostringstream out;
  const std::vector<int64_t> kept = matched(before, after), from = matched(after, before);
  const std::set<size_t> moved = out_of_order(from);
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] < 0) out << "-" << before.whole[i] << "\n";
  }
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] < 0) out << "+" << after.whole[i] << "\n";
    if (moved.count(i) > 0) out << "~" << after.whole[i] << "\n";
  }
  return out.str().empty() ? "nothing\n" : out.str();
}

std::string number(size_t i) { return str(i < 10 ? "0" : "", i); }

class Folder {
 public:
  explicit Folder(const std::string& path) : path_(path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    SR_REQUIRE(!error, invalid_input, "--dump-passes ", path, ": ", error.message());
  }

  void write(const std::string& name, const std::string& text) const {
    const std::string file = path_ + "/" + name;
    std::ofstream out(file, std::ios::binary);
    out << text;
    out.close();
    SR_REQUIRE(out.good(), invalid_input, "--dump-passes: ", file, ": ", std::strerror(errno));
  }

 private:
  std::string path_;
};

}  // namespace

void write_passes(const Explained& of, int64_t rank, const BackendTraits& backend,
                  const std::string& folder, const std::string& stop_after) {
  SR_REQUIRE(rank >= 0 && rank < of.plan.mesh.size(), invalid_input, "rank ", rank,
             ": the plan has ", of.plan.mesh.size());
  const Folder to(folder);
  Lines before;
  size_t steps = 0, done = 0;
  CompileOptions options;
  options.stop_after = stop_after;
  options.after = [&](const PassReport& pass) {
    const Lines after = lines_of(pass.program);
    std::ostringstream out;
    char time[32];
    std::snprintf(time, sizeof(time), "%.3f", pass.milliseconds);
    out << pass.name << ": " << pass.does << "\nrank " << rank << ", " << time << " ms, " << steps
        << " steps before, " << pass.program.steps.size() << " after\n\nwhat changed:\n";
    out << changes(before, after) << "\nthe program:\n" << to_string(pass.program);
    to.write(str(number(++done), "-", pass.name, ".txt"), out.str());
    before = after;
    steps = pass.program.steps.size();
  };
  compile(of.graph, of.plan, of.cluster, rank, backend, options);
}

}  // namespace shardrun
