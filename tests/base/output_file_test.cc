// OutputFile: what was there stays until all of the new is, and what cannot be written says why.
#include "base/files/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "base/error.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;

class OutputFiles : public testing::Test {
 protected:
  OutputFiles() { fs::create_directories(folder_); }
  ~OutputFiles() override { fs::remove_all(folder_); }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  void put(const std::string& name, const std::string& text) const {
    std::ofstream(at(name)) << text;
  }
  std::string text_of(const std::string& name) const {
    std::ifstream in(at(name));
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }
  static std::string refusal(const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  fs::path folder_ = fs::temp_directory_path() / ("shardrun_output_" + std::to_string(::getpid()));
};

TEST_F(OutputFiles, TakeThePlaceOfTheOldWhenTheyAreWhole) {
  put("f", "old");
  fs::permissions(at("f"), fs::perms::owner_read | fs::perms::owner_write);
  OutputFile file(at("f"));
  file.stream() << "new";
  EXPECT_EQ(text_of("f"), "old");
  file.finish();
  EXPECT_EQ(text_of("f"), "new");
  EXPECT_EQ(fs::status(at("f")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(files(), 1);
}

TEST_F(OutputFiles, LeaveTheOldWhereTheyAreNotFinished) {
  put("f", "old");
  { OutputFile(at("f")).stream() << "half"; }
  { OutputFile(at("fresh")).stream() << "half"; }
  EXPECT_EQ(text_of("f"), "old");
  EXPECT_EQ(files(), 1);
}

/// A writer that was killed leaves its temporary file to the next one. Those of other names, those
/// that are written and those that are fresh stay.
TEST_F(OutputFiles, RemoveWhatWasLeft) {
  const auto left = [&](const std::string& name, int minutes) {
    std::ofstream(at(name)) << "half";
    fs::last_write_time(at(name), fs::file_time_type::clock::now() - std::chrono::minutes(minutes));
    return at(name);
  };
  const std::string old = left("f.123.new", 5), fresh = left("f.124.new", 0),
                    written = left("f.125.new", 5), other = left("g.126.new", 5),
                    named = left("f.x1.new", 5);
  const int writer = ::open(written.c_str(), O_RDONLY);
  ASSERT_EQ(::flock(writer, LOCK_EX | LOCK_NB), 0);
  { OutputFile file(at("f")); }
  EXPECT_FALSE(fs::exists(old));
  for (const std::string& stays : {fresh, written, other, named}) EXPECT_TRUE(fs::exists(stays));
  ::close(writer);
}

TEST_F(OutputFiles, CheckingChangesNothing) {
  put("f", "old");
  check_output(at("f"));
  check_output(at("fresh"));
  check_output("/dev/null");
  EXPECT_EQ(text_of("f"), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(OutputFiles, FoldersAreMadeToSeeThatTheyCanBe) {
  put("f", "x");
  const ptrdiff_t before = files();
  check_output_folder(at("new/below"));
  check_output_folder(at("."));
  EXPECT_EQ(files(), before);
  EXPECT_EQ(refusal([&] { check_output_folder(at("f")); }),
            at("f") + ": cannot be written: Not a directory");
  EXPECT_EQ(refusal([&] { check_output_folder(at("f/below")); }),
            at("f/below") + ": cannot be written: Not a directory");
  const std::string name(300, 'n');
  EXPECT_EQ(refusal([&] { check_output_folder(at("new/" + name)); }),
            at("new/" + name) + ": cannot be written: File name too long");
  EXPECT_NE(refusal([&] { check_output_folder("/proc/nope/below"); }), "");
  EXPECT_EQ(files(), before);
}

TEST_F(OutputFiles, FollowLinks) {
  put("f", "old");
  fs::create_symlink("f", at("link"));
  fs::create_symlink("later", at("ahead"));
  for (const char* name : {"link", "ahead"}) {
    OutputFile file(at(name));
    file.stream() << name;
    file.finish();
    EXPECT_TRUE(fs::is_symlink(at(name)));
  }
  EXPECT_EQ(text_of("f"), "link");
  EXPECT_EQ(text_of("later"), "ahead");
}

TEST_F(OutputFiles, SayWhyTheyCannotBeWritten) {
  EXPECT_EQ(refusal([&] { check_output(at("no/f")); }),
            at("no/f") + ": cannot be written: No such file or directory");
  EXPECT_EQ(refusal([&] { check_output(at("")); }), at("") + ": cannot be written: is a folder");
  EXPECT_EQ(refusal([&] {
              OutputFile full("/dev/full");
              full.stream() << std::string(100000, 'x');
              full.finish();
            }),
            "/dev/full: cannot be written: No space left on device");
}

/// Nobody may read them.
TEST_F(OutputFiles, PipesBlockNobody) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  check_output(at("pipe"));
  const auto write = [&](size_t bytes) {
    OutputFile file(at("pipe"));
    file.stream() << std::string(bytes, 'x');
    file.finish();
  };
  EXPECT_EQ(refusal([&] { write(1); }), at("pipe") + ": cannot be written: nobody reads this pipe");
  std::string got;
  std::thread reader([&] {
    std::ifstream in(at("pipe"));
    got.assign(std::istreambuf_iterator<char>(in), {});
  });
  write(1 << 20);
  reader.join();
  EXPECT_EQ(got, std::string(1 << 20, 'x'));
  std::thread impatient([&] { std::ifstream(at("pipe")).get(); });
  EXPECT_EQ(refusal([&] { write(1 << 24); }), at("pipe") + ": cannot be written: Broken pipe");
  impatient.join();
}

}  // namespace
}  // namespace shardrun
