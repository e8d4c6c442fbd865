// Looking through /proc, and signals by descriptors: a number of a process may be another's by
// then.
#include "process/orphans.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace shardrun::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{10};  // a process may be in a call to a disk

/// Those below this one, its grandchildren too.
std::vector<pid_t> descendants() {
  std::map<pid_t, std::vector<pid_t>> children;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(it->path() / "stat");  // "4711 (a name) S 4700 …"
    std::string line;
    std::getline(file, line);
    const size_t behind = line.rfind(')');
    if (behind == std::string::npos || behind + 4 >= line.size()) continue;
    children[std::atoi(line.c_str() + behind + 4)].push_back(std::atoi(name.c_str()));
  }
  std::vector<pid_t> out = children[getpid()];
  for (size_t i = 0; i < out.size(); ++i) {
    const std::vector<pid_t> below = children[out[i]];
    out.insert(out.end(), below.begin(), below.end());
  }
  return out;
}

/// One that has ended and is not reaped yet runs nothing.
bool runs_this_program(pid_t process) {
  struct stat own {
  }, other{};
  return ::stat("/proc/self/exe", &own) == 0 &&
         ::stat(("/proc/" + std::to_string(process) + "/exe").c_str(), &other) == 0 &&
         own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

void wait_for_end(int process, Clock::time_point until) {
  pollfd ends{process, POLLIN, 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  if (left > 0) ::poll(&ends, 1, static_cast<int>(left));
}

}  // namespace

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

void end_orphans() {
  const Clock::time_point until = Clock::now() + kPatience;
  // Again, for one may have forked before it ended.
  for (bool found = true; found && Clock::now() < until;) {
    std::vector<int> ending;
    for (const pid_t process : descendants()) {
      const int fd = static_cast<int>(syscall(SYS_pidfd_open, process, 0));  // Linux 5.3
      if (fd < 0) continue;
      if (runs_this_program(process)) {
        syscall(SYS_pidfd_send_signal, fd, SIGKILL, nullptr, 0);
        ending.push_back(fd);
      } else {
        ::close(fd);
      }
    }
    found = !ending.empty();
    for (const int fd : ending) {
      wait_for_end(fd, until);
      ::close(fd);
    }
  }
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

}  // namespace shardrun::cli
