// Printing for people.
#include "report.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>

namespace shardrun::cli {
namespace {

std::string bytes_text(int64_t bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%lld B (%.1f MiB)", static_cast<long long>(bytes),
                static_cast<double>(bytes) / 0x1p20);
  return text;
}

std::string speed_text(const StepReport& r) {
  char text[64];
  const bool tokens = r.tokens_per_s > 0;
  std::snprintf(text, sizeof text, "%.0f %s/s", tokens ? r.tokens_per_s : r.samples_per_s,
                tokens ? "tokens" : "samples");
  return text;
}

std::string accuracy_text(const std::optional<double>& accuracy) {
  if (!accuracy) return "";
  char text[48];
  std::snprintf(text, sizeof text, "  accuracy %.4f", *accuracy);
  return text;
}

}  // namespace

void print_model(const Model& model, bool verbose) {
  for (const std::string& note : model.notes()) std::printf("%s\n", note.c_str());
  if (!verbose) return;
  size_t width = 9;
  for (const ParameterInfo& p : model.parameters()) width = std::max(width, p.name.size());
  std::printf("%-*s  %-22s %-9s %s\n", static_cast<int>(width), "parameter", "type", "trained",
              "why");
  for (const ParameterInfo& p : model.parameters()) {
    std::printf("%-*s  %-22s %-9s %s\n", static_cast<int>(width), p.name.c_str(), p.type.c_str(),
                p.trainable ? "yes" : "frozen", p.why.c_str());
  }
}

void print_bytes(const std::vector<int64_t>& predicted, const std::vector<int64_t>& allocated) {
  for (size_t r = 0; r < allocated.size(); ++r) {
    std::printf("rank %zu: predicted %s, allocated %s\n", r, bytes_text(predicted[r]).c_str(),
                bytes_text(allocated[r]).c_str());
  }
}

Progress::Progress(int64_t steps, bool quiet) : steps_(steps), quiet_(quiet) {
  if (!quiet && on_terminal() && ScreenPainter::fits()) screen_.emplace(steps);
}

void Progress::print(const std::function<void()>& print) {
  if (screen_) {
    screen_->above(print);
  } else {
    print();
  }
  std::fflush(stdout);
}

void Progress::step(const StepReport& r) {
  total_.step_ms += r.step_ms;
  total_.samples_per_s += r.samples_per_s * r.step_ms;
  total_.tokens_per_s += r.tokens_per_s * r.step_ms;
  if (quiet_) return;
  if (screen_) {
    screen_->step(r);
    return;
  }
  if (r.step == 1 || r.step == steps_ || r.step % std::max<int64_t>(1, steps_ / 20) == 0) {
    std::printf("step %lld/%lld  loss %.4f  lr %.3g  grad norm %.3g  %.1f ms (comm %.1f)  %s\n",
                static_cast<long long>(r.step), static_cast<long long>(steps_), r.loss, r.lr,
                r.grad_norm, r.step_ms, r.comm_ms, speed_text(r).c_str());
  }
  std::fflush(stdout);
}

void Progress::eval(const EvalReport& r) {
  if (r.best) best_ = r;
  best_.best_step = r.best_step;
  best_.test_loss = r.test_loss;
  best_.test_accuracy = r.test_accuracy;
  if (quiet_) return;
  if (screen_) screen_->eval(r);
  const int64_t apart = std::max<int64_t>(1, steps_ / 20);
  if (printed_ > 0 && r.step - printed_ < apart && r.step != steps_) return;
  printed_ = r.step;
  print([&] {
    std::printf("step %lld  validation loss %.4f%s\n", static_cast<long long>(r.step), r.val_loss,
                accuracy_text(r.val_accuracy).c_str());
  });
}

void Progress::checkpoint(const CheckpointReport& r) {
  const auto step = static_cast<long long>(r.step);
  if (!r.failure.empty()) {
    print([&] {
      std::fprintf(stderr, "warning: the checkpoint of step %lld was not written: %s\n", step,
                   r.failure.c_str());
    });
  }
  if (!r.left.empty()) {
    print([&] {
      std::fprintf(stderr, "warning: an older checkpoint could not be removed: %s\n",
                   r.left.c_str());
    });
  }
  const int64_t apart = std::max<int64_t>(1, steps_ / 20);
  if (quiet_ || !r.failure.empty() || (saved_ > 0 && r.step - saved_ < apart && r.step != steps_))
    return;
  saved_ = r.step;
  print([&] {
    std::printf("step %lld  checkpoint of %.1f MB in %.2f s, training stood still for %.3f s\n",
                step, static_cast<double>(r.bytes) / 1e6, r.seconds, r.stalled_seconds);
  });
}

void Progress::note(const std::string& text) {
  if (text.empty()) return;
  print([&] { std::fprintf(quiet_ ? stderr : stdout, "note: %s\n", text.c_str()); });
}

void Progress::finish(const TrainReport& report) {
  if (quiet_) return;
  if (screen_) screen_->finish();
  if (!report.losses.empty()) {
    StepReport mean = total_;  // over all steps, validation left out
    mean.samples_per_s /= total_.step_ms;
    mean.tokens_per_s /= total_.step_ms;
    std::printf("trained %zu steps in %.1f s: loss %.4f -> %.4f, %s\n", report.losses.size(),
                report.seconds, report.losses.front(), report.losses.back(),
                speed_text(mean).c_str());
    if (report.bigram_entropy && !report.evals.empty()) {
      std::printf("validation loss %.4f; counting tokens alone has %.4f, pairs of them %.4f\n",
                  report.evals.back().val_loss, *report.unigram_entropy, *report.bigram_entropy);
    }
  }
  if (best_.step > 0 && (report.evals.size() > 1 || best_.best_step)) {
    std::printf("best validation: step %lld  loss %.4f%s\n", static_cast<long long>(best_.step),
                best_.val_loss, accuracy_text(best_.val_accuracy).c_str());
  }
  if (best_.test_loss) {
    std::printf("test, of that step: loss %.4f%s\n", *best_.test_loss,
                accuracy_text(best_.test_accuracy).c_str());
  }
  print_bytes(report.predicted_bytes, report.allocated_bytes);
}

int launched_processes() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    if (const char* size = std::getenv(name); size && std::atoi(size) > 0) return std::atoi(size);
  }
  return 1;
}

namespace {

/// A file of the job, on this machine; "" where there is no place for one. mpirun removes it.
std::string failure_mark() {
  const char* folder = std::getenv("PMIX_SERVER_TMPDIR");
  return folder ? std::string(folder) + "/shardrun.failed" : "";
}

}  // namespace

bool first_to_fail() {
  const std::string mark = failure_mark();
  if (mark.empty()) return true;
  const int fd = ::open(mark.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return errno != EEXIST;
  ::close(fd);
  return true;
}

bool another_has_failed() {
  if (const std::string mark = failure_mark(); !mark.empty() && ::access(mark.c_str(), F_OK) == 0)
    return true;
  const char* together = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  const std::string parent = std::to_string(getppid());
  std::ifstream children("/proc/" + parent + "/task/" + parent + "/children");
  if (together == nullptr || !children) return false;
  int alive = 0;
  for (std::string child; children >> child;) ++alive;
  return alive < std::atoi(together);
}

bool is_first_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name)) return std::string_view(rank) == "0";
  }
  return true;
}

int all_printed(int status) {
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return status;
  if (errno == EPIPE) return status == 0 ? 128 + SIGPIPE : status;  // as 'head' wants it
  const std::string why = flushed ? "" : std::string(": ") + std::strerror(errno);
  std::fprintf(stderr, "shardrun: what was printed could not all be written%s\n", why.c_str());
  return status == 0 ? 1 : status;
}

}  // namespace shardrun::cli
