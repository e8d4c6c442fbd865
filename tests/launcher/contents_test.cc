// What tells two ranks' data apart, and what it leaves unread.
#include "launcher/api/contents.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace shardrun {
namespace {

class DataFolder : public testing::Test {
 protected:
  DataFolder()
      : path_(std::filesystem::temp_directory_path() / str("shardrun_contents_", getpid())) {
    std::filesystem::create_directory(path_);
  }
  ~DataFolder() override { std::filesystem::remove_all(path_); }

  /// Names sort by their numbers.
  void write(int file, const std::string& text) {
    std::ofstream(path_ / std::to_string(1000 + file)) << text;
  }
  std::string hash() const { return contents_hash("npy:" + path_.string()); }

 private:
  std::filesystem::path path_;
};

/// Of 192 files every third is read: a folder of a million takes no longer than one of 64.
TEST_F(DataFolder, IsIdentifiedBySixtyFourOfItsFilesAndTheirNumber) {
  for (int file = 0; file < 192; ++file) write(file, "abc");
  const std::string all = hash();
  for (int file : {0, 3, 96, 189}) {
    write(file, "abd");
    EXPECT_NE(hash(), all) << file;
    write(file, "abc");
  }
  for (int file : {1, 2, 97, 191}) write(file, "abd");
  EXPECT_EQ(hash(), all);
  write(192, "abc");
  EXPECT_NE(hash(), all);
}

TEST_F(DataFolder, OfFewFilesIsIdentifiedByAll) {
  for (int file = 0; file < 64; ++file) write(file, "abc");
  const std::string all = hash();
  for (int file = 0; file < 64; ++file) {
    write(file, "abd");
    EXPECT_NE(hash(), all) << file;
    write(file, "abc");
  }
}

/// The first and the last block of a file are among those that are read; most of a long one's are
/// not.
TEST_F(DataFolder, ALongFileIsIdentifiedBySomeOfItsBlocks) {
  std::string text(1 << 20, 'a');  // 256 blocks of 4 KiB
  write(0, text);
  const std::string all = hash();
  for (size_t at : {size_t{0}, text.size() - 1}) {
    text[at] = 'b';
    write(0, text);
    EXPECT_NE(hash(), all) << at;
    text[at] = 'a';
  }
  text[5000] = 'b';
  write(0, text);
  EXPECT_EQ(hash(), all);
}

}  // namespace
}  // namespace shardrun
