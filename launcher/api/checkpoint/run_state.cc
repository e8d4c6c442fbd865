// The run's fields, in one list for both directions.
#include "checkpoint/run_state.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "base/round_up.h"
#include "graph/json_text.h"
#include "option_json.h"
#include "plan/plan_origin.h"
#include "train/train_options.h"

namespace shardrun {
namespace {

using nlohmann::json;

template <class State, class Visit>
void each_state_field(State& state, Visit&& visit) {
  visit("step", state.step);
  visit("batches", state.batches);
  visit("batch_samples", state.batch_samples);
  visit("draws", state.draws);
  visit("validation_due", state.validation_due);
  visit("validations_waited", state.stopping.waited);
  visit("least_loss", state.stopping.least_loss);
  visit("greatest_accuracy", state.stopping.greatest_accuracy);
  visit("best_step", state.best_step);
  visit("test_loss", state.test_loss);
  visit("test_accuracy", state.test_accuracy);
  visit("metrics_bytes", state.metrics.bytes);
  visit("metrics_crc32c", state.metrics.crc32c);
  visit("graph", state.graph);
  visit("options", state.options);
  visit("model", state.model);
}

template <class T>
json to_value(const T& value) {
  return value;
}
/// JSON has no numbers that are not finite: they are null in a list.
json to_value(const std::optional<double>& value) {
  if (!value) return nullptr;
  if (std::isfinite(*value)) return *value;
  return std::isnan(*value) ? "nan" : *value > 0 ? "infinity" : "-infinity";
}

[[noreturn]] void wrong_in_state(const std::string& where, const json& got, const char* wanted) {
  fail(ErrorKind::invalid_input, where, " is ", got.dump().substr(0, 40), ", wanted ", wanted);
}

template <class T>
void read_number_or_text(const json& item, const std::string& where, T& out) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!item.is_boolean()) wrong_in_state(where, item, "true or false");
    out = item.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    const std::optional<T> number = whole_number<T>(item);
    if (!number || *number < 0) wrong_in_state(where, item, "a whole number of at least 0");
    out = *number;
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!item.is_string()) wrong_in_state(where, item, "a text");
    out = item.get<std::string>();
  } else if constexpr (std::is_same_v<T, json>) {
    if (!item.is_object()) wrong_in_state(where, item, "an object");
    out = item;
  } else {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    out.reset();
    if (item.is_null()) return;
    if (item == "nan") {
      out = std::numeric_limits<double>::quiet_NaN();
    } else if (item == "infinity" || item == "-infinity") {
      out = item == "infinity" ? kInfinity : -kInfinity;
    } else {
      if (!item.is_number()) wrong_in_state(where, item, "a number");
      out = item.get<double>();
    }
  }
}

}  // namespace

int64_t RunState::next_batch(int64_t samples_now) const {
  if (samples_now == batch_samples || samples_now == 0 || batch_samples == 0) return batches;
  return divide_up(batches * batch_samples, samples_now);
}

json to_json(const RunState& state) {
  json out = json::object();
  each_state_field(state,
                   [&](const char* name, const auto& value) { out[name] = to_value(value); });
  return out;
}

RunState read_run_state(const json& object, const std::string& origin) {
  RunState out;
  each_state_field(out, [&](const char* name, auto& value) {
    const auto it = object.find(name);
    SR_REQUIRE(it != object.end(), invalid_input, origin, ": run lacks '", name, "'");
    read_number_or_text(*it, str(origin, ": run.", name), value);
  });
  return out;
}

json options_of(const ModelOptions& model, const TrainOptions& train, const json& data) {
  json out = options_json(model, kRunOptions);
  out["model's seed"] = model.seed;
  out.update(learning_options(train));
  out.update(data);
  return out;
}

ModelOptions model_options_of(const json& options, const std::string& origin) {
  json fields = origin_json({"", "", ModelOptions(), 1});
  for (auto& [name, value] : fields.items()) {
    if (options.contains(name)) value = options[name];
  }
  if (options.contains("model's seed")) fields["seed"] = options["model's seed"];
  return read_origin(fields, origin).options;
}

std::string differences(const json& now, const json& was) {
  std::string out;
  const auto add = [&](const std::string& name) {
    const auto value = [&](const json& of) {
      return of.contains(name) ? of[name].dump() : std::string("nothing");
    };
    if (value(now) == value(was)) return;
    out += str(out.empty() ? "" : ", ", name, " ", value(now), " (was ", value(was), ")");
  };
  for (const auto& [name, value] : now.items()) add(name);
  for (const auto& [name, value] : was.items()) {
    if (!now.contains(name)) add(name);
  }
  return out;
}

}  // namespace shardrun
