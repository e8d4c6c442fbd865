// Reading shards out of pieces, and checking these together.
#include "exec/checkpoint/reader.h"

#include <fcntl.h>
#include <omp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iomanip>
#include <map>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/files/input_file.h"
#include "base/round_up.h"
#include "exec/checkpoint/agree.h"
#include "exec/checkpoint/disk_memory.h"
#include "exec/checkpoint/folder.h"
#include "exec/checkpoint/spans.h"
#include "exec/checkpoint/storage.h"

namespace shardrun {
namespace {

constexpr int64_t kBlock = int64_t{8} << 20;   // read and looked at by a thread at a time
constexpr int64_t kCached = int64_t{1} << 17;  // of it, looked at and then copied
constexpr int64_t kMostText = int64_t{1} << 31;
constexpr int64_t kGap = 4096;  // a disk reads whole pages

/// A thread's memory for what it reads.
class ReadBlock {
 public:
  /// At least so many bytes, on a disk's boundary.
  char* reserve(int64_t bytes) {
    if (bytes > bytes_) memory_ = disk_memory(bytes_ = round_up(bytes, kStorageBlock));
    return memory_.get();
  }

 private:
  std::shared_ptr<char> memory_;
  int64_t bytes_ = 0;
};

/// Whether what is read should stay in the page cache, for others who read the same.
enum class Cache { none, shared };

/// A file of a checkpoint, open for reading on any thread. `none`: past the page cache, where the
/// file system has a way.
class Source {
 public:
  Source(std::string path, Cache cache)
      : path_(std::move(path)), fd_(open(cache == Cache::none ? O_DIRECT : 0)) {
    if (fd_ < 0 && errno == EINVAL) fd_ = open(0);
    SR_REQUIRE(fd_ >= 0, invalid_input, path_, ": cannot open: ", std::strerror(errno));
  }
  ~Source() { ::close(fd_); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  int64_t bytes() const {
    struct stat status {};
    return ::fstat(fd_, &status) == 0 ? static_cast<int64_t>(status.st_size) : -1;
  }
  /// Where in `block` they are, which has whole blocks of the file.
  const char* read(int64_t at, int64_t bytes, ReadBlock& block) const {
    const int64_t begin = at / kStorageBlock * kStorageBlock, end = at + bytes;
    const int64_t whole = round_up(end - begin, kStorageBlock);
    char* const out = block.reserve(whole);
    for (int64_t done = 0; begin + done < end;) {
      const ssize_t got = ::pread(fd_, out + done, static_cast<size_t>(whole - done), begin + done);
      if (got < 0 && errno == EINTR) continue;
      SR_REQUIRE(got >= 0, device, path_, ": cannot read at byte ", begin + done, ": ",
                 std::strerror(errno));
      SR_REQUIRE(got > 0, invalid_input, path_, ": wanted ", end - begin - done, " bytes at byte ",
                 begin + done, ", the file ends before");
      done += got;
    }
    return out + (at - begin);
  }

 private:
  int open(int flags) const { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | flags); }
  std::string path_;
  int fd_;
};

std::unique_ptr<Source> open_file(const Checkpoint& checkpoint, size_t number,
                                  Cache cache = Cache::none) {
  const std::string path = str(checkpoint.path(), "/", checkpoint.manifest().files[number].name);
  require_regular_file(path, "a part of a checkpoint");
  return std::make_unique<Source>(path, cache);
}

using Sources = std::vector<std::unique_ptr<Source>>;
Sources open_all(const Checkpoint& checkpoint, Cache cache = Cache::none) {
  Sources out;
  for (size_t f = 0; f < checkpoint.manifest().files.size(); ++f)
    out.push_back(open_file(checkpoint, f, cache));
  return out;
}

std::string to_text(const Box& box) {
  std::string out;
  for (const Range& range : box) out += str(out.empty() ? "" : ", ", range.begin, ":", range.end());
  return "[" + out + "]";
}

void check(const Checkpoint& checkpoint, const Manifest::Tensor& tensor,
           const Manifest::Piece& piece, uint32_t is) {
  SR_REQUIRE(is == piece.crc32c, invalid_input, checkpoint.path(), "/",
             checkpoint.manifest().files[piece.file].name, ": the checksum of '", tensor.value.name,
             "' ", to_text(piece.box), " is ", std::hex, std::setfill('0'), std::setw(8), is,
             ", it was written as ", std::setw(8), piece.crc32c, ": the file is damaged");
}

void check_header(const Checkpoint& checkpoint, size_t number, const Source& source) {
  const Manifest::File& file = checkpoint.manifest().files[number];
  ReadBlock block;
  const char* const header = source.read(0, file.header_bytes, block);
  SR_REQUIRE(crc32c(header, file.header_bytes) == file.header_crc32c, invalid_input,
             checkpoint.path(), "/", file.name,
             ": its header is not the one that was written: ", "the file is damaged");
}

/// Runs of one piece's bytes on their way to memory (null: they are only looked at). Those that lie
/// close together are read in one call.
class Run {
 public:
  Run(const Source& source, const Manifest::Piece& piece, char* to, ReadBlock& block)
      : source_(source), piece_(piece), to_(to), block_(block), part_(piece.bytes) {}

  /// Bytes [at, at + bytes) of the piece go to `to` bytes into the memory. In order of `at`.
  void add(int64_t at, int64_t to, int64_t bytes) {
    while (bytes > 0) {
      const bool far = !spans_.empty() && at - end() > kGap;
      if (far || (!spans_.empty() && at + 1 - spans_[0].at > kBlock)) flush();
      const int64_t left = kBlock - (spans_.empty() ? 0 : at - spans_[0].at);
      const int64_t some = std::min(bytes, left);
      spans_.push_back({at, to, some});
      at += some;
      to += some;
      bytes -= some;
    }
  }
  void flush() {
    if (spans_.empty()) return;
    const int64_t begin = spans_[0].at, bytes = end() - begin;
    const char* const from = source_.read(piece_.offset + begin, bytes, block_);
    read_ += bytes;
    for (const Span& span : spans_) {
      const char* const data = from + (span.at - begin);
      for (int64_t done = 0; done < span.bytes; done += kCached) {
        const int64_t some = std::min(kCached, span.bytes - done);
        part_.add(span.at + done, data + done, some);
        if (to_ != nullptr)
          std::memcpy(to_ + span.to + done, data + done, static_cast<size_t>(some));
      }
    }
    spans_.clear();
  }
  uint32_t sum() const { return part_.sum(); }
  int64_t bytes_read() const { return read_; }

 private:
  struct Span {
    int64_t at, to, bytes;
  };
  int64_t end() const { return spans_.back().at + spans_.back().bytes; }

  const Source& source_;
  const Manifest::Piece& piece_;
  char* to_;
  ReadBlock& block_;
  Crc32cPart part_;
  std::vector<Span> spans_;
  int64_t read_ = 0;
};

/// What of a piece goes to a shard.
struct Task {
  size_t tensor = 0, piece = 0;
  const Binding* binding = nullptr;
  char* to = nullptr;            // the shard
  std::vector<Part> parts = {};  // of the shard, those that meet the piece
  uint32_t sum = 0;              // Crc32cPart's
  int64_t bytes_read = 0;
};

Box in_bytes(Box box, int64_t width) {
  box.push_back({0, width});
  return box;
}

void run_task(const Checkpoint& checkpoint, const Source& source, Task& task, ReadBlock& block) {
  const Manifest::Tensor& tensor = checkpoint.manifest().tensors[task.tensor];
  const Manifest::Piece& piece = tensor.pieces[task.piece];
  const int64_t width = size_of(tensor.value.type.dtype);
  for (const Part& part : task.parts) {
    Run run(source, piece, task.to, block);
    const Box region = in_bytes(intersect(piece.box, part.file), width);
    const Spans in_piece(region, in_bytes(piece.box, width)),
        in_part(region, in_bytes(part.file, width)),
        in_shard(in_bytes(part.value, width), in_bytes(task.binding->box, width));
    int64_t done = 0;
    in_piece.each(0, element_count(box_shape(region)), [&](int64_t at, int64_t count) {
      in_part.each(done, count, [&](int64_t from, int64_t some) {
        in_shard.each(from, some, [&](int64_t to, int64_t bytes) {
          run.add(at, to, bytes);
          at += bytes;
        });
      });
      done += count;
    });
    run.flush();
    task.sum ^= run.sum();
    task.bytes_read += run.bytes_read();
  }
}

/// Threads that read, each with a block of its own: three for each that the rank has, since most of
/// them wait for the disk, and no more than keep one busy.
class Readers {
 public:
  /// Each task on one of them. Of several failures throws the first task's.
  template <class T, class F>
  void run(std::vector<T>& tasks, const F& run) {
    std::exception_ptr failure;
    size_t failed = tasks.size();
#pragma omp parallel for schedule(dynamic) num_threads(static_cast <int>(blocks_.size()))
    for (size_t i = 0; i < tasks.size(); ++i) {
      try {
        run(tasks[i], blocks_[static_cast<size_t>(omp_get_thread_num())]);
      } catch (...) {
#pragma omp critical
        if (i < failed) failed = i, failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  static constexpr int kMost = 16;
  std::vector<ReadBlock> blocks_ =
      std::vector<ReadBlock>(static_cast<size_t>(std::min(3 * omp_get_max_threads(), kMost)));
};

/// One restore: what this rank reads, and the sums that it brings to the check.
class Restore {
 public:
  Restore(const Checkpoint& from, Executor& into, Communicator& host)
      : from_(from), into_(into), host_(host) {
    const Program& program = into.program();
    std::map<std::string_view, size_t> numbers;
    for (size_t t = 0; t < tensors().size(); ++t) numbers[tensors()[t].value.name] = t;
    first_sum_.resize(tensors().size(), -1);
    Cache cache = Cache::none;
    for (const Binding& b : program.bindings) {
      if (!is_kept(b.role, b.zeroed_each_step)) continue;
      const size_t tensor = numbers.at(b.name);
      const Replica replica = replica_of(b.sharding, program.mesh, program.rank);
      const auto pieces = static_cast<int64_t>(tensors()[tensor].pieces.size());
      first_sum_[tensor] = sums_;
      own_sum_.emplace(tensor, sums_ + replica.index * pieces);
      replicas_.emplace(tensor, replica.count);
      sums_ += replica.count * pieces;
      if (replica.count > 1) cache = Cache::shared;  // ranks of a host read the same bytes
    }
    sources_ = open_all(from, cache);
  }

  /// Into the shards, or only to look at what would go there.
  int64_t read(bool into_shards) {
    int64_t bytes = 0;
    done_.clear();
    const int64_t files = static_cast<int64_t>(sources_.size());
    for (int64_t f = host_.rank(); f < files; f += host_.size()) {
      check_header(from_, static_cast<size_t>(f), *sources_[static_cast<size_t>(f)]);
      bytes += from_.manifest().files[static_cast<size_t>(f)].header_bytes;
    }
    std::vector<Task> tasks;
    for (const auto& [tensor, sum] : own_sum_) {
      const Binding& b = *into_.find(tensors()[tensor].value.name);
      if (!into_shards || into_.device().is_host()) {
        add_tasks(tensor, b, into_shards ? into_.view(b).as<char>() : nullptr, tasks);
        continue;
      }
      std::vector<Task> few;
      into_.fill(b, [&, &tensor = tensor](void* shard) {
        add_tasks(tensor, b, static_cast<char*>(shard), few);
        readers_.run(few, [&](Task& task, ReadBlock& block) {
          run_task(from_, source_of(task), task, block);
        });
      });
      std::move(few.begin(), few.end(), std::back_inserter(done_));
    }
    // The longest first, so that all threads end together.
    std::stable_sort(tasks.begin(), tasks.end(), [&](const Task& a, const Task& b) {
      return piece_of(a).bytes > piece_of(b).bytes;
    });
    readers_.run(tasks, [&](Task& task, ReadBlock& block) {
      run_task(from_, source_of(task), task, block);
    });
    std::move(tasks.begin(), tasks.end(), std::back_inserter(done_));
    for (const Task& task : done_) bytes += task.bytes_read;
    return bytes;
  }

  /// Rank k adds up a part of all sums, of each piece and each set of ranks that read all of it.
  /// Collective.
  void check_sums() {
    const int64_t ranks = host_.size(), per_rank = (sums_ + ranks - 1) / ranks;
    std::vector<uint32_t> mine(static_cast<size_t>(per_rank * ranks)), all(mine.size());
    for (const Task& task : done_)
      mine[static_cast<size_t>(own_sum_.at(task.tensor)) + task.piece] = task.sum;
    const std::vector<int64_t> counts(static_cast<size_t>(ranks), per_rank);
    host_.all_to_all(mine.data(), counts, all.data(), counts, DType::i32);
    together(
        host_,
        [&] {
          const int64_t begin = host_.rank() * per_rank, end = std::min(sums_, begin + per_rank);
          for (const auto& [tensor, count] : replicas_) {
            const auto& pieces = tensors()[tensor].pieces;
            const auto per_replica = static_cast<int64_t>(pieces.size());
            const int64_t first = std::max(begin, first_sum_[tensor]),
                          last = std::min(end, first_sum_[tensor] + count * per_replica);
            for (int64_t i = first; i < last; ++i) {
              uint32_t sum = 0;
              for (int64_t r = 0; r < ranks; ++r)
                sum ^= all[static_cast<size_t>(r * per_rank + i - begin)];
              const auto& piece =
                  pieces[static_cast<size_t>((i - first_sum_[tensor]) % per_replica)];
              check(from_, tensors()[tensor], piece, crc32c_of_parts(sum, piece.bytes));
            }
          }
        },
        Names::none);
  }

 private:
  const std::vector<Manifest::Tensor>& tensors() const { return from_.manifest().tensors; }
  const Manifest::Piece& piece_of(const Task& task) const {
    return tensors()[task.tensor].pieces[task.piece];
  }
  const Source& source_of(const Task& task) const { return *sources_[piece_of(task).file]; }

  void add_tasks(size_t tensor, const Binding& b, char* shard, std::vector<Task>& tasks) const {
    const std::vector<Part> parts = parts_of(b.file_shape, b.global.shape, b.box);
    const auto& pieces = tensors()[tensor].pieces;
    for (size_t p = 0; p < pieces.size(); ++p) {
      Task task{tensor, p, &b, shard};
      for (const Part& part : parts) {
        if (!is_empty(intersect(part.file, pieces[p].box)) && !is_empty(part.file))
          task.parts.push_back(part);
      }
      if (!task.parts.empty()) tasks.push_back(std::move(task));
    }
  }

  const Checkpoint& from_;
  Executor& into_;
  Communicator& host_;
  Sources sources_;
  Readers readers_;
  // Sums are numbered alike on all ranks: by tensor, set of ranks, piece.
  int64_t sums_ = 0;
  std::vector<int64_t> first_sum_;      // by tensor
  std::map<size_t, int64_t> own_sum_;   // by tensor: this rank's set, its first piece's
  std::map<size_t, int64_t> replicas_;  // by tensor: sets
  std::vector<Task> done_;
};

}  // namespace

Checkpoint Checkpoint::open(const std::string& path) {
  const std::string file = str(path, "/", Manifest::kFile);
  Checkpoint out(path,
                 parse_manifest(read_input_file(file, "a checkpoint's manifest", kMostText), file));
  const Sources sources = open_all(out);
  for (size_t f = 0; f < sources.size(); ++f) {
    const int64_t wanted = out.manifest_.files[f].bytes, got = sources[f]->bytes();
    SR_REQUIRE(got == wanted, invalid_input, path, "/", out.manifest_.files[f].name, ": has ", got,
               " bytes, ", wanted, " were written: the file is damaged");
  }
  return out;
}

Checkpoint::Done Checkpoint::restore(Executor& into, Communicator& host, bool in_use) const {
  const double began = now_seconds();
  Done done;
  std::optional<Restore> restore;
  together(
      host,
      [&] {
        check_holds(manifest_, kept_values(into.program().bindings), Holds::at_least, path_);
        restore.emplace(*this, into, host);
      },
      Names::none);
  for (const bool into_shards : {false, true}) {
    if (!into_shards && !in_use) continue;
    together(
        host, [&] { done.bytes += restore->read(into_shards); }, Names::none);
    restore->check_sums();
  }
  into.weights_changed();
  done.seconds = now_seconds() - began;
  return done;
}

void Checkpoint::verify(const std::function<bool(const std::string&)>& which) const {
  const Sources sources = open_all(*this);
  struct One {
    const Manifest::Tensor* tensor;
    const Manifest::Piece* piece;
  };
  std::vector<One> all;
  for (const Manifest::Tensor& tensor : manifest_.tensors) {
    if (which && !which(tensor.value.name)) continue;
    for (const Manifest::Piece& piece : tensor.pieces) all.push_back({&tensor, &piece});
  }
  for (size_t f = 0; f < sources.size(); ++f) check_header(*this, f, *sources[f]);
  Readers().run(all, [&](const One& one, ReadBlock& block) {
    uint32_t sum = 0;
    for (int64_t at = 0; at < one.piece->bytes; at += kBlock) {
      const int64_t some = std::min(kBlock, one.piece->bytes - at);
      sum = crc32c(sources[one.piece->file]->read(one.piece->offset + at, some, block), some, sum);
    }
    check(*this, *one.tensor, *one.piece, sum);
  });
}

void Checkpoint::read(const std::string& tensor, const Box& box, void* out) const {
  const Manifest::Tensor* found = manifest_.find(tensor);
  SR_REQUIRE(found != nullptr, invalid_input, path_, ": has no tensor '", tensor, "'");
  Binding whole;
  whole.box = box;
  const auto number = static_cast<size_t>(found - manifest_.tensors.data());
  ReadBlock block;
  for (size_t p = 0; p < found->pieces.size(); ++p) {
    if (is_empty(intersect(found->pieces[p].box, box))) continue;
    Task task{number, p, &whole, static_cast<char*>(out), {{box, box}}};
    run_task(*this, *open_file(*this, found->pieces[p].file), task, block);
  }
}

std::string newest_whole_before(const std::string& folder, int64_t step) {
  std::vector<FoundCheckpoint> all = checkpoints_in(folder);
  std::reverse(all.begin(), all.end());
  for (const FoundCheckpoint& found : all) {
    if (found.step >= step) continue;
    try {
      Checkpoint::open(found.path).verify();
      return found.path;
    } catch (const Error&) {  // nor this one
    }
  }
  return "";
}

}  // namespace shardrun
