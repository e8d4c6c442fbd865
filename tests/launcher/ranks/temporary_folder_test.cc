// Folders of files that a command needs for a while, and those of commands that were killed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "process/child.h"
#include "tests/launcher/command.h"

namespace shardrun::cli {
namespace {

namespace fs = std::filesystem;

class TemporaryFolders : public testing::Test {
 protected:
  TemporaryFolders() {
    if (const char* set = std::getenv("TMPDIR")) before_ = set;
    setenv("TMPDIR", at_.path().c_str(), 1);
  }
  ~TemporaryFolders() override {
    before_.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before_.c_str(), 1);
  }
  test::Workspace at_;
  std::string before_;
};

TEST_F(TemporaryFolders, OfAKilledProcessGoesWithTheNext) {
  int made[2];
  ASSERT_EQ(::pipe(made), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const TemporaryFolder folder;
    at_.write(fs::path(folder.path()).filename().string() + "/model.onnx", "weights");
    if (::write(made[1], folder.path().c_str(), folder.path().size() + 1) < 0) _exit(1);
    for (;;) ::pause();
  }
  char path[4096] = {};
  ASSERT_GT(::read(made[0], path, sizeof path), 0);
  ::sleep(3);  // what is younger than two seconds stays
  std::string other;
  {
    const TemporaryFolder next;
    other = next.path();
    EXPECT_TRUE(fs::exists(path)) << "its process lives";
  }
  EXPECT_FALSE(fs::exists(other));
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(fs::exists(path));
  const TemporaryFolder next;
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(next.path()));
}

}  // namespace
}  // namespace shardrun::cli
