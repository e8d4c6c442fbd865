// Saving and reading a checkpoint compared with what the disk does with plain files of as many
// bytes.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "base/clock.h"
#include "base/round_up.h"
#include "base/tensor.h"
#include "exec/checkpoint/disk_memory.h"
#include "exec/checkpoint/reader.h"
#include "exec/checkpoint/writer.h"
#include "plan/plan.h"
#include "ranks/backend.h"
#include "ranks/ranks.h"
#include "ranks/world.h"
#include "shardrun/bench.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = int64_t{8} << 20;

class OpenFile {
 public:
  OpenFile(std::string path, int flags) : path_(std::move(path)), fd_(open(flags)) {
    // A file system without a way past its cache.
    if (fd_ < 0 && errno == EINVAL) fd_ = open(flags & ~O_DIRECT);
    SR_REQUIRE(fd_ >= 0, device, path_, ": cannot open: ", std::strerror(errno));
  }
  ~OpenFile() { ::close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return fd_; }
  void check(bool done) const { SR_REQUIRE(done, device, path_, ": ", std::strerror(errno)); }

 private:
  int open(int flags) const { return ::open(path_.c_str(), flags | O_CLOEXEC, 0666); }
  std::string path_;
  int fd_;
};

void write_plainly(const std::string& path, const char* block, int64_t bytes, int flags) {
  const OpenFile file(path, O_WRONLY | O_CREAT | O_TRUNC | flags);
  for (int64_t at = 0; at < bytes; at += kBlock)
    file.check(::pwrite(file.get(), block, kBlock, at) == kBlock);
  file.check(::fsync(file.get()) == 0);
}

/// The page cache gives up what it holds of the file.
void forget(const std::string& path) {
  const OpenFile file(path, O_RDONLY);
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

void read_plainly(const std::string& path, char* block) {
  const OpenFile file(path, O_RDONLY | O_DIRECT);
  for (ssize_t got = 1; got > 0;) {
    got = ::read(file.get(), block, kBlock);
    file.check(got >= 0);
  }
}

/// One rank's part of the rounds.
class Rounds {
 public:
  Rounds(RankDevice& on, Communicator& host, const Model::Impl& model,
         const TrainingPlan::Impl& plan, std::string folder)
      : host_(host),
        folder_(std::move(folder)),
        state_(compile_for_rank(model, plan, host.rank()).train, backend().kernels, on.comm(),
               model.options.seed, nullptr, true, on.device()),
        bytes_(round_up(CheckpointWriter::memory_bytes(state_.program().bindings,
                                                       state_.program().mesh, host.rank(), true),
                        kBlock)),
        from_({DType::u8, {bytes_}}),
        to_({DType::u8, {bytes_}}),
        plain_(str(folder_, "/plain-", host.rank())),
        waiting_(state_, host, {folder_ + "/waiting", 1, false}),
        going_on_(state_, host, {folder_ + "/going-on", 1, true}) {
    disk().make_folder(folder_);
    std::memset(from_.data(), 1, static_cast<size_t>(bytes_));
    std::memset(block_.get(), 1, kBlock);
  }

  CheckpointRound next() {
    CheckpointRound out;
    ++step_;
    out.write_direct = seconds([&] { write_plainly(plain_, block_.get(), bytes_, O_DIRECT); });
    const Saved waiting = save(waiting_);
    out.save = waiting.seconds;
    out.write_cached = seconds([&] { write_plainly(plain_, block_.get(), bytes_, 0); });
    out.copy = seconds([&] { copy(); });
    const Saved going_on = save(going_on_);
    out.stalled = stalled_;
    out.behind = going_on.seconds;
    out.bytes = going_on.bytes;
    const Checkpoint checkpoint = Checkpoint::open(going_on.path);
    const std::string own = going_on.path + "/" + checkpoint.manifest().files[number()].name;
    forget(plain_), forget(own);
    out.read = seconds([&] { read_plainly(plain_, block_.get()); });
    forget(own);
    out.restore = seconds([&] { checkpoint.restore(state_, host_); });
    return out;
  }

  void remove() {
    host_.barrier();
    std::error_code ignored;
    fs::remove(plain_, ignored);
    if (host_.rank() == 0) {
      fs::remove_all(folder_ + "/waiting", ignored);
      fs::remove_all(folder_ + "/going-on", ignored);
    }
  }

 private:
  size_t number() const { return static_cast<size_t>(host_.rank()); }

  /// Of all ranks, from when they begin together to the last one's end.
  template <class F>
  double seconds(const F& work) {
    host_.barrier();
    const double begin = now_seconds();
    work();
    host_.barrier();
    return now_seconds() - begin;
  }

  /// By all threads of the rank, as a save copies.
  void copy() {
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < bytes_; at += kBlock) {
      std::memcpy(static_cast<char*>(to_.data()) + at, static_cast<char*>(from_.data()) + at,
                  static_cast<size_t>(kBlock));
    }
  }

  Saved save(CheckpointWriter& writer) {
    std::optional<Saved> saved;
    stalled_ = seconds([&] { saved = writer.save(step_, nlohmann::json::object()); });
    if (!saved) saved = writer.finish();
    SR_REQUIRE(saved->failure.empty(), device, saved->failure);
    return *saved;
  }

  Communicator& host_;
  std::string folder_;
  Executor state_;
  int64_t bytes_;
  Tensor from_, to_;
  std::string plain_;
  CheckpointWriter waiting_, going_on_;
  std::shared_ptr<char> block_ = disk_memory(kBlock);
  int64_t step_ = 0;
  double stalled_ = 0;
};

}  // namespace

std::vector<CheckpointRound> bench_checkpoint(World& world, const Model& model,
                                              const TrainingPlan& plan, const std::string& folder,
                                              int rounds) {
  at_boundary([&] { require_made_for(model.impl(), plan.impl()); });
  std::vector<CheckpointRound> out;
  std::mutex mutex;
  run_ranks(world, [&](Communicator& comm) {
    const std::unique_ptr<RankDevice> on = backend().open(comm);
    Rounds own(*on, comm, model.impl(), plan.impl(), folder);
    own.next();  // files' first blocks, and pages that nobody has touched
    for (int i = 0; i < rounds; ++i) {
      const CheckpointRound round = own.next();
      const std::lock_guard lock(mutex);
      if (world.impl().mpi || comm.rank() == 0) out.push_back(round);
    }
    own.remove();
  });
  return out;
}

}  // namespace shardrun
