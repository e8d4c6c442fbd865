// The two phases of a save: every rank's file, then the manifest.
#include "exec/checkpoint/writer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <future>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "base/round_up.h"
#include "exec/checkpoint/agree.h"
#include "exec/checkpoint/disk_memory.h"
#include "exec/checkpoint/folder.h"
#include "exec/checkpoint/manifest.h"

namespace shardrun {
namespace {

constexpr int64_t kBlock = int64_t{8} << 20;  // copied by one thread, and written at once
constexpr size_t kWritten = 2;                // at a time: the disk always has one to go on with

int64_t memory_for(int64_t file_bytes, bool asynchronous) {
  return asynchronous ? round_up(file_bytes, kStorageBlock) : 0;
}

}  // namespace

int64_t CheckpointWriter::memory_bytes(const std::vector<Binding>& bindings, const Mesh& mesh,
                                       int64_t rank, bool asynchronous) {
  return memory_for(file_of_rank(bindings, mesh, rank).bytes, asynchronous);
}

CheckpointWriter::CheckpointWriter(const Executor& state, Communicator& host, SaveOptions options,
                                   Storage& storage)
    : image_(state,
             file_of_rank(state.program().bindings, state.program().mesh, state.program().rank)),
      host_(host),
      options_(std::move(options)),
      storage_(storage),
      memory_bytes_(memory_for(image_.bytes(), options_.asynchronous)) {
  memory_ = disk_memory(memory_bytes_);
}

CheckpointWriter::~CheckpointWriter() {
  cancelled_ = true;
  join();
}

/// Calls f, which exchanges with the other ranks: an error of that says in which checkpoint.
template <class F>
auto CheckpointWriter::in_checkpoint(const F& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw e.with_context(str("the checkpoint of step ", saved_.step));
  }
}

std::optional<Saved> CheckpointWriter::save(int64_t step, nlohmann::json run,
                                            std::function<void()> before_manifest) {
  SR_REQUIRE(phase_ == Phase::none, internal, "a checkpoint is still being written");
  began_ = now_seconds();
  saved_ = {};
  saved_.step = step;
  saved_.path = checkpoint_path(options_.folder, step);
  run_ = std::move(run);
  before_manifest_ = std::move(before_manifest);
  cancelled_ = false;
  failure_.clear();
  const std::optional<Error> met = in_checkpoint([&] {
    return try_together(host_, [&] {
      if (host_.rank() != 0) return;
      storage_.make_folder(options_.folder);
      storage_.remove(partial());
      storage_.make_folder(partial());
    });
  });
  if (met) {
    saved_.failure = met->what();
    saved_.seconds = saved_.stalled_seconds = now_seconds() - began_;
    return saved_;
  }
  if (options_.asynchronous) {
    const int64_t bytes = image_.bytes(), blocks = divide_up(bytes, kBlock);
    const bool parallel = image_.on_host();
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t b = 0; b < blocks; ++b)
      image_.copy(b * kBlock, std::min(bytes, (b + 1) * kBlock), memory_.get() + b * kBlock);
  }
  phase_ = Phase::pieces;
  start([this] { write_pieces(); });
  saved_.stalled_seconds = now_seconds() - began_;
  return options_.asynchronous ? std::nullopt : finish();
}

void CheckpointWriter::start(std::function<void()> work) {
  join();
  status_ = Status::working;
  worker_ = std::thread([this, work = std::move(work)] {
    std::string failure;
    try {
      work();
    } catch (const std::exception& e) {
      failure = e.what();
    }
    const std::lock_guard lock(mutex_);
    status_ = failure.empty() ? Status::done : Status::failed;
    failure_ = std::move(failure);
    changed_.notify_all();
  });
}

void CheckpointWriter::join() {
  if (worker_.joinable()) worker_.join();
}

CheckpointWriter::Status CheckpointWriter::status() {
  const std::lock_guard lock(mutex_);
  return status_;
}

/// Not for as long as it takes: ranks that write for longer than others wait meet them meanwhile.
void CheckpointWriter::wait_a_little() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(20),
                    [&] { return status_ != Status::working; });
}

/// Blocks are written while the next one is put together and looked at.
void CheckpointWriter::write_pieces() {
  const std::unique_ptr<StorageFile> file =
      storage_.create(str(partial(), "/", image_.file().name));
  checksums_.assign(image_.file().pieces.size() + 1, 0);
  const int64_t bytes = image_.bytes();
  std::vector<std::shared_ptr<char>> own;  // where there is no copy of the state
  while (!memory_ && own.size() <= kWritten) own.push_back(disk_memory(std::min(bytes, kBlock)));
  std::deque<std::future<void>>
      writing;  // the last to be made, the first to end: it uses the above
  for (int64_t begin = 0; begin < bytes && !cancelled_; begin += kBlock) {
    const int64_t end = std::min(bytes, begin + kBlock);
    char* const data = memory_ ? memory_.get() + begin
                               : own[static_cast<size_t>(begin / kBlock) % own.size()].get();
    if (!memory_) image_.copy(begin, end, data);
    checksum(begin, end, data);
    if (writing.size() == kWritten) {
      writing.front().get();
      writing.pop_front();
    }
    writing.push_back(std::async(
        std::launch::async, [&file, begin, end, data] { file->write(begin, data, end - begin); }));
  }
  for (std::future<void>& last : writing) last.get();
  file->finish();
}

/// Adds bytes [begin, end) of the file to the checksums of what they are of.
void CheckpointWriter::checksum(int64_t begin, int64_t end, const char* data) {
  const RankFile& file = image_.file();
  const auto add = [&](uint32_t& sum, int64_t from, int64_t to) {
    const int64_t first = std::max(begin, from), last = std::min(end, to);
    if (first < last) sum = crc32c(data + (first - begin), last - first, sum);
  };
  add(checksums_[0], 0, static_cast<int64_t>(file.header.size()));
  auto piece = std::upper_bound(file.pieces.begin(), file.pieces.end(), begin,
                                [](int64_t at, const Piece& p) { return at < p.offset + p.bytes; });
  for (; piece != file.pieces.end() && piece->offset < end; ++piece) {
    add(checksums_[static_cast<size_t>(piece - file.pieces.begin()) + 1], piece->offset,
        piece->offset + piece->bytes);
  }
}

std::optional<Saved> CheckpointWriter::poll() {
  if (phase_ == Phase::none) return std::nullopt;
  return in_checkpoint([&] { return poll_others(); });
}

std::optional<Saved> CheckpointWriter::poll_others() {
  const auto mine = static_cast<int64_t>(status());
  std::vector<int64_t> all(static_cast<size_t>(host_.size()));
  host_.all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), 1), DType::i64);
  const auto any = [&](Status status) {
    return std::find(all.begin(), all.end(), static_cast<int64_t>(status)) != all.end();
  };
  if (any(Status::failed)) cancelled_ = true;
  if (any(Status::working)) return std::nullopt;
  if (phase_ == Phase::pieces && !any(Status::failed)) {
    gather_checksums();
    phase_ = Phase::manifest;
    if (host_.rank() == 0) start([this] { write_manifest(); });
    return std::nullopt;
  }
  return ended();
}

std::optional<Saved> CheckpointWriter::finish() {
  const double began = now_seconds();
  while (busy()) {
    wait_a_little();
    if (std::optional<Saved> out = poll()) {
      out->stalled_seconds += now_seconds() - began;
      return out;
    }
  }
  return std::nullopt;
}

void CheckpointWriter::gather_checksums() {
  const auto count = static_cast<int64_t>(checksums_.size());
  std::vector<int64_t> counts(static_cast<size_t>(host_.size()));
  host_.all_gather(&count, counts.data(), std::vector<int64_t>(counts.size(), 1), DType::i64);
  int64_t total = 0;
  for (int64_t of : counts) total += of;
  all_checksums_.resize(static_cast<size_t>(total));
  host_.all_gather(checksums_.data(), all_checksums_.data(), counts, DType::i32);
}

/// On rank 0, which knows what each rank has written from the Program alone.
void CheckpointWriter::write_manifest() {
  if (before_manifest_) before_manifest_();
  const Program& program = image_.program();
  Manifest manifest;
  manifest.step = saved_.step;
  manifest.mesh = program.mesh.to_string();
  manifest.run = std::move(run_);
  for (const KeptValue& value : kept_values(program.bindings))
    manifest.tensors.push_back({value, {}});
  std::vector<size_t> tensor_of(program.bindings.size());
  size_t tensors = 0;
  for (size_t i = 0; i < program.bindings.size(); ++i) {
    const Binding& b = program.bindings[i];
    if (is_kept(b.role, b.zeroed_each_step)) tensor_of[i] = tensors++;
  }
  auto checksum = all_checksums_.begin();
  for (int64_t rank = 0; rank < host_.size(); ++rank) {
    const RankFile file = file_of_rank(program.bindings, program.mesh, rank);
    const size_t number = manifest.files.size();
    manifest.files.push_back(
        {file.name, file.bytes, static_cast<int64_t>(file.header.size()), *checksum++});
    for (const Piece& piece : file.pieces) {
      manifest.tensors[tensor_of[piece.binding]].pieces.push_back(
          {piece.part.file, number, piece.offset, piece.bytes, *checksum++});
    }
    saved_.bytes += file.bytes;
  }
  const std::string text = to_text(manifest);
  const std::unique_ptr<StorageFile> file = storage_.create(str(partial(), "/", Manifest::kFile));
  file->write(0, text.data(), static_cast<int64_t>(text.size()));
  file->finish();
  storage_.sync_folder(partial());
  storage_.rename(partial(), saved_.path);
  try {
    storage_.sync_folder(options_.folder);
  } catch (const Error&) {  // its name may be lost: it is none
    storage_.rename(saved_.path, partial());
    throw;
  }
  remove_older();
}

/// A folder that is being removed has another name first: what is left of it is never taken for a
/// checkpoint.
void CheckpointWriter::remove_older() {
  if (options_.keep == 0) return;
  std::vector<FoundCheckpoint> older = checkpoints_in(options_.folder);
  std::erase_if(older, [&](const auto& found) { return found.step > saved_.step; });
  if (static_cast<int64_t>(older.size()) <= options_.keep) return;
  older.resize(older.size() - static_cast<size_t>(options_.keep));
  for (const FoundCheckpoint& found : older) {
    try {
      const std::string going = found.path + kRemoved;
      storage_.rename(found.path, going);
      storage_.remove(going);
    } catch (const Error& e) {
      saved_.left = e.what();
    }
  }
}

Saved CheckpointWriter::ended() {
  join();
  phase_ = Phase::none;
  const auto mine = [&] { SR_REQUIRE(failure_.empty(), device, failure_); };
  if (const std::optional<Error> met = try_together(host_, mine)) saved_.failure = met->what();
  if (!saved_.failure.empty() && host_.rank() == 0) {
    try {
      storage_.remove(partial());
    } catch (const Error&) {  // the next start tries again
    }
  }
  host_.broadcast(&saved_.bytes, sizeof saved_.bytes, 0);
  saved_.seconds = now_seconds() - began_;
  return saved_;
}

}  // namespace shardrun
