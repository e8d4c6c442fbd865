// Text, token by token.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.h"
#include "base/files/input_file.h"
#include "base/files/output_file.h"
#include "base/philox.h"
#include "call_back.h"
#include "error_context.h"
#include "exec/data/data_internal.h"
#include "files.h"
#include "inference/forward.h"
#include "inference/sampling.h"
#include "inference/token_step.h"
#include "planner/rules/rule_file.h"
#include "planner/token_steps.h"
#include "ranks/backend.h"
#include "ranks/ranks.h"
#include "ranks/same_call.h"
#include "ranks/world.h"
#include "shardrun/inference.h"
#include "train/batches.h"

namespace shardrun {
namespace {

void require_same_request(World& world, const SampleRequest& r) {
  require_same(world, "sample",
               {{"a checkpoint", !r.checkpoint.empty()},
                {"prompt", r.prompt},
                {"prompt_text", std::vector<int>(r.prompt_text.begin(), r.prompt_text.end())},
                {"a prompt_file", !r.prompt_file.empty()},
                {"tokens", r.tokens},
                {"temperature", r.temperature},
                {"top_k", r.top_k.value_or(0)},
                {"seed", r.seed},
                {"keep_keys", r.keep_keys}});
}

/// What can be looked at before anything takes long.
void check(const SampleRequest& r) {
  const int prompts = !r.prompt.empty() + !r.prompt_text.empty() + !r.prompt_file.empty();
  SR_REQUIRE(prompts == 1, invalid_input, prompts == 0 ? "no prompt" : "several prompts",
             ": give one, --prompt or --tokens-in, of at least one token");
  SR_REQUIRE(r.tokens >= 1, invalid_input, "--tokens is ", r.tokens, ", wanted 1 or more");
  SR_REQUIRE(r.temperature >= 0 && std::isfinite(r.temperature), invalid_input, "--temperature is ",
             r.temperature, ", wanted a number of at least 0");
  SR_REQUIRE(!r.top_k || *r.top_k >= 1, invalid_input, "--top-k is ", *r.top_k,
             ", wanted 1 or more");
  check_parameters_of_call(r.checkpoint, r.options.weights);
  std::vector<NamedFile> read = {{"--tokens-in", r.prompt_file}};
  for (const std::string& file : model_files(r.model)) read.push_back({"the model", file});
  for (const std::string& file : weight_files(r.options.weights))
    read.push_back({"--weights", file});
  check_files({{"--tokens-out", r.output}}, read);
}

/// Bytes of a token in a file: as `tokens:` of --data has them.
int64_t width_of(int64_t vocabulary) { return vocabulary > 65536 ? 4 : 2; }

std::vector<int64_t> read_tokens(const std::string& path, int64_t vocabulary, int64_t most) {
  const int64_t width = width_of(vocabulary);
  const std::string bytes = read_input_file(path, "a prompt", (most + 1) * width);
  SR_REQUIRE(std::ssize(bytes) % width == 0, invalid_input, path, ": has ", bytes.size(),
             " bytes, wanted tokens of ", width, " bytes each");
  std::vector<int64_t> out;
  for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(width)) {
    uint32_t token = 0;
    std::memcpy(&token, bytes.data() + i, static_cast<size_t>(width));
    out.push_back(token);
  }
  return out;
}

void write_tokens(const std::string& path, const std::vector<int64_t>& tokens, int64_t vocabulary) {
  OutputFile file(path);
  for (const int64_t token : tokens) {
    const auto little = static_cast<uint32_t>(token);
    file.stream().write(reinterpret_cast<const char*>(&little), width_of(vocabulary));
  }
  file.finish();
}

/// What rank 0 finds out of the model and the call.
struct Text {
  int64_t context = 0, vocabulary = 0;
  int64_t tokens = 0;  // that it knows: no more than the vocabulary
  std::vector<int64_t> prompt;
  std::string computed_again;

  bool keeps_keys() const { return computed_again.empty(); }
};
nlohmann::json to_json(const Text& t) {
  return {{"context", t.context},
          {"vocabulary", t.vocabulary},
          {"tokens", t.tokens},
          {"prompt", t.prompt},
          {"computed_again", t.computed_again}};
}
Text text_from(const nlohmann::json& j) {
  return {j["context"], j["vocabulary"], j["tokens"], j["prompt"], j["computed_again"]};
}

std::vector<int64_t> prompt_of(const SampleRequest& r, const Text& text) {
  if (!r.prompt_file.empty()) return read_tokens(r.prompt_file, text.vocabulary, text.context);
  if (r.prompt_text.empty()) return r.prompt;
  constexpr int64_t kBytes = 256;
  SR_REQUIRE(text.vocabulary == kBytes, invalid_input, "--prompt: the model has ", text.vocabulary,
             " tokens, and a text is for one of 256, its bytes; give it tokens with --tokens-in");
  std::vector<int64_t> out;
  for (const char byte : r.prompt_text) out.push_back(static_cast<unsigned char>(byte));
  return out;
}

Text look_at(const SampleRequest& r, const ForwardRequest& request) {
  const Graph graph = forward_graph(request);
  TokenModel model;
  within(request.model.path(), [&] { model = find_tokens(graph); });
  Text text;
  text.context = model.context;
  text.tokens = text.vocabulary = model.vocabulary;
  for (const BatchField& field : batch_fields(graph)) {
    if (field.name == graph.value(model.tokens).name && field.bound > 0)
      text.tokens = std::min(text.tokens, field.bound);
  }
  SR_REQUIRE(!r.top_k || *r.top_k <= text.tokens, invalid_input, "--top-k is ", *r.top_k,
             ", but the model has ", text.tokens, " tokens");
  text.prompt = prompt_of(r, text);
  const auto length = std::ssize(text.prompt);
  SR_REQUIRE(length >= 1, invalid_input, r.prompt_file, ": is an empty prompt, wanted a token");
  SR_REQUIRE(length <= text.context, invalid_input, "the prompt has ",
             r.prompt_file.empty() ? str(length) : "more", " tokens, the model's context is ",
             text.context, "; shorten it");
  for (int64_t i = 0; i < length; ++i) {
    const int64_t token = text.prompt[static_cast<size_t>(i)];
    SR_REQUIRE(token >= 0 && token < text.tokens, invalid_input, "the prompt's token ", i, " is ",
               token, ", the model takes 0 to ", text.tokens - 1);
  }
  if (!r.keep_keys) {
    text.computed_again = "as the call wants it";
  } else if (length + r.tokens - 1 > text.context) {
    text.computed_again = str("the text becomes longer than the context of ", text.context,
                              " tokens, of which the last count then");
  } else {
    RuleCache rules(rule_file_path());
    cached_step(graph, model, 1, rules, &text.computed_again);
  }
  return text;
}

/// One rank's steps.
class Writer {
 public:
  Writer(ForwardRank& rank, Communicator& host, const SampleRequest& request, const Text& text)
      : rank_(rank), host_(host), request_(request), text_(text), all_(text.prompt) {}

  void go(SampleReport& report) {
    const bool leader = host_.rank() == 0;
    const auto tell = [&](int64_t token) {
      if (leader) call_back(request_.on_token, token);
    };
    for (const int64_t token : all_) tell(token);
    double start = now_seconds();
    rank_.executor().begin_step();
    if (text_.keeps_keys()) {
      for (size_t i = 0; i + 1 < all_.size(); ++i) step({all_[i]}, static_cast<int64_t>(i));
    } else {
      check_causal();
    }
    for (int64_t n = 0; n < request_.tokens; ++n) {
      const int64_t token = draw(logits());
      tell(token);
      all_.push_back(token);
      if (n == 0) {
        report.prompt_seconds = now_seconds() - start;
        start = now_seconds();
      }
    }
    report.seconds = now_seconds() - start;
    report.tokens.assign(all_.begin() + std::ssize(text_.prompt), all_.end());
    if (leader && !request_.output.empty()) write_tokens(request_.output, all_, text_.vocabulary);
  }

 private:
  /// Behind the last token.
  std::vector<float> logits() {
    if (text_.keeps_keys()) return step({all_.back()}, std::ssize(all_) - 1);
    return of_context(0);
  }

  /// Of the last tokens that the context holds, with `filler` in what is left of it.
  std::vector<float> of_context(int64_t filler) {
    const auto length = std::min<int64_t>(std::ssize(all_), text_.context);
    std::vector<int64_t> tokens(all_.end() - length, all_.end());
    tokens.resize(static_cast<size_t>(text_.context), filler);
    return step(tokens, length - 1);
  }

  /// Throws where later tokens change what comes of the prompt.
  void check_causal() {
    if (std::ssize(all_) >= text_.context || text_.tokens < 2) return;
    const std::vector<float> one = of_context(0), other = of_context(text_.tokens - 1);
    for (size_t i = 0; i < one.size(); ++i) {
      const float most = 1e-4F * (1 + std::abs(one[i]));
      SR_REQUIRE(!(std::abs(one[i] - other[i]) > most), invalid_input, "the logits behind token ",
                 all_.size() - 1, " are ", one[i], " or ", other[i], " for token ", i,
                 ", as later tokens are: the model is not causal, so that text "
                 "cannot be drawn from it token by token");
    }
  }

  std::vector<float> step(const std::vector<int64_t>& tokens, int64_t position) {
    Executor& executor = rank_.executor();
    const Binding& binding = *executor.find(kTokens);
    executor.fill(binding, [&](void* shard) {
      for_box(binding.global.shape, binding.box, [&](int64_t at, int64_t i) {
        const auto column = static_cast<size_t>(at % binding.global.shape.back());
        store_integer(shard, binding.global.dtype, i, tokens[column]);
      });
    });
    executor.set_scalar(kPosition, position);
    executor.run_micro();
    const Tensor out = executor.read(*executor.find_output(kLogits));
    return {out.as<float>(), out.as<float>() + text_.tokens};
  }

  /// Rank 0's choice: its numbers may be of another processor's than the others'.
  int64_t draw(const std::vector<float>& logits) {
    const RandomStream stream{request_.seed, data_stream("sample"), 0};
    const auto at = 2 * static_cast<uint64_t>(all_.size());
    const uint64_t bits = uint64_t{stream.bits(at)} << 21 ^ stream.bits(at + 1) >> 11;
    int64_t token = -1;
    try {
      token = pick_token(logits, request_.temperature, request_.top_k,
                         static_cast<double>(bits) * 0x1p-53);
    } catch (const Error& e) {
      throw e.with_context(str("behind token ", all_.size() - 1));
    }
    host_.broadcast(&token, sizeof token, 0);
    return token;
  }

  ForwardRank& rank_;
  Communicator& host_;
  const SampleRequest& request_;
  const Text& text_;
  std::vector<int64_t> all_;
};

int64_t parameter_bytes(const Program& program) {
  int64_t bytes = 0;
  for (const Binding& binding : program.bindings) {
    if (binding.role == Role::parameter)
      bytes += byte_size({binding.global.dtype, box_shape(binding.box)});
  }
  return bytes;
}

}  // namespace

SampleReport sample(World& world, const SampleRequest& r) {
  require_same_request(world, r);
  decide_on_rank0(world, [&] {
    check(r);
    return std::string();
  });
  const std::optional<Resumed> trained = open_on_all(world, r.checkpoint);
  ForwardRequest request{r.model, r.options};
  at_boundary([&] {
    if (trained) {
      request.trained = &*trained;
      request.options = as_trained(r.options, *trained);
      bind_as_trained(r.model.file(), *trained, request.options);
    }
    for (const SymbolicDim& dim : r.model.file().symbolic_dims()) {
      if (dim.axis == 0) request.options.dims.try_emplace(dim.name, 1);
    }
    request.constants = constant_inputs(r.model.file(), request.options);
  });
  const Text text = text_from(nlohmann::json::parse(
      decide_on_rank0(world, [&] { return to_json(look_at(r, request)).dump(); })));
  request.reshape = [&](const Graph& graph) {
    if (text.keeps_keys()) return token_step(graph);
    RuleCache rules(rule_file_path(), RuleCache::Keep::read_only);  // every rank's
    return whole_step(graph, find_tokens(graph), rules);
  };
  const Model model = load_forward(world, request);
  PlanRequest plan_request = r.plan;
  plan_request.whole_sums = true;
  const TrainingPlan plan = make_plan(world, model, plan_request);
  at_boundary([&] { require_fits("sample", world, model.impl(), plan.impl()); });
  const auto note = [&](const std::string& line) {
    if (world.leader()) call_back(r.on_note, line);
  };
  note(plan.summary());
  if (!text.keeps_keys())
    note("the whole context is computed again for each token: " + text.computed_again);

  SampleReport report;
  report.context = text.context;
  report.vocabulary = text.vocabulary;
  report.prompt = std::ssize(text.prompt);
  report.computed_again = text.computed_again;
  report.predicted_bytes = plan.predicted_bytes();
  run_ranks(world, [&](Communicator& comm) {
    const std::unique_ptr<RankDevice> on = backend().open(comm);
    if (world.impl().timeout) on->comm().set_timeout(*world.impl().timeout);
    ForwardRank rank(*on, model.impl(), plan.impl(), trained ? &*trained : nullptr);
    SampleReport own;
    Writer(rank, on->comm().host(), r, text).go(own);
    own.allocated_bytes = rank.allocated_bytes();
    if (comm.rank() != 0 && !world.impl().mpi) return;
    report.tokens = own.tokens;
    report.seconds = own.seconds;
    report.prompt_seconds = own.prompt_seconds;
    report.allocated_bytes = own.allocated_bytes;
    report.parameter_bytes = parameter_bytes(rank.program());
  });
  return report;
}

}  // namespace shardrun
