// Recipe: flags that a model's file carries, in place of those that a call leaves out.
#pragma once

#include <CLI/CLI.hpp>

#include "shardrun/shardrun.h"

namespace shardrun::cli {

struct Recipe {
  std::vector<std::string> words;  // the call with the recipe's flags, first to last
  std::string line;                // a line for people; empty if the file has no recipe
};

/// `command` has been parsed from `words`, which begin with its name. What it has no flag for (as
/// `plan` has none for the learning rate) is left out. Throws Failure(call).
Recipe add_recipe(const CLI::App& command, const std::vector<std::string>& words,
                  const OnnxModel& model);

/// What a recipe says is wrong: names the file and where in it.
Failure recipe_failure(const OnnxModel& model, const std::string& why);

}  // namespace shardrun::cli
