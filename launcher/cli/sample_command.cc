// shardrun sample: text from a model of tokens.
#include <csignal>
#include <cstdio>
#include <memory>

#include "command.h"
#include "report.h"
#include "shardrun/inference.h"

namespace shardrun::cli {
namespace {

struct Sample {
  SampleRequest request;
  bool recompute = false;
};

void add_sample_options(CLI::App& app, Arguments& args, Sample& sampled) {
  SampleRequest& request = sampled.request;
  add_forward_options(app, args, request.checkpoint);
  app.add_option("--prompt", request.prompt_text,
                 "What the text begins with, for a model of 256 tokens, which are bytes");
  app.add_option("--tokens-in", request.prompt_file,
                 "The same as a file of tokens, as 'tokens:' of --data takes it");
  app.add_option("--tokens-out", request.output,
                 "Write all tokens, those of the prompt too, to such a file");
  app.add_option("--tokens", request.tokens, "How many to draw")->capture_default_str();
  app.add_option("--temperature", request.temperature,
                 "Logits are divided by it; 0: the likeliest token, always")
      ->capture_default_str();
  app.add_option("--top-k", request.top_k, "Draw one of so many likeliest tokens (default: all)");
  app.add_flag("--recompute", sampled.recompute,
               "Compute the whole context again for each token, though keys and values could be "
               "kept");
  app.add_flag("-v,--verbose", args.verbose, "Print the plan, and bytes, on stderr");
}

/// The text alone goes to stdout.
int run(World& world, const Arguments& args, Sample& sampled) {
  SampleRequest& request = sampled.request;
  request.model = args.onnx();
  request.options = args.model_options;
  request.seed = args.train.seed;
  request.plan = args.plan;
  request.keep_keys = !sampled.recompute;
  const bool text = !request.prompt_text.empty();
  const bool numbers = !text && request.output.empty();
  request.on_note = [&](const std::string& note) {
    const bool plan = note.rfind("plan:", 0) == 0;
    if (!plan) std::fprintf(stderr, "note: %s\n", note.c_str());
    if (plan && args.verbose) std::fprintf(stderr, "%s", note.c_str());
  };
  bool first = true;
  request.on_token = [&](int64_t token) {
    if (text) std::fputc(static_cast<int>(token), stdout);
    if (numbers) std::printf("%s%lld", first ? "" : " ", static_cast<long long>(token));
    first = false;
    std::fflush(stdout);
  };
  const SampleReport report = sample(world, request);
  if (!world.leader()) return 0;
  if (text || numbers) std::printf("\n");
  std::fflush(stdout);
  if (report.tokens.size() > 1 && report.seconds > 0) {
    std::fprintf(stderr, "%lld tokens of the prompt in %.3f s, then %.1f tokens/s, %.3f ms each\n",
                 static_cast<long long>(report.prompt), report.prompt_seconds,
                 static_cast<double>(report.tokens.size() - 1) / report.seconds,
                 report.seconds * 1e3 / static_cast<double>(report.tokens.size() - 1));
  }
  for (size_t r = 0; args.verbose && r < report.allocated_bytes.size(); ++r) {
    std::fprintf(stderr, "rank %zu: predicted %lld B, allocated %lld B\n", r,
                 static_cast<long long>(report.predicted_bytes[r]),
                 static_cast<long long>(report.allocated_bytes[r]));
  }
  return 0;
}

}  // namespace

Command sample_command() {
  const auto sampled = std::make_shared<Sample>();
  return {.name = "sample",
          .help = "Text, or tokens, drawn one by one from a model of them",
          .on_all = true,
          .add_options = [sampled](CLI::App& app,
                                   Arguments& args) { add_sample_options(app, args, *sampled); },
          .run = [sampled](World& world, Arguments& args) { return run(world, args, *sampled); },
          .prepare =
              [sampled](Arguments&) {
                // Text that nobody reads any more is all that there would be.
                if (sampled->request.output.empty() && launched_processes() <= 1)
                  std::signal(SIGPIPE, SIG_DFL);
              }};
}

}  // namespace shardrun::cli
