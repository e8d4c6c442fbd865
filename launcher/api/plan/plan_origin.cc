// Writing and reading a model's options and a plan's request, each field checked by its type.
#include "plan/plan_origin.h"

#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "base/printable.h"
#include "graph/json_text.h"
#include "option_json.h"

namespace shardrun {
namespace {

using nlohmann::json;

[[noreturn]] void wrong(const std::string& where, const json& got, const char* wanted) {
  fail(ErrorKind::invalid_input, where, " is ", excerpt(got.dump(), 40), ", wanted ", wanted);
}

void read(const json& item, const std::string& where, std::string& out) {
  if (!item.is_string()) wrong(where, item, "a text");
  out = item.get<std::string>();
}
void read(const json& item, const std::string& where, bool& out) {
  if (!item.is_boolean()) wrong(where, item, "true or false");
  out = item.get<bool>();
}
void read(const json& item, const std::string& where, double& out) {
  if (!item.is_number()) wrong(where, item, "a number");
  out = item.get<double>();
}
template <class T>
requires std::is_integral_v<T>
void read(const json& item, const std::string& where, T& out) {
  const std::optional<T> number = whole_number<T>(item);
  if (!number) wrong(where, item, "a whole number");
  out = *number;
}
template <class T>
void read(const json& item, const std::string& where, std::optional<T>& out) {
  if (!item.is_null()) read(item, where, out.emplace());
}
void read(const json& item, const std::string& where, std::vector<std::string>& out) {
  if (!item.is_array()) wrong(where, item, "a list of texts");
  for (size_t i = 0; i < item.size(); ++i)
    read(item[i], str(where, "[", i, "]"), out.emplace_back());
}
void read(const json& item, const std::string& where, std::map<std::string, int64_t>& out) {
  if (!item.is_object()) wrong(where, item, "whole numbers by name");
  for (const auto& [name, size] : item.items()) read(size, str(where, ".", name), out[name]);
}

/// Reads the field `name` of an object; `where` is of the object: "p.json: field model".
template <class T>
void read_field(const json& object, const std::string& where, const char* name, T& out) {
  const auto it = object.find(name);
  SR_REQUIRE(it != object.end(), invalid_input, where, " lacks '", name, "'");
  read(*it, where + "." + name, out);
}

template <class Options>
void read_options(const json& object, const std::string& where, Options& out) {
  each_option(out, [&](const OptionRow& row, auto& value) {
    if (!(row.use & kPlanFile)) return;
    if ((row.use & kMayLack) && !object.contains(row.name)) return;
    read_field(object, where, row.name, value);
  });
}

void require_object(const json& value, const std::string& where) {
  if (!value.is_object()) wrong(where, value, "an object");
}

}  // namespace

json origin_json(const PlannedModel& model) {
  json out = options_json(model.options, kPlanFile);
  out["path"] = model.path;
  return out;
}

PlannedModel read_origin(const json& object, const std::string& origin) {
  require_object(object, origin);
  PlannedModel out;
  read_field(object, origin, "path", out.path);
  read_options(object, origin, out.options);
  return out;
}

std::string other_options(const ModelOptions& planned, const ModelOptions& here) {
  const json was = options_json(planned, kPlanFile), is = options_json(here, kPlanFile);
  const auto shown = [](const json& value) {
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    return value.empty() || text.empty() ? std::string("not given") : text;
  };
  std::string step, out;
  each_option(planned, [&](const OptionRow& row, const auto&) {
    if (!(row.use & kPlanFile) || was[row.name] == is[row.name]) return;
    const std::string text = str(*row.flag != '\0' ? std::string(row.flag) : str("--", row.name),
                                 " ", shown(was[row.name]), " (here ", shown(is[row.name]), ")");
    if (std::string_view(row.name) == "step") step = text;
    out += (out.empty() ? "" : ", ") + text;
  });
  return step.empty() ? out : step;  // much of another step is otherwise
}

json request_json(const PlanRequest& request) { return options_json(request, kPlanFile); }

PlanRequest read_request(const json& object, const std::string& origin) {
  require_object(object, origin);
  PlanRequest out;
  read_options(object, origin, out);
  return out;
}

}  // namespace shardrun
