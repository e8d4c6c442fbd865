// Storage: what checkpoints do to a disk, and in which order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace shardrun {

/// A file that is written once.
class StorageFile {
 public:
  virtual ~StorageFile() = default;  // what finish() was not called for is left behind
  /// Blocks may come in any order, and from several threads at once. Fastest where `data`, `at` and
  /// `bytes` are multiples of kStorageBlock: they then go past the page cache, if the disk lets
  /// them.
  virtual void write(int64_t at, const char* data, int64_t bytes) = 0;
  /// When it returns all that was written is on the disk.
  virtual void finish() = 0;
};
inline constexpr int64_t kStorageBlock = 4096;

/// Failures are Error(device) with the path, what was tried and the system's reason. Tests put
/// another in the place of disk(): one that is full, or one that stops anywhere, as a killed
/// process does.
class Storage {
 public:
  virtual ~Storage() = default;
  /// And those that it is in. There may be one already; a new one's name is on the disk, too.
  virtual void make_folder(const std::string& path) = 0;
  virtual std::unique_ptr<StorageFile> create(const std::string& path) = 0;
  /// Names that were made, changed or removed in the folder are so on the disk, too.
  virtual void sync_folder(const std::string& path) = 0;
  virtual void rename(const std::string& from, const std::string& to) = 0;
  virtual void remove(const std::string& path) = 0;  // a folder with all in it; nothing if missing
};

/// The system's files.
Storage& disk();

}  // namespace shardrun
