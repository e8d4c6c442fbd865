// The metrics file: its lines, flushed one by one, and how failures to write show.
#include "exec/metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <vector>

#include "base/error.h"

namespace shardrun {
namespace {

std::string contents(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Metrics, LinesAreJsonAndThereAtOnce) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("shardrun_metrics_" + std::to_string(getpid())))
          .string();
  StepMetrics m;
  m.step = 10;
  m.loss = 2.5;
  m.lr = 0.001;
  m.grad_norm = 1.25;
  m.step_ms = 8.5;
  m.tokens_per_s = 90000.0;
  m.comm_ms = 0.5;
  m.peak_bytes = 1048576;
  const std::string first =
      R"({"step":10,"loss":2.5,"lr":0.001,"grad_norm":1.25,"step_ms":8.5,"tokens_per_s":90000.0,"comm_ms":0.5,"peak_bytes":1048576})";
  {
    MetricsWriter writer(path);
    writer.step(m);
    EXPECT_EQ(contents(path), first + "\n");
    writer.eval({.step = 10, .val_loss = 2.625});
    EXPECT_EQ(contents(path), first + "\n{\"step\":10,\"val_loss\":2.625}\n");
  }
  MetricsWriter(path).eval({.step = 11, .val_loss = std::numeric_limits<double>::quiet_NaN()});
  EXPECT_EQ(contents(path), "{\"step\":11,\"val_loss\":null}\n");
  m.tokens_per_s.reset();
  m.grad_norm.reset();
  m.samples_per_s = 12.0;
  MetricsWriter(path).step(m);
  EXPECT_EQ(contents(path),
            "{\"step\":10,\"loss\":2.5,\"lr\":0.001,\"step_ms\":8.5,\"samples_per_s\":12.0,\"comm_"
            "ms\":0.5,"
            "\"peak_bytes\":1048576}\n");
  std::filesystem::remove(path);
}

TEST(Metrics, AccuraciesStandWhereThereAreSome) {
  EvalMetrics m{.step = 4, .val_loss = 0.5, .val_accuracy = 0.75};
  EXPECT_EQ(to_json(m), R"({"step":4,"val_loss":0.5,"val_accuracy":0.75})");
  m.best_step = 3;
  m.test_loss = 0.25;
  m.test_accuracy = 1.0;
  EXPECT_EQ(
      to_json(m),
      R"({"step":4,"val_loss":0.5,"val_accuracy":0.75,"best_step":3,"test_loss":0.25,"test_accuracy":1.0})");
}

/// What a run wrote behind its checkpoint is written again by the run that goes on from there.
TEST(Metrics, GoOnBehindACheckpoint) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("shardrun_go_on_" + std::to_string(getpid())))
          .string();
  MetricsPosition at;
  {
    MetricsWriter writer(path);
    writer.eval({.step = 1, .val_loss = 1.0});
    writer.eval({.step = 2, .val_loss = 2.0});
    at = writer.position();
    writer.sync();
    writer.eval({.step = 3, .val_loss = 3.0});
  }
  const std::string kept = "{\"step\":1,\"val_loss\":1.0}\n{\"step\":2,\"val_loss\":2.0}\n";
  EXPECT_EQ(at.bytes, static_cast<int64_t>(kept.size()));
  {
    MetricsWriter writer(path, metrics_to_go_on(path, at));
    EXPECT_EQ(contents(path), kept);
    writer.eval({.step = 3, .val_loss = 4.0});
    EXPECT_EQ(writer.position().bytes, static_cast<int64_t>(contents(path).size()));
    MetricsWriter(path, metrics_to_go_on(path, writer.position()));
  }
  EXPECT_EQ(contents(path), kept + "{\"step\":3,\"val_loss\":4.0}\n");

  const auto refused = [&](const std::string& text) {
    std::ofstream(path) << text;
    try {
      metrics_to_go_on(path, at);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("(taken)");
  };
  const std::string sentence =
      "metrics file " + path + ": does not begin with the " + std::to_string(at.bytes) +
      " bytes that the run had written to its own; name that one, or one that is not there";
  EXPECT_EQ(refused(kept), "(taken)");
  EXPECT_EQ(refused(kept.substr(1) + "x"), sentence);
  EXPECT_EQ(refused(kept.substr(0, kept.size() - 1)), sentence);
  EXPECT_EQ(contents(path), kept.substr(0, kept.size() - 1)) << "changed";
  std::filesystem::remove(path);
  EXPECT_EQ(metrics_to_go_on(path, at).bytes, 0) << "a new one begins";
  EXPECT_EQ(metrics_to_go_on("/dev/null", at).bytes, 0);
}

/// Once: a line that was left out is no end of a run.
TEST(Metrics, AFullDiskIsReported) {
  MetricsWriter writer("/dev/full");
  EXPECT_EQ(
      writer.eval({.step = 1, .val_loss = 1.0}),
      "metrics file /dev/full: cannot write: No space left on device; lines are left out until "
      "it can be written again");
  EXPECT_EQ(writer.eval({.step = 2, .val_loss = 1.0}), "");
  EXPECT_EQ(writer.lost(), 2);
}

/// A file that may not grow stands for a disk that is full in the middle of a line.
TEST(Metrics, AFullDiskTearsNoLine) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("shardrun_full_" + std::to_string(getpid())))
          .string();
  const auto line = [](int64_t step) {
    return to_json(EvalMetrics{.step = step, .val_loss = 1.5}) + "\n";
  };
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto limit = [&](rlim_t bytes) {
    const rlimit wanted{bytes, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &wanted), 0);
  };
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  MetricsWriter writer(path);
  limit(line(1).size() * 2 + 5);
  std::vector<std::string> notes;
  for (int64_t step = 1; step <= 4; ++step)
    notes.push_back(writer.eval({.step = step, .val_loss = 1.5}));
  EXPECT_EQ(contents(path), line(1) + line(2));
  limit(before.rlim_cur);
  notes.push_back(writer.eval({.step = 5, .val_loss = 1.5}));
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(contents(path), line(1) + line(2) + line(5)) << "there is space again";
  EXPECT_EQ(writer.position().bytes, static_cast<int64_t>(contents(path).size()));
  EXPECT_EQ(writer.lost(), 2);
  for (size_t i = 0; i < notes.size(); ++i) {
    EXPECT_EQ(notes[i].empty(), i != 2) << i << ": " << notes[i];
  }
  std::filesystem::remove(path);
}

/// Nobody may read it, or who does may go or stop to.
TEST(Metrics, APipeBlocksNobody) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("shardrun_pipe_" + std::to_string(getpid())))
          .string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  try {
    MetricsWriter writer(path);
    ADD_FAILURE() << "was opened";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()),
              "metrics file " + path + ": cannot open: nobody reads this pipe");
  }
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  MetricsWriter writer(path);
  EXPECT_EQ(writer.eval({.step = 1, .val_loss = 1.5}), "");
  const std::string line = to_json(EvalMetrics{.step = 1, .val_loss = 1.5}) + "\n";
  std::string got(line.size(), ' ');
  EXPECT_EQ(::read(reader, got.data(), got.size()), static_cast<ssize_t>(got.size()));
  EXPECT_EQ(got, line);
  std::string note;
  for (int64_t step = 2; step < 10000 && note.empty(); ++step)  // more than a pipe holds
    note = writer.eval({.step = step, .val_loss = 1.5});
  EXPECT_NE(note.find(": cannot write: nobody takes what this pipe holds"), std::string::npos);
  ::close(reader);
  EXPECT_EQ(writer.eval({.step = 1, .val_loss = 1.5}), "");
  EXPECT_GE(writer.lost(), 2);
  std::filesystem::remove(path);
}

TEST(Metrics, AFolderThatIsMissingIsReported) {
  EXPECT_THROW(MetricsWriter("/nonexistent/folder/m.jsonl"), Error);
}

}  // namespace
}  // namespace shardrun
