#include "sample_command.h"

#include <cstdio>

#include "report.h"

namespace shardrun::cli {

SampleCommand::SampleCommand(CLI::App& app, Arguments& args) : args_(args) {
  add_call_options(app, args);
  add_machine_options(app, args);
  add_timeout_option(app, args);
  app.add_option("--resume", request_.checkpoint,
                 "The parameters: of this checkpoint, or of the newest of this folder");
  app.add_option("--prompt", request_.prompt_text,
                 "What the text begins with, for a model of 256 tokens, which are bytes");
  app.add_option("--tokens-in", request_.prompt_file,
                 "The same as a file of tokens, as 'tokens:' of --data takes it");
  app.add_option("--tokens-out", request_.output,
                 "Write all tokens, those of the prompt too, to such a file");
  app.add_option("--tokens", request_.tokens, "How many to draw")->capture_default_str();
  app.add_option("--temperature", request_.temperature,
                 "Logits are divided by it; 0: the likeliest token, always")
      ->capture_default_str();
  app.add_option("--top-k", request_.top_k, "Draw one of so many likeliest tokens (default: all)");
  app.add_flag("--recompute", recompute_,
               "Compute the whole context again for each token, though keys and values could be "
               "kept");
  app.add_flag("-v,--verbose", args.verbose, "Print the plan, and bytes, on stderr");
}

/// The text alone goes to stdout.
void SampleCommand::run(World& world) {
  request_.model = args_.model;
  request_.options = args_.model_options;
  request_.seed = args_.train.seed;
  request_.plan = args_.plan;
  request_.keep_keys = !recompute_;
  const bool text = !request_.prompt_text.empty();
  const bool numbers = !text && request_.output.empty();
  request_.on_note = [&](const std::string& note) {
    const bool plan = note.rfind("plan:", 0) == 0;
    if (!plan) std::fprintf(stderr, "note: %s\n", note.c_str());
    if (plan && args_.verbose) std::fprintf(stderr, "%s", note.c_str());
  };
  bool first = true;
  request_.on_token = [&](int64_t token) {
    if (text) std::fputc(static_cast<int>(token), stdout);
    if (numbers) std::printf("%s%lld", first ? "" : " ", static_cast<long long>(token));
    first = false;
    std::fflush(stdout);
  };
  const SampleReport report = sample(world, request_);
  if (!world.leader()) return;
  if (text || numbers) std::printf("\n");
  std::fflush(stdout);
  if (report.tokens.size() > 1 && report.seconds > 0) {
    std::fprintf(stderr, "%lld tokens of the prompt in %.3f s, then %.1f tokens/s, %.3f ms each\n",
                 static_cast<long long>(report.prompt), report.prompt_seconds,
                 static_cast<double>(report.tokens.size() - 1) / report.seconds,
                 report.seconds * 1e3 / static_cast<double>(report.tokens.size() - 1));
  }
  for (size_t r = 0; args_.verbose && r < report.allocated_bytes.size(); ++r) {
    std::fprintf(stderr, "rank %zu: predicted %lld B, allocated %lld B\n", r,
                 static_cast<long long>(report.predicted_bytes[r]),
                 static_cast<long long>(report.allocated_bytes[r]));
  }
}

}  // namespace shardrun::cli
