// How the ranks of a training run agree to stop (request_stop of the public header).
#pragma once

#include <optional>
#include <utility>

#include "collectives/communicator.h"
#include "shardrun/shardrun.h"

namespace shardrun {

/// One rank's run, from before its first step to behind its last. While a process has one,
/// request_stop notes what it is asked; what no run of the process has answered by its end is for
/// the next. For a second after a run that was stopped, what request_stop is asked counts as
/// answered.
class Running {
 public:
  /// Collective: no rank's step begins before every rank notes requests.
  explicit Running(Communicator& ranks);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  /// Was any rank asked to stop, and by which signal (0: by none)? The same answer on every rank,
  /// and the same again later. Collective, for about the time of one small message: ranks ask
  /// between two pieces of work, a step or a batch of validation.
  std::optional<int> asked_to_stop();
  /// Was any rank asked for a checkpoint, as far as asked_to_stop has heard? Once for each time.
  bool asked_for_checkpoint() { return std::exchange(asked_for_checkpoint_, false); }

 private:
  Communicator& ranks_;
  bool asked_for_checkpoint_ = false;
};

}  // namespace shardrun
