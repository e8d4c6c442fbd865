// Calls of PyTorch's as its exporter writes them, and text that is none.
#include "graph/onnx/exporter/fx_call.h"

#include <gtest/gtest.h>

#include <cmath>

namespace shardrun::importer {
namespace {

const std::string kLoss =
    "%cross_entropy_loss : [num_users=1] = call_function[target=torch.ops.aten.cross_entropy_loss."
    "default](args = (%linear, %y, None, 1, -100, 0.1), kwargs = {})";

FxCall parsed(const std::string& text) {
  const std::optional<FxCall> call = parse_fx_call(text);
  EXPECT_TRUE(call) << text;
  return call.value_or(FxCall());
}

std::string written(const std::string& target, const std::string& args,
                    const std::string& kwargs = "") {
  return "%r : [num_users=1] = call_function[target=torch.ops." + target + "](args = (" + args +
         "), kwargs = {" + kwargs + "})";
}

TEST(FxCall, NamesAndArguments) {
  const FxCall call = parsed(kLoss);
  EXPECT_EQ(call.result, "cross_entropy_loss");
  EXPECT_EQ(call.target, "aten.cross_entropy_loss");
  ASSERT_EQ(call.positional.size(), 6u);
  EXPECT_EQ(call.positional[0].value(), "linear");
  EXPECT_TRUE(call.positional[2].is_none());
  EXPECT_EQ(call.number(4, "ignore_index", 0), -100);
  EXPECT_EQ(call.number(5, "label_smoothing", 0), 0.1);
  EXPECT_EQ(call.number(6, "absent", 7), 7);
  EXPECT_EQ(call.values(), (std::vector<std::string>{"linear", "y"}));
}

TEST(FxCall, NamedArgumentsStandInForPositions) {
  const FxCall call = parsed(written("aten.scatter_reduce.two", "%x, 0, %i, %s, mean",
                                     "include_self: False, dtype: torch.float32, scale: 1e-05"));
  EXPECT_EQ(call.target, "aten.scatter_reduce");
  EXPECT_EQ(call.find(4, "reduce")->text, "mean");
  EXPECT_FALSE(call.flag(5, "include_self", true));
  EXPECT_EQ(call.named.at("dtype").text, "torch.float32");
  EXPECT_EQ(call.number(9, "scale", 0), 1e-5);
  EXPECT_EQ(call.find(9, "other"), nullptr);
}

TEST(FxCall, ListsTuplesAndWordsWithBrackets) {
  const FxCall call =
      parsed(written("aten.index_put.default", "%x, [None, %i, (%j,)], %v, slice(%n, None, 2), []",
                     "device: device(type='cpu, 0')"));
  ASSERT_EQ(call.positional.size(), 5u);
  EXPECT_EQ(call.positional[1].text, "[None, %i, (%j,)]");
  ASSERT_EQ(call.positional[1].items.size(), 3u);
  EXPECT_EQ(call.positional[1].value(), "");
  EXPECT_EQ(call.positional[3].text, "slice(%n, None, 2)");
  EXPECT_TRUE(call.positional[4].items.empty());
  EXPECT_EQ(call.named.at("device").text, "device(type='cpu, 0')");
  EXPECT_EQ(call.values(), (std::vector<std::string>{"x", "i", "j", "v"}));
}

TEST(FxCall, NumbersThatAreNone) {
  for (const char* text : {"", "None", "True", "0.1.2", "%x", "1e", "0x"}) {
    const FxArgument argument{text};
    EXPECT_FALSE(argument.number()) << text;
  }
  EXPECT_TRUE(std::isinf(*FxArgument{"-inf"}.number()));
  EXPECT_EQ(FxArgument{"True"}.flag(), true);
  EXPECT_EQ(FxArgument{"1"}.flag(), std::nullopt);
}

TEST(FxCall, TargetsWithoutOverloadOrOperator) {
  EXPECT_EQ(parsed(written("higher_order.wrap", "%x")).target, "higher_order.wrap");
  const FxCall item = parsed(
      "%getitem : [num_users=1] = call_function[target=operator.getitem](args = (%a, 0), "
      "kwargs = {})");
  EXPECT_EQ(item.target, "operator.getitem");
  EXPECT_EQ(parsed("%x : Tensor [num_users=0] = call_function[target=print](args = (), "
                   "kwargs = {})")
                .target,
            "print");
}

/// Whatever a file holds there: no call, or one, but no crash.
TEST(FxCall, OtherTextIsNoCall) {
  for (const char* text :
       {"", "%", "%x", "%x : [num_users=1] = placeholder[target=x]",
        "%x : [num_users=1] = get_attr[target=weight]", "call_function[target=", "hello (world)",
        "%x = call_function[target=a](args = (", "%x = call_function[target=a](args = (%y, ",
        "%x = call_function[target=a](args = (%y)",
        "%x = call_function[target=a](args = (%y]), kwargs = {})",
        "%x = call_function[target=a](args = (), kwargs = {a})",
        "%x = call_function[target=a](args = (), kwargs = {a: })",
        "%x = call_function[target=a](args = (), kwargs = {a: [}"}) {
    EXPECT_FALSE(parse_fx_call(text)) << text;
  }
  for (size_t length = 0; length + 1 < kLoss.size(); ++length)
    EXPECT_FALSE(parse_fx_call(kLoss.substr(0, length))) << length;
}

TEST(FxCall, DeepListsAreText) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  const FxCall call = parsed(written("a.b.c", "%x, " + deep + ", 3"));
  ASSERT_EQ(call.positional.size(), 3u);
  EXPECT_EQ(call.number(2, "", 0), 3);
  EXPECT_EQ(call.positional[1].text, deep);
  EXPECT_FALSE(parse_fx_call(written("a.b.c", std::string(100000, '['))));
}

TEST(FxCall, BatchNormalisationsInTraining) {
  auto trains = [](const std::string& target, const std::string& args) {
    return batch_norm_trains(parsed(written(target, args)));
  };
  const std::string whole = "%x, %w, %b, %m, %v, ";
  EXPECT_EQ(trains("aten._native_batch_norm_legit_functional.default", whole + "True, 0.1, 1e-05"),
            true);
  EXPECT_EQ(trains("aten._native_batch_norm_legit_no_training.default", whole + "0.1, 1e-05"),
            false);
  EXPECT_EQ(trains("aten.batch_norm.default", whole + "False, 0.1, 1e-05, True"), false);
  EXPECT_EQ(trains("aten._native_batch_norm_legit.no_stats", "%x, None, None, True, 0.1, 1e-05"),
            true);
  EXPECT_EQ(trains("aten.layer_norm.default", "%x, [4], %w, %b, 1e-05, True"), std::nullopt);
}

}  // namespace
}  // namespace shardrun::importer
