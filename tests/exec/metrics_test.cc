// The metrics file: its lines, flushed one by one, and how failures to write show.
#include "exec/metrics.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

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

TEST(Metrics, AFullDiskIsReported) {
  MetricsWriter writer("/dev/full");
  try {
    writer.eval({.step = 1, .val_loss = 1.0});
    ADD_FAILURE() << "writing to a full disk went unnoticed";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "metrics file /dev/full: cannot write: No space left on device");
  }
}

TEST(Metrics, AFolderThatIsMissingIsReported) {
  EXPECT_THROW(MetricsWriter("/nonexistent/folder/m.jsonl"), Error);
}

}  // namespace
}  // namespace shardrun
