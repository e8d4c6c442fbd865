// Looking at plans through the command: plan, explain, verify, and a plan that was tampered with.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Look : public testing::Test {
 protected:
  Look() {
    const Outcome made = folder_.shardrun(
        "model gpt --layers 2 --hidden 64 --heads 4 --vocab 256 --context 32 -o gpt.onnx");
    EXPECT_EQ(made.status, 0) << describe(made);
    folder_.write("text.txt", std::string(5000, 'a') + std::string(5000, 'b'));
  }

  Workspace folder_;
};

/// Lines that a terminal of 100 columns would break.
std::string long_lines(const std::string& text) {
  std::string out;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end - begin > 100) out += text.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return out;
}

/// A file for each pass, which says what changed by it, up to the one that was asked for.
TEST_F(Look, PassesAreDumped) {
  const std::string plan = "plan gpt.onnx --mesh 2 --planner dp --ranks 2 ";
  const Outcome all = folder_.shardrun(plan + "--dump-passes passes");
  ASSERT_EQ(all.status, 0) << describe(all);
  const std::string first = folder_.read("passes/01-partition.txt"),
                    ordered = folder_.read("passes/02-order_collectives.txt"),
                    casts = folder_.read("passes/05-keep_casts.txt"),
                    combined = folder_.read("passes/03-combine_collectives.txt"),
                    fused = folder_.read("passes/04-fuse_patterns.txt"),
                    chained = folder_.read("passes/10-fuse_rows.txt"),
                    placed = folder_.read("passes/11-place_memory.txt");
  EXPECT_TRUE(says(first, "partition: local nodes and the collectives between them\nrank 0, "));
  EXPECT_TRUE(says(first, " 0 steps before, ")) << first.substr(0, 200);
  EXPECT_FALSE(says(first, " in call "));
  EXPECT_TRUE(says(ordered, "what changed:\n~")) << ordered.substr(0, 500);
  EXPECT_FALSE(says(ordered, "\n-") || says(ordered, "\n+")) << ordered.substr(0, 500);
  EXPECT_TRUE(says(casts, "what changed:\nnothing\n\nthe program:")) << casts.substr(0, 500);
  // Places are no change of a step.
  EXPECT_TRUE(says(placed, "what changed:\n-rank 0 ")) << placed.substr(0, 500);
  EXPECT_FALSE(says(placed, "\n-  micro ")) << placed.substr(0, 500);
  EXPECT_TRUE(says(combined, " in call 1  # ")) << combined.substr(0, 500);
  EXPECT_TRUE(says(fused, "\n-  micro ")) << fused.substr(0, 500);
  EXPECT_TRUE(says(fused, "\n+  micro ")) << fused.substr(0, 500);
  EXPECT_FALSE(says(fused, "@0 "));
  EXPECT_TRUE(says(chained, "\n+  fused ")) << chained.substr(0, 500);
  EXPECT_TRUE(says(placed, "@0"));
  const Outcome some = folder_.shardrun(plan + "--dump-passes some --stop-after fuse_patterns");
  ASSERT_EQ(some.status, 0) << describe(some);
  EXPECT_EQ(folder_.read("some/01-partition.txt").substr(0, 60), first.substr(0, 60));
  EXPECT_FALSE(folder_.exists("some/05-keep_casts.txt"));
  const Outcome unknown = folder_.shardrun(plan + "--dump-passes some --stop-after join");
  EXPECT_NE(unknown.status, 0) << describe(unknown);
  EXPECT_TRUE(says(unknown.err, "keep_packed")) << describe(unknown);
  const Outcome alone = folder_.shardrun(plan + "--stop-after fuse_patterns");
  EXPECT_NE(alone.status, 0) << describe(alone);
  EXPECT_TRUE(says(alone.err, "--dump-passes")) << describe(alone);
  folder_.write("file", "");
  const Outcome taken = folder_.shardrun(plan + "--dump-passes file");
  EXPECT_NE(taken.status, 0) << describe(taken);
  EXPECT_TRUE(says(taken.err, "--dump-passes: file: cannot be written: Not a directory"))
      << describe(taken);
}

TEST_F(Look, PlanThenExplainThenVerify) {
  const Outcome plan =
      folder_.shardrun("plan gpt.onnx --ranks 4 --mesh data=2,model=2 -o plan.json");
  ASSERT_EQ(plan.status, 0) << describe(plan);
  for (const char* part :
       {"mesh data=2,model=2", "time of a step", "most expensive collectives", "at the peak",
        "\n  compute ", "\n  communication ", "left by", "wanted by", "instead"}) {
    EXPECT_TRUE(says(plan.out, part)) << part << "\n" << describe(plan);
  }
  EXPECT_EQ(long_lines(plan.out), "");
  const Outcome explain = folder_.shardrun("explain plan.json");
  EXPECT_EQ(explain.status, 0) << describe(explain);
  EXPECT_TRUE(says(explain.out, "outside layers")) << describe(explain);
  EXPECT_EQ(long_lines(explain.out), "");
  const Outcome why = folder_.shardrun("explain plan.json --why wte.weight");
  EXPECT_EQ(why.status, 0) << describe(why);
  EXPECT_TRUE(says(why.out, "value 'wte.weight' lies as [")) << describe(why);
  EXPECT_TRUE(says(why.out, "next best: ")) << describe(why);
  EXPECT_TRUE(says(why.out, "otherwise, all else as planned:")) << describe(why);
  EXPECT_EQ(long_lines(why.out), "");
  const Outcome computed = folder_.shardrun("explain plan.json --why h.0.MatMul_4");
  EXPECT_EQ(computed.status, 0) << describe(computed);
  EXPECT_TRUE(says(computed.out, "value '%h.0.MatMul_4' lies as [")) << describe(computed);
  const Outcome diff = folder_.shardrun("explain plan.json --diff plan.json");
  EXPECT_EQ(diff.status, 0) << describe(diff);
  EXPECT_TRUE(says(diff.out, "\n0 of ")) << describe(diff);
  const Outcome verify =
      folder_.shardrun("verify gpt.onnx --ranks 4 --plan plan.json --data text:text.txt");
  EXPECT_EQ(verify.status, 0) << describe(verify);
  EXPECT_TRUE(says(verify.out, "verified: ")) << describe(verify);
  EXPECT_TRUE(says(verify.out, " values agree with one rank to ")) << describe(verify);

  const Outcome other = folder_.shardrun("plan gpt.onnx --ranks 4 --mesh 4 -o other.json");
  ASSERT_EQ(other.status, 0) << describe(other);
  const Outcome differ = folder_.shardrun("explain plan.json --diff other.json");
  EXPECT_EQ(differ.status, 0) << describe(differ);
  EXPECT_TRUE(says(differ.out, "other is ")) << describe(differ);
  EXPECT_EQ(long_lines(differ.out), "");
}

/// What moves data is counted once, wherever a Program runs it: layers add up to the step.
TEST_F(Look, ExplainsAllCommunication) {
  for (const std::string how :
       {"--mesh data=2,model=2 --planner dp+megatron", "--mesh 4 --planner fsdp",
        "--mesh 4 --planner zero2 --accumulate 4"}) {
    const Outcome plan = folder_.shardrun("plan gpt.onnx --cluster a100-80 -o plan.json " + how);
    ASSERT_EQ(plan.status, 0) << describe(plan);
    const nlohmann::json train = nlohmann::json::parse(folder_.read("plan.json")).at("train");
    const double all = train.at("comm_seconds");
    const Outcome explain = folder_.shardrun("explain plan.json");
    ASSERT_EQ(explain.status, 0) << describe(explain);
    double sum = 0;
    int layers = 0;
    std::string text = explain.out;  // heads may be wrapped
    std::replace(text.begin(), text.end(), '\n', ' ');
    const std::regex head(
        "(?:(\\d+) layers [^:]*: each|layer [^ :]*:|outside layers:) *"
        "compute [0-9.]+ ms, *communication ([0-9.]+) ms");
    for (std::sregex_iterator at(text.begin(), text.end(), head), end; at != end; ++at) {
      const int times = (*at)[1].matched ? std::stoi((*at)[1]) : 1;
      layers += times;
      sum += times * std::stod((*at)[2]) / 1e3;
    }
    EXPECT_GT(all, 0) << describe(explain);
    EXPECT_EQ(layers, 3) << describe(explain);
    EXPECT_NEAR(sum, all, 0.02 * all) << how << "\n" << describe(explain);
  }
}

/// What follows "verified: " without the largest difference, which depends on who computes.
std::string verified(const Outcome& outcome) {
  const size_t at = outcome.out.find("verified: ");
  if (outcome.status != 0 || at == std::string::npos) return describe(outcome);
  const std::string line = outcome.out.substr(at, outcome.out.find('\n', at) - at);
  return line.substr(0, line.find(" to ")) + line.substr(line.find(" ("));
}

/// Processes and threads compare as much, and more than the training step alone has.
TEST_F(Look, VerifyIsTheSameUnderMpirun) {
  ASSERT_EQ(folder_.shardrun("plan gpt.onnx --ranks 3 -o plan.json").status, 0);
  const std::string verify = "verify gpt.onnx --plan plan.json --data text:text.txt";
  const Outcome together = folder_.shardrun(verify);  // as many threads as the plan has ranks
  const Outcome apart = folder_.shardrun(mpi(3), verify);
  EXPECT_EQ(verified(apart), verified(together));
  EXPECT_TRUE(says(verified(apart), "verified: ")) << verified(apart);
  const Outcome wrong = folder_.shardrun(mpi(2), verify);
  EXPECT_EQ(wrong.status, 2) << describe(wrong);
  EXPECT_TRUE(says(message(wrong), "field 'mesh'")) << describe(wrong);
}

/// Plans that are whole in form and compute something else. Who reads them refuses them, with the
/// file, the node, the field and what is there; under mpirun one rank speaks for all.
TEST_F(Look, TamperedPlansAreRefusedByWhoReadsThem) {
  ASSERT_EQ(folder_.shardrun("plan gpt.onnx --ranks 2 --planner dp -o plan.json").status, 0);
  const nlohmann::json good = nlohmann::json::parse(folder_.read("plan.json"));
  const auto refused = [&](const nlohmann::json& plan, const std::vector<std::string>& parts) {
    folder_.write("wrong.json", plan.dump());
    const std::string train = "train gpt.onnx --steps 1 --plan wrong.json";
    for (const Outcome& run : {folder_.shardrun(threads(2), train), folder_.shardrun(mpi(2), train),
                               folder_.shardrun("verify gpt.onnx --plan wrong.json"),
                               folder_.shardrun("explain wrong.json")}) {
      EXPECT_EQ(run.status, 2) << describe(run);
      EXPECT_EQ(messages(run), 1) << describe(run);
      for (const std::string& part : parts)
        EXPECT_TRUE(says(message(run), part)) << part << "\n" << describe(run);
    }
  };
  // A count over the cut batch, called whole: the loss would come out twice as large.
  nlohmann::json plan = good;
  const std::string partial = "[] partial(sum: ranks)";
  nlohmann::json& count = plan["train"]["nodes"]["loss/count"]["out"][0];
  ASSERT_EQ(count, partial);
  count = "[]";
  plan["train"]["values"]["%loss/count"] = "[]";
  refused(plan, {"wrong.json: train: ", "nodes['loss/count'].out[0] is []", partial});
  // An operand of a reshape, cut along another dim, in the validation.
  plan = good;
  nlohmann::json& nodes = plan["evaluation"]["nodes"];
  const auto reshape =
      std::find_if(nodes.items().begin(), nodes.items().end(), [](const auto& item) {
        return says(item.key(), "Squeeze") && item.value()["in"][0] == "[-, {ranks}, -, -, -]";
      });
  ASSERT_NE(reshape, nodes.items().end());
  reshape.value()["in"][0] = "[-, -, {ranks}, -, -]";
  refused(plan, {"wrong.json: evaluation: ", "nodes['" + reshape.key() +
                                                 "'].in[0] is [-, -, {ranks}, -, -], allowed is "
                                                 "[-, {ranks}, "});
}

/// Workspaces depend on the machine, so a plan's bytes may be others here; but not anything.
TEST_F(Look, BytesThatNoLayoutHasAreRefused) {
  ASSERT_EQ(folder_.shardrun("plan gpt.onnx --ranks 2 --planner dp -o plan.json").status, 0);
  const nlohmann::json good = nlohmann::json::parse(folder_.read("plan.json"));
  for (const char* part : {"train", "evaluation"}) {
    for (const int64_t bytes : {int64_t{-1}, int64_t{0}, int64_t{1000}, int64_t{1} << 50}) {
      nlohmann::json plan = good;
      plan[part]["bytes"] = bytes;
      folder_.write("wrong.json", plan.dump());
      for (const char* call :
           {"train gpt.onnx --ranks 2 --steps 1 --plan wrong.json", "explain wrong.json"}) {
        const Outcome run = folder_.shardrun(call);
        EXPECT_EQ(run.status, 2) << describe(run);
        EXPECT_TRUE(says(message(run), "wrong.json: " + std::string(part) + ": plan: field " +
                                           "'bytes' is " + std::to_string(bytes)))
            << describe(run);
      }
    }
    nlohmann::json plan = good;
    plan[part]["bytes"] = plan[part]["bytes"].get<int64_t>() + 4096;
    folder_.write("other.json", plan.dump());
    const Outcome run = folder_.shardrun("train gpt.onnx --ranks 2 --steps 1 --plan other.json");
    EXPECT_EQ(run.status, 0) << describe(run);
  }
}

TEST_F(Look, WrongCallsAreRefused) {
  folder_.write("no.json", "{}");
  const Outcome no_plan = folder_.shardrun("explain no.json");
  EXPECT_EQ(no_plan.status, 2) << describe(no_plan);
  EXPECT_TRUE(says(message(no_plan), "no.json")) << describe(no_plan);
  ASSERT_EQ(folder_.shardrun("plan gpt.onnx --ranks 2 -o two.json").status, 0);
  const Outcome ranks = folder_.shardrun("verify gpt.onnx --ranks 3 --plan two.json");
  EXPECT_EQ(ranks.status, 2) << describe(ranks);
  EXPECT_TRUE(says(message(ranks), "field 'mesh'")) << describe(ranks);
  const std::pair<const char*, const char*> both[] = {{"--mesh 2", "own mesh, ranks=2"},
                                                      {"--planner dp", "own planner, ilp"},
                                                      {"--shard 'wte.*=[-,-]'", "own shardings"},
                                                      {"--cluster h100", "own cluster, host"}};
  for (const auto& [flag, own] : both) {
    const Outcome twice =
        folder_.shardrun(std::string("train gpt.onnx --steps 1 --ranks 2 --plan two.json ") + flag);
    EXPECT_EQ(twice.status, 2) << describe(twice);
    for (const std::string& part :
         {std::string(flag, 6), std::string("--plan two.json"), std::string(own)})
      EXPECT_TRUE(says(message(twice), part)) << part << "\n" << describe(twice);
  }
  const Outcome batch = folder_.shardrun("verify gpt.onnx --ranks 2 --batch 4 --plan two.json");
  EXPECT_EQ(batch.status, 2) << describe(batch);
  EXPECT_TRUE(says(message(batch), "field 'model_hash'")) << describe(batch);
  EXPECT_TRUE(says(message(batch), "made with --batch not given (here 4); give the same"))
      << describe(batch);
  ASSERT_EQ(folder_.shardrun("model gpt --preset tiny --layers 1 -o other.onnx").status, 0);
  const Outcome other = folder_.shardrun("verify other.onnx --ranks 2 --plan two.json");
  EXPECT_EQ(other.status, 2) << describe(other);
  EXPECT_TRUE(says(message(other), "; the plan was made of gpt.onnx; give the same, or plan again"))
      << describe(other);
  const Outcome forward = folder_.shardrun("plan gpt.onnx --ranks 2 --step forward -o pass.json");
  EXPECT_EQ(forward.status, 0) << describe(forward);
  for (const char* command : {"train", "evaluate"}) {
    const Outcome step =
        folder_.shardrun(std::string(command) + " gpt.onnx --ranks 2 --plan pass.json");
    EXPECT_EQ(step.status, 2) << describe(step);
    EXPECT_TRUE(says(message(step), "made with --step forward (here not given); give the same"))
        << describe(step);
  }
  const Outcome value = folder_.shardrun("explain two.json --why nothing");
  EXPECT_EQ(value.status, 2) << describe(value);
  EXPECT_TRUE(says(message(value), "no value 'nothing'")) << describe(value);
  const Outcome several = folder_.shardrun("explain two.json --why c_fc.weight");
  EXPECT_EQ(several.status, 2) << describe(several);
  for (const char* part : {" contain it: ", "'h.0.mlp.c_fc.weight'", "in full"})
    EXPECT_TRUE(says(message(several), part)) << part << "\n" << describe(several);
}

/// Each field of a file that does not fit is named, whoever reads it.
TEST_F(Look, DamagedPlansAreRefusedByField) {
  ASSERT_EQ(folder_.shardrun("plan gpt.onnx --ranks 4 --mesh data=2,model=2 -o plan.json").status,
            0);
  const nlohmann::json good = nlohmann::json::parse(folder_.read("plan.json"));
  const std::pair<const char*, const char*> damages[] = {
      {R"([{"op": "remove", "path": "/train"}])", "field 'train' is missing"},
      {R"([{"op": "remove", "path": "/evaluation"}])", "field 'evaluation' is missing"},
      {R"([{"op": "remove", "path": "/cluster"}])", "field 'cluster' is missing"},
      {R"([{"op": "replace", "path": "/cluster/devices", "value": "two"}])", "field 'devices'"},
      {R"([{"op": "remove", "path": "/request"}])", "field 'request' is missing"},
      {R"([{"op": "replace", "path": "/request/shard", "value": [1]}])", "field request.shard[0]"},
      {R"([{"op": "replace", "path": "/model/accumulate", "value": 1.5}])",
       "field model.accumulate"},
      {R"([{"op": "replace", "path": "/model/accumulate", "value": 18446744073709551615}])",
       "field model.accumulate"},
      {R"([{"op": "remove", "path": "/model/dtype"}])", "field model lacks 'dtype'"},
      {R"([{"op": "replace", "path": "/model/batch", "value": 4}])", "field 'model_hash' is "},
      {R"([{"op": "replace", "path": "/model/path", "value": "gone.onnx"}])", "gone.onnx"},
      {R"([{"op": "replace", "path": "/train/format", "value": "shardrun-plan-0"}])",
       "field 'format' is 'shardrun-plan-0'"},
      {R"([{"op": "replace", "path": "/train/model_hash", "value": "1"}])",
       "field 'model_hash' is 1"},
      {R"([{"op": "replace", "path": "/train/mesh/0/name", "value": "rows"}])",
       "field 'mesh' is rows=2,model=2"},
      {R"([{"op": "replace", "path": "/train/mesh/1/size", "value": 3}])",
       "field 'mesh' is data=2,model=3"},
      {R"([{"op": "replace", "path": "/train/mesh_hash", "value": "2"}])", "'mesh_hash'"},
      {R"([{"op": "replace", "path": "/train/seconds", "value": 9}])", "field 'seconds' is 9"},
      {R"([{"op": "add", "path": "/train/regathered/-", "value": "ghost"}])",
       "field 'regathered' has 'ghost'"},
      {R"([{"op": "replace", "path": "/evaluation/values/wte.weight", "value": "[{model}, {data}]"}])",
       "evaluation: plan: field "},
      {R"([{"op": "remove", "path": "/train/values/wte.weight"}])",
       "field 'values' lacks 'wte.weight'"}};
  const auto refused = [&](const std::string& file, const std::string& about, const char* part) {
    folder_.write("damaged.json", file);
    const Outcome explain = folder_.shardrun("explain damaged.json");
    EXPECT_EQ(explain.status, 2) << about << "\n" << describe(explain);
    EXPECT_EQ(messages(explain), 1) << about << "\n" << describe(explain);
    EXPECT_TRUE(says(message(explain), part)) << about << "\n" << part << "\n" << describe(explain);
  };
  for (const auto& [patch, part] : damages)
    refused(good.patch(nlohmann::json::parse(patch)).dump(), patch, part);
  refused("{\"train\": ", "cut off", "damaged.json: is not JSON");
  refused("{\"train\": " + std::string(1 << 20, '[') + std::string(1 << 20, ']') + "}",
          "a million lists", "nested deeper than 64");
}

/// What comes out when one asks again lies as the plan's own requests say, too.
TEST_F(Look, WhyKeepsToWhatThePlanWasMadeUnder) {
  ASSERT_EQ(folder_
                .shardrun("plan gpt.onnx --ranks 4 --mesh data=2,model=2 --shard "
                          "'h.0.mlp.c_fc.weight=[-,model]' -o plan.json")
                .status,
            0);
  const Outcome pinned = folder_.shardrun("explain plan.json --why h.0.mlp.c_fc.weight");
  EXPECT_EQ(pinned.status, 0) << describe(pinned);
  EXPECT_TRUE(says(pinned.out, "lies as [-, {model}]")) << describe(pinned);
  EXPECT_TRUE(says(pinned.out, "next best: none; ")) << describe(pinned);
  ASSERT_EQ(folder_.shardrun("plan gpt.onnx --ranks 4 --planner dp -o dp.json").status, 0);
  const Outcome whole = folder_.shardrun("explain dp.json --why wte.weight");
  EXPECT_EQ(whole.status, 0) << describe(whole);
  EXPECT_TRUE(says(whole.out, "next best: none; ")) << describe(whole);
}

/// They hold on each mesh that is tried.
TEST_F(Look, RequestsThatNameNoAxisNeedNoMesh) {
  for (const char* asks : {"--planner fsdp --shard 'h.0.*weight=shared'",
                           "--shard 'wpe.weight=[-,-]' --shard '?wte.weight=anew'"}) {
    const Outcome run = folder_.shardrun(std::string("plan gpt.onnx --ranks 4 ") + asks);
    EXPECT_EQ(run.status, 0) << describe(run);
  }
  const Outcome named = folder_.shardrun(
      "plan gpt.onnx --ranks 4 --shard wte.weight=shared --shard 'wpe.weight=[data,-]'");
  EXPECT_EQ(named.status, 2) << describe(named);
  EXPECT_TRUE(says(named.err, "--shard 'wpe.weight=[data,-]': names axes of the mesh"))
      << describe(named);
}

/// Only plans of one model can be compared.
/// The plan is that of the mesh with the size written out, byte for byte.
TEST_F(Look, ASizeThatTheRanksTell) {
  for (const char* mesh : {"data=2,model=4", "data=?,model=4", "data=2,model=?"}) {
    const Outcome made =
        folder_.shardrun(std::string("plan gpt.onnx --ranks 8 --mesh '") + mesh + "' -o " +
                         (mesh[5] == '?'    ? "first"
                          : mesh[13] == '?' ? "last"
                                            : "both") +
                         ".json");
    ASSERT_EQ(made.status, 0) << describe(made);
  }
  EXPECT_EQ(folder_.read("first.json"), folder_.read("both.json"));
  EXPECT_EQ(folder_.read("last.json"), folder_.read("both.json"));
  const Outcome none = folder_.shardrun("plan gpt.onnx --ranks 6 --mesh 'data=?,model=4'");
  EXPECT_NE(none.status, 0);
  EXPECT_EQ(message(none),
            "mesh 'data=?,model=4': 6 ranks do not divide by 4, what the other axes have, so no "
            "size of 'data' fits");
  const Outcome trained = folder_.shardrun(
      threads(4), "train gpt.onnx --data text:text.txt --batch 4 --steps 2 --mesh 'r=?*2'");
  EXPECT_EQ(trained.status, 0) << describe(trained);
}

/// What a hint would cost is what it costs without the ?.
TEST_F(Look, HintsArePriced) {
  const std::string call = "plan gpt.onnx --ranks 4 --mesh data=2,model=2 -o ",
                    pin = "h.0.mlp.c_fc.weight=[-,-]";
  const auto seconds = [&](const std::string& name, const std::string& more) {
    const Outcome made = folder_.shardrun(call + name + more);
    EXPECT_EQ(made.status, 0) << describe(made);
    return nlohmann::json::parse(folder_.read(name))["train"]["seconds"].get<double>();
  };
  const double without = seconds("without.json", ""),
               hinted = seconds("hinted.json", " --shard '?" + pin + "'"),
               forced = seconds("forced.json", " --shard '" + pin + "'");
  EXPECT_EQ(hinted, without);
  const nlohmann::json file = nlohmann::json::parse(folder_.read("hinted.json"));
  ASSERT_EQ(file["hints"].size(), 1U);
  EXPECT_FALSE(file["hints"][0]["followed"]);
  EXPECT_DOUBLE_EQ(file["hints"][0]["seconds"], forced - without);
  EXPECT_GT(forced, without);
  const Outcome explained = folder_.shardrun("explain hinted.json");
  EXPECT_EQ(explained.status, 0) << describe(explained);
  EXPECT_TRUE(says(explained.out, "hints: 0 of 1 followed\n")) << describe(explained);
  EXPECT_TRUE(says(explained.out, "ms  with '?" + pin + "'\n")) << describe(explained);
  const Outcome why = folder_.shardrun("explain hinted.json --why h.0.mlp.c_fc.weight");
  EXPECT_EQ(why.status, 0) << describe(why);
}

/// The plan in the model's own file, which is then what a plan needs no more flags for.
TEST_F(Look, AnnotatesTheModel) {
  const Outcome made = folder_.shardrun(
      "plan gpt.onnx --mesh data=2,model=2 --planner megatron --annotate sharded.onnx");
  ASSERT_EQ(made.status, 0) << describe(made);
  const Outcome again = folder_.shardrun(
      "plan sharded.onnx --mesh data=2,model=2 --annotations required --planner propagate");
  EXPECT_EQ(again.status, 0) << describe(again);
  EXPECT_TRUE(says(again.out, "all_reduce")) << describe(again);
  const Outcome other = folder_.shardrun("plan sharded.onnx --mesh data=2,model=4");
  EXPECT_EQ(other.status, 0) << describe(other);
  EXPECT_TRUE(says(other.out,
                   "note: annotations are not followed: configuration "
                   "'data=2,model=2' is for 4 devices"))
      << describe(other);
  const Outcome itself = folder_.shardrun("plan gpt.onnx --mesh 2 --annotate gpt.onnx");
  EXPECT_NE(itself.status, 0) << describe(itself);
  EXPECT_TRUE(says(itself.err, "--annotate: gpt.onnx is what the model is read from"))
      << describe(itself);
}

TEST_F(Look, PlansOfDifferentModelsDoNotCompare) {
  ASSERT_EQ(folder_.shardrun("plan gpt.onnx --ranks 2 -o this.json").status, 0);
  ASSERT_EQ(folder_.shardrun("plan gpt.onnx --batch 4 --ranks 2 -o other.json").status, 0);
  const Outcome differ = folder_.shardrun("explain this.json --diff other.json");
  EXPECT_EQ(differ.status, 2) << describe(differ);
  EXPECT_TRUE(says(message(differ), "other.json: train: plan: field 'model_hash'"))
      << describe(differ);
}

}  // namespace
}  // namespace shardrun::test
