#include "run_command.h"

#include <cstdio>

#include "report.h"

namespace shardrun::cli {

RunCommand::RunCommand(CLI::App& app, Arguments& args) : args_(args) {
  add_call_options(app, args);
  add_machine_options(app, args);
  add_timeout_option(app, args);
  app.add_option("--resume", request_.checkpoint,
                 "The parameters: of this checkpoint, or of the newest of this folder");
  app.add_option("--input", request_.input, "X.npy, or X.npz with an array for each input, by name")
      ->required();
  app.add_option("-o,--output", request_.output,
                 "Y.npz, with an array for each output; Y.npy for one output")
      ->required();
  app.add_option("--outputs", request_.outputs, "Only this output (repeatable)")
      ->allow_extra_args(false);
}

void RunCommand::run(World& world) {
  request_.model = args_.model;
  request_.options = args_.model_options;
  request_.plan = args_.plan;
  request_.on_note = [](const std::string& text) {
    std::printf("%s%s", text.c_str(), text.empty() || text.back() != '\n' ? "\n" : "");
    std::fflush(stdout);
  };
  const RunModelReport report = run_model(world, request_);
  if (!world.leader()) return;
  std::string outputs;
  for (const std::string& output : report.outputs)
    outputs += (outputs.empty() ? "" : ", ") + output;
  if (report.samples > 0) {
    std::printf(
        "%lld samples in %lld turns of %.3f s together: ", static_cast<long long>(report.samples),
        static_cast<long long>(report.turns), report.seconds);
  } else {
    std::printf("one batch in %.3f s: ", report.seconds);
  }
  std::printf("%s: %s\n", request_.output.c_str(), outputs.c_str());
  print_bytes(report.predicted_bytes, report.allocated_bytes);
}

}  // namespace shardrun::cli
