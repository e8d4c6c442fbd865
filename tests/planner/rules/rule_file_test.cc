// The file of discovered rules: what is kept comes back, and what is damaged counts as none.
#include "planner/rules/rule_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/crc32c.h"
#include "base/files/cache_folder.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;

class RuleFileTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/rule_file_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ + "/cache/rules";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string bytes() const { return read_cached(path_); }
  void put(const std::string& bytes) const {
    fs::remove(path_);  // a file that is cut and written anew is flushed by some file systems
    std::ofstream(path_, std::ios::binary) << bytes;
    fs::permissions(path_, fs::perms::owner_read | fs::perms::owner_write);
  }

  std::string folder_, path_;
};

Node node_of(const std::string& op, Attrs attrs = {}) {
  Node node;
  node.op = op;
  node.attrs = std::move(attrs);
  return node;
}
/// A first sample of an op with its operands.
std::pair<Node, std::vector<TensorType>> sample(const std::string& op) {
  const OpDef::Sample& first = op_def(op).samples.at(0);
  return {node_of(op, first.attrs), first.in};
}

/// A product, whose rule does not depend on sizes.
Node matmul() { return sample("matmul").first; }
const std::vector<TensorType> kMatrices = sample("matmul").second;

std::vector<std::string> texts(const SpmdRule& rule) {
  std::vector<std::string> out;
  for (const SpmdRule::Option& option : rule.options) out.push_back(to_string(option));
  return out;
}

TEST_F(RuleFileTest, KeptRulesComeBackAndNoKernelRuns) {
  std::map<std::string, std::vector<std::string>> found;
  const auto ask = [&](RuleCache& rules, bool first) {
    for (const OpDef* op : all_ops()) {
      if (op->samples.empty() || op->foreign) continue;
      const auto [node, in] = sample(op->name);
      const std::vector<std::string> rule = texts(rules.rule(node, in));
      if (first) found[op->name] = rule;
      EXPECT_EQ(found[op->name], rule) << op->name;
    }
  };
  int distinct = 0;
  {
    RuleCache rules(path_);
    ask(rules, true);
    EXPECT_GT(rules.kernel_runs(), 0);
    EXPECT_EQ(rules.kept_rules(), 0);
    distinct = rules.distinct_rules();
  }
  RuleCache again(path_);
  ask(again, false);
  EXPECT_EQ(again.kernel_runs(), 0);
  EXPECT_GE(again.kept_rules(), distinct - 5);  // reshapes' are derived
}

TEST_F(RuleFileTest, EveryDamageCountsAsNone) {
  { RuleCache(path_).rule(matmul(), kMatrices); }
  const std::string whole = bytes(), key = rule_key(matmul(), kMatrices);
  constexpr size_t kHead = 80;  // the first line and the checksum
  ASSERT_FALSE(whole.empty());
  ASSERT_TRUE(RuleFile(path_).find(key, matmul(), kMatrices));
  for (size_t i = 0; i < whole.size(); i += i < kHead ? 3 : 29) {
    std::string flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x10);
    put(flipped);
    EXPECT_FALSE(RuleFile(path_).find(key, matmul(), kMatrices)) << "byte " << i;
    put(whole.substr(0, i));
    EXPECT_FALSE(RuleFile(path_).find(key, matmul(), kMatrices)) << "cut at " << i;
  }
  put(whole);
  EXPECT_TRUE(RuleFile(path_).find(key, matmul(), kMatrices));
}

/// Whoever makes a file with a right checksum still cannot make the planner read behind an operand.
TEST_F(RuleFileTest, OptionsThatTheNodeCannotHaveCountAsNone) {
  { RuleCache(path_).rule(matmul(), kMatrices); }
  const std::string whole = bytes(), key = rule_key(matmul(), kMatrices);
  const size_t line = whole.find('\n') + 1, body = line + sizeof(uint32_t);
  const size_t rule = whole.find(key) + key.size() + sizeof(uint32_t);
  int refused = 0;
  for (size_t i = rule; i < whole.size(); i += 11) {
    for (const char value : {'\x7f', '\xff', '\x05'}) {
      std::string changed = whole;
      changed[i] = value;
      const uint32_t sum =
          crc32c(changed.data() + body, static_cast<int64_t>(changed.size() - body));
      std::memcpy(changed.data() + line, &sum, sizeof sum);
      put(changed);
      const auto found = RuleFile(path_).find(key, matmul(), kMatrices);
      refused += !found;
      if (!found) continue;
      for (const SpmdRule::Option& option : found->options) {
        ASSERT_EQ(option.in.size(), 2u);
        ASSERT_EQ(option.out.size(), 1u);
        for (size_t i = 0; i < 2; ++i)
          ASSERT_LT(static_cast<size_t>(option.in[i].dim), kMatrices[i].shape.size());
      }
    }
  }
  EXPECT_GT(refused, 10);
}

TEST_F(RuleFileTest, AFileThatOthersCanWriteIsNotRead) {
  { RuleCache(path_).rule(matmul(), kMatrices); }
  const std::string key = rule_key(matmul(), kMatrices);
  EXPECT_EQ(fs::status(path_).permissions() & (fs::perms::group_write | fs::perms::others_write),
            fs::perms::none);
  fs::permissions(path_, fs::perms::others_write, fs::perm_options::add);
  EXPECT_FALSE(RuleFile(path_).find(key, matmul(), kMatrices));
}

/// Windows are also judged by the node's own sizes: another image may have another rule.
TEST_F(RuleFileTest, ARuleThatSizesDecideIsKeptForThem) {
  const auto [node, in] = sample("conv");
  { RuleCache(path_).rule(node, in); }
  const std::string key = rule_key(node, in);
  ASSERT_TRUE(discover(node, in).by_sizes);
  EXPECT_TRUE(RuleFile(path_).find(key, node, in));
  std::vector<TensorType> larger = in;
  larger[0].shape[0] += 64;
  EXPECT_FALSE(RuleFile(path_).find(key, node, larger));
}

TEST_F(RuleFileTest, ProcessesThatWriteAtOnceLeaveAWholeFile) {
  const std::vector<std::string> ops = {"add", "mul", "exp", "matmul"};
  std::vector<pid_t> children;
  for (const std::string& op : ops) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    const auto [node, in] = sample(op);
    { RuleCache(path_).rule(node, in); }
    _exit(0);
  }
  for (pid_t child : children) {
    int status = 1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  int found = 0;
  RuleFile file(path_);
  for (const std::string& op : ops) {
    const auto [node, in] = sample(op);
    found += file.find(rule_key(node, in), node, in).has_value();
  }
  EXPECT_GE(found, 1);  // the last to come has read what came before it
  EXPECT_EQ(std::distance(fs::directory_iterator(fs::path(path_).parent_path()),
                          fs::directory_iterator()),
            1);  // no temporary file is left
}

TEST_F(RuleFileTest, WithoutAPlaceNothingIsKept) {
  RuleCache rules("");
  rules.rule(matmul(), kMatrices);
  RuleCache nowhere("/proc/no such folder/rules");
  EXPECT_GT(nowhere.rule(matmul(), kMatrices).options.size(), 0u);
}

TEST_F(RuleFileTest, ReadersAloneWriteNothing) {
  { RuleCache(path_, RuleCache::Keep::read_only).rule(matmul(), kMatrices); }
  EXPECT_FALSE(fs::exists(path_));
}

TEST(CacheFolder, AVariableMovesItOrSwitchesItOff) {
  const char* before = getenv("SHARDRUN_CACHE");
  const std::string kept = before == nullptr ? "" : before;
  setenv("SHARDRUN_CACHE", "/somewhere", 1);
  EXPECT_EQ(cache_folder(), "/somewhere");
  setenv("SHARDRUN_CACHE", "off", 1);
  EXPECT_EQ(cache_folder(), "");
  EXPECT_EQ(rule_file_path(), "");
  unsetenv("SHARDRUN_CACHE");
  setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(cache_folder(), "/xdg/shardrun");
  if (before != nullptr) setenv("SHARDRUN_CACHE", kept.c_str(), 1);
}

}  // namespace
}  // namespace shardrun
