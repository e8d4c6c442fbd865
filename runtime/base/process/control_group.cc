// /proc/self/cgroup says in which groups the process is, /proc/self/mountinfo where they are seen.
#include "base/process/control_group.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>
#include <vector>

#include "base/error.h"

namespace shardrun {
namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

bool contains(const std::vector<std::string>& parts, const std::string& part) {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

/// A hierarchy of groups, seen from `root` of it on below `mount`.
struct Hierarchy {
  bool v2 = false;
  std::string mount, root;
};

/// Those that may limit what `controller` is for.
std::vector<Hierarchy> hierarchies(const std::string& root, const std::string& controller) {
  std::vector<Hierarchy> out;
  std::ifstream in(root + "/proc/self/mountinfo");
  // "36 31 0:33 /docker/7f /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct"
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> words = split(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (dash - words.begin() < 5 || words.end() - dash < 4) continue;
    const bool v2 = dash[1] == "cgroup2";
    if (v2 || (dash[1] == "cgroup" && contains(split(dash[3], ','), controller)))
      out.push_back({v2, root + words[4], words[3] == "/" ? "" : words[3]});
  }
  return out;
}

/// Where the process is in the hierarchy of `controller`: "/docker/7f", "" for its root.
std::string own_group(const std::string& root, const std::string& controller, bool v2) {
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "4:cpu,cpuacct:/docker/7f", "0::/docker/7f"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (v2 ? !controllers.empty() : !contains(split(controllers, ','), controller)) continue;
    const std::string group = line.substr(second + 1);
    return group == "/" ? "" : group;
  }
  return "";
}

uint64_t identity(const std::string& folder) {
  char machine[256] = {};
  gethostname(machine, sizeof machine - 1);
  struct stat status {};
  stat(folder.c_str(), &status);
  return std::hash<std::string>{}(str(machine, ":", status.st_dev, ":", status.st_ino));
}

/// `amount_of`: what a group's folder sets, if anything.
using AmountOf = std::function<std::optional<double>(const std::string& folder, bool v2)>;

std::optional<GroupLimit> least(const std::string& root, const std::string& controller,
                                const AmountOf& amount_of) {
  std::optional<GroupLimit> out;
  for (const Hierarchy& hierarchy : hierarchies(root, controller)) {
    std::string group = own_group(root, controller, hierarchy.v2);
    // A container may see its own group as the root, under the name that it has outside or not.
    const size_t above = hierarchy.root.size();
    const bool below = group.compare(0, above, hierarchy.root) == 0 &&
                       (group.size() == above || group[above] == '/') &&
                       group.find("/..") == std::string::npos;
    group = below ? group.substr(above) : "";
    for (;; group.resize(group.rfind('/'))) {
      const std::string folder = hierarchy.mount + group;
      const std::optional<double> amount = amount_of(folder, hierarchy.v2);
      if (amount && (!out || *amount <= out->amount)) out = {*amount, identity(folder)};
      if (group.empty()) break;
    }
  }
  return out;
}

/// The file's first number; none where there is no file, or it says "max".
std::optional<double> number_in(const std::string& path) {
  std::ifstream in(path);
  double number = 0;
  return in >> number ? std::optional(number) : std::nullopt;
}

}  // namespace

std::optional<GroupLimit> processor_limit(const std::string& root) {
  return least(root, "cpu", [](const std::string& folder, bool v2) -> std::optional<double> {
    std::optional<double> quota, period;  // microseconds
    if (v2) {
      std::ifstream in(folder + "/cpu.max");  // "150000 100000", "max 100000"
      double first = 0, second = 0;
      if (in >> first >> second) quota = first, period = second;
    } else {
      quota = number_in(folder + "/cpu.cfs_quota_us");
      period = number_in(folder + "/cpu.cfs_period_us");
    }
    if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;  // -1: no limit
    return *quota / *period;
  });
}

std::optional<GroupLimit> memory_limit(const std::string& root) {
  return least(root, "memory", [](const std::string& folder, bool v2) {
    return number_in(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  });
}

}  // namespace shardrun
