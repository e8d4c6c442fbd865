// Printing, writing and reading what became of hints.
#include "explain/hints.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "explain/text.h"
#include "planner/hints.h"

namespace shardrun {

std::string hints_text(const std::vector<HintOutcome>& hints) {
  if (hints.empty()) return "";
  const auto followed = std::count_if(hints.begin(), hints.end(),
                                      [](const HintOutcome& hint) { return hint.followed; });
  std::string out = wrapped("hints: ", str(followed, " of ", hints.size(), " followed"));
  int shown = 0;
  for (const HintOutcome& hint : hints) {
    if (hint.followed || ++shown > kMostPrices) continue;
    const std::string price = hint.seconds ? signed_ms(*hint.seconds) : "-";
    out += wrapped(right(price, 12) + "  ",
                   str("with '", hint.text, "'", hint.why.empty() ? "" : "; " + hint.why));
  }
  if (shown > kMostPrices) out += str(right("", 14), "and ", shown - kMostPrices, " more\n");
  return out;
}

nlohmann::json hints_json(const std::vector<HintOutcome>& hints) {
  nlohmann::json out = nlohmann::json::array();
  for (const HintOutcome& hint : hints) {
    out.push_back({{"text", hint.text},
                   {"followed", hint.followed},
                   {"seconds", hint.seconds ? nlohmann::json(*hint.seconds) : nlohmann::json()},
                   {"why", hint.why}});
  }
  return out;
}

std::vector<HintOutcome> read_hints(const nlohmann::json& list, const std::string& origin) {
  SR_REQUIRE(list.is_array(), invalid_input, origin, ": wanted a list");
  std::vector<HintOutcome> out;
  for (const nlohmann::json& item : list) {
    const std::string where = str(origin, "[", out.size(), "]");
    const auto field = [&](const char* name, bool (nlohmann::json::*is)() const noexcept) {
      const auto it = item.find(name);
      SR_REQUIRE(it != item.end() && ((*it).*is)(), invalid_input, where, ": '", name,
                 "' is missing or of the wrong kind");
      return *it;
    };
    SR_REQUIRE(item.is_object(), invalid_input, where, ": wanted an object");
    HintOutcome hint{field("text", &nlohmann::json::is_string).get<std::string>(),
                     field("followed", &nlohmann::json::is_boolean).get<bool>(), std::nullopt,
                     field("why", &nlohmann::json::is_string).get<std::string>()};
    if (!item.contains("seconds") || !item["seconds"].is_null())
      hint.seconds = field("seconds", &nlohmann::json::is_number).get<double>();
    out.push_back(std::move(hint));
  }
  return out;
}

}  // namespace shardrun
