// explain --loops: what it prints, read back, is the plan of the file.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/exec/data/data_support.h"
#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

using nlohmann::json;

/// A value as lines tell: how many dims, the axes of each, outermost first, and what is left in
/// parts, as a plan file writes it.
struct Layout {
  std::vector<std::vector<std::string>> dims;
  std::vector<std::pair<std::string, std::string>> partial;  // op, axis

  std::string text() const {
    std::string out = "[";
    for (size_t d = 0; d < dims.size(); ++d) {
      std::string axes;
      for (const std::string& axis : dims[d]) axes += (axes.empty() ? "" : ",") + axis;
      out += (d > 0 ? ", " : "") + (axes.empty() ? "-" : "{" + axes + "}");
    }
    out += "]";
    for (const char* op : {"sum", "max", "min", "prod"}) {
      std::string axes;
      for (const auto& [by, axis] : partial) {
        if (by == op) axes += (axes.empty() ? "" : ",") + axis;
      }
      if (!axes.empty()) out += " partial(" + std::string(op) + ": " + axes + ")";
    }
    return out;
  }
};

/// Reads the lines of explain --loops into the fields of a plan file.
class LoopReader {
 public:
  explicit LoopReader(const std::string& text) : lines_(text) {
    for (const char* list : {"values", "nodes", "redistributed"}) plan_[list] = json::object();
    for (const char* list : {"regathered", "recompute"}) plan_[list] = json::array();
    for (std::string line; std::getline(lines_, line);) {
      words_ = split(line);
      at_ = 0;
      read_line();
      EXPECT_EQ(at_, words_.size()) << line;
    }
  }
  const json& plan() const { return plan_; }

 private:
  /// Words at blanks, with ( ) and , for themselves and names out of their quotes.
  static std::vector<std::string> split(const std::string& line) {
    std::vector<std::string> out;
    std::string word;
    const auto end = [&] {
      if (!word.empty()) out.push_back(word);
      word.clear();
    };
    for (size_t i = 0; i < line.size(); ++i) {
      const char c = line[i];
      if (c == '\'') {
        while (line.at(++i) != '\'') word += line[i] == '\\' ? line.at(++i) : line[i];
      } else if (c == ' ') {
        end();
      } else if (c == '(' || c == ')' || (c == ',' && line.substr(i, 2) == ", ")) {
        end();
        out.emplace_back(1, c);
      } else {
        word += c;
      }
    }
    end();
    return out;
  }

  std::string word() { return at_ < words_.size() ? words_[at_++] : "nothing"; }
  bool eat(const std::string& wanted) {
    if (at_ >= words_.size() || words_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(const std::string& wanted) { EXPECT_EQ(word(), wanted); }
  size_t number() { return std::stoul(word()); }

  /// "f32[8,4]"
  static size_t rank_of(const std::string& type) {
    const std::string shape = type.substr(type.find('['));
    return shape == "[]" ? 0 : 1 + static_cast<size_t>(std::count(shape.begin(), shape.end(), ','));
  }

  void read_line() {
    const std::string kind = word();
    if (kind == "mesh") {
      plan_["mesh"] = word();
    } else if (kind == "recompute") {
      plan_["recompute"].push_back(word());
    } else if (kind == "anew") {
      plan_["regathered"].push_back(word());
    } else if (kind == "hold") {
      const std::string name = word();
      plan_["values"][name] = nest(name).text();
    } else if (kind == "copy") {
      const std::string name = word();
      plan_["redistributed"][name] = nest(name).text();
    } else if (kind == "node") {
      node_ = word();
      plan_["nodes"][node_] = {{"in", json::array()}, {"out", json::array()}};
    } else if (kind == "window" || kind == "blocks" || kind == "rows") {
      exchange(kind);
    } else {
      const std::string layout = nest(kind).text();
      plan_["values"][kind] = layout;
      plan_["nodes"][node_]["out"].push_back(layout);
    }
  }

  /// ": f32[8,4] = tile 0 a { sum b { BODY } }"
  Layout nest(const std::string& name) {
    expect(":");
    const size_t rank = rank_of(word());
    ranks_[name] = rank;
    expect("=");
    Layout out;
    out.dims.resize(rank);
    size_t open = 0;
    for (;; ++open) {
      if (eat("tile")) {
        const size_t dim = number();
        out.dims.at(dim).push_back(word());
      } else if (is_reduction()) {
        const std::string op = word();
        out.partial.emplace_back(op, word());
      } else {
        break;
      }
      expect("{");
    }
    body(name);
    for (; open > 0; --open) expect("}");
    return out;
  }
  bool is_reduction() const {
    return at_ + 2 < words_.size() && words_[at_ + 2] == "{" &&
           (words_[at_] == "sum" || words_[at_] == "max" || words_[at_] == "min" ||
            words_[at_] == "prod");
  }

  /// What is held has itself; results behind the first their number; the first "op(operands)".
  void body(const std::string& name) {
    const std::string first = word();
    if (first == name && at_ <= words_.size() && (at_ == words_.size() || words_[at_] != "("))
      return;
    if (first == "result") {
      EXPECT_EQ(number(), plan_["nodes"][node_]["out"].size());
      return;
    }
    expect("(");
    while (at_ < words_.size() && !eat(")")) {
      plan_["nodes"][node_]["in"].push_back(operand());
      eat(",");
    }
  }

  /// "slice 0 b slice 0 a x": the innermost word is the outermost cut.
  std::string operand() {
    std::vector<std::pair<size_t, std::string>> slices;
    Layout out;
    for (;;) {
      if (eat("slice")) {
        const size_t dim = number();
        slices.emplace_back(dim, word());
      } else if (eat("part")) {
        const std::string op = word();
        out.partial.insert(out.partial.begin(), {op, word()});
      } else {
        break;
      }
    }
    const std::string name = word();
    EXPECT_TRUE(ranks_.count(name)) << name << " is read before it is made";
    out.dims.resize(ranks_[name]);
    for (; !slices.empty(); slices.pop_back())
      out.dims.at(slices.back().first).push_back(slices.back().second);
    return out.text();
  }

  json dim() {
    const std::string side = word();
    const size_t index = number();
    expect("dim");
    return {{side, index}, {"dim", number()}};
  }

  void exchange(const std::string& kind) {
    json& node = plan_["nodes"][node_];
    if (kind == "blocks") {
      const json result = dim();
      json of = json::array();
      expect(":");
      while (at_ < words_.size()) of.push_back(dim());
      node["blocks"].push_back({{"result", result["result"]}, {"dim", result["dim"]}, {"of", of}});
      return;
    }
    const json of = dim();
    expect("by");
    const json by = dim();
    expect(":");
    const auto whole = [&] { return std::stoll(word()); };
    if (kind == "window") {
      json halo = {{"of", of}, {"anchor", by}};
      for (const char* field : {"num", "den", "low", "high"}) halo[field] = whole();
      node["halos"].push_back(halo);
    } else {
      json rows = {{"of", of}, {"by", by}, {"op", word()}};
      for (const char* field : {"most_named", "most_owned"}) rows[field] = whole();
      node["rows"].push_back(rows);
    }
  }

  std::istringstream lines_;
  std::vector<std::string> words_;
  size_t at_ = 0;
  std::string node_;
  std::map<std::string, size_t> ranks_;  // dims of values
  json plan_;
};

class PrintedLoops : public testing::Test {
 protected:
  /// The lines for a plan that `how` makes, once they are read back as the plan.
  std::string loops(const std::string& how) {
    const Outcome plan = folder_.shardrun("plan " + how + " -o plan.json");
    EXPECT_EQ(plan.status, 0) << describe(plan);
    const Outcome loops = folder_.shardrun("explain plan.json --loops");
    EXPECT_EQ(loops.status, 0) << describe(loops);
    const json wanted = json::parse(folder_.read("plan.json"))["train"];
    const json got = LoopReader(loops.out).plan();
    std::string mesh;
    for (const json& axis : wanted["mesh"]) {
      mesh += (mesh.empty() ? "" : ",") + axis["name"].get<std::string>() + "=" +
              std::to_string(axis["size"].get<int>());
    }
    EXPECT_EQ(got["mesh"], mesh);
    for (const char* field : {"values", "redistributed", "regathered", "recompute"})
      EXPECT_EQ(got[field], wanted[field]) << field << " of " << how;
    EXPECT_EQ(got["nodes"].size(), wanted["nodes"].size());
    for (const auto& [name, node] : wanted["nodes"].items()) {
      for (const char* field : {"in", "out", "halos", "blocks", "rows"}) {
        EXPECT_EQ(got["nodes"][name].value(field, json()), node.value(field, json()))
            << name << " " << field << " of " << how;
      }
    }
    return loops.out;
  }

  Workspace folder_;
};

int occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(PrintedLoops, OfATransformer) {
  ASSERT_EQ(folder_
                .shardrun("model gpt --layers 2 --hidden 64 --heads 4 --vocab 256 --context 32 "
                          "-o gpt.onnx")
                .status,
            0);
  for (const std::string how :
       {"--mesh 2x2", "--mesh 2x2 --planner fsdp+megatron-sp", "--mesh 2x2x2",
        "--mesh 3 "
        "--planner zero2 --accumulate 2"})
    loops("gpt.onnx " + how);
  // The slide's: one argument's rows, and what follows.
  const std::string text = loops("gpt.onnx --mesh d=2 --planner propagate --tactic batch@d");
  EXPECT_NE(text.find(" = tile 0 d { gather(wte.weight, slice 0 d tokens) }"), std::string::npos)
      << text;
  EXPECT_GT(occurrences(text, "= sum d { matmul(slice"), 8) << text;
  // Weights cut over two axes of one dim: the inner slice is of what the outer one left.
  const std::string both =
      loops("gpt.onnx --mesh a=2,b=2 --planner ilp --shard 'h.0.mlp.c_fc.weight=[a+b,-]'");
  EXPECT_NE(both.find("hold h.0.mlp.c_fc.weight : f32[64,256] = tile 0 a { tile 0 b { "
                      "h.0.mlp.c_fc.weight } }"),
            std::string::npos)
      << both;
}

/// Images in space go by windows.
TEST_F(PrintedLoops, OfWindows) {
  ASSERT_EQ(
      folder_.shardrun("model wide-resnet --preset wrn-16-4 --image 64 --no-weights -o wrn.onnx")
          .status,
      0);
  const std::string text = loops("wrn.onnx --batch 2 --loss cross-entropy --mesh 4 --ranks 4");
  EXPECT_GT(occurrences(text, "\n  window operand "), 4) << text.substr(0, 3000);
}

/// Rows that numbers name.
TEST_F(PrintedLoops, OfRows) {
  constexpr int64_t kNodes = 96;
  std::vector<float> features(kNodes * 4, 0.5f);
  std::vector<int64_t> labels(kNodes, 1), ends;
  for (int64_t to = 0; to < 2; ++to) {
    for (int64_t i = 0; i < kNodes; ++i) {
      for (int64_t step : {0, 1}) ends.push_back(to == 1 ? i : (i + step) % kNodes);
    }
  }
  using test::bytes_of, test::npy;
  folder_.write("ring.npz",
                test::npz({{"features", npy("<f4", "(96, 4)", bytes_of(features))},
                           {"labels", npy("<i8", "(96,)", bytes_of(labels))},
                           {"edge_index", npy("<i8", "(2, 192)", bytes_of(ends))},
                           {"train_mask", npy("|b1", "(96,)", std::string(kNodes, 1))}}));
  // Bytes are expensive and messages are not.
  folder_.write("costly.json",
                R"({"name": "costly", "nodes": 1, "devices": 4, "memory_bytes": 1e9,
                    "flops": {"f32": {"peak": 1e9}}, "memory_bandwidth": {"peak": 1e8},
                    "kernel_latency": 1e-9,
                    "within": {"bandwidth": 1e7, "latency": 1e-9, "call_latency": 1e-9},
                    "between": {"bandwidth": 1e7, "latency": 1e-9}, "sources": {}})");
  ASSERT_EQ(folder_.shardrun("model gat --features 4 --hidden 3 --heads 5 --classes 3 -o gat.onnx")
                .status,
            0);
  const std::string text = loops(
      "gat.onnx --loss cross-entropy --data npz:ring.npz --mesh e=3 --cluster ./costly.json "
      "--sort-edges");
  EXPECT_NE(text.find("\n  rows "), std::string::npos) << text.substr(0, 3000);
}

}  // namespace
}  // namespace shardrun::test
