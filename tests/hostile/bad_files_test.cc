// Every reader of files from outside gets files that it may not take. Each is read in a process of
// its own with a gigabyte of address space and 10 s of a core, and is refused in one sentence that
// names the file, the place and the value.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "base/error.h"
#include "tests/hostile/bad_file.h"
#include "tests/support/sanitizer.h"

namespace shardrun::test {
namespace {

constexpr rlim_t kBytes = rlim_t{1} << 30, kSeconds = 10;
constexpr unsigned kPatience = 120;  // s of a clock: for what waits without a core's time

enum Status { kRefused = 0, kTaken = 1, kInternal = 2, kOther = 3 };

[[noreturn]] void read_limited(const BadFile& file, const std::string& folder, int answer) {
  const rlimit memory{kBytes, kBytes};
  if (!test::kSanitized) setrlimit(RLIMIT_AS, &memory);
  const rlimit cpu{kSeconds * test::kSlower, kSeconds * test::kSlower}, core{0, 0};
  setrlimit(RLIMIT_CPU, &cpu);
  setrlimit(RLIMIT_CORE, &core);
  alarm(kPatience * test::kSlower);
  std::string said;
  Status status = kTaken;
  try {
    file.read(file.write(folder));
  } catch (const Error& e) {
    said = e.what();
    const bool refused = e.kind() == ErrorKind::invalid_input || e.kind() == ErrorKind::unsupported;
    status = refused ? kRefused : kInternal;
  } catch (const std::exception& e) {
    said = e.what();
    status = kOther;
  }
  if (write(answer, said.data(), said.size()) < 0) status = kOther;
  _exit(status);
}

/// What it says, and its status as an exit or a signal left it.
std::pair<std::string, int> read_apart(const BadFile& file, const std::string& folder) {
  int channel[2];
  if (pipe(channel) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child == 0) read_limited(file, folder, channel[1]);
  close(channel[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t got; (got = read(channel[0], buffer, sizeof buffer)) > 0;)
    said.append(buffer, static_cast<size_t>(got));
  close(channel[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return {said, status};
}

void expect_read_or_refused(const BadFile& file) {
  SCOPED_TRACE(file.name);
  std::string folder = (std::filesystem::temp_directory_path() / "shardrun_bad_XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto [said, status] = read_apart(file, folder);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  if (file.words.empty()) {
    EXPECT_EQ(WEXITSTATUS(status), kTaken) << said;
    return;
  }
  EXPECT_EQ(WEXITSTATUS(status), kRefused) << said;
  EXPECT_NE(said.find(folder), std::string::npos) << "names no file: " << said;
  EXPECT_LT(said.size(), 2000u) << said;
  for (const std::string& word : file.words)
    EXPECT_NE(said.find(word), std::string::npos) << "no '" << word << "' in: " << said;
}

struct ReaderFiles {
  const char* reader;
  std::vector<BadFile> (*files)();
};

class BadFileOf : public testing::TestWithParam<ReaderFiles> {};

TEST_P(BadFileOf, IsRefusedWithFilePlaceAndValue) {
  std::set<std::string> names;
  int good = 0;
  for (const BadFile& file : GetParam().files()) {
    EXPECT_TRUE(names.insert(file.name).second) << file.name << " is there twice";
    expect_read_or_refused(file);
    good += file.words.empty();
  }
  EXPECT_GT(good, 0) << "nothing shows that the reader takes what is as it should be";
}

constexpr ReaderFiles kReaders[] = {{"Model", bad_models},
                                    {"Operator", bad_operators},
                                    {"Recipe", bad_recipes},
                                    {"Plan", bad_plans},
                                    {"Cluster", bad_clusters},
                                    {"Checkpoint", bad_checkpoints},
                                    {"Safetensors", bad_safetensors},
                                    {"Arrays", bad_arrays},
                                    {"Samples", bad_samples},
                                    {"Problem", bad_problems}};

INSTANTIATE_TEST_SUITE_P(Readers, BadFileOf, testing::ValuesIn(kReaders),
                         [](const auto& reader) { return std::string(reader.param.reader); });

TEST(BadFileOfAnyReader, AreManyInAll) {
  size_t files = 0;
  for (const ReaderFiles& reader : kReaders) files += reader.files().size();
  EXPECT_GE(files, 200u);
}

}  // namespace
}  // namespace shardrun::test
