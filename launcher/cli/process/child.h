// Child processes: another program run to its end, its status and what it said.
#pragma once

#include <unistd.h>

#include <string>
#include <vector>

namespace shardrun::cli {

struct ChildResult {
  int status = 0;    // of exit, or 128 + the signal that ended it
  std::string said;  // on the stream that is kept
};

/// Runs words[0], looked for in PATH. It reads nothing, and what it says on other streams than
/// `kept` (stderr, or stdout) goes nowhere. Throws Failure(run) if it cannot be started.
ChildResult run_child(const std::vector<std::string>& words, int kept = STDERR_FILENO);

/// Runs all of them side by side, with nothing to read and nowhere to speak. One that takes longer
/// than `seconds` is asked to end, and killed a second later. Statuses as ChildResult's.
std::vector<int> run_children(const std::vector<std::vector<std::string>>& commands,
                              double seconds);

/// Why a child failed: what it said as shardrun's sentence, or the first line that says something.
std::string sentence_of(const ChildResult& child);

/// The words of a command that starts ranks, as --mpirun gives them: with --allow-run-as-root
/// behind the program where this process is root's and the program, Open MPI's mpirun, wants that.
/// Throws Failure(call) where there is no such program.
std::vector<std::string> launcher_words(const std::string& command);

/// In the environment of a run that --restarts starts: its --mpirun.
inline constexpr const char* kRestartsMpirun = "SHARDRUN_RESTARTS_MPIRUN";

/// The command that started this rank, in front of this program: that of --restarts, else the
/// process above, if it is Open MPI's launcher ("mpirun --hostfile hosts -np 2"). Empty: not known.
std::vector<std::string> launcher_of_this_rank();

/// Is there such a program, in PATH or by its path?
bool program_exists(const std::string& name);

/// This program's own file.
std::string own_program();

/// Words as a shell takes them, to be typed again.
std::string shell_line(const std::vector<std::string>& words);
/// A text of words with blanks between them; quotes keep blanks. Throws Failure(call) naming
/// `flag`.
std::vector<std::string> shell_words(const std::string& text, const std::string& flag);

/// A folder of its own below the system's temporary one, removed at the end. Those of this user's
/// processes that were killed are removed when the next is made.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;  // a descriptor of the folder: while it is locked its process is there
};

}  // namespace shardrun::cli
