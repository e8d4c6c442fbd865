// Runs the real command, alone or under the real mpirun, and reads what it said.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardrun::test {

struct Outcome {
  std::string command;
  int status = -1;  // of exit
  std::string out, err;
};

/// "$ command", status, what it printed: for messages of tests.
std::string describe(const Outcome& outcome);
/// How many lines of stderr begin with "shardrun: ".
int messages(const Outcome& outcome);
/// The first of them, without that word; "" if there is none.
std::string message(const Outcome& outcome);

/// How many ranks, and who starts them.
struct Ranks {
  int count = 1;
  bool mpi = false;
};
inline Ranks threads(int count) { return {count, false}; }
inline Ranks mpi(int count) { return {count, true}; }

/// A folder of its own, removed at the end. Commands run in it.
class Workspace {
 public:
  Workspace();
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  const std::string& path() const { return path_; }
  void write(const std::string& name, const std::string& bytes) const;
  std::string read(const std::string& name) const;
  bool exists(const std::string& name) const;

  /// `command` by the shell. One that takes more than four minutes is ended, and fails the test.
  Outcome sh(const std::string& command) const;
  /// shardrun ARGUMENTS, one process.
  Outcome shardrun(const std::string& arguments) const;
  /// shardrun MODEL.onnx … on so many ranks. The arguments begin with the model or a command.
  Outcome shardrun(Ranks ranks, const std::string& arguments) const;
  /// The command line of the above.
  static std::string line(Ranks ranks, const std::string& arguments);

 private:
  std::string path_;
};

/// A run that trained, as its metrics file and its last lines tell.
struct TrainingRun {
  Outcome outcome;
  std::vector<double> losses;
  std::vector<std::string> loss_texts;            // as they stand in the file
  std::vector<std::pair<int64_t, double>> evals;  // step, val_loss
  std::vector<int64_t> predicted, allocated;      // bytes of each rank
};

/// Trains with --metrics. Adds a test failure, and gives no losses, if the command fails or if the
/// bytes allocated on some rank are not those predicted.
TrainingRun train(const Workspace& at, Ranks ranks, const std::string& arguments);

/// The largest |a - b| / |b| over the steps; 1e9 if the numbers of steps differ or there are none.
double largest_difference(const TrainingRun& a, const TrainingRun& b);

/// Prose-like bytes, the same each time.
std::string prose(size_t bytes);
/// `count` tokens below `vocabulary` as uint16, with some structure to learn.
std::string tokens(size_t count, unsigned vocabulary);

}  // namespace shardrun::test
