// CheckpointWriter: saves the state of a training run, every rank its shards, while training goes
// on.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "exec/checkpoint/folder.h"
#include "exec/checkpoint/image.h"
#include "exec/checkpoint/storage.h"
#include "exec/executor.h"

namespace shardrun {

struct SaveOptions {
  std::string folder;  // of all checkpoints
  int64_t keep = 0;    // that many whole ones, older ones are removed; 0: all
  /// The state is copied first, and the copy written while training goes on. Else it is written as
  /// it lies in the arena, and training waits.
  bool asynchronous = true;
};

/// How an attempt ended; the same on every rank but for the times.
struct Saved {
  int64_t step = 0;
  std::string path;     // the checkpoint's folder
  std::string failure;  // "": it is whole
  std::string left;     // an older one that could not be removed, and why; "": none
  int64_t bytes = 0;    // of all ranks' files
  double stalled_seconds = 0, seconds = 0;  // in which this rank did nothing else, and in all
};

/// A checkpoint is made in the folder's "step-00000100.partial": each rank writes its file and has
/// it on the disk before it says so; rank 0 then writes the manifest, and renames the folder to
/// "step-00000100". So a folder of that name is whole, whenever who is killed. What fails on one
/// rank ends the attempt on all: the partial folder is removed, and those before it stay.
///
///   if (auto saved = writer.finish()) tell(*saved);     // two never overlap
///   if (auto saved = writer.save(step, run)) tell(*saved);
///   …
///   if (auto saved = writer.poll()) tell(*saved);       // at the end of every step
///
/// All calls are collective over `host`. They communicate only while a save goes on. Where another
/// rank does not come they throw Error(comm), which names the checkpoint.
class CheckpointWriter {
 public:
  /// `state` and `host` must outlive it. Allocates memory_bytes.
  CheckpointWriter(const Executor& state, Communicator& host, SaveOptions options,
                   Storage& storage = disk());
  ~CheckpointWriter();  // gives up what is not written yet; not collective
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// What a rank's writer allocates, of the host's memory: for the copy.
  static int64_t memory_bytes(const std::vector<Binding>& bindings, const Mesh& mesh, int64_t rank,
                              bool asynchronous);

  /// Begins a checkpoint of the state as it is. Nothing else may be going on. Returns how it ended
  /// if that is known at once. `run`: Manifest::run, looked at on rank 0. `before_manifest`: called
  /// on rank 0, on another thread, before the manifest is written; what it throws fails the
  /// attempt.
  std::optional<Saved> save(int64_t step, nlohmann::json run,
                            std::function<void()> before_manifest = nullptr);
  /// How it ended, if it has.
  std::optional<Saved> poll();
  /// Waits for the end; nothing if nothing is going on.
  std::optional<Saved> finish();
  bool busy() const { return phase_ != Phase::none; }

 private:
  enum class Phase { none, pieces, manifest };
  enum class Status : int64_t { working, done, failed };

  template <class F>
  auto in_checkpoint(const F& f);
  std::optional<Saved> poll_others();
  void start(std::function<void()> work);
  Status status();
  void wait_a_little();
  void join();
  void write_pieces();
  void checksum(int64_t begin, int64_t end, const char* data);
  void gather_checksums();
  void write_manifest();
  void remove_older();
  Saved ended();
  std::string partial() const { return saved_.path + kPartial; }

  Image image_;
  Communicator& host_;
  SaveOptions options_;
  Storage& storage_;
  std::shared_ptr<char> memory_;  // asynchronous: the file's bytes
  int64_t memory_bytes_ = 0;

  Phase phase_ = Phase::none;
  Saved saved_;
  nlohmann::json run_;
  std::function<void()> before_manifest_;
  double began_ = 0;
  std::vector<uint32_t> checksums_;      // of the header, then of the pieces
  std::vector<uint32_t> all_checksums_;  // of all ranks, one after the other

  std::atomic<bool> cancelled_ = false;  // what is still to be written is not
  std::thread worker_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Status status_ = Status::done;
  std::string failure_;
};

}  // namespace shardrun
