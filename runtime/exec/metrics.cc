// Metrics: one JSON object a line.
#include "exec/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"

namespace shardrun {

std::string to_json(const StepMetrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = metrics.step;
  line["loss"] = metrics.loss;
  line["lr"] = metrics.lr;
  if (metrics.grad_norm) line["grad_norm"] = *metrics.grad_norm;
  line["step_ms"] = metrics.step_ms;
  if (metrics.tokens_per_s) line["tokens_per_s"] = *metrics.tokens_per_s;
  if (metrics.samples_per_s) line["samples_per_s"] = *metrics.samples_per_s;
  line["comm_ms"] = metrics.comm_ms;
  line["peak_bytes"] = metrics.peak_bytes;
  if (metrics.skipped) line["skipped"] = true;
  return line.dump();
}

std::string to_json(const EvalMetrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = metrics.step;
  line["val_loss"] = metrics.val_loss;
  if (metrics.val_accuracy) line["val_accuracy"] = *metrics.val_accuracy;
  if (metrics.best_step) line["best_step"] = *metrics.best_step;
  if (metrics.test_loss) line["test_loss"] = *metrics.test_loss;
  if (metrics.test_accuracy) line["test_accuracy"] = *metrics.test_accuracy;
  return line.dump();
}

MetricsPosition metrics_to_go_on(const std::string& path, const MetricsPosition& position) {
  if (position.bytes == 0 || !std::filesystem::is_regular_file(path)) return {};
  std::ifstream file(path, std::ios::binary);
  std::vector<char> block(1 << 16);
  MetricsPosition read;
  while (read.bytes < position.bytes && file) {
    const auto left = static_cast<std::streamsize>(position.bytes - read.bytes);
    file.read(block.data(), std::min(left, std::ssize(block)));
    read.crc32c = crc32c(block.data(), file.gcount(), read.crc32c);
    read.bytes += file.gcount();
  }
  SR_REQUIRE(read.bytes == position.bytes && read.crc32c == position.crc32c, invalid_input,
             "metrics file ", path, ": does not begin with the ", position.bytes,
             " bytes that the run had written to its own; name that one, or one that is not there");
  return position;
}

MetricsWriter::MetricsWriter(const std::string& path, const MetricsPosition& from)
    : path_(path), file_(path, from.bytes > 0 ? 0 : O_CREAT | O_TRUNC), at_(from) {
  SR_REQUIRE(file_.is_open(), invalid_input, "metrics file ", path,
             ": cannot open: ", file_.error());
  if (from.bytes == 0) return;
  const bool cut = ::ftruncate(file_.fd(), from.bytes) == 0 &&
                   ::lseek(file_.fd(), from.bytes, SEEK_SET) == from.bytes;
  SR_REQUIRE(cut, invalid_input, "metrics file ", path, ": cannot go on behind byte ", from.bytes,
             ": ", std::strerror(errno));
}

void MetricsWriter::sync() const {
  SR_REQUIRE(::fsync(file_.fd()) == 0 || errno == EINVAL || errno == EROFS, device, "metrics file ",
             path_, ": cannot write: ", std::strerror(errno));
}

MetricsWriter::~MetricsWriter() = default;

std::string MetricsWriter::step(const StepMetrics& metrics) { return write(to_json(metrics)); }

std::string MetricsWriter::eval(const EvalMetrics& metrics) { return write(to_json(metrics)); }

std::string MetricsWriter::write(const std::string& line) {
  constexpr int kPatience = 1000;  // ms
  const std::string text = line + "\n";
  const size_t written = file_.write(text, lost_ == 0 ? kPatience : 0);
  if (written == text.size()) {
    at_.crc32c = crc32c(text.data(), std::ssize(text), at_.crc32c);
    at_.bytes += std::ssize(text);
    return "";
  }
  // A part of a line goes again, where that can be.
  if (written > 0 && ::ftruncate(file_.fd(), at_.bytes) == 0)
    ::lseek(file_.fd(), at_.bytes, SEEK_SET);
  if (++lost_ > 1) return "";
  return str("metrics file ", path_, ": cannot write: ", file_.error(),
             "; lines are left out until it can be written again");
}

}  // namespace shardrun
