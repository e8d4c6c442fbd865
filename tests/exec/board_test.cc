// TensorBoard's event files: read back record by record.
#include "exec/board/board.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "event.pb.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;

class Board : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/board_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string folder_;
};

std::string bytes_of(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

template <class T>
T number(const std::string& bytes, size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// The events of a file, each checksum looked at.
std::vector<board::Event> events_of(const std::string& path) {
  const std::string bytes = bytes_of(path);
  std::vector<board::Event> out;
  for (size_t at = 0; at < bytes.size();) {
    if (at + 12 > bytes.size()) {
      ADD_FAILURE() << "a part of a record at byte " << at;
      break;
    }
    const auto length = number<uint64_t>(bytes, at);
    EXPECT_EQ(number<uint32_t>(bytes, at + 8), masked_crc32c(bytes.substr(at, 8)));
    const std::string event = bytes.substr(at + 12, length);
    EXPECT_EQ(event.size(), length);
    EXPECT_EQ(number<uint32_t>(bytes, at + 12 + length), masked_crc32c(event));
    EXPECT_TRUE(out.emplace_back().ParseFromString(event));
    at += 16 + length;
  }
  return out;
}

std::map<std::string, float> scalars_of(const board::Event& event) {
  std::map<std::string, float> out;
  for (const board::Summary::Value& value : event.summary().value()) {
    EXPECT_TRUE(value.has_simple_value()) << value.tag();  // else readers see none
    out[value.tag()] = value.simple_value();
  }
  return out;
}

StepMetrics step(int64_t at, double loss) {
  return {.step = at,
          .loss = loss,
          .lr = 0.5,
          .grad_norm = 1.25,
          .step_ms = 8,
          .tokens_per_s = 4096,
          .samples_per_s = {},
          .comm_ms = 2,
          .peak_bytes = 1 << 20};
}

TEST_F(Board, MaskedChecksumsAreThoseOfTfRecord) {
  // The first record of every file is 24 bytes long: its length, as eight bytes.
  const std::string length = std::string("\x18\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(masked_crc32c(length), 0x224b7fa3u);  // as the tensorboard package has it
}

/// As readers need it, who tell 0 from nothing.
TEST_F(Board, ZerosAreWritten) {
  BoardWriter writer(folder_ + "/runs/zeros", 0);
  StepMetrics zeros = step(1, 0);
  zeros.lr = 0, zeros.comm_ms = 0;
  EXPECT_EQ(writer.step(zeros), "");
  EXPECT_EQ(writer.eval({.step = 1, .val_loss = 0, .val_accuracy = 0.0}), "");
  const std::vector<board::Event> events = events_of(writer.path());
  ASSERT_EQ(events.size(), 3u);
  const std::map<std::string, float> of_step = scalars_of(events[1]),
                                     of_eval = scalars_of(events[2]);
  for (const char* tag :
       {"loss/train", "optimizer/learning_rate", "step/communication_milliseconds"})
    EXPECT_EQ(of_step.at(tag), 0) << tag;
  for (const char* tag : {"loss/validation", "accuracy/validation"})
    EXPECT_EQ(of_eval.at(tag), 0) << tag;
}

TEST_F(Board, StepsAndValidationsComeBack) {
  BoardWriter writer(folder_ + "/runs/a", 0);
  EXPECT_EQ(writer.step(step(1, 2.5)), "");
  EXPECT_EQ(writer.eval({.step = 1, .val_loss = 3, .val_accuracy = 0.25}), "");
  EXPECT_EQ(writer.step(step(2, std::nan(""))), "");
  EXPECT_EQ(writer.eval({.step = 2, .val_loss = 2, .best_step = 1, .test_loss = 2.75}), "");
  const std::vector<board::Event> events = events_of(writer.path());
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_GT(events[0].wall_time(), 1e9);
  const auto first = scalars_of(events[1]);
  EXPECT_EQ(events[1].step(), 1);
  EXPECT_EQ(first.at("loss/train"), 2.5f);
  EXPECT_EQ(first.at("optimizer/gradient_norm"), 1.25f);
  EXPECT_EQ(first.at("rate/tokens_per_second"), 4096);
  EXPECT_EQ(first.at("step/communication_fraction"), 0.25f);
  EXPECT_EQ(first.at("memory/arena_bytes"), 1 << 20);
  EXPECT_EQ(first.count("rate/samples_per_second"), 0u);
  EXPECT_EQ(scalars_of(events[2]).at("accuracy/validation"), 0.25f);
  EXPECT_TRUE(std::isnan(scalars_of(events[3]).at("loss/train")));
  EXPECT_EQ(events[5].step(), 1);  // of the best validation
  EXPECT_EQ(scalars_of(events[5]).at("loss/test"), 2.75f);
}

/// Readers take files in the order of their names, and drop what is behind a start.
TEST_F(Board, ARunThatGoesOnWritesBehindAndSaysFromWhere) {
  std::vector<std::string> paths;
  for (const int64_t after : {0, 2, 4}) {
    BoardWriter writer(folder_, after);
    writer.step(step(after + 1, 1));
    paths.push_back(writer.path());
  }
  EXPECT_TRUE(std::is_sorted(paths.begin(), paths.end()));
  EXPECT_EQ(std::adjacent_find(paths.begin(), paths.end()), paths.end());
  const std::vector<board::Event> events = events_of(paths[1]);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].session_log().status(), board::SessionLog::START);
  EXPECT_EQ(events[1].step(), 3);
  EXPECT_EQ(events_of(paths[0]).size(), 2u);
}

TEST_F(Board, FullDisksLoseWholeRecordsAndSaySoOnce) {
  BoardWriter writer(folder_, 0);
  const std::string before = bytes_of(writer.path());
  struct rlimit none {
    before.size() + 20, RLIM_INFINITY
  }, old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  none.rlim_max = old.rlim_max;
  signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const std::string said = writer.step(step(1, 1));
  const std::string again = writer.step(step(2, 1));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_NE(said.find("cannot write"), std::string::npos) << said;
  EXPECT_EQ(again, "");
  EXPECT_EQ(bytes_of(writer.path()), before);
  writer.step(step(3, 1));
  const std::vector<board::Event> events = events_of(writer.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].step(), 3);
}

TEST_F(Board, WhatIsNoFolderIsRefused) {
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_THROW(BoardWriter(folder_ + "/file", 0), Error);
  EXPECT_THROW(BoardWriter(folder_ + "/file/below", 0), Error);
}

}  // namespace
}  // namespace shardrun
