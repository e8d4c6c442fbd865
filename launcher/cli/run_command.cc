// shardrun run: a model's outputs for arrays.
#include <cstdio>
#include <memory>

#include "command.h"
#include "report.h"
#include "shardrun/inference.h"

namespace shardrun::cli {
namespace {

void add_run_options(CLI::App& app, Arguments& args, RunModelRequest& request) {
  add_forward_options(app, args, request.checkpoint);
  app.add_option("--input", request.input, "X.npy, or X.npz with an array for each input, by name")
      ->required();
  app.add_option("-o,--output", request.output,
                 "Y.npz, with an array for each output; Y.npy for one output")
      ->required();
  app.add_option("--outputs", request.outputs, "Only this output (repeatable)")
      ->allow_extra_args(false);
}

int run(World& world, const Arguments& args, RunModelRequest& request) {
  request.model = args.onnx();
  request.options = args.model_options;
  request.plan = args.plan;
  request.on_note = [](const std::string& text) {
    std::printf("%s%s", text.c_str(), text.empty() || text.back() != '\n' ? "\n" : "");
    std::fflush(stdout);
  };
  const RunModelReport report = run_model(world, request);
  if (!world.leader()) return 0;
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
  std::printf("%s: %s\n", request.output.c_str(), outputs.c_str());
  print_bytes(report.predicted_bytes, report.allocated_bytes);
  return 0;
}

}  // namespace

Command run_command() {
  const auto request = std::make_shared<RunModelRequest>();
  return {.name = "run",
          .help = "A model's outputs for the arrays of a file: the forward pass alone",
          .on_all = true,
          .add_options = [request](CLI::App& app,
                                   Arguments& args) { add_run_options(app, args, *request); },
          .run = [request](World& world, Arguments& args) { return run(world, args, *request); }};
}

}  // namespace shardrun::cli
