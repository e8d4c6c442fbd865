// What the flags do: metrics, validation, freezing, memory limits, plans in files, dims, losses.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "models/onnx_writer.h"
#include "tests/launcher/command.h"
#include "tests/support/npy.h"

namespace shardrun::test {
namespace {

std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
  return out;
}

/// The number after `word` in `text`; -1 if there is none.
int64_t number_after(const std::string& text, const std::string& word) {
  const size_t at = text.find(word);
  return at == std::string::npos ? -1 : std::strtoll(text.c_str() + at + word.size(), nullptr, 10);
}

/// What `-v` says in the column "trained" of each parameter.
std::map<std::string, std::string> trained_column(const std::string& out) {
  std::map<std::string, std::string> column;
  std::istringstream in(out);
  bool table = false;
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> words = [&] {
      std::istringstream split(
          line.substr(0, line.find(']') == std::string::npos ? line.size() : line.find(']')));
      std::vector<std::string> w;
      for (std::string word; split >> word;) w.push_back(word);
      return w;
    }();
    if (words.size() > 2 && words[0] == "parameter" && words[1] == "type") {
      table = true;
    } else if (table && line.find("f32[") != std::string::npos) {
      std::istringstream rest(line.substr(line.find(']') + 1));
      rest >> column[words[0]];
    } else {
      table = false;
    }
  }
  return column;
}

class Options : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at_ = new Workspace;
    at_->write("text.txt", prose(3000));
    for (const char* model :
         {"model gpt --layers 2 --hidden 32 --heads 4 --vocab 256 --context 16 -o gpt.onnx",
          "model gpt --layers 2 --hidden 16 --heads 4 --vocab 256 --context 16 -o other.onnx"}) {
      const Outcome made = at_->shardrun(model);
      ASSERT_EQ(made.status, 0) << describe(made);
    }
    OnnxWriter mlp("mlp", {});
    mlp.input("x", 1, {"batch", "6"});
    const std::string h =
        mlp.node("Tanh", {mlp.node("MatMul", {"x", mlp.normal("w1", {6, 20}, 0.4)})});
    mlp.node("Add",
             {mlp.node("MatMul", {h, mlp.normal("w2", {20, 3}, 0.3)}), mlp.filled("b2", {3}, 0)},
             {}, "y");
    mlp.output("y", 1, {"batch", "3"});
    mlp.write(at_->path() + "/mlp.onnx");
    std::vector<float> x, y;
    for (int i = 0; i < 40; ++i) {
      for (int j = 0; j < 6; ++j) x.push_back(static_cast<float>(std::sin(i * 6 + j)));
      for (int j = 0; j < 3; ++j)
        y.push_back(x[x.size() - 6] * x[x.size() - 1 - static_cast<size_t>(j)]);
    }
    at_->write("x.npy", npy({40, 6}, x));
    at_->write("y.npy", npy({40, 3}, y));
  }
  static void TearDownTestSuite() {
    delete at_;
    at_ = nullptr;
  }
  static Workspace* at_;
};

Workspace* Options::at_ = nullptr;

TEST_F(Options, MetricsAndValidation) {
  const Outcome run = at_->shardrun(
      mpi(2),
      "gpt.onnx --data text:text.txt --batch 4 --steps 10 --eval-every 4 --eval-batches 3 "
      "--lr 0.01 --schedule linear --min-lr 0.001 --warmup 2 --metrics m.jsonl");
  ASSERT_EQ(run.status, 0) << describe(run);
  int64_t step = 0;
  std::vector<int64_t> evals;
  std::vector<double> rates;
  for (const nlohmann::json& line : json_lines(at_->read("m.jsonl"))) {
    if (line.contains("val_loss")) {
      EXPECT_EQ(line.size(), 2u) << line;
      EXPECT_EQ(line["step"], step) << "a validation stands after its step";
      EXPECT_TRUE(line["val_loss"].is_number()) << line;
      evals.push_back(line["step"]);
      continue;
    }
    EXPECT_EQ(line["step"], ++step);
    for (const char* field :
         {"loss", "lr", "grad_norm", "step_ms", "tokens_per_s", "comm_ms", "peak_bytes"}) {
      EXPECT_TRUE(line.contains(field) && line[field].is_number()) << field << " in " << line;
    }
    EXPECT_EQ(line.size(), 8u) << line;
    EXPECT_GT(line["grad_norm"], 0);
    EXPECT_LE(line["comm_ms"], line["step_ms"]);
    EXPECT_NEAR(line["tokens_per_s"].get<double>(), 4 * 16 / line["step_ms"].get<double>() * 1e3,
                1e-6 * line["tokens_per_s"].get<double>());
    EXPECT_EQ(line["peak_bytes"],
              number_after(run.out.substr(run.out.find("rank 0:")), "allocated "))
        << describe(run);
    rates.push_back(line["lr"]);
  }
  EXPECT_EQ(evals, (std::vector<int64_t>{4, 8, 10}));
  ASSERT_EQ(rates.size(), 10u);
  EXPECT_NEAR(rates[0], 0.01 / 3, 1e-9);  // warm-up: lr * step / (warmup + 1)
  EXPECT_NEAR(rates[2], 0.01, 1e-9);
  EXPECT_NEAR(rates[9], 0.01 - 0.009 * 7 / 8, 1e-9);
  EXPECT_NE(run.out.find("step 8  validation loss"), std::string::npos) << describe(run);
}

/// A run replaces the file of the one before.
TEST_F(Options, MetricsAreFresh) {
  at_->write("old.jsonl", "old\n");
  ASSERT_EQ(at_->shardrun("gpt.onnx --steps 2 --validation 0 --metrics old.jsonl").status, 0);
  EXPECT_EQ(json_lines(at_->read("old.jsonl")).size(), 2u);
}

/// A call that is refused leaves it alone.
TEST_F(Options, RefusedCallsKeepMetrics) {
  at_->write("kept.jsonl", "{}\n");
  EXPECT_EQ(at_->shardrun("gpt.onnx --memory 10KB --metrics kept.jsonl").status, 2);
  EXPECT_EQ(at_->read("kept.jsonl"), "{}\n");
}

TEST_F(Options, ModelsWithoutTokensCountSamples) {
  const TrainingRun one =
      train(*at_, threads(1),
            "mlp.onnx --loss mse --data npy:x.npy,y.npy --batch 6 --steps 40 --lr 0.02");
  ASSERT_EQ(one.losses.size(), 40u);
  EXPECT_LT(one.losses.back(), 0.7 * one.losses.front()) << describe(one.outcome);
  const nlohmann::json line = json_lines(at_->read(".metrics")).at(0);
  EXPECT_TRUE(line.contains("samples_per_s") && !line.contains("tokens_per_s")) << line;
  EXPECT_FALSE(one.evals.empty());
  const TrainingRun two = train(*at_, mpi(2),
                                "mlp.onnx --loss mse --data npy:x=x.npy,target=y.npy --batch 6 "
                                "--steps 40 --lr 0.02 --arena " +
                                    std::to_string(one.allocated.at(0) - 1));
  EXPECT_LE(largest_difference(two, one), 1e-4) << describe(two.outcome);
}

TEST_F(Options, FreezeAndTrain) {
  const Outcome all = at_->shardrun("gpt.onnx --steps 1 -v"),
                some = at_->shardrun("gpt.onnx --steps 1 -v --freeze '^wte' --freeze 'ln_.*bias'");
  const auto before = trained_column(all.out), after = trained_column(some.out);
  ASSERT_EQ(before.size(), 2u + 2 * 12 + 2 + 2) << describe(all);  // two single numbers
  ASSERT_EQ(before.size(), after.size()) << describe(some);
  for (const auto& [name, trained] : after) {
    const bool number = name.rfind("const_", 0) == 0;
    const bool frozen =
        number || name.rfind("wte", 0) == 0 ||
        (name.find("ln_") != std::string::npos && name.find("bias") != std::string::npos);
    EXPECT_EQ(before.at(name), number ? "frozen" : "yes") << name;
    EXPECT_EQ(trained, frozen ? "frozen" : "yes") << name << "\n" << describe(some);
  }
  const Outcome both = at_->shardrun("gpt.onnx --steps 1 -v --freeze wte --train wte");
  EXPECT_EQ(trained_column(both.out).at("wte.weight"), "frozen") << "--freeze wins\n"
                                                                 << describe(both);
}

/// Frozen weights stay: with all but one bias frozen, losses move less and the optimizer holds
/// less.
TEST_F(Options, FrozenWeightsHaveNoState) {
  const TrainingRun all =
      train(*at_, threads(1), "gpt.onnx --data text:text.txt --steps 5 --lr 0.01");
  const TrainingRun one =
      train(*at_, threads(1), "gpt.onnx --data text:text.txt --steps 5 --lr 0.01 --freeze weight");
  EXPECT_LT(one.allocated.at(0), all.allocated.at(0));
  ASSERT_EQ(all.losses.size(), one.losses.size());
  EXPECT_EQ(all.loss_texts[0], one.loss_texts[0]);
  EXPECT_NE(all.loss_texts[4], one.loss_texts[4]);
}

TEST_F(Options, MemoryIsObeyedOrRefusedWithNumbers) {
  const Outcome refused = at_->shardrun(mpi(2), "gpt.onnx --batch 8 --arena 100KiB");
  EXPECT_EQ(refused.status, 2) << describe(refused);
  EXPECT_EQ(messages(refused), 1) << describe(refused);
  const int64_t needed = number_after(message(refused), "needs ");
  EXPECT_EQ(number_after(message(refused), "limit is "), 102400) << message(refused);
  ASSERT_GT(needed, 102400) << message(refused);
  EXPECT_EQ(refused.out.find("step 1"), std::string::npos) << "it trained\n" << describe(refused);

  // What the refusal asks for is enough, and is kept to by every rank.
  const TrainingRun run =
      train(*at_, mpi(2), "gpt.onnx --batch 8 --steps 2 --arena " + std::to_string(needed));
  ASSERT_EQ(run.allocated.size(), 2u);
  for (int64_t bytes : run.allocated) EXPECT_LE(bytes, needed) << describe(run.outcome);
  const TrainingRun alone = train(*at_, threads(1), "gpt.onnx --batch 8 --steps 2");
  EXPECT_LT(run.allocated[0], alone.allocated.at(0)) << "nothing was cut";
}

/// `plan` is for machines that are not here: only --memory limits it. Training by such a plan is
/// refused beforehand.
TEST_F(Options, PlansForOtherMachines) {
  ASSERT_EQ(at_->shardrun("model gpt --preset gpt2-1558m --no-weights -o large.onnx").status, 0);
  const Outcome planned =
      at_->shardrun("plan large.onnx --ranks 2 --planner dp --mesh 2 --batch 64 -o large.json");
  ASSERT_EQ(planned.status, 0) << describe(planned);
  EXPECT_GT(number_after(planned.out, "fullest rank (0): "), int64_t{100} << 30)
      << describe(planned);
  const Outcome trained = at_->shardrun("large.onnx --ranks 2 --batch 64 --plan large.json");
  EXPECT_EQ(trained.status, 2) << describe(trained);
  EXPECT_EQ(number_after(message(trained), "needs "),
            number_after(planned.out, "fullest rank (0): "))
      << describe(trained);
}

TEST_F(Options, PlansInFiles) {
  const std::string job = "gpt.onnx --data text:text.txt --batch 4 --steps 5";
  const std::string ask = "plan gpt.onnx --batch 4 --memory 650KB --ranks 4";
  const Outcome planned = at_->shardrun(ask + " --mesh 2x2 -o p.json");
  ASSERT_EQ(planned.status, 0) << describe(planned);
  const TrainingRun from_file = train(*at_, mpi(4), job + " --plan p.json");
  const TrainingRun searched = train(*at_, mpi(4), job + " --mesh 2x2 --arena 650KB");
  EXPECT_EQ(from_file.loss_texts, searched.loss_texts);
  EXPECT_EQ(from_file.predicted, searched.predicted);
  EXPECT_FALSE(from_file.losses.empty());
  const Outcome again = at_->shardrun(ask + " --plan p.json -o q.json");
  EXPECT_EQ(at_->read("q.json"), at_->read("p.json")) << describe(again);
}

TEST_F(Options, WrongPlansAreRefusedWithTheField) {
  ASSERT_EQ(at_->shardrun("plan gpt.onnx --ranks 2 --mesh 2 -o good.json").status, 0);
  const nlohmann::json good = nlohmann::json::parse(at_->read("good.json"));
  const auto refused = [&](const std::string& call, const std::vector<std::string>& wanted) {
    const Outcome run = at_->shardrun(call);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    for (const std::string& text : wanted)
      EXPECT_NE(message(run).find(text), std::string::npos) << text << "\n" << describe(run);
  };
  refused("gpt.onnx --ranks 3 --plan good.json", {"good.json", "mesh", "2", "3"});
  refused("other.onnx --ranks 2 --plan good.json", {"good.json", "model"});
  at_->write("cut.json", at_->read("good.json").substr(0, 1000));
  refused("gpt.onnx --ranks 2 --plan cut.json", {"cut.json"});
  const auto changed = [&](const std::string& what,
                           const std::function<void(nlohmann::json&)>& change,
                           const std::vector<std::string>& wanted) {
    SCOPED_TRACE(what);
    nlohmann::json plan = good;
    change(plan);
    at_->write("bad.json", plan.dump());
    refused("gpt.onnx --ranks 2 --plan bad.json", wanted);
  };
  const std::string value = good["train"]["values"].begin().key(),
                    node = good["train"]["nodes"].begin().key();
  changed("no mesh", [](auto& p) { p["train"].erase("mesh"); }, {"bad.json", "mesh"});
  changed("mesh is text", [](auto& p) { p["train"]["mesh"] = "2"; }, {"bad.json", "mesh"});
  changed("axis of size 0", [](auto& p) { p["train"]["mesh"][0]["size"] = 0; },
          {"bad.json", "size"});
  changed("no values", [](auto& p) { p["train"].erase("values"); }, {"bad.json", "values"});
  changed("a value less", [&](auto& p) { p["train"]["values"].erase(value); }, {"bad.json", value});
  changed("no such axis", [&](auto& p) { p["train"]["values"][value] = "[{zzz}]"; },
          {"bad.json", "zzz"});
  changed("a rank too many",
          [&](auto& p) { p["train"]["values"][value] = "[-, -, -, -, -, -, -]"; },
          {"bad.json", value});
  changed("a node less", [&](auto& p) { p["train"]["nodes"].erase(node); }, {"bad.json", node});
  changed("no operands",
          [&](auto& p) { p["train"]["nodes"][node]["in"] = nlohmann::json::array(); },
          {"bad.json", node});
  changed("another format", [](auto& p) { p["train"]["format"] = "shardrun-plan-9"; },
          {"bad.json", "format"});
  changed("two meshes", [](auto& p) { p["evaluation"]["mesh"][0]["name"] = "other"; },
          {"bad.json", "mesh"});
}

TEST_F(Options, DimsBindTheBatch) {
  const std::string job = "gpt.onnx --data text:text.txt --steps 2 ";
  const TrainingRun dim = train(*at_, threads(1), job + "--dim batch=5"),
                    batch = train(*at_, threads(1), job + "--batch 5");
  EXPECT_EQ(dim.loss_texts, batch.loss_texts);
  EXPECT_EQ(dim.outcome.out.find("assumed; set it with --batch"), std::string::npos)
      << describe(dim.outcome);
  const Outcome assumed = at_->shardrun("gpt.onnx --steps 1");
  EXPECT_NE(assumed.out.find("batch: 8 (assumed"), std::string::npos) << describe(assumed);
}

TEST_F(Options, FixedBatch) {
  ASSERT_EQ(at_->shardrun("model gpt --layers 1 --hidden 8 --heads 1 --vocab 20 --context 4 "
                          "--batch 3 -o fixed.onnx")
                .status,
            0);
  EXPECT_EQ(train(*at_, mpi(2), "fixed.onnx --steps 3").losses.size(), 3u);
}

TEST_F(Options, PathsAsPeopleHaveThem) {
  at_->sh(
      "mkdir -p 'a folder' && cp gpt.onnx 'a folder/my gpt.onnx' && cp text.txt 'a folder/my "
      "text.txt' && "
      "ln -sf 'a folder/my gpt.onnx' link.onnx");
  const Outcome run = at_->shardrun(mpi(2),
                                    "'./a folder/my gpt.onnx' --data 'text:./a folder/my text.txt' "
                                    "--steps 2 --metrics 'a folder/my m.jsonl'");
  EXPECT_EQ(run.status, 0) << describe(run);
  EXPECT_EQ(json_lines(at_->read("a folder/my m.jsonl")).at(0)["step"], 1);
  EXPECT_EQ(at_->shardrun("link.onnx --steps 1").status, 0);
  EXPECT_EQ(at_->shardrun("--ranks 2 --steps 1 gpt.onnx").status, 0) << "flags first";
}

/// Nodes of one model on shapes that nothing divides.
TEST_F(Options, OddSizes) {
  const char* const kModels[] = {"--layers 1 --hidden 8 --heads 1 --vocab 2 --context 1",
                                 "--layers 1 --hidden 7 --heads 7 --vocab 3 --context 2",
                                 "--layers 3 --hidden 5 --heads 1 --vocab 11 --context 7"};
  for (const char* sizes : kModels) {
    ASSERT_EQ(at_->shardrun(std::string("model gpt ") + sizes + " -o odd.onnx").status, 0) << sizes;
    const TrainingRun alone = train(*at_, threads(1), "odd.onnx --batch 2 --steps 5");
    for (const std::string ways : {"3", "5 --planner dp"}) {
      const TrainingRun run =
          train(*at_, threads(ways[0] - '0'), "odd.onnx --batch 2 --steps 5" + ways.substr(1));
      EXPECT_LE(largest_difference(run, alone), 1e-4) << describe(run.outcome);
    }
  }
}

/// Weights that are described are, by the same seed, those that are stored.
TEST_F(Options, DescribedWeightsAreTheStoredOnes) {
  const std::string sizes =
      "model gpt --layers 1 --hidden 24 --heads 3 --vocab 256 --context 12 --seed 3 ";
  ASSERT_EQ(at_->shardrun(sizes + "-o stored.onnx").status, 0);
  ASSERT_EQ(at_->shardrun(sizes + "--no-weights -o described.onnx").status, 0);
  EXPECT_LT(std::filesystem::file_size(at_->path() + "/described.onnx"),
            std::filesystem::file_size(at_->path() + "/stored.onnx") / 2);
  const std::string job = " --data text:text.txt --batch 4 --steps 5 --seed 3";
  const TrainingRun stored = train(*at_, threads(1), "stored.onnx" + job);
  ASSERT_FALSE(stored.losses.empty());
  EXPECT_EQ(train(*at_, threads(1), "described.onnx" + job).loss_texts, stored.loss_texts);
  const TrainingRun cut =
      train(*at_, mpi(2),
            "described.onnx" + job + " --arena " + std::to_string(stored.allocated.at(0) * 9 / 10));
  EXPECT_LE(largest_difference(cut, stored), 1e-4) << describe(cut.outcome);
}

}  // namespace
}  // namespace shardrun::test
