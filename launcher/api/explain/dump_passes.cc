// The passes that make a rank's Program, a file each.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "explain/explain.h"

namespace shardrun {
namespace {

/// Lines of a Program in order, and each without the numbers of buffers and places, which change
/// with every step that goes.
struct Lines {
  std::vector<std::string> whole, plain;
};

/// Drops "%12 " and "@4096".
std::string without_numbers(const std::string& line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool number = i + 1 < line.size() && (line[i] == '@' || line[i] == '%') &&
                        std::isdigit(static_cast<unsigned char>(line[i + 1])) != 0;
    if (!number) {
      out += line[i];
      continue;
    }
    const bool buffer = line[i] == '%';
    while (i + 1 < line.size() && std::isdigit(static_cast<unsigned char>(line[i + 1]))) ++i;
    if (buffer && i + 1 < line.size() && line[i + 1] == ' ') ++i;
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

/// Those of `a` that `b` has not, each as often as it has it less often.
void print_missing(std::ostream& out, char mark, const Lines& a, const Lines& b) {
  std::map<std::string_view, int64_t> times;
  for (const std::string& line : b.plain) ++times[line];
  for (size_t i = 0; i < a.plain.size(); ++i) {
    if (--times[a.plain[i]] < 0) out << mark << a.whole[i] << "\n";
  }
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
    print_missing(out, '-', before, after);
    print_missing(out, '+', after, before);
    out << "\nthe program:\n" << to_string(pass.program);
    to.write(str(number(++done), "-", pass.name, ".txt"), out.str());
    before = after;
    steps = pass.program.steps.size();
  };
  compile(of.graph, of.plan, of.cluster, rank, backend, options);
}

}  // namespace shardrun
