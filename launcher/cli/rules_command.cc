// shardrun rules: how a model's operators can be cut.
#include <cstdio>

#include "command.h"
#include "option_flags.h"

namespace shardrun::cli {
namespace {

int run_rules(World& world, Arguments& args) {
  const Model model = load_model(world, args.onnx(), args.model_options);
  if (!world.leader()) return 0;
  std::printf("operators, and the ways that were found to cut them:\n\n%s",
              explain_rules(model).c_str());
  std::printf("\ndims that are cut together:\n\n%s", explain_colours(model).c_str());
  return 0;
}

}  // namespace

Command rules_command() {
  return {.name = "rules",
          .help = "Show how a model's operators can be cut, and which dims are cut together",
          .takes_recipe = true,
          .add_options = add_model_options,
          .run = run_rules};
}

}  // namespace shardrun::cli
