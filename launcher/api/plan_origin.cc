// Writing and reading a model's options and a plan's request, each field checked by its type.
#include "plan_origin.h"

#include <type_traits>

#include "base/error.h"
#include "graph/json_text.h"

namespace shardrun {
namespace {

using nlohmann::json;

/// The fields of PlannedModel, in one list for both directions.
template <class Planned, class Visit>
void each_field(Planned& planned, Visit&& visit) {
  auto& o = planned.options;
  visit("path", planned.path);
  visit("dims", o.dims);
  visit("batch", o.batch);
  visit("ops", o.ops);
  visit("loss", o.loss);
  visit("loss_output", o.loss_output);
  visit("freeze", o.freeze);
  visit("train", o.train);
  visit("train_only", o.train_only);
  visit("shared", o.shared);
  visit("mode", o.mode);
  visit("running_statistics", o.running_statistics);
  visit("dtype", o.dtype);
  visit("optimizer", o.optimizer);
  visit("beta1", o.beta1);
  visit("beta2", o.beta2);
  visit("eps", o.eps);
  visit("momentum", o.momentum);
  visit("nesterov", o.nesterov);
  visit("weight_decay", o.weight_decay);
  visit("decay_all", o.decay_all);
  visit("clip", o.clip);
  visit("accumulate", o.accumulate);
  visit("seed", o.seed);
  visit("data", o.data);
  visit("sort_edges", o.sort_edges);
}

template <class Request, class Visit>
void each_request_field(Request& request, Visit&& visit) {
  visit("memory_bytes", request.memory_bytes);
  visit("shard", request.shard);
}

template <class T>
json to_value(const T& value) {
  return value;
}
template <class T>
json to_value(const std::optional<T>& value) {
  return value ? json(*value) : json();
}

[[noreturn]] void wrong(const std::string& where, const json& got, const char* wanted) {
  std::string text = got.dump();
  if (text.size() > 40) text = text.substr(0, 40) + "…";
  fail(ErrorKind::invalid_input, where, " is ", text, ", wanted ", wanted);
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
  for (const auto& [name, size] : item.items()) read(size, where + "." + name, out[name]);
}

/// Reads the field `name` of an object; `where` is of the object: "p.json: field model".
auto reader(const json& object, const std::string& where) {
  if (!object.is_object()) wrong(where, object, "an object");
  return [&object, where](const char* name, auto& out) {
    const auto it = object.find(name);
    SR_REQUIRE(it != object.end(), invalid_input, where, " lacks '", name, "'");
    read(*it, where + "." + name, out);
  };
}

}  // namespace

json origin_json(const PlannedModel& model) {
  json out = json::object();
  each_field(model, [&](const char* name, const auto& value) { out[name] = to_value(value); });
  return out;
}

PlannedModel read_origin(const json& object, const std::string& origin) {
  PlannedModel out;
  each_field(out, reader(object, origin));
  return out;
}

json request_json(const PlannedRequest& request) {
  json out = json::object();
  each_request_field(request,
                     [&](const char* name, const auto& value) { out[name] = to_value(value); });
  return out;
}

PlannedRequest read_request(const json& object, const std::string& origin) {
  PlannedRequest out;
  each_request_field(out, reader(object, origin));
  return out;
}

}  // namespace shardrun
