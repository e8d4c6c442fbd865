#include "checkpoint/trained_model.h"

#include <filesystem>

#include "base/error.h"
#include "checkpoint/weights.h"
#include "contents.h"
#include "plan/plan_origin.h"

namespace shardrun {
namespace {

using nlohmann::json;

std::string absolute(const std::string& path) {
  return path.empty() ? path : std::filesystem::absolute(path).lexically_normal().string();
}

std::vector<std::string> absolute(std::vector<std::string> paths) {
  for (std::string& path : paths) path = absolute(path);
  return paths;
}

/// The fields, in one list for both directions.
template <class Trained, class Visit>
void each_model_field(Trained& trained, Visit&& visit) {
  visit("path", trained.path);
  visit("fingerprint", trained.fingerprint);
  visit("ops", trained.ops);
  visit("given", trained.given);
  visit("weights", trained.weights);
  visit("weights_fingerprint", trained.weights_fingerprint);
  visit("weights_except", trained.except);
}

void read_texts(const json& item, const std::string& where, std::string& out) {
  SR_REQUIRE(item.is_string(), invalid_input, where, " is ", item.dump().substr(0, 40),
             ", wanted a text");
  out = item.get<std::string>();
}
void read_texts(const json& item, const std::string& where, std::vector<std::string>& out) {
  SR_REQUIRE(item.is_array(), invalid_input, where, " is ", item.dump().substr(0, 40),
             ", wanted a list of texts");
  for (const json& one : item) read_texts(one, where, out.emplace_back());
}

}  // namespace

TrainedModel trained_model(const Model::Impl& model) {
  const ModelOptions& o = model.options;
  TrainedModel out;
  out.path = absolute(model.path);
  out.fingerprint = fingerprint_of(model.onnx.file());
  out.ops = absolute(o.ops);
  out.given = model.given_constants;
  if (out.given.empty()) return out;
  out.weights = absolute(o.weights);
  out.weights_fingerprint = blocks_hash(files_of_weights(o.weights));
  out.except = o.weights_except;
  return out;
}

json to_json(const TrainedModel& model) {
  json out = json::object();
  each_model_field(model, [&](const char* name, const auto& value) { out[name] = value; });
  return out;
}

TrainedModel read_trained_model(const json& object, const std::string& origin) {
  TrainedModel out;
  SR_REQUIRE(object.is_object(), invalid_input, origin, " is ", object.dump().substr(0, 40),
             ", wanted an object");
  each_model_field(out, [&](const char* name, auto& value) {
    const auto it = object.find(name);
    SR_REQUIRE(it != object.end(), invalid_input, origin, " lacks '", name, "'");
    read_texts(*it, origin + "." + name, value);
  });
  return out;
}

}  // namespace shardrun
