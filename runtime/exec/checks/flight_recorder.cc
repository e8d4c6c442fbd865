// Lines of one length in a mapped file.
#include "exec/checks/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "graph/collective.h"

namespace shardrun {
namespace {

/// "0000004711 1764201600.123456 step 12 ".
constexpr size_t kFront = 48;
constexpr int64_t kHead = 1;  // lines before the others
constexpr int64_t kFileBytes = (FlightRecorder::kLines + kHead) * FlightRecorder::kLineBytes;

std::string text_of(const Program& program, const Step& step) {
  if (step.kind == Step::Kind::kernel) return str(step.node.op, " '", step.node.name, "'");
  const Collective& c = *step.collective;
  const Buffer& buffer = program.buffers[static_cast<size_t>(step.in[0])];
  std::string out =
      str(to_string(c.kind), " of '", buffer.name, "', ", byte_size(buffer.type), " bytes");
  if (c.traits().local) return out;
  out += ", ranks";
  for (const int64_t rank : c.group) out += str(" ", rank);
  return out;
}

/// Digits of `value`, `width` of them, to `to`.
char* digits(char* to, uint64_t value, int width) {
  for (int i = width - 1; i >= 0; --i, value /= 10) to[i] = static_cast<char>('0' + value % 10);
  return to + width;
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  SR_REQUIRE(!error && ::access(folder.c_str(), W_OK | X_OK) == 0, invalid_input,
             "--flight-recorder: ", folder, ": ",
             error ? error.message() : std::string(std::strerror(errno)));
}

}  // namespace

FlightRecorder::FlightRecorder(const std::string& folder, int64_t rank, const std::string& who)
    : steps_((make_folder(folder), str(folder, "/rank-", rank, ".steps")), who),
      collectives_(str(folder, "/rank-", rank, ".collectives"), who) {
  steps_.keep(true);
  collectives_.keep(true);
}

void FlightRecorder::discard() {
  steps_.keep(false);
  collectives_.keep(false);
}

FlightRecorder::Ring::Ring(std::string path, const std::string& head) : path_(std::move(path)) {
  const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  SR_REQUIRE(fd >= 0, invalid_input, "--flight-recorder: ", path_, ": ", std::strerror(errno));
  const bool sized = ::posix_fallocate(fd, 0, kFileBytes) == 0;
  void* const mapped =
      sized ? ::mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  ::close(fd);
  if (mapped == MAP_FAILED) ::unlink(path_.c_str());
  SR_REQUIRE(mapped != MAP_FAILED, invalid_input, "--flight-recorder: ", path_,
             ": cannot be mapped; give a folder of a file system with space");
  mapped_ = static_cast<char*>(mapped);
  std::memset(mapped_, ' ', kFileBytes);
  for (int64_t line = 1; line <= kLines + kHead; ++line) mapped_[line * kLineBytes - 1] = '\n';
  std::copy_n(head.begin(), std::min(head.size(), static_cast<size_t>(kLineBytes) - 1), mapped_);
}

FlightRecorder::Ring::~Ring() {
  if (!kept_) {
    ::unlink(path_.c_str());
  } else {
    char* const lines = mapped_ + kHead * kLineBytes;
    if (written_ > kLines)
      std::rotate(lines, lines + written_ % kLines * kLineBytes, lines + kLines * kLineBytes);
  }
  ::munmap(mapped_, kFileBytes);
}

FlightRecorder::Lines FlightRecorder::lines(const Program& program, const std::string& part) {
  constexpr size_t kMost = static_cast<size_t>(kLineBytes) - 1 - kFront;
  Lines out;
  for (const Step& step : program.steps) {
    std::string line = str(part, ": ", text_of(program, step));
    if (line.size() > kMost) line = line.substr(0, kMost - 3) + "...";
    line.resize(kMost, ' ');
    const bool collective = step.kind == Step::Kind::collective && !step.collective->traits().local;
    out.push_back({std::move(line), collective});
  }
  return out;
}

void FlightRecorder::runs(const Lines& lines, size_t first, size_t count) {
  for (size_t s = first; s < first + count; ++s) {
    steps_.write(step_, lines[s].text);
    if (lines[s].collective) collectives_.write(step_, lines[s].text);
  }
}

void FlightRecorder::Ring::write(int64_t step, const std::string& what) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  char* at = mapped_ + (kHead + written_ % kLines) * kLineBytes;
  char* const text = at + kFront;
  at = digits(at, static_cast<uint64_t>(written_), 10);
  *at++ = ' ';
  at = digits(at, static_cast<uint64_t>(now.tv_sec), 10);
  *at++ = '.';
  at = digits(at, static_cast<uint64_t>(now.tv_nsec / 1000), 6);
  std::memcpy(at, " step ", 6);
  digits(at + 6, static_cast<uint64_t>(step), 9);
  std::memcpy(text, what.data(), what.size());
  ++written_;
}

}  // namespace shardrun
