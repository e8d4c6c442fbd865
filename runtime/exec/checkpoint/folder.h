// The folder of a run's checkpoints: which are in it, and whose it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardrun {

/// "FOLDER/step-00000100".
std::string checkpoint_path(const std::string& folder, int64_t step);
/// Behind a checkpoint's name: one that is being written, one that is being removed, and one that a
/// run left behind which went on from an earlier one.
inline constexpr const char* kPartial = ".partial";
inline constexpr const char* kRemoved = ".removed";
inline constexpr const char* kSetAside = ".set-aside";

struct FoundCheckpoint {
  int64_t step = 0;
  std::string path;
};
/// Those whose writing ended, by step; whether they have been damaged since is not looked at. Empty
/// where there is no such folder. Throws device if it cannot be read.
std::vector<FoundCheckpoint> checkpoints_in(const std::string& folder);
/// What a user's path names: this checkpoint, or the newest in this folder of them. "" if it is
/// neither.
std::string checkpoint_meant(const std::string& path);

/// Removes what writers that were killed have left: partial ones, and those that were being
/// removed. Returns how many. Nobody else may be writing there.
int sweep(const std::string& folder);

/// Puts aside the checkpoints of later steps than `step`, so that none of them is taken for this
/// run's, and returns their new paths.
std::vector<std::string> set_aside_later(const std::string& folder, int64_t step);

/// One run at a time writes to a folder.
class FolderLock {
 public:
  /// Makes the folder if there is none. Waits for `patience` seconds for a run that is ending.
  /// Throws invalid_input if another run has it, device if it cannot be written.
  explicit FolderLock(const std::string& folder, double patience = 10);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  /// What it has written there: who reads the same in its folder sees this one.
  const std::string& mark() const { return mark_; }
  static std::string mark_in(const std::string& folder);  // "": none

 private:
  int fd_ = -1;
  std::string mark_;
};

}  // namespace shardrun
