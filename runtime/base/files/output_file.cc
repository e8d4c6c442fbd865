// The temporary file, and when there is none.
#include "base/files/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".new";

/// Writers that were killed leave their temporary files. Whoever still writes one holds its lock,
/// or has only just made it.
void remove_left(const fs::path& target) {
  const std::string begin = target.filename().string() + ".";
  const fs::path folder = target.has_parent_path() ? target.parent_path() : ".";
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(kTemporary) ||
        name.size() <= begin.size() + kTemporary.size())
      continue;
    const auto process =
        std::string_view(name).substr(begin.size(), name.size() - begin.size() - kTemporary.size());
    std::error_code gone;
    const auto age = fs::file_time_type::clock::now() - at->last_write_time(gone);
    if (process.find_first_not_of("0123456789") != std::string_view::npos || gone ||
        age < std::chrono::minutes(1))
      continue;
    const int file = ::open(at->path().c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) continue;
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) fs::remove(at->path(), gone);
    ::close(file);
  }
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)), target_(path_) {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  const bool regular = fs::is_regular_file(status);
  SR_REQUIRE(!fs::is_directory(status), invalid_input, path_, ": cannot be written: is a folder");
  if (fs::exists(status)) {
    SR_REQUIRE(::access(path_.c_str(), W_OK) == 0, invalid_input, path_,
               ": cannot be written: ", std::strerror(errno));
    if (!regular) return;
    const fs::path followed = fs::canonical(path_, error);
    if (!error) target_ = followed.string();
  } else {  // where a link leads to, though nothing is there yet
    constexpr int kMostLinks = 40;
    for (int i = 0; i < kMostLinks && fs::is_symlink(fs::symlink_status(target_, error)); ++i)
      target_ = (fs::path(target_).parent_path() / fs::read_symlink(target_, error)).string();
  }
  remove_left(target_);
  temporary_ = str(target_, ".", ::getpid(), kTemporary);
  file_ = Descriptor(temporary_, O_CREAT | O_TRUNC);
  if (file_.is_open()) {
    (void)::flock(file_.fd(), LOCK_EX | LOCK_NB);
    return;
  }
  temporary_.clear();
  SR_REQUIRE(regular, invalid_input, path_, ": cannot be written: ", file_.error());
}

OutputFile::~OutputFile() {
  if (temporary_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

std::ostream& OutputFile::stream() {
  if (file_.is_open() || stream_.bad()) return stream_;
  file_ = Descriptor(path_, O_TRUNC);
  if (!file_.is_open()) stream_.setstate(std::ios::badbit);
  return stream_;
}

void OutputFile::finish() {
  stream().flush();
  const bool written = stream_.good();
  SR_REQUIRE(file_.close() && written, device, path_, ": cannot be written: ", file_.error());
  if (temporary_.empty()) return;
  std::error_code error;
  if (const fs::file_status old = fs::status(target_, error); fs::exists(old))
    fs::permissions(temporary_, old.permissions(), error);
  error.clear();
  fs::rename(temporary_, target_, error);
  SR_REQUIRE(!error, device, path_, ": cannot be written: ", error.message());
  temporary_.clear();
}

void check_output(const std::string& path) { OutputFile file(path); }

void check_output_folder(const std::string& path) {
  std::error_code error;
  const fs::path folder = fs::absolute(path, error);
  std::vector<fs::path> missing, made;
  for (fs::path at = folder; !fs::exists(at, error) && at != at.parent_path();
       at = at.parent_path())
    missing.push_back(at);
  error.clear();
  for (auto at = missing.rbegin(); at != missing.rend() && !error; ++at)
    if (fs::create_directory(*at, error)) made.push_back(*at);
  std::string why = error ? error.message() : "";
  if (why.empty()) {
    const std::string file = str(folder.string(), "/.", ::getpid(), kTemporary);
    const Descriptor written(file, O_CREAT | O_TRUNC);
    why = written.error();
    if (written.is_open()) ::unlink(file.c_str());
  }
  std::error_code not_empty;  // another run's by now
  for (auto at = made.rbegin(); at != made.rend(); ++at) fs::remove(*at, not_empty);
  SR_REQUIRE(why.empty(), invalid_input, path, ": cannot be written: ", why);
}

}  // namespace shardrun
