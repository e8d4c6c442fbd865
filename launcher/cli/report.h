// What the leader prints: the model, progress, the end.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "screen/screen.h"
#include "screen/terminal.h"
#include "shardrun/shardrun.h"

namespace shardrun::cli {

void print_model(const Model& model, bool verbose);

/// "rank 0: predicted …, allocated …", a line for each rank.
void print_bytes(const std::vector<int64_t>& predicted, const std::vector<int64_t>& allocated);

/// Lines that stay put on a terminal (screen/screen.h); on a pipe about twenty plain ones. Of many
/// validations and checkpoints, too, about twenty are printed; failures always are, on stderr.
/// `quiet`: these and notes alone, on stderr.
class Progress {
 public:
  Progress(int64_t steps, bool quiet);
  void step(const StepReport& report);
  void eval(const EvalReport& report);
  void checkpoint(const CheckpointReport& report);
  void note(const std::string& text);  // "": none
  void finish(const TrainReport& report);

 private:
  /// What `print` prints stays, above the lines of the screen if there are any.
  void print(const std::function<void()>& print);

  int64_t steps_;
  bool quiet_;
  std::optional<ScreenPainter> screen_;
  int64_t printed_ = 0;  // the last validation's step that was printed
  int64_t saved_ = 0;    // the last checkpoint's
  EvalReport best_;      // step 0: none
  StepReport total_;     // sums of step_ms, and of samples and tokens (not a second)
};

/// `status`, or 1 where what was printed got lost, on a full disk say.
int all_printed(int status);

/// How many processes mpirun or srun started; 1 without them (from the environment).
int launched_processes();
/// Of the processes that mpirun started, the one that may talk (from the environment).
bool is_first_process();
/// Of the processes that mpirun started on this machine, has one ended, or said why it failed? Then
/// mpirun ends the rest.
bool another_has_failed();
/// Of these processes, is this the first to say why it failed? True for one of them alone; true
/// also where there is no place for a mark.
bool first_to_fail();

}  // namespace shardrun::cli
