// The system's calls.
#include "exec/checkpoint/storage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.h"

namespace shardrun {
namespace {

[[noreturn]] void failed(const std::string& path, const char* what, int error) {
  fail(ErrorKind::device, path, ": cannot ", what, ": ", std::strerror(error));
}

/// An open file or folder.
class OpenFile {
 public:
  OpenFile(const std::string& path, int flags, const char* what)
      : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) failed(path_, what, errno);
  }
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int get() const { return fd_; }
  const std::string& path() const { return path_; }
  void sync() const {
    if (::fsync(fd_) != 0) failed(path_, "write to the disk", errno);
  }
  /// A network's file system may only say here that it could not write.
  void close() {
    if (::close(std::exchange(fd_, -1)) != 0) failed(path_, "close", errno);
  }

 private:
  std::string path_;
  int fd_;
};

bool is_aligned(const void* data, int64_t at, int64_t bytes) {
  return (reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(at | bytes)) % kStorageBlock ==
         0;
}

/// Whole blocks go past the page cache, where the file system has a way.
class DiskFile final : public StorageFile {
 public:
  explicit DiskFile(const std::string& path)
      : file_(path, O_WRONLY | O_CREAT | O_TRUNC, "create"),
        direct_(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC)) {}
  ~DiskFile() override {
    if (direct_ >= 0) ::close(direct_);
  }

  void write(int64_t at, const char* data, int64_t bytes) override {
    while (bytes > 0) {
      const int64_t blocks = bytes - bytes % kStorageBlock;
      const bool direct = direct_ >= 0 && may_ && blocks > 0 && is_aligned(data, at, blocks);
      const ssize_t done = ::pwrite(direct ? direct_ : file_.get(), data,
                                    static_cast<size_t>(direct ? blocks : bytes), at);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0 && errno == EINVAL && direct) {
        may_ = false;
        continue;
      }
      if (done <= 0) failed(file_.path(), "write", done < 0 ? errno : ENOSPC);
      // The disk begins at once, and not when finish() waits for it.
      if (!direct) ::sync_file_range(file_.get(), at, done, SYNC_FILE_RANGE_WRITE);
      at += done;
      data += done;
      bytes -= done;
    }
  }

  void finish() override {
    file_.sync();
    file_.close();
  }

 private:
  OpenFile file_;
  int direct_;
  std::atomic<bool> may_ = true;
};

class Disk final : public Storage {
 public:
  void make_folder(const std::string& path) override {
    namespace fs = std::filesystem;
    std::error_code error;
    std::vector<std::string> parents;  // of what is new
    for (fs::path at = fs::absolute(path).lexically_normal(); !fs::exists(at, error) && !error;
         at = at.parent_path())
      parents.push_back(at.parent_path().string());
    fs::create_directories(path, error);
    if (error) failed(path, "create the folder", error.value());
    for (const std::string& parent : parents) {
      if (::access(parent.c_str(), R_OK) == 0) sync_folder(parent);
    }
  }
  std::unique_ptr<StorageFile> create(const std::string& path) override {
    return std::make_unique<DiskFile>(path);
  }
  void sync_folder(const std::string& path) override {
    OpenFile folder(path, O_RDONLY | O_DIRECTORY, "open");
    // Some file systems keep no folders that could be written, and say so.
    if (::fsync(folder.get()) != 0 && errno != EINVAL) failed(path, "write to the disk", errno);
  }
  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) failed(from, "rename", errno);
  }
  void remove(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) failed(path, "remove", error.value());
  }
};

}  // namespace

Storage& disk() {
  static Disk disk;
  return disk;
}

}  // namespace shardrun
