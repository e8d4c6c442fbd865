// A cursor over the text; what it does not know is kept as text, up to the next comma or bracket.
#include "graph/onnx/exporter/fx_call.h"

#include <charconv>

namespace shardrun::importer {
namespace {

constexpr int kDeepestList = 16;  // lists within lists; what lies deeper is text

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool done() const { return at_ >= text_.size(); }
  char peek() const { return done() ? '\0' : text_[at_]; }

  bool skip(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }
  /// Moves behind the next `mark`, and returns what lies before it. Nothing if there is none.
  std::optional<std::string> up_to(std::string_view mark) {
    const size_t found = text_.find(mark, at_);
    if (found == std::string_view::npos) return std::nullopt;
    std::string before(text_.substr(at_, found - at_));
    at_ = found + mark.size();
    return before;
  }

  /// Arguments up to `close`, which is passed.
  std::optional<std::vector<FxArgument>> list(char close, int depth = 0) {
    std::vector<FxArgument> out;
    for (;;) {
      skip_separators();
      if (done()) return std::nullopt;
      if (skip(std::string_view(&close, 1))) return out;
      std::optional<FxArgument> next = argument(depth);
      if (!next) return std::nullopt;
      out.push_back(std::move(*next));
    }
  }

  /// "name: argument, …" up to '}', which is passed.
  std::optional<std::map<std::string, FxArgument>> dictionary() {
    std::map<std::string, FxArgument> out;
    for (;;) {
      skip_separators();
      if (done()) return std::nullopt;
      if (skip("}")) return out;
      const std::optional<std::string> name = up_to(": ");
      if (!name) return std::nullopt;
      std::optional<FxArgument> next = argument(0);
      if (!next) return std::nullopt;
      out.insert_or_assign(*name, std::move(*next));
    }
  }

 private:
  void skip_separators() {
    while (peek() == ' ' || peek() == ',' || peek() == '\n') ++at_;
  }

  std::optional<FxArgument> argument(int depth) {
    const size_t begin = at_;
    FxArgument out;
    const char open = peek();
    if ((open == '[' || open == '(') && depth < kDeepestList) {
      ++at_;
      auto items = list(open == '[' ? ']' : ')', depth + 1);
      if (!items) return std::nullopt;
      out.items = std::move(*items);
    } else if (!skip_word()) {
      return std::nullopt;
    }
    out.text = text_.substr(begin, at_ - begin);
    return out;
  }

  /// A word ends at a comma or a bracket that it did not open: "slice(%a, None, None)" is one.
  bool skip_word() {
    std::string open;
    const size_t begin = at_;
    for (; !done(); ++at_) {
      const char ch = peek();
      if (ch == '\'' || ch == '"') {
        if (const size_t end = text_.find(ch, at_ + 1); end != std::string_view::npos) at_ = end;
      } else if (ch == '(' || ch == '[' || ch == '{') {
        open.push_back(ch);
      } else if (ch == ')' || ch == ']' || ch == '}') {
        if (open.empty()) break;
        open.pop_back();
      } else if (ch == ',' && open.empty()) {
        break;
      }
    }
    return open.empty() && at_ > begin;
  }

  std::string_view text_;
  size_t at_ = 0;
};

void collect_values(const FxArgument& argument, std::vector<std::string>& out) {
  if (std::string value = argument.value(); !value.empty()) out.push_back(std::move(value));
  for (const FxArgument& item : argument.items) collect_values(item, out);
}

/// "torch.ops.aten.add.Tensor" -> "aten.add".
std::string without_overload(std::string target) {
  constexpr std::string_view kPrefix = "torch.ops.";
  if (target.starts_with(kPrefix)) target.erase(0, kPrefix.size());
  const size_t first = target.find('.'), last = target.rfind('.');
  return first == last ? target : target.substr(0, last);
}

}  // namespace

std::optional<bool> FxArgument::flag() const {
  if (text == "True") return true;
  if (text == "False") return false;
  return std::nullopt;
}

std::optional<double> FxArgument::number() const {
  double out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

std::string FxArgument::value() const {
  return text.size() > 1 && text[0] == '%' && items.empty() ? text.substr(1) : "";
}

const FxArgument* FxCall::find(size_t position, const std::string& name) const {
  if (position < positional.size()) return &positional[position];
  const auto found = named.find(name);
  return found == named.end() ? nullptr : &found->second;
}

double FxCall::number(size_t position, const std::string& name, double otherwise) const {
  const FxArgument* argument = find(position, name);
  return argument == nullptr ? otherwise : argument->number().value_or(otherwise);
}

bool FxCall::flag(size_t position, const std::string& name, bool otherwise) const {
  const FxArgument* argument = find(position, name);
  return argument == nullptr ? otherwise : argument->flag().value_or(otherwise);
}

std::vector<std::string> FxCall::values() const {
  std::vector<std::string> out;
  for (const FxArgument& argument : positional) collect_values(argument, out);
  for (const auto& [name, argument] : named) collect_values(argument, out);
  return out;
}

std::optional<FxCall> parse_fx_call(std::string_view text) {
  Reader reader(text);
  if (!reader.skip("%")) return std::nullopt;
  FxCall call;
  const std::optional<std::string> left = reader.up_to("call_function[target=");
  std::optional<std::string> target = reader.up_to("](args = (");
  if (!left || !target) return std::nullopt;
  call.result = left->substr(0, left->find(' '));
  call.target = without_overload(std::move(*target));
  auto positional = reader.list(')');
  if (!positional || !reader.skip(", kwargs = {")) return std::nullopt;
  auto named = reader.dictionary();
  if (!named) return std::nullopt;
  call.positional = std::move(*positional);
  call.named = std::move(*named);
  return call;
}

std::optional<bool> batch_norm_trains(const FxCall& call) {
  if (call.target.find("batch_norm") == std::string::npos) return std::nullopt;
  if (call.target == "aten._batch_norm_with_update") return true;
  // The first flag is `training`, behind the running statistics or in their place; a later one is
  // cudnn_enabled. "aten._native_batch_norm_legit_no_training" has none.
  for (const FxArgument& argument : call.positional) {
    if (const std::optional<bool> training = argument.flag()) return training;
  }
  const auto named = call.named.find("training");
  return named != call.named.end() && named->second.flag().value_or(false);
}

double attention_dropout(const FxCall& call) {
  static const std::map<std::string, size_t> positions = {
      {"aten.scaled_dot_product_attention", 4},
      {"aten._scaled_dot_product_attention_math", 4},
      {"aten._scaled_dot_product_flash_attention", 3},
      {"aten._scaled_dot_product_flash_attention_for_cpu", 3},
      {"aten._scaled_dot_product_efficient_attention", 5},
      {"aten._scaled_dot_product_cudnn_attention", 5},
      {"aten._scaled_dot_product_fused_attention_overrideable", 4}};
  const auto found = positions.find(call.target);
  return found == positions.end() ? 0 : call.number(found->second, "dropout_p", 0);
}

std::optional<FxCall> fx_call_of(const ::onnx::NodeProto& node) {
  for (const auto& entry : node.metadata_props()) {
    if (entry.key() == kFxNode) return parse_fx_call(entry.value());
  }
  return std::nullopt;
}

}  // namespace shardrun::importer
