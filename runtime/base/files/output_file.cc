// The temporary file, and when there is none.
#include "base/files/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace shardrun {

OutputFile::OutputFile(std::string path) : path_(std::move(path)), target_(path_) {
  namespace fs = std::filesystem;
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
  temporary_ = str(target_, ".", ::getpid(), ".new");
  file_ = Descriptor(temporary_, O_CREAT | O_TRUNC);
  if (file_.is_open()) return;
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
  namespace fs = std::filesystem;
  std::error_code error;
  if (const fs::file_status old = fs::status(target_, error); fs::exists(old))
    fs::permissions(temporary_, old.permissions(), error);
  error.clear();
  fs::rename(temporary_, target_, error);
  SR_REQUIRE(!error, device, path_, ": cannot be written: ", error.message());
  temporary_.clear();
}

void check_output(const std::string& path) { OutputFile file(path); }

}  // namespace shardrun
