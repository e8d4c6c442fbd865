// calibrate --rows: rows that were simulated with known constants give these back.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "../command.h"

namespace shardrun::test {
namespace {

using Json = nlohmann::json;

struct Row {
  int hidden, micro_batch, tp, dp, pp, micro_batches;
  double milliseconds = 0;
};
constexpr int kHeads = 8, kLayers = 2, kSequence = 256, kVocabulary = 1024;
constexpr double kDispatch = 40, kProducts = 1.4, kWithin = 1.8;

/// Bound by the host, by products, and by collectives; stages, and many micro-batches.
const std::vector<Row> kRows = {
    {512, 1, 1, 1, 1, 2},  {512, 1, 2, 1, 1, 2},  {512, 1, 1, 2, 2, 4},  {2048, 8, 1, 1, 1, 2},
    {2048, 8, 2, 1, 1, 2}, {2048, 8, 4, 1, 1, 2}, {2048, 8, 2, 2, 1, 4}, {2048, 8, 4, 1, 2, 24},
    {4096, 4, 1, 1, 1, 1}, {4096, 8, 8, 1, 1, 2}, {4096, 8, 2, 1, 1, 1}, {4096, 2, 4, 2, 1, 30}};

std::string mesh_of(const Row& row) {
  const std::string data = row.dp > 1 ? "data=" + std::to_string(row.dp) : "";
  const std::string model = row.tp > 1 ? "model=" + std::to_string(row.tp) : "";
  if (data.empty() && model.empty()) return "--mesh 1";
  return "--mesh " + data + (data.empty() || model.empty() ? "" : ",") + model + " --planner " +
         (model.empty()  ? "dp"
          : data.empty() ? "megatron"
                         : "dp+megatron");
}

/// Milliseconds by the command that simulates one plan.
double simulated(const Workspace& at, const Row& row, const std::string& more) {
  const std::string model = "m" + std::to_string(row.hidden) + ".onnx";
  if (!at.exists(model)) {
    const Outcome out =
        at.shardrun("model gpt --layers " + std::to_string(kLayers) + " --hidden " +
                    std::to_string(row.hidden) + " --heads " + std::to_string(kHeads) +
                    " --vocab " + std::to_string(kVocabulary) + " --context " +
                    std::to_string(kSequence) + " --no-weights -o " + model);
    EXPECT_EQ(out.status, 0) << describe(out);
  }
  const Outcome out =
      at.shardrun("simulate " + model + " --cluster a100-80 --ranks " +
                  std::to_string(row.tp * row.dp * row.pp) + " " + mesh_of(row) + " --batch " +
                  std::to_string(row.micro_batch * row.dp) + " --accumulate " +
                  std::to_string(row.micro_batches) + " --stages " + std::to_string(row.pp) +
                  " --assume megatron --dtype bf16 --memory 2TB --json s.json " + more);
  EXPECT_EQ(out.status, 0) << describe(out);
  return out.status == 0 ? 1e3 * Json::parse(at.read("s.json"))["seconds"].get<double>() : 1;
}

/// Times of the rows with the constants above, made once.
const std::vector<double>& made_rows() {
  static const std::vector<double> made = [] {
    Workspace at;
    at.write("true.json",
             Json({{"shardrun_constants", 1},
                   {"assume", "megatron"},
                   {"constants",
                    {{"dispatch_us", kDispatch}, {"products", kProducts}, {"within", kWithin}}}})
                 .dump());
    std::vector<double> milliseconds;
    for (const Row& row : kRows)
      milliseconds.push_back(simulated(at, row, "--constants true.json"));
    return milliseconds;
  }();
  return made;
}

/// The rows of the table above, with a column that nobody knows.
std::string csv(const std::vector<Row>& rows, const std::vector<double>& milliseconds) {
  std::string out =
      "note,gpus,micro_batch,hidden,heads,layers,sequence,vocabulary,tp,dp,pp,micro_batches,"
      "iteration_ms\n";
  for (size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    out += "x";
    for (int value : {row.tp * row.dp * row.pp, row.micro_batch, row.hidden, kHeads, kLayers,
                      kSequence, kVocabulary, row.tp, row.dp, row.pp, row.micro_batches})
      out += "," + std::to_string(value);
    out += "," + std::to_string(milliseconds[r]) + "\n";
  }
  return out;
}

constexpr char kCall[] = "calibrate --cluster a100-80 --assume megatron --rows ";

Json calibrated(const Workspace& at, const std::vector<double>& milliseconds) {
  at.write("rows.csv", csv(kRows, milliseconds));
  const Outcome out = at.shardrun(std::string(kCall) +
                                  "rows.csv -o c.json --json all.json "
                                  "--fit dispatch_us,products,within,between");
  EXPECT_EQ(out.status, 0) << describe(out);
  EXPECT_NE(out.out.find("not identifiable from these rows"), std::string::npos) << describe(out);
  EXPECT_NE(out.out.find("calibrating, 0 s: plans of " + std::to_string(kRows.size()) +
                         " rows of rows.csv\n"),
            std::string::npos)
      << describe(out);
  return out.status == 0 ? Json::parse(at.read("all.json")) : Json();
}

/// The constants come back within their intervals; links between nodes had none to do, which is
/// said. What simulate then says with the file is what was measured. Doubled times double the
/// predictions, and shuffled ones cannot be met.
TEST(Rows, GiveBackTheConstantsThatTheyWereMadeBy) {
  Workspace at;
  const std::vector<double>& milliseconds = made_rows();
  const Json found = calibrated(at, milliseconds);
  ASSERT_FALSE(found.is_null());
  for (const auto& [name, value] :
       {std::pair("dispatch_us", kDispatch), std::pair("products", kProducts),
        std::pair("within", kWithin)}) {
    ASSERT_TRUE(found["intervals"].contains(name)) << found.dump(1);
    EXPECT_LE(found["intervals"][name][0], value) << found.dump(1);
    EXPECT_GE(found["intervals"][name][1], value) << found.dump(1);
    EXPECT_NEAR(found["constants"][name].get<double>() / value, 1, 0.05) << name;
  }
  EXPECT_EQ(found["not_identifiable"], Json({"between"}));
  EXPECT_LT(found["mean_error"], 0.01);
  for (const Json& row :
       found["fitted"])  // long steps too, which calibrate does not simulate whole
    EXPECT_NEAR(row["predicted_ms"].get<double>() / row["measured_ms"].get<double>(), 1, 0.02)
        << row.dump();
  EXPECT_NEAR(simulated(at, kRows[4], "--constants c.json") / milliseconds[4], 1, 0.01);
  EXPECT_LT(simulated(at, kRows[4], ""), 0.9 * milliseconds[4]);

  std::vector<double> shuffled = milliseconds;
  std::rotate(shuffled.begin(), shuffled.begin() + 5, shuffled.end());
  EXPECT_GT(calibrated(at, shuffled)["mean_error"], 0.3);
}

/// With all of a kernel's time fitted, times that are twice as long are predicted so.
TEST(Rows, FollowDoubledTimes) {
  Workspace at;
  const std::vector<double>& milliseconds = made_rows();
  std::vector<double> predicted[2];
  for (int twice : {0, 1}) {
    std::vector<double> times = milliseconds;
    for (double& time : times) time *= 1 + twice;
    at.write("rows.csv", csv(kRows, times));
    const Outcome out = at.shardrun(std::string(kCall) +
                                    "rows.csv --judge rows.csv --json "
                                    "all.json");
    ASSERT_EQ(out.status, 0) << describe(out);
    const Json judged = Json::parse(at.read("all.json"))["judged"];
    ASSERT_EQ(judged.size(), kRows.size());
    for (const Json& row : judged) predicted[twice].push_back(row["predicted_ms"]);
  }
  for (size_t r = 0; r < kRows.size(); ++r)
    EXPECT_NEAR(predicted[1][r] / predicted[0][r], 2, 0.1) << r;
}

/// With a byte order mark, quotes, lines that end as on Windows, and empty ones, rows are the same.
/// Of seconds in place of milliseconds one is told.
TEST(Rows, AreReadAsSpreadsheetsWriteThem) {
  Workspace at;
  const std::string plain = csv(kRows, made_rows());
  std::string other = "\xEF\xBB\xBF\"";
  for (const char c : plain.substr(plain.find(',') + 1)) {
    if (c == ',') other += "\",\"";
    if (c == '\n') other += "\", \"a \"\"note\"\", or two\"\r\n \r\n\"";
    if (c != ',' && c != '\n') other += c;
  }
  for (size_t x = other.find("\"x\","); x != std::string::npos; x = other.find("\"x\","))
    other.erase(x, 4);
  other.pop_back();
  std::string found[2];
  for (const bool spread : {false, true}) {
    at.write("rows.csv", spread ? other : plain);
    const Outcome out = at.shardrun(std::string(kCall) + "rows.csv --fit products -o c.json");
    ASSERT_EQ(out.status, 0) << describe(out);
    EXPECT_EQ(out.err.find("note: half of the rows"), std::string::npos) << describe(out);
    found[spread] = at.read("c.json");
  }
  EXPECT_EQ(found[0], found[1]);

  std::vector<double> seconds = made_rows();
  for (double& one : seconds) one /= 1e3;
  at.write("rows.csv", csv(kRows, seconds));
  const Outcome out = at.shardrun(std::string(kCall) + "rows.csv --fit within");
  EXPECT_NE(out.err.find("note: half of the rows of rows.csv are missed by more than"),
            std::string::npos)
      << describe(out);
}

/// Rows of one run tell how long it takes, and not of what.
TEST(Rows, OfOneRunTellOfNoConstant) {
  Workspace at;
  const std::vector<Row> rows(10, kRows[4]);
  at.write("rows.csv", csv(rows, std::vector<double>(rows.size(), made_rows()[4])));
  const Outcome out = at.shardrun(std::string(kCall) + "rows.csv -o c.json");
  ASSERT_EQ(out.status, 0) << describe(out);
  const Json found = Json::parse(at.read("c.json"));
  EXPECT_EQ(found["not_identifiable"], Json({"dispatch_us", "products", "memory", "within"}));
  EXPECT_LT(found["mean_error"], 0.01);
}

/// Of 22 rows six constants are fitted, all but `outside` and `backward`, which are fitted where
/// they are named.
TEST(Rows, FitOutsideAndBackwardWhereTheyAreNamed) {
  Workspace at;
  const std::vector<Row> rows(22, kRows[4]);
  std::vector<double> times(rows.size(), made_rows()[4]);
  for (size_t r = 0; r < times.size(); ++r) times[r] *= 1 + 1e-4 * static_cast<double>(r);
  at.write("rows.csv", csv(rows, times));
  for (const std::string named : {"", "outside", "backward"}) {
    const Outcome out = at.shardrun(std::string(kCall) + "rows.csv -o c.json" +
                                    (named.empty() ? "" : " --fit " + named));
    ASSERT_EQ(out.status, 0) << describe(out);
    const Json constants = Json::parse(at.read("c.json"))["constants"];
    EXPECT_EQ(constants.size(), named.empty() ? 6u : 1u) << constants;
    for (const std::string unusual : {"outside", "backward"})
      EXPECT_EQ(constants.contains(unusual), named == unusual) << constants;
  }
}

/// A file that is appended to itself tells of as many constants as it did, and of none more surely.
TEST(Rows, CopiesTellNothingNew) {
  Workspace at;
  const std::string once = csv(kRows, made_rows());
  at.write("once.csv", once);
  at.write("twice.csv", once + once.substr(once.find('\n') + 1));
  Json found[2];
  for (const int twice : {0, 1}) {
    const Outcome out =
        at.shardrun(std::string(kCall) + (twice ? "twice.csv" : "once.csv") + " -o c.json");
    ASSERT_EQ(out.status, 0) << describe(out);
    found[twice] = Json::parse(at.read("c.json"));
  }
  EXPECT_EQ(found[1]["not_identifiable"], found[0]["not_identifiable"]);
  ASSERT_EQ(found[1]["constants"].size(), found[0]["constants"].size());
  for (const auto& [name, value] : found[0]["constants"].items())
    EXPECT_NEAR(found[1]["constants"][name].get<double>() / value.get<double>(), 1, 1e-3) << name;
  EXPECT_FALSE(found[0]["intervals"].empty());
  for (const auto& [name, ends] : found[0]["intervals"].items()) {
    for (const int end : {0, 1})
      EXPECT_NEAR(found[1]["intervals"][name][end].get<double>() / ends[end].get<double>(), 1, 1e-2)
          << name;
  }
}

TEST(Rows, AreRefusedByLineAndField) {
  Workspace at;
  const std::string good = csv(kRows, std::vector<double>(kRows.size(), 10));
  const auto refused = [&](const std::string& text, const std::string& part,
                           const std::string& more = "") {
    at.write("bad.csv", text);
    const Outcome out = at.shardrun(std::string(kCall) + "bad.csv " + more);
    EXPECT_EQ(out.status, 2) << describe(out);
    EXPECT_EQ(messages(out), 1) << describe(out);
    EXPECT_NE(message(out).find(part), std::string::npos) << describe(out);
  };
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t place = text.find(from);
    EXPECT_NE(place, std::string::npos);
    return text.replace(place, from.size(), to);
  };
  std::string letters(1, 'x');  // the 80th byte is the second of a letter
  for (int i = 0; i < 60; ++i) letters += "ö";
  refused(changed("note", letters + "," + letters),
          "bad.csv:1: column '" + letters.substr(0, 79) + "…' is there twice");
  refused("", "--rows: 'bad.csv': has no rows");
  refused("\n\n", "--rows: 'bad.csv': has no rows");
  refused(changed("layers", "depth"), "bad.csv:1: there is no column 'layers' in 'note,gpus,");
  refused("\n \n" + changed("layers", "depth"), "bad.csv:3: there is no column 'layers'");
  refused("\n" + changed("x,1,1,512", "x,1,1,wide"), "bad.csv:3: hidden is 'wide'");
  refused(changed("gpus", "GPUs"), "there is no column 'gpus' in 'note,GPUs,micro_batch,");
  for (const char mark : {';', '\t'}) {
    std::string other = good;
    std::replace(other.begin(), other.end(), ',', mark);
    refused(other,
            mark == ';' ? "in 'note;gpus;micro_batch;" : "in 'note\\x09gpus\\x09micro_batch");
  }
  std::string mac = changed("x,1,1,512", "x,1,1,wide");
  std::replace(mac.begin(), mac.end(), '\n', '\r');
  refused(mac, "bad.csv:2: hidden is 'wide'");
  refused(changed("x,1,1,512", std::string("x,1,1,5\0002", 9)), "bad.csv:2: has a byte of 0");
  refused(changed("x,1,1,512", "x,1,1," + std::string(1 << 20, '9')), "99…', wanted");
  refused(changed("note", "layers"), "bad.csv:1: column 'layers' is there twice");
  refused(changed("iteration_ms", "seconds"), "there is no column 'iteration_ms'");
  refused(changed("x,1,1,512", "x,1,1,wide"), "bad.csv:2: hidden is 'wide'");
  refused(changed("x,1,1,512", "x,1,1,0"), "bad.csv:2: hidden is '0'");
  refused(changed("x,1,1,512", "x,1,1,511"), "hidden is 511, no multiple of heads, 8");
  refused(changed("x,1,1,512", "x,1,512"), "bad.csv:2: 12 fields, the header has 13");
  refused(changed("x,1,1,512", "x,3,1,512"), "bad.csv:2: gpus is 3, not tp x dp x pp");
  refused(changed("10.000000", "-1"), "bad.csv:2: iteration_ms is '-1'");
  refused(changed("10.000000", "nan"), "bad.csv:2: iteration_ms is 'nan'");
  refused(changed("10.000000", "1e-320"), "bad.csv:2: iteration_ms is '1e-320'");
  refused(changed("10.000000", "1e300"), "wanted milliseconds from 1e-6 to 1e9");
  refused(changed("x,1,1,512", "\"x,1,1,512"), "bad.csv:2: a quote is not closed");
  refused(good.substr(0, good.find("x,1,8")), "rows, wanted 10 or more");
  refused(good, "there is no constant 'speed'", "--fit speed");
  refused(good, "5 constants, wanted at most 4",
          "--fit dispatch_us,products,memory,within,between");
  refused(good, "--fit: 'memory' is there twice", "--fit 'products, memory ,memory'");
}

/// A file has the nodes that it says; a built-in cluster has as many as a row's GPUs need.
TEST(Rows, OfMoreGpusThanTheClusterHas) {
  Workspace at;
  std::vector<Row> rows = kRows;
  rows[0] = {512, 1, 8, 4, 1, 2};  // 32 GPUs
  at.write("rows.csv", csv(rows, made_rows()));
  const std::string call = "calibrate --assume megatron --rows rows.csv --fit products --cluster ";
  const Outcome two = at.shardrun(call + "a100-80:2,memory=2x");
  EXPECT_EQ(two.status, 0) << describe(two);
  EXPECT_EQ(two.err.find("left out"), std::string::npos) << describe(two);

  simulated(at, kRows[0], "");  // writes the model
  ASSERT_EQ(at.shardrun("plan m512.onnx --cluster a100-80 --ranks 2 -o p.json").status, 0);
  Json cluster = Json::parse(at.read("p.json"))["cluster"];
  cluster["nodes"] = 2;
  at.write("two.json", cluster.dump());
  const Outcome file = at.shardrun(call + "two.json");
  EXPECT_EQ(file.status, 0) << describe(file);
  EXPECT_NE(file.err.find("left out: rows.csv:2: two.json: fields 'nodes' and 'devices' are 2 and "
                          "8, wanted 32 devices for as many ranks; let 'nodes' be 4"),
            std::string::npos)
      << describe(file);
}

TEST(Rows, ConstantsAreRefusedByFileAndField) {
  Workspace at;
  ASSERT_EQ(at.shardrun("model gpt --layers 2 --hidden 32 --heads 2 --vocab 64 --context 16 "
                        "--no-weights -o m.onnx")
                .status,
            0);
  const auto refused = [&](const std::string& text, const std::string& part) {
    at.write("c.json", text);
    const Outcome out = at.shardrun("simulate m.onnx --ranks 2 --constants c.json");
    EXPECT_EQ(out.status, 2) << describe(out);
    EXPECT_NE(message(out).find(part), std::string::npos) << describe(out);
  };
  refused("{", "'c.json': is not JSON, wanted a file of constants, which");
  refused("[]", "'c.json': is no file of constants");
  refused(R"({"shardrun_constants": 1, "constants": {}, "dtype": "f32"})",
          "field 'dtype' is not known; known are shardrun_constants, constants");
  refused(R"({"shardrun_constants": 1, "constants": {"memory": 2, "memory": 3}})",
          "field 'constants.memory' is there twice");
  refused(
      R"({"shardrun_constants": 1, "constants": {"memory": ")" + std::string(1 << 19, 'x') + "\"}}",
      "xx…, wanted a number above 0");
  refused(R"({"shardrun_constants": 1, "constants": {"a\u001b\u0000b": 1}})",
          "field 'constants.a\\x1b\\x00b' has a byte of 0");
  refused(R"({"shardrun_constants": 1, "constants": {"memory": )" + std::string(400'000, '[') +
              std::string(400'000, ']') + "}}",
          "lists and objects are nested deeper than 64");
  refused(R"({"shardrun_constants": 1, "constants": {"speed": 2}})", "no constant 'speed'");
  refused(R"({"shardrun_constants": 1, "constants": {"within": -2}})", "'within' is -2");
  refused(R"({"shardrun_constants": 1, "constants": {"within": 1e999}})",
          "a number that is too large");
  refused(R"({"shardrun_constants": 1, "constants": {}, "assume": "megatron"})",
          "was fitted with --assume 'megatron'");
}

}  // namespace
}  // namespace shardrun::test
