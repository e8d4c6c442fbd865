// Records of events. The file is opened once and only grows.
#include "exec/board/board.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/crc32c.h"
#include "base/error.h"
#include "event.pb.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "events.out.tfevents.";
constexpr size_t kSecondsDigits = 10;  // of the seconds in a file's name

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <class T>
std::string little_endian(T value) {
  std::string out;
  for (size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

std::string record(const std::string& event) {
  const std::string length = little_endian(static_cast<uint64_t>(event.size()));
  return length + little_endian(masked_crc32c(length)) + event +
         little_endian(masked_crc32c(event));
}

/// Seconds for a file's name: now, or later if a file that is there has them.
int64_t seconds_for_name(const std::string& folder) {
  auto seconds = static_cast<int64_t>(now());
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    const std::string digits = name.substr(std::strlen(kPrefix), kSecondsDigits);
    if (digits.size() < kSecondsDigits ||
        digits.find_first_not_of("0123456789") != std::string::npos)
      continue;
    seconds = std::max(seconds, static_cast<int64_t>(std::stoll(digits)) + 1);
  }
  return seconds;
}

std::string name_of_file(const std::string& folder) {
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  return str(folder, "/", kPrefix, seconds_for_name(folder), ".", static_cast<const char*>(host),
             ".", ::getpid());
}

std::string serialised(board::Event event) {
  event.set_wall_time(now());
  return event.SerializeAsString();
}

}  // namespace

uint32_t masked_crc32c(const std::string& bytes) {
  const uint32_t crc = crc32c(bytes.data(), std::ssize(bytes));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

BoardWriter::BoardWriter(const std::string& folder, int64_t after) {
  std::error_code error;
  fs::create_directories(folder, error);
  SR_REQUIRE(!error, invalid_input, "board folder ", folder, ": cannot be made: ", error.message());
  path_ = name_of_file(folder);
  file_ = Descriptor(path_, O_CREAT | O_EXCL);
  SR_REQUIRE(file_.is_open(), invalid_input, "board file ", path_,
             ": cannot open: ", file_.error());
  board::Event version;
  version.set_file_version("brain.Event:2");
  append(serialised(version));
  if (after == 0) return;
  board::Event start;
  start.set_step(after + 1);
  start.mutable_session_log()->set_status(board::SessionLog::START);
  append(serialised(start));
}

std::string BoardWriter::step(const StepMetrics& metrics) {
  Scalars scalars = {{"loss/train", metrics.loss},
                     {"optimizer/learning_rate", metrics.lr},
                     {"step/milliseconds", metrics.step_ms},
                     {"step/communication_milliseconds", metrics.comm_ms},
                     {"memory/arena_bytes", static_cast<double>(metrics.peak_bytes)}};
  if (metrics.step_ms > 0)
    scalars.emplace_back("step/communication_fraction", metrics.comm_ms / metrics.step_ms);
  if (metrics.grad_norm) scalars.emplace_back("optimizer/gradient_norm", *metrics.grad_norm);
  if (metrics.tokens_per_s) scalars.emplace_back("rate/tokens_per_second", *metrics.tokens_per_s);
  if (metrics.samples_per_s)
    scalars.emplace_back("rate/samples_per_second", *metrics.samples_per_s);
  return write(metrics.step, scalars);
}

std::string BoardWriter::eval(const EvalMetrics& metrics) {
  Scalars scalars = {{"loss/validation", metrics.val_loss}};
  if (metrics.val_accuracy) scalars.emplace_back("accuracy/validation", *metrics.val_accuracy);
  const std::string failure = write(metrics.step, scalars);
  Scalars test;  // of the step at which validation was best
  if (metrics.test_loss) test.emplace_back("loss/test", *metrics.test_loss);
  if (metrics.test_accuracy) test.emplace_back("accuracy/test", *metrics.test_accuracy);
  if (test.empty()) return failure;
  return failure + write(metrics.best_step.value_or(metrics.step), test);
}

std::string BoardWriter::write(int64_t step, const Scalars& scalars) {
  board::Event event;
  event.set_step(step);
  for (const auto& [tag, value] : scalars) {
    board::Summary::Value* to = event.mutable_summary()->add_value();
    to->set_tag(tag);
    to->set_simple_value(static_cast<float>(value));
  }
  return append(serialised(event));
}

std::string BoardWriter::append(const std::string& event) {
  constexpr int kPatience = 1000;  // ms
  const std::string bytes = record(event);
  const size_t written = file_.write(bytes, lost_ ? 0 : kPatience);
  if (written == bytes.size()) {
    bytes_ += std::ssize(bytes);
    return "";
  }
  // A part of a record would hide those behind it.
  if (written > 0 && ::ftruncate(file_.fd(), bytes_) == 0) ::lseek(file_.fd(), bytes_, SEEK_SET);
  if (std::exchange(lost_, true)) return "";
  return str("board file ", path_, ": cannot write: ", file_.error(),
             "; events are left out until it can be written again");
}

}  // namespace shardrun
