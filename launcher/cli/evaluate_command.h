// shardrun evaluate: the validation's loss, without training.
#pragma once

#include "options.h"

namespace shardrun::cli {

void add_evaluate_options(CLI::App& app, Arguments& args);
/// --resume: what the checkpoint's run was asked for stands where the call says nothing else.
/// `args` have been parsed once and are to be parsed again. Throws Failure(call).
void take_options_of_run(Arguments& args);
void run_evaluate(World& world, Arguments& args);

}  // namespace shardrun::cli
