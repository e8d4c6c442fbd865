// What runs and plans show: event files, pages, the screen of a terminal, and silence.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "event.pb.h"
#include "onnx-ml.pb.h"
#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class Shows : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at_ = new Workspace;
    at_->write("text.txt", prose(20000));
    const Outcome model = at_->shardrun(
        "model gpt --layers 2 --heads 2 --hidden 16 --vocab 256 --context 8 -o gpt.onnx");
    ASSERT_EQ(model.status, 0) << describe(model);
  }
  static void TearDownTestSuite() {
    delete at_;
    at_ = nullptr;
  }
  static std::string call(int steps, const std::string& more) {
    return "train gpt.onnx --data text:text.txt --batch 4 --plan-seconds 0.2 --eval-every 2 "
           "--eval-batches 1 --steps " +
           std::to_string(steps) + " " + more;
  }
  static Outcome run(const std::string& arguments, int status = 0) {
    const Outcome out = at_->shardrun(arguments);
    EXPECT_EQ(out.status, status) << describe(out);
    return out;
  }
  /// The data of a page, as its script reads them.
  static Json data_of(const std::string& page) {
    const std::string mark = "<script type=\"application/json\" id=\"data\">";
    const size_t begin = page.find(mark) + mark.size();
    return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  }
  static Workspace* at_;
};
Workspace* Shows::at_ = nullptr;

/// Steps of a tag in the files of a folder, as a reader of TensorBoard's takes them: in the order
/// of names, and from a start on without what is behind it.
std::map<int64_t, float> scalars(const std::string& folder, const std::string& tag) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::map<int64_t, float> out;
  for (const std::string& file : files) {
    std::ifstream in(file, std::ios::binary);
    uint64_t length = 0;
    while (in.read(reinterpret_cast<char*>(&length), sizeof length)) {
      std::string event(length, '\0');
      in.ignore(4);
      in.read(event.data(), static_cast<std::streamsize>(length));
      in.ignore(4);
      board::Event read;
      EXPECT_TRUE(read.ParseFromString(event));
      if (read.session_log().status() == board::SessionLog::START)
        out.erase(out.lower_bound(read.step()), out.end());
      for (const board::Summary::Value& value : read.summary().value()) {
        if (value.tag() == tag) out[read.step()] = value.simple_value();
      }
    }
  }
  return out;
}

TEST_F(Shows, ARunAndTheOneThatGoesOnMakeOneBoard) {
  const Outcome first = at_->shardrun(
      mpi(2), call(6, "--board b --checkpoint c --checkpoint-every 2 --metrics a.jsonl"));
  ASSERT_EQ(first.status, 0) << describe(first);
  const Outcome second =
      at_->shardrun(mpi(2), call(8, "--board b --checkpoint c --resume c/step-00000004"));
  ASSERT_EQ(second.status, 0) << describe(second);
  const auto loss = scalars(at_->path() + "/b", "loss/train");
  ASSERT_EQ(loss.size(), 8u);
  EXPECT_EQ(loss.rbegin()->first, 8);
  std::istringstream lines(at_->read("a.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    if (!json.contains("loss")) continue;
    EXPECT_FLOAT_EQ(loss.at(json["step"].get<int64_t>()), json["loss"].get<float>());
  }
  EXPECT_EQ(scalars(at_->path() + "/b", "loss/validation").size(), 4u);
  EXPECT_EQ(scalars(at_->path() + "/b", "rate/tokens_per_second").size(), 8u);
  EXPECT_EQ(std::distance(fs::directory_iterator(at_->path() + "/b"), fs::directory_iterator()), 2);
}

TEST_F(Shows, FoldersThatCannotBeMadeAreRefusedBeforeAnythingIsPlanned) {
  at_->write("file", "x");
  const Outcome refused = run(call(2, "--board file"), 2);
  EXPECT_NE(refused.err.find("--board: file: cannot be written: Not a directory"),
            std::string::npos)
      << describe(refused);
  EXPECT_EQ(refused.out.find("plan:"), std::string::npos) << describe(refused);
  const Outcome nowhere = run(call(2, "--board /proc/nope"), 2);  // no folder can be made there
  EXPECT_NE(nowhere.err.find("--board: /proc/nope: cannot be written"), std::string::npos)
      << describe(nowhere);
  EXPECT_EQ(nowhere.out.find("plan:"), std::string::npos) << describe(nowhere);
  const Outcome passes = run("plan gpt.onnx --ranks 2 --dump-passes /proc/nope", 2);
  EXPECT_NE(passes.err.find("--dump-passes: /proc/nope: cannot be written"), std::string::npos)
      << describe(passes);
  EXPECT_EQ(passes.out.find("plan:"), std::string::npos) << describe(passes);
  const Outcome bench = run("bench checkpoint gpt.onnx --folder /proc/nope", 2);
  EXPECT_NE(bench.err.find("--folder: /proc/nope: cannot be written"), std::string::npos)
      << describe(bench);
  const Outcome both = run(call(2, "--board new --metrics new"), 2);
  EXPECT_NE(both.err.find("--board: --metrics writes new, too"), std::string::npos)
      << describe(both);
  EXPECT_FALSE(at_->exists("new"));
}

TEST_F(Shows, APageHasWhatThePlanSays) {
  run("plan gpt.onnx --mesh data=2,model=2 --batch 4 -o p.json --html p.html");
  const std::string page = at_->read("p.html");
  const Json data = data_of(page), plan = Json::parse(at_->read("p.json"));
  EXPECT_EQ(data["mesh"]["ranks"], 4);
  EXPECT_EQ(data["mesh"]["axes"][1]["name"], "model");
  EXPECT_NEAR(data["step_ms"].get<double>(), plan["train"]["seconds"].get<double>() * 1e3, 1e-9);
  ASSERT_GT(data["timeline"].size(), 50u);
  double end = 0, sum = 0;
  for (const Json& step : data["timeline"]) {
    EXPECT_NEAR(step[3].get<double>(), end, 1e-9);  // on a CPU one after the other
    end = step[3].get<double>() + step[4].get<double>();
  }
  for (const char* kind : {"compute", "communication"}) {
    for (const Json& part : data[kind]) sum += part["ms"].get<double>();
  }
  EXPECT_NEAR(end, sum, 1e-9);
  // Bytes: what is alive at the peak is what the kinds say, and no more than the arena.
  int64_t kinds = 0, buffers = data["memory"]["rest"];
  for (const auto& [kind, bytes] : data["memory"]["kinds"].items()) kinds += bytes.get<int64_t>();
  for (const Json& buffer : data["memory"]["peak"]) buffers += buffer["bytes"].get<int64_t>();
  const int64_t arena = data["memory"]["arena"],
                gaps = data["memory"]["kinds"].value("gaps", int64_t{0}),
                tables = data["memory"]["kinds"].value("tables of kernels", int64_t{0});
  EXPECT_EQ(kinds, arena);
  EXPECT_EQ(buffers, arena - gaps - tables);
  for (const Json& alive : data["memory"]["alive"]) EXPECT_LE(alive.get<int64_t>(), arena);
  EXPECT_GE(data["layers"].size(), 2u);
  EXPECT_EQ(page.find("http://www.w3.org/2000/svg"), page.rfind("http"));  // nothing else is named
  // Another plan, and a run's report next to the predicted times.
  run("plan gpt.onnx --mesh data=2,model=2 --planner dp+megatron --batch 4 -o q.json");
  run(call(3, "--ranks 4 --plan p.json --report r.json --quiet"));
  run("explain p.json --diff q.json --report r.json --html d.html");
  const Json both = data_of(at_->read("d.html"));
  EXPECT_NE(both["difference"].get<std::string>().find("step"), std::string::npos);
  EXPECT_EQ(both["measured"]["steps"].size(), 3u);
  EXPECT_EQ(both["measured"]["allocated"].size(), 4u);
  EXPECT_EQ(both["measured"]["first"], 1);
  // Of a long run, bars of several steps.
  Json report = Json::parse(at_->read("r.json"));
  report["first_step"] = 101;
  for (const char* list : {"step_ms", "comm_ms"}) {
    report[list] = std::vector<double>(2500, 2);
    report[list].push_back(5);
  }
  at_->write("long.json", report.dump());
  run("explain p.json --report long.json --html long.html");
  const Json measured = data_of(at_->read("long.html"))["measured"];
  EXPECT_EQ(measured["each"], 3);
  EXPECT_EQ(measured["first"], 101);
  EXPECT_EQ(measured["last"], 2601);
  EXPECT_EQ(measured["step_ms"], 2);
  ASSERT_EQ(measured["steps"].size(), 834u);
  EXPECT_EQ(measured["steps"][0], 2);
  EXPECT_EQ(measured["steps"][833], 3.5);  // of two
}

TEST_F(Shows, AnOpenSizeWantsRanks) {
  const Outcome refused = run("plan gpt.onnx --mesh data=?,model=2 --batch 4", 2);
  EXPECT_NE(refused.err.find("--mesh data=?,model=2: leaves a size open; give --ranks"),
            std::string::npos)
      << refused.err;
  run("plan gpt.onnx --mesh data=?,model=2 --ranks 4 --batch 4");
}

/// The lines of what a plan comes to, without how long it took.
std::string figures_of(const std::string& plan) {
  std::string out;
  std::istringstream lines(plan);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("predicted step") != std::string::npos ||
        line.find("bytes of the fullest rank") != std::string::npos)
      out += line + "\n";
  }
  return out;
}

/// They share the machine's cores where the mesh alone says how many there are, too: workspaces
/// grow with the threads of a rank.
TEST_F(Shows, RanksOfAMeshShareTheCores) {
  const std::string counted = figures_of(run("plan gpt.onnx --mesh 2 --ranks 2 --batch 4").out);
  EXPECT_EQ(std::count(counted.begin(), counted.end(), '\n'), 2) << counted;
  EXPECT_EQ(figures_of(run("plan gpt.onnx --mesh 2 --batch 4 -o mesh.json").out), counted);
  EXPECT_EQ(figures_of(run("plan gpt.onnx --plan mesh.json --batch 4").out), counted);
  EXPECT_EQ(figures_of(run("train gpt.onnx --plan mesh.json --ranks 2 --batch 4 --steps 1").out),
            counted);
}

/// Those of another cluster have no cores here to share, however they are counted.
TEST_F(Shows, RanksOfAnotherClusterShareNoCores) {
  const std::string plan = "plan gpt.onnx --mesh 2 --cluster h100 --batch 4";
  EXPECT_EQ(figures_of(run(plan + " --ranks 2").out), figures_of(run(plan).out));
}

/// A page is written over nothing that is read.
TEST_F(Shows, APageReplacesNoInput) {
  run("plan gpt.onnx --ranks 2 --batch 4 -o two.json");
  const std::string before = at_->read("gpt.onnx");
  for (const char* call : {"explain two.json --html gpt.onnx", "explain two.json --html two.json",
                           "explain two.json --model ./gpt.onnx --html gpt.onnx"}) {
    const Outcome refused = run(call, 2);
    EXPECT_NE(refused.err.find("is read from; name another file"), std::string::npos)
        << refused.err;
  }
  EXPECT_EQ(at_->read("gpt.onnx"), before);
}

TEST_F(Shows, NamesOfAModelStayTexts) {
  onnx::ModelProto model;
  ASSERT_TRUE(model.ParseFromString(at_->read("gpt.onnx")));
  const std::string evil = "</script><script>alert(1)</script><!--\xe2\x80\xa8&\"";
  for (int n = 0; n < model.graph().node_size(); ++n)
    model.mutable_graph()->mutable_node(n)->set_name(evil + std::to_string(n));
  at_->write("evil.onnx", model.SerializeAsString());
  run("plan evil.onnx --ranks 2 --batch 4 --html evil.html");
  run("plan gpt.onnx --ranks 2 --batch 4 --html plain.html");
  const auto count = [&](const std::string& file, const std::string& what) {
    const std::string page = at_->read(file);
    int found = 0;
    for (size_t at = page.find(what); at != std::string::npos; at = page.find(what, at + 1))
      ++found;
    return found;
  };
  for (const char* what : {"<script", "</script", "<!--", "\xe2\x80\xa8"})
    EXPECT_EQ(count("evil.html", what), count("plain.html", what)) << what;
  EXPECT_NE(data_of(at_->read("evil.html")).dump().find("alert(1)"), std::string::npos);
}

TEST_F(Shows, ReportsOfOtherRunsAreRefused) {
  run("plan gpt.onnx --ranks 2 --batch 4 -o two.json");
  at_->write("no.json", "{\"step_ms\": [1, \"x\"]}");
  at_->write("mesh.json", R"({"step_ms": [1], "comm_ms": [1], "mesh": "data=3"})");
  const Outcome none = run("explain two.json --html o.html --report no.json", 2);
  EXPECT_NE(none.err.find("no.json: the report: field 'step_ms'"), std::string::npos) << none.err;
  const Outcome other = run("explain two.json --html o.html --report mesh.json", 2);
  EXPECT_NE(other.err.find("field 'mesh' is \"data=3\""), std::string::npos) << other.err;
  at_->write("empty.json", "");
  const Outcome empty = run("explain two.json --html o.html --report empty.json", 2);
  EXPECT_NE(empty.err.find("empty.json: the report: is not JSON"), std::string::npos) << empty.err;
  // Of another plan on the same mesh.
  run(call(1, "--ranks 2 --planner fsdp --report fsdp.json --quiet"));
  run("plan gpt.onnx --ranks 2 --batch 4 --planner dp -o dp.json");
  const Outcome fsdp = run("explain dp.json --html o.html --report fsdp.json", 2);
  EXPECT_NE(fsdp.err.find("fsdp.json: the report: field 'predicted_bytes'"), std::string::npos)
      << fsdp.err;
  run("explain two.json --report mesh.json", 2);
  EXPECT_FALSE(at_->exists("o.html"));
}

TEST_F(Shows, QuietPrintsNothing) {
  const Outcome quiet = run(call(3, "--quiet"));
  EXPECT_EQ(quiet.out, "") << describe(quiet);
  EXPECT_EQ(quiet.err, "") << describe(quiet);
}

TEST_F(Shows, APipeGetsLinesAndATerminalAScreen) {
  const Outcome pipe = run(call(4, ""));
  EXPECT_EQ(pipe.out.find('\033'), std::string::npos) << describe(pipe);
  EXPECT_NE(pipe.out.find("\nstep 4/4  loss"), std::string::npos) << describe(pipe);
  const Outcome terminal =
      at_->sh("TERM=xterm LC_ALL=C.UTF-8 script -qec '" + Workspace::line({1, false}, call(4, "")) +
              "' /dev/null < /dev/null");
  ASSERT_EQ(terminal.status, 0) << describe(terminal);
  EXPECT_EQ(terminal.out.find("step 4/4"), std::string::npos);
  EXPECT_NE(terminal.out.find("step 4 of 4  [########################]  100 %"), std::string::npos)
      << describe(terminal);
  EXPECT_NE(terminal.out.find("\033[4A"), std::string::npos);  // in place
  EXPECT_NE(terminal.out.find("▁"), std::string::npos);
}

/// One that takes no escape sequences, and one in which the screen would scroll away.
TEST_F(Shows, TerminalsThatCannotHoldAScreenGetLines) {
  const std::string line = Workspace::line({1, false}, call(4, ""));
  for (const std::string& command :
       {"TERM=dumb script -qec '" + line + "' /dev/null < /dev/null",
        "TERM=xterm script -qec 'stty rows 4; " + line + "' /dev/null < /dev/null"}) {
    const Outcome terminal = at_->sh(command);
    ASSERT_EQ(terminal.status, 0) << describe(terminal);
    EXPECT_EQ(terminal.out.find("\033[4A"), std::string::npos) << describe(terminal);
    EXPECT_NE(terminal.out.find("step 4/4  loss"), std::string::npos) << describe(terminal);
  }
}

/// Every flag of every command is in the man page and in the completion, which a shell takes.
TEST_F(Shows, TheManualHasEveryFlag) {
  at_->write("shardrun.1", run("manual").out);
  at_->write("completion", run("manual --bash").out);
  const std::string page = at_->read("shardrun.1"), completion = at_->read("completion");
  for (const char* command :
       {"", "train", "plan", "explain", "bench", "manual", "model gpt", "bench step"}) {
    const Outcome help = run(std::string(command) + " --help");
    std::istringstream lines(help.out);
    for (std::string line; std::getline(lines, line);) {
      const size_t begin = line.find("--");
      if (line.rfind("  -", 0) != 0 || begin == std::string::npos) continue;
      std::string flag = line.substr(begin, line.find_first_of(" =,{", begin) - begin);
      EXPECT_NE(completion.find(" " + flag), std::string::npos) << flag;
      for (size_t at = 0; (at = flag.find('-', at)) != std::string::npos; at += 2)
        flag.insert(at, "\\");
      EXPECT_NE(page.find(flag), std::string::npos) << flag;
    }
  }
  const Outcome words = at_->sh(
      "bash -c 'set -u; . ./completion; COMP_WORDS=(shardrun plan --htm); COMP_CWORD=2; "
      "_shardrun; "
      "echo ${COMPREPLY[@]}; COMP_WORDS=(shardrun exp); COMP_CWORD=1; _shardrun; "
      "echo ${COMPREPLY[@]}; COMP_WORDS=(shardrun model g); COMP_CWORD=2; _shardrun; "
      "echo ${COMPREPLY[@]}; COMP_WORDS=(shardrun model gpt --expe); COMP_CWORD=3; _shardrun; "
      "echo ${COMPREPLY[@]}'");
  EXPECT_EQ(words.status, 0) << describe(words);
  EXPECT_EQ(words.out, "--html\nexplain export\ngpt gat gns\n--experts\n");
  at_->write("my model*.onnx", "");
  const Outcome files = at_->sh(
      "bash -c '. ./completion; COMP_WORDS=(shardrun train my); COMP_CWORD=2; _shardrun; "
      "printf \"[%s]\" \"${COMPREPLY[@]}\"'");
  EXPECT_EQ(files.out, "[my model*.onnx]") << describe(files);
}

/// A second call knows the rules of the first, on one rank's word, and makes the same plan.
TEST_F(Shows, RulesOfAnEarlierCallAreUsed) {
  const std::string plan = "plan gpt.onnx --ranks 2 --batch 4 -o ";
  const auto with = [&](const std::string& cache, const std::string& output) {
    return at_->sh("SHARDRUN_CACHE=" + cache + " " + SHARDRUN_COMMAND + " " + plan + output);
  };
  const Outcome off = with("off", "off.json"), cold = with("kept", "cold.json"),
                warm = with("kept", "warm.json");
  ASSERT_EQ(warm.status, 0) << describe(warm);
  EXPECT_EQ(cold.out.find("kept)"), std::string::npos) << describe(cold);
  EXPECT_NE(warm.out.find("kept) from 0 kernel runs"), std::string::npos) << describe(warm);
  EXPECT_EQ(at_->read("off.json"), at_->read("cold.json"));
  EXPECT_EQ(at_->read("off.json"), at_->read("warm.json"));
  EXPECT_TRUE(at_->exists("kept/rules"));
  at_->write("kept/rules", "shardrun rules 1, of sources 0\nnonsense");
  const Outcome damaged = with("kept", "damaged.json");
  EXPECT_EQ(damaged.status, 0) << describe(damaged);
  EXPECT_EQ(damaged.err, "");
  EXPECT_EQ(at_->read("off.json"), at_->read("damaged.json"));
}

}  // namespace
}  // namespace shardrun::test
