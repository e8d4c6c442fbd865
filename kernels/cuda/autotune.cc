// The file: a line that says whose it is, then one for each call: its text, a tab, the algorithm, a
// tab and a sum of both, which tells a whole line from a damaged one.
#include "kernels/cuda/autotune.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/files/cache_folder.h"
#include "base/philox.h"

namespace shardrun::cuda {
namespace {

std::string sum_of(const std::string& line) {
  return str(std::hex, hash_name(line.data(), line.size()));
}

std::string file_name(const std::string& of) {
  std::string name = "autotune-";
  for (char c : of) name += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' ? c : '-';
  return name + ".txt";
}

/// Others wait in its constructor until it is gone. Where there is no place for a lock file:
/// nobody.
class FileLock {
 public:
  explicit FileLock(const std::string& path) {
    if (path.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    file_ = open((path + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (file_ >= 0) flock(file_, LOCK_EX);
  }
  ~FileLock() {
    if (file_ >= 0) close(file_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace

Autotune::Autotune(const std::string& folder, const std::string& of)
    : of_("shardrun autotune 1: " + of), path_(folder.empty() ? "" : folder + "/" + file_name(of)) {
  read();
}

/// What the file has goes before what this process thought.
void Autotune::read() {
  if (path_.empty()) return;
  std::istringstream lines(read_cached(path_));
  std::string line;
  if (!std::getline(lines, line) || line != of_) return;
  while (std::getline(lines, line)) {
    const size_t tab = line.find('\t'), end = line.rfind('\t');
    if (tab == std::string::npos || tab == end ||
        line.substr(end + 1) != sum_of(line.substr(0, end)))
      continue;
    known_[line.substr(0, tab)] = line.substr(tab + 1, end - tab - 1);
  }
}

std::optional<std::string> Autotune::find(const std::string& call) {
  const std::lock_guard lock(mutex_);
  const auto it = known_.find(call);
  if (it == known_.end()) return std::nullopt;
  return it->second;
}

std::string Autotune::keep(const std::string& call, const std::string& algorithm) {
  const std::lock_guard lock(mutex_);
  const FileLock alone(path_);
  read();
  const auto [it, first] = known_.emplace(call, algorithm);
  if (first) write();
  return it->second;
}

void Autotune::write() const {
  if (path_.empty()) return;
  std::string text = of_ + "\n";
  for (const auto& [key, value] : known_) {
    const std::string line = key + "\t" + value;
    text += line + "\t" + sum_of(line) + "\n";
  }
  write_cached(path_, text);
}

std::string Autotune::tell() {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [call, algorithm] : known_) text += of_ + "\t" + call + "\t" + algorithm + "\n";
  return text;
}

void Autotune::take(std::span<const std::string> of_ranks) {
  const std::string ours = of_ + "\t";
  std::map<std::string, std::string> agreed;
  for (const std::string& text : of_ranks) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with(ours)) continue;
      const size_t call = ours.size(), tab = line.find('\t', call);
      agreed.emplace(line.substr(call, tab - call), line.substr(tab + 1));
    }
  }
  const std::lock_guard lock(mutex_);
  const FileLock alone(path_);
  read();
  for (const auto& [call, algorithm] : agreed) known_[call] = algorithm;
  write();
}

std::optional<size_t> fastest(Autotune& tuned, const std::string& call,
                              const std::vector<std::string>& ways, bool may_measure,
                              const std::function<float(size_t)>& time) {
  const auto place = [&](const std::string& way) -> std::optional<size_t> {
    const auto found = std::find(ways.begin(), ways.end(), way);
    if (found == ways.end()) return std::nullopt;
    return static_cast<size_t>(found - ways.begin());
  };
  if (const auto kept = tuned.find(call)) {
    if (const auto at = place(*kept)) return at;
  }
  if (!may_measure) return std::nullopt;
  std::optional<size_t> best;
  float least = 0;
  for (size_t i = 0; i < ways.size(); ++i) {
    const float took = time(i);
    if (took >= 0 && (!best || took < least)) least = took, best = i;
  }
  if (!best) return best;
  const auto kept = place(tuned.keep(call, ways[*best]));
  return kept ? kept : best;
}

float time_if_it_runs(const std::function<float()>& time, const std::function<void()>& settle) {
  float took = -1;
  try {
    took = time();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::device && e.kind() != ErrorKind::out_of_memory) throw;
  }
  if (took < 0) settle();
  return took;
}

}  // namespace shardrun::cuda
