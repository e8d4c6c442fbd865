// Storage that fails, or dies, at a chosen call, and remembers in which order it was called.
#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/checkpoint/storage.h"

namespace shardrun::test {

/// The disk behind a counter of calls. `fails` throws what a full disk says at one call. `dies`:
/// that call does half of its work, and nothing is done any more, as if all processes had been
/// killed.
class FaultyStorage : public Storage {
 public:
  int fails = -1, dies = -1;

  int calls() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(log_.size());
  }
  std::vector<std::string> log() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  bool dead() const {
    const std::lock_guard lock(mutex_);
    return dead_;
  }

  void make_folder(const std::string& path) override {
    count("mkdir " + name(path), path, [] {});
    disk().make_folder(path);
  }
  std::unique_ptr<StorageFile> create(const std::string& path) override {
    count("create " + name(path), path, [] {});
    return std::make_unique<File>(*this, path, disk().create(path));
  }
  void sync_folder(const std::string& path) override {
    count("sync folder " + name(path), path, [] {});
    disk().sync_folder(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    count("rename " + name(from) + " " + name(to), from, [] {});
    disk().rename(from, to);
  }
  void remove(const std::string& path) override {
    count("remove " + name(path), path, [&] {
      // Some of what is in it.
      std::error_code ignored;
      for (std::filesystem::directory_iterator at(path, ignored), end; at != end;) {
        std::filesystem::remove_all(at->path(), ignored);
        break;
      }
    });
    disk().remove(path);
  }

 private:
  class File final : public StorageFile {
   public:
    File(FaultyStorage& of, std::string path, std::unique_ptr<StorageFile> file)
        : of_(of), path_(std::move(path)), file_(std::move(file)) {}
    void write(int64_t at, const char* data, int64_t bytes) override {
      of_.count("write " + name(path_), path_, [&] { file_->write(at, data, bytes / 2); });
      file_->write(at, data, bytes);
    }
    void finish() override {
      of_.count("sync " + name(path_), path_, [] {});
      file_->finish();
    }

   private:
    FaultyStorage& of_;
    std::string path_;
    std::unique_ptr<StorageFile> file_;
  };

  static std::string name(const std::string& path) {
    const std::filesystem::path p(path);
    const bool inside = p.parent_path().filename().string().rfind("step-", 0) == 0;
    return inside ? (p.parent_path().filename() / p.filename()).string() : p.filename().string();
  }

  template <class F>
  void count(const std::string& call, const std::string& path, const F& half) {
    const std::lock_guard lock(mutex_);
    if (dead_) fail(ErrorKind::device, path, ": killed");
    const int number = static_cast<int>(log_.size());
    log_.push_back(call);
    if (number == dies) {
      half();
      dead_ = true;
      fail(ErrorKind::device, path, ": killed");
    }
    if (number == fails) fail(ErrorKind::device, path, ": cannot write: No space left on device");
  }

  mutable std::mutex mutex_;
  std::vector<std::string> log_;
  bool dead_ = false;
};

}  // namespace shardrun::test
