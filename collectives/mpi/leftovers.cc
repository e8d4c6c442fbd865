// Names, owners, ages, and who maps what.
#include "collectives/mpi/leftovers.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

namespace shardrun::mpi {
namespace {

namespace fs = std::filesystem;
constexpr time_t kYoung = 2;  // seconds

/// Of this user, and not made or changed just now.
bool is_own_and_old(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && info.st_uid == geteuid() &&
         time(nullptr) - info.st_ctime >= kYoung;
}

std::vector<std::string> names_in(const std::string& folder, const std::string& prefix) {
  std::vector<std::string> out;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind(prefix, 0) == 0) out.push_back(name);
  }
  return out;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

/// Of `paths` those that a process maps which this one may look at: all of this user's.
std::set<std::string> mapped(const std::string& processes, const std::set<std::string>& paths) {
  std::set<std::string> out;
  for (const std::string& process : names_in(processes, "")) {
    if (!is_number(process)) continue;
    std::ifstream maps(processes + "/" + process + "/maps");
    for (std::string line; std::getline(maps, line);) {
      const size_t path = line.find('/');
      if (path == std::string::npos) continue;
      if (const auto found = paths.find(line.substr(path)); found != paths.end())
        out.insert(*found);
    }
  }
  return out;
}

}  // namespace

LeftoverPlaces leftover_places() {
  LeftoverPlaces out;
  if (const char* folder = std::getenv("TMPDIR"); folder != nullptr && *folder != '\0')
    out.temporary = folder;
  return out;
}

std::vector<std::string> sweep_leftovers(const LeftoverPlaces& places) {
  std::vector<std::string> out;
  const auto remove = [&](const std::string& path) {
    std::error_code error;
    if (fs::remove_all(path, error) > 0 && !error) out.push_back(path);
  };
  std::set<std::string> segments;  // listed before anybody's maps are read
  for (const std::string& name : names_in(places.shared, "vader_segment.")) {
    const std::string path = places.shared + "/" + name;
    if (is_own_and_old(path)) segments.insert(path);
  }
  if (!segments.empty()) {
    const std::set<std::string> used = mapped(places.processes, segments);
    for (const std::string& path : segments) {
      if (used.count(path) == 0) remove(path);
    }
  }
  const std::string user = "." + std::to_string(geteuid());
  for (const std::string& name : names_in(places.temporary, "ompi.")) {
    const std::string sessions = places.temporary + "/" + name;
    if (!name.ends_with(user)) continue;
    for (const std::string& session : names_in(sessions, "pid.")) {
      const std::string process = session.substr(4), path = sessions + "/" + session;
      std::error_code error;
      if (is_number(process) && is_own_and_old(path) &&
          !fs::exists(places.processes + "/" + process, error) && !error)
        remove(path);
    }
  }
  return out;
}

}  // namespace shardrun::mpi
