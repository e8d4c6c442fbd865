// Resume: finds the checkpoint that a run goes on from.
#pragma once

#include <functional>
#include <string>

#include "checkpoint/run_state.h"
#include "exec/checkpoint/reader.h"
#include "model.h"

namespace shardrun {

/// Which checkpoint TrainOptions::resume means: that one, or of a folder the newest. "": the run
/// begins anew, as nothing was asked for, or the folder of TrainOptions::checkpoint holds none yet.
/// Throws invalid_input: where there is none; one that is damaged, or of another model; a folder
/// that holds checkpoints of another run; metrics that are not those of the run.
std::string find_resumed(const Model::Impl& model, const TrainOptions& options);

/// What a run goes on from.
struct Resumed {
  Checkpoint checkpoint;
  RunState state;
};
/// The checkpoint that a path means: that one, or of a folder the newest. Throws invalid_input:
/// there is none, or it is damaged, with the newest whole one before it.
Resumed open_newest(const std::string& path);
/// One that find_resumed has looked at.
Resumed open_resumed(const std::string& path);
/// `restore` reads the checkpoint into a rank's shards; where it is damaged every rank throws the
/// same Failure(call), with the newest whole one before it. Collective.
void restore_or_offer_older(const Checkpoint& checkpoint, Communicator& comm,
                            const std::function<void()>& restore);
/// "DIR/step-00000100: goes on at step 101 of 2000", and what the call asks for otherwise.
std::string describe(const Resumed& resumed, const RunState& now, int64_t steps);

inline constexpr const char* kGoOn = "go on from that with --resume";
/// `sentence`, which says what is wrong with a checkpoint, and the newest whole one before it, with
/// `advice` in front of its path: kGoOn.
std::string with_older(const std::string& sentence, const std::string& path, const char* advice);
/// Was it written to this folder of checkpoints?
bool is_of_folder(const std::string& path, const std::string& folder);

}  // namespace shardrun
