// shardrun bench: rows, files, and the sentences of what cannot be. No test looks at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

nlohmann::json parsed(const Workspace& at, const std::string& name) {
  return nlohmann::json::parse(at.read(name), nullptr, false);
}

/// Is every tag closed in its order, every attribute quoted, and is there one root?
bool well_formed(const std::string& xml) {
  std::vector<std::string> open;
  int roots = 0;
  for (size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0 || tag.find('<') != std::string::npos)
      return false;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag[0] == '/') {
      if (open.empty() || "/" + open.back() != tag) return false;
      open.pop_back();
    } else {
      if (open.empty()) ++roots;
      if (tag.back() != '/') open.push_back(name);
    }
  }
  for (size_t at = xml.find('&'); at != std::string::npos; at = xml.find('&', at + 1)) {
    const size_t end = xml.find(';', at);
    if (end == std::string::npos || end - at > 6) return false;
  }
  return open.empty() && roots == 1;
}

int count_of(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

/// Whatever the width is rounded to.
TEST(WeakScaling, KeepsARanksWork) {
  const Workspace at;
  const Outcome run = at.shardrun(
      "bench weak-scaling --model wide-resnet --scale tiny --ranks 1,4,5 --planners dp --steps 1 "
      "--launcher threads --json out.json");
  ASSERT_EQ(run.status, 0) << describe(run);
  const nlohmann::json rows = parsed(at, "out.json")["rows"];
  ASSERT_EQ(rows.size(), 3u);
  const double one = rows[0]["flops"];
  for (const nlohmann::json& row : rows)
    EXPECT_NEAR(row["flops"].get<double>() / row["ranks"].get<double>(), one, 0.1 * one) << row;
}

TEST(WeakScaling, MeasuresEachPlannerOnEachNumberOfRanks) {
  const Workspace at;
  const Outcome run = at.shardrun(
      "bench weak-scaling --model gat --scale tiny --ranks 2,1 --planners auto,fsdp --steps 3 "
      "--launcher threads "
      "--json out.json --plot 'out.svg'");
  ASSERT_EQ(run.status, 0) << describe(run);
  const nlohmann::json out = parsed(at, "out.json");
  ASSERT_TRUE(out.is_object()) << at.read("out.json");
  EXPECT_EQ(out["launcher"], "threads");
  for (const char* name : {"shardrun", "compiler", "oneDNN", "MPI", "HiGHS"})
    EXPECT_TRUE(out["machine"]["versions"].contains(name)) << name;
  ASSERT_EQ(out["rows"].size(), 4u) << describe(run);
  std::map<int, double> flops;
  for (size_t i = 0; i < 4; ++i) {
    const nlohmann::json& row = out["rows"][i];
    ASSERT_EQ(row["state"], "measured") << row.dump(1);
    EXPECT_EQ(row["ranks"], i < 2 ? 1 : 2);
    EXPECT_EQ(row["planner"], i % 2 == 0 ? "auto" : "fsdp");
    ASSERT_EQ(row["step_ms"].size(), 1u);
    auto steps = row["step_ms"][0].get<std::vector<double>>();
    ASSERT_EQ(steps.size(), 3u);
    std::sort(steps.begin(), steps.end());
    EXPECT_DOUBLE_EQ(row["median_ms"], steps[1]);
    EXPECT_DOUBLE_EQ(row["flops_per_s"], row["flops"].get<double>() / steps[1] * 1e3);
    EXPECT_EQ(row["bytes"].size(), row["ranks"]);
    EXPECT_EQ(row["sent_bytes"].size(), row["ranks"]);
    if (row["planner"] == "fsdp") {
      EXPECT_EQ(row["sent_bytes"][0] > 0, row["ranks"] == 2) << row.dump(1);
    }
    EXPECT_GT(row["planning_seconds"], 0);
    EXPECT_EQ(row["threads"], out["threads"]);
    flops[row["ranks"]] = row["flops"];
  }
  EXPECT_NEAR(flops[2] / flops[1], 2, 0.1) << "a rank's work is to stay";
  EXPECT_DOUBLE_EQ(out["rows"][0]["efficiency"], 1);

  const std::string svg = at.read("out.svg");
  EXPECT_TRUE(well_formed(svg)) << svg;
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_EQ(count_of(svg, "<polyline"), 3) << "two planners and the line without loss";
  for (const char* text : {">auto<", ">fsdp<", ">without loss<", "GFLOP/s", ">ranks "})
    EXPECT_NE(svg.find(text), std::string::npos) << text << "\n" << svg;
}

TEST(WeakScaling, RoundsGoThroughAllRowsInTurn) {
  const Workspace at;
  const Outcome run = at.shardrun(
      "bench weak-scaling --model gat --scale tiny --ranks 1,2 --planners dp,nonsense --steps 2 "
      "--rounds 3 --launcher threads --json out.json");
  ASSERT_EQ(run.status, 0) << describe(run);
  const nlohmann::json rows = parsed(at, "out.json")["rows"];
  ASSERT_EQ(rows.size(), 4u);
  const auto median = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
  };
  const nlohmann::json &one = rows[0], &two = rows[2];
  std::vector<double> fractions;
  for (size_t i = 0; i < 3; ++i) {
    const auto a_rank = [&](const nlohmann::json& row) {
      return row["flops"].get<double>() / median(row["step_ms"][i]) / row["ranks"].get<int>();
    };
    fractions.push_back(a_rank(two) / a_rank(one));
    EXPECT_NEAR(two["efficiencies"][i], fractions[i], 1e-12);
  }
  EXPECT_NEAR(two["efficiency"], median(fractions), 1e-12);
  std::vector<double> steps;
  for (const auto& round : two["step_ms"]) steps.insert(steps.end(), round.begin(), round.end());
  ASSERT_EQ(steps.size(), 6u);
  EXPECT_DOUBLE_EQ(two["median_ms"], median(steps));
  EXPECT_EQ(rows[1]["state"], "refused") << "and is not asked again";
  // Each round has one rank's rows before two ranks'; the last table has the medians.
  EXPECT_EQ(count_of(run.out, "1 rank: "), 4) << describe(run);
  size_t last = 0;
  for (const char* head : {"round 1 of 3", "round 2 of 3", "round 3 of 3", "all 3 rounds"}) {
    const size_t found = run.out.find(head);
    ASSERT_NE(found, std::string::npos) << head << "\n" << describe(run);
    EXPECT_GT(found + 1, last) << head;
    last = found + 1;
  }
}

TEST(WeakScaling, UnderMpirunToo) {
  const Workspace at;
  const Outcome run = at.shardrun(
      "bench weak-scaling --model gat --scale tiny --ranks 2 --planners fsdp --steps 2 --launcher "
      "mpirun "
      "--json out.json --mpirun '" SHARDRUN_MPIEXEC " --oversubscribe'");
  ASSERT_EQ(run.status, 0) << describe(run);
  const nlohmann::json row = parsed(at, "out.json")["rows"][0];
  ASSERT_EQ(row["state"], "measured") << row.dump(1);
  EXPECT_EQ(row["bytes"].size(), 2u);
  EXPECT_NE(row["command"].get<std::string>().find("--oversubscribe -np 2 "), std::string::npos);
}

TEST(WeakScaling, MarksWhatCannotBeAndGoesOn) {
  const Workspace at;
  const Outcome run = at.shardrun(
      "bench weak-scaling --model gat --scale tiny --ranks 2 --planners auto,nonsense --steps 2 "
      "--memory 10KiB "
      "--launcher threads --json out.json --plot out.svg");
  ASSERT_EQ(run.status, 0) << describe(run);
  const nlohmann::json rows = parsed(at, "out.json")["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["state"], "out of memory");
  EXPECT_NE(rows[0]["why"].get<std::string>().find("10240"), std::string::npos);
  EXPECT_EQ(rows[1]["state"], "refused");
  EXPECT_NE(rows[1]["why"].get<std::string>().find("nonsense"), std::string::npos);
  EXPECT_NE(run.out.find("out of memory: "), std::string::npos) << describe(run);
  const std::string svg = at.read("out.svg");
  EXPECT_TRUE(well_formed(svg)) << svg;
  EXPECT_NE(svg.find("out of memory"), std::string::npos);
}

TEST(WeakScaling, ShowsTheSentenceOfARunThatNeverStarts) {
  const Workspace at;
  at.write("broken", "#!/bin/sh\necho '---' >&2\necho 'no such host: moon' >&2\nexit 3\n");
  ASSERT_EQ(at.sh("chmod +x broken").status, 0);
  const Outcome run = at.shardrun(
      "bench weak-scaling --model gat --scale tiny --ranks 1 --planners dp --mpirun ./broken "
      "--json out.json");
  ASSERT_EQ(run.status, 0) << describe(run);
  const nlohmann::json row = parsed(at, "out.json")["rows"][0];
  EXPECT_EQ(row["state"], "failed");
  EXPECT_EQ(row["why"], "no such host: moon (status 3)");
}

/// A launcher's sentence may take several lines, and more may follow.
TEST(WeakScaling, ShowsALaunchersWholeSentence) {
  const Workspace at;
  at.write("full",
           "#!/bin/sh\necho '------' >&2\necho 'There are no slots left for the 8' >&2\n"
           "echo 'ranks that were asked for.' >&2\necho >&2\necho 'More words.' >&2\nexit 1\n");
  ASSERT_EQ(at.sh("chmod +x full").status, 0);
  const Outcome run = at.shardrun(
      "bench weak-scaling --model gat --scale tiny --ranks 1 --planners dp --mpirun ./full "
      "--json out.json");
  ASSERT_EQ(run.status, 0) << describe(run);
  EXPECT_EQ(parsed(at, "out.json")["rows"][0]["why"],
            "There are no slots left for the 8 ranks that were asked for. (status 1)");
}

/// Open MPI does not start root's ranks unless it is allowed to, as in no fresh container.
TEST(WeakScaling, RunsAsRoot) {
  const Workspace at;
  const std::string bare = "env -u OMPI_ALLOW_RUN_AS_ROOT -u OMPI_ALLOW_RUN_AS_ROOT_CONFIRM ";
  for (const char* bench :
       {"bench weak-scaling --model gat --scale tiny --ranks 2 --planners dp --steps 1",
        "bench collectives --ranks 2 --sizes 1KiB --repeats 1"}) {
    const Outcome run = at.sh(bare + SHARDRUN_COMMAND + " " + bench + " --json out.json");
    EXPECT_EQ(run.status, 0) << describe(run);
    const nlohmann::json result = parsed(at, "out.json");
    ASSERT_TRUE(result.is_object()) << describe(run);
    for (const nlohmann::json& row : result["rows"])
      EXPECT_NE(row.value("state", ""), "failed") << row.dump(1);
  }
}

TEST(WeakScaling, SaysThatThereIsNoFolderForItsFiles) {
  const Workspace at;
  const Outcome run = at.sh("TMPDIR=/no/such/folder " +
                            Workspace::line(threads(1), "bench weak-scaling --model gat"));
  EXPECT_EQ(run.status, 1) << describe(run);
  EXPECT_EQ(message(run).rfind("TMPDIR=/no/such/folder: ", 0), 0u) << describe(run);
}

TEST(Bench, RefusesWithASentence) {
  const Workspace at;
  for (const auto& [arguments, part] : std::vector<std::pair<std::string, std::string>>{
           {"weak-scaling", "--model"},
           {"weak-scaling --model resnet", "resnet"},
           {"weak-scaling --model gpt --ranks 0", "--ranks"},
           {"weak-scaling --model gpt --ranks two", "two"},
           {"weak-scaling --model gpt --steps 0", "--steps"},
           {"weak-scaling --model gpt --rounds 0", "--rounds"},
           {"weak-scaling --model gpt --memory much", "--memory"},
           {"weak-scaling --model gpt --ranks 3 --scale paper", "1, 2, 4 and 8"},
           {"weak-scaling --model gpt --mpirun no-such-program --launcher mpirun",
            "no-such-program"},
           {"weak-scaling --model gpt --json no/such/folder/x", "no/such/folder/x"},
           {"weak-scaling --model gpt --plot x.png", "x.png: the plot is an SVG"},
           {"collectives --ranks 1", "--ranks: Value 1 not in range 2"},
           {"collectives --sizes 4KiB..1KiB", "--sizes"},
           {"collectives --sizes 1KiB,", "--sizes"},
           {"collectives --backends nccl", "nccl"},
           {"collectives --json no/such/folder/x", "no/such/folder/x"}}) {
    const Outcome run = at.shardrun("bench " + arguments);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    EXPECT_NE(message(run).find(part), std::string::npos) << describe(run);
  }
  const Outcome nested =
      at.sh(SHARDRUN_MPIEXEC " -np 2 " SHARDRUN_COMMAND " bench weak-scaling --model gpt");
  EXPECT_NE(nested.status, 0) << describe(nested);
  EXPECT_NE(message(nested).find("without mpirun"), std::string::npos) << describe(nested);
  EXPECT_EQ(messages(nested), 1) << describe(nested);
}

TEST(CollectivesBench, EveryCollectiveOnBothBackends) {
  const Workspace at;
  const Outcome run = at.shardrun(
      "bench collectives --ranks 2 --sizes 1KiB,48KiB --repeats 2 --json out.json "
      "--mpirun '" SHARDRUN_MPIEXEC " --oversubscribe'");
  ASSERT_EQ(run.status, 0) << describe(run);
  const nlohmann::json out = parsed(at, "out.json");
  std::map<std::string, int> seen;
  for (const nlohmann::json& row : out["rows"]) {
    ++seen[row["collective"]];
    const bool mpi = row["backend"] == "mpi";
    EXPECT_EQ(row.contains("times_mpi"), mpi) << row.dump();
    EXPECT_GT(row["seconds"], 0);
    EXPECT_GT(row["of_memcpy"], 0);
    EXPECT_TRUE(row["bytes"] == 1024 || row["bytes"] == 49152) << row.dump();
    const double bus = row["collective"] == "all_reduce" || row["collective"] == "broadcast" ||
                               row["collective"] == "send/recv"
                           ? 1.0
                           : 0.5;  // 2 (n - 1) / n and (n - 1) / n of two ranks
    EXPECT_NEAR(row["bus_bytes_per_s"].get<double>(),
                bus * row["bytes"].get<double>() / row["seconds"].get<double>(), 1);
  }
  const std::map<std::string, int> wanted = {{"all_gather", 4},     {"all_gather uneven", 4},
                                             {"reduce_scatter", 4}, {"reduce_scatter uneven", 4},
                                             {"all_to_all", 4},     {"all_to_all uneven", 4},
                                             {"all_reduce", 4},     {"broadcast", 4},
                                             {"send/recv", 4}};
  EXPECT_EQ(seen, wanted) << describe(run);
}

TEST(CollectivesBench, AsOneOfMpirunsProcesses) {
  const Workspace at;
  const std::string call =
      SHARDRUN_MPIEXEC " -np 3 " SHARDRUN_COMMAND " bench collectives --sizes 1KiB --repeats 1";
  const Outcome run = at.sh(call);
  ASSERT_EQ(run.status, 0) << describe(run);
  EXPECT_EQ(count_of(run.out, "all_gather uneven"), 1) << describe(run);
  const Outcome wrong = at.sh(call + " --ranks 2");
  EXPECT_NE(wrong.status, 0);
  EXPECT_NE(message(wrong).find("mpirun started 3"), std::string::npos) << describe(wrong);
  const Outcome alone = at.sh(SHARDRUN_MPIEXEC " -np 1 " SHARDRUN_COMMAND " bench collectives");
  EXPECT_NE(alone.status, 0);
  EXPECT_NE(message(alone).find("mpirun started one"), std::string::npos) << describe(alone);
}

/// What a training run tells of itself, and of a failure.
TEST(Report, SaysWhatTheRunWas) {
  const Workspace at;
  ASSERT_EQ(at.shardrun("model gpt --layers 1 --hidden 16 --heads 2 --vocab 32 --context 8 "
                        "--batch 4 -o m.onnx")
                .status,
            0);
  const Outcome run =
      at.shardrun("train m.onnx --ranks 2 --planner fsdp --steps 3 --accumulate 2 --report r.json");
  ASSERT_EQ(run.status, 0) << describe(run);
  const nlohmann::json twice = parsed(at, "r.json");
  EXPECT_EQ(twice["planner"], "fsdp");
  EXPECT_EQ(twice["ranks"], 2);
  EXPECT_EQ(twice["step_ms"].size(), 3u);
  EXPECT_EQ(twice["losses"].size(), 3u);
  EXPECT_EQ(twice["predicted_bytes"], twice["allocated_bytes"]);
  ASSERT_EQ(at.shardrun("train m.onnx --ranks 2 --planner fsdp --steps 1 --report r.json").status,
            0);
  const nlohmann::json once = parsed(at, "r.json");
  EXPECT_GT(twice["flops"], 1.5 * once["flops"].get<double>());
  EXPECT_LT(twice["flops"], 2 * once["flops"].get<double>());  // the update comes once
  EXPECT_GT(twice["sent_bytes"][0], once["sent_bytes"][0]);

  const Outcome little = at.shardrun("train m.onnx --memory 1000 --report r.json");
  EXPECT_EQ(little.status, 2) << describe(little);
  EXPECT_EQ(parsed(at, "r.json")["failure"], message(little));
  EXPECT_EQ(parsed(at, "r.json")["failure_kind"], "memory");
  EXPECT_EQ(at.shardrun("train m.onnx --planner none --report r.json").status, 2);
  EXPECT_EQ(parsed(at, "r.json")["failure_kind"], "call");
  const Outcome nowhere = at.shardrun("train m.onnx --report no/such/folder/r.json");
  EXPECT_EQ(nowhere.status, 2) << describe(nowhere);
  EXPECT_NE(message(nowhere).find("no/such/folder/r.json"), std::string::npos);
}

}  // namespace
}  // namespace shardrun::test
