// Names, and a lock that ends with its process.
#include "exec/checkpoint/folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "exec/checkpoint/manifest.h"
#include "exec/checkpoint/storage.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kName = "step-";
constexpr size_t kStepDigits = 8;

/// "step-00000100" with `behind` at its end; -1 for any other name.
int64_t step_of(const std::string& name, std::string_view behind) {
  if (!name.starts_with(kName) || !name.ends_with(behind)) return -1;
  const char *begin = name.data() + kName.size(), *end = name.data() + name.size() - behind.size();
  int64_t step = -1;
  const auto [last, code] = std::from_chars(begin, end, step);
  const bool ours = code == std::errc() && last == end && step >= 0;
  return ours && checkpoint_path("", step) == "/" + name.substr(0, name.size() - behind.size())
             ? step
             : -1;
}

std::string lock_in(const std::string& folder) { return folder + "/.lock"; }

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code error;
  fs::directory_iterator at(folder, error), end;
  if (error == std::errc::no_such_file_or_directory) return out;
  for (; !error && at != end; at.increment(error)) out.push_back(at->path().filename().string());
  SR_REQUIRE(!error, device, folder, ": cannot read the folder: ", error.message());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

std::string checkpoint_path(const std::string& folder, int64_t step) {
  std::string digits = str(step);
  if (digits.size() < kStepDigits) digits.insert(0, kStepDigits - digits.size(), '0');
  return str(folder, "/", kName, digits);
}

std::vector<FoundCheckpoint> checkpoints_in(const std::string& folder) {
  std::vector<FoundCheckpoint> out;
  for (const std::string& name : names_in(folder)) {
    if (const int64_t step = step_of(name, ""); step >= 0)
      out.push_back({step, folder + "/" + name});
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return out;
}

std::string checkpoint_meant(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return "";
  const fs::path named(path);
  const std::string name = (named.has_filename() ? named : named.parent_path()).filename().string();
  if (step_of(name, "") >= 0 || fs::exists(named / Manifest::kFile)) return path;
  const std::vector<FoundCheckpoint> found = checkpoints_in(path);
  return found.empty() ? "" : found.back().path;
}

int sweep(const std::string& folder) {
  int removed = 0;
  for (const std::string& name : names_in(folder)) {
    if (step_of(name, kPartial) < 0 && step_of(name, kRemoved) < 0) continue;
    disk().remove(folder + "/" + name);
    ++removed;
  }
  return removed;
}

std::vector<std::string> set_aside_later(const std::string& folder, int64_t step) {
  std::vector<std::string> out;
  for (const FoundCheckpoint& found : checkpoints_in(folder)) {
    if (found.step <= step) continue;
    std::string to = found.path + kSetAside;
    for (int again = 2; fs::exists(to); ++again) to = str(found.path, kSetAside, "-", again);
    disk().rename(found.path, to);
    out.push_back(to);
  }
  if (!out.empty()) disk().sync_folder(folder);
  return out;
}

std::string FolderLock::mark_in(const std::string& folder) {
  std::ifstream file(lock_in(folder));
  return {std::istreambuf_iterator<char>(file), {}};
}

FolderLock::FolderLock(const std::string& folder, double patience) {
  disk().make_folder(folder);
  const std::string file = lock_in(folder);
  fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  SR_REQUIRE(fd_ >= 0, device, file, ": cannot create: ", std::strerror(errno));
  const double until = now_seconds() + patience;
  int taken = 0;
  while ((taken = ::flock(fd_, LOCK_EX | LOCK_NB)) != 0 && errno == EWOULDBLOCK &&
         now_seconds() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  if (taken != 0 && errno == EWOULDBLOCK) {  // any other error: a file system without locks
    std::array<char, 256> who{};
    const ssize_t bytes = ::pread(fd_, who.data(), who.size() - 1, 0);
    ::close(fd_);
    fail(ErrorKind::invalid_input, folder, ": another run writes its checkpoints there (",
         bytes > 0 ? who.data() : "unknown", "); wait for its end, or name another folder");
  }
  std::array<char, 128> host{};
  ::gethostname(host.data(), host.size() - 1);
  mark_ = str("process ", ::getpid(), " on ", host.data(), " at ",
              std::chrono::system_clock::now().time_since_epoch().count());
  const bool written = ::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, mark_.data(), mark_.size(), 0) ==
                                                       static_cast<ssize_t>(mark_.size());
  if (!written) {
    const int error = errno;
    ::close(fd_);
    fail(ErrorKind::device, file, ": cannot write: ", std::strerror(error));
  }
}

FolderLock::~FolderLock() { ::close(fd_); }

}  // namespace shardrun
