// One table of names.
#include "simulate/constants.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardrun/input.h"

namespace shardrun::cli {
namespace {

using Json = nlohmann::json;

constexpr double kMostFactor = 1e6;
/// Of a file: what calibrate --rows writes.
constexpr std::string_view kFields[] = {
    "shardrun_constants", "constants", "intervals", "not_identifiable", "assume", "cluster", "rows",
    "mean_error"};

struct NamedConstant {
  const char* name;
  double SimulateConstants::*field;  // nullptr: dispatch_us
  double neutral, spread;            // of a cluster that is as its file says
  bool shares_scale;
};
/// Spreads: the share of a GPU's peak that products reach is known within a twentieth, what passes
/// through memory take within a fifth; how well links are used within a half. Why groups that are
/// mixed take longer is not known (docs/results/simulation.md). Hosts differ most.
constexpr NamedConstant kConstants[] = {{"dispatch_us", nullptr, 10, 2, false},
                                        {"products", &SimulateConstants::products, 1, 0.05, true},
                                        {"memory", &SimulateConstants::memory, 1, 0.2, true},
                                        {"within", &SimulateConstants::within, 1, 0.5, true},
                                        {"between", &SimulateConstants::between, 1, 0.5, true},
                                        {"mixed", &SimulateConstants::mixed, 1, 1, false},
                                        {"outside", &SimulateConstants::outside, 1, 1, false},
                                        {"backward", &SimulateConstants::backward, 0.1, 1, false}};
/// Rows hardly tell of them, and what they are missed by otherwise goes into them. `outside` came
/// to 0.5 from some rows and to 4 from others; `backward` made the host's time for the backward
/// pass as long as the forward pass's, and products slower than they are.
constexpr std::string_view kUnusual[] = {"outside", "backward"};
/// The host's time changes nothing where kernels take longer, so it is sought from several sides.
const std::vector<double> kDispatchStarts = {10, 20, 40, 80, 160, 320};

std::string field_names() {
  std::string all;
  for (const std::string_view field : kFields)
    all += (all.empty() ? "" : ", ") + std::string(field);
  return all;
}

const NamedConstant& constant_named(const std::string& name) {
  const auto* const found =
      std::find_if(std::begin(kConstants), std::end(kConstants),
                   [&](const NamedConstant& constant) { return name == constant.name; });
  if (found == std::end(kConstants)) {
    std::string all;
    for (const NamedConstant& one : kConstants)
      all += (all.empty() ? "" : ", ") + std::string(one.name);
    throw Failure(Failure::Kind::call, "there is no constant '" + name + "', only " + all);
  }
  return *found;
}

}  // namespace

std::vector<std::string> constant_names() {
  std::vector<std::string> out;
  for (const NamedConstant& constant : kConstants) out.emplace_back(constant.name);
  return out;
}

std::vector<std::string> usual_constants() {
  std::vector<std::string> out = constant_names();
  for (const std::string_view name : kUnusual) std::erase(out, name);
  return out;
}

void set_constant(SimulateConstants& constants, const std::string& name, double value) {
  const NamedConstant& named = constant_named(name);
  if (named.field == nullptr) {
    constants.dispatch_us = value;
  } else {
    constants.*named.field = value;
  }
}

FitConstant constant_to_fit(const std::string& name) {
  const NamedConstant& c = constant_named(name);
  return {name, c.neutral, c.spread, c.shares_scale,
          c.field == nullptr ? kDispatchStarts : std::vector<double>()};
}

ConstantsFile read_constants(const std::string& path) {
  constexpr int64_t kMostBytes = 1 << 20;
  constexpr char kWanted[] = "a file of constants, which 'shardrun calibrate --rows' writes";
  const std::string origin = "--constants: '" + path + "'";
  const auto wrong = [&](const std::string& what) {
    return Failure(Failure::Kind::call, origin + ": " + what);
  };
  const std::string text = read_input({"--constants", path}, kWanted, kMostBytes);
  check_json(text, origin, kWanted);
  const Json all = Json::parse(text);
  if (!all.is_object() || all.value("shardrun_constants", Json()) != 1 ||
      !all.contains("constants") || !all["constants"].is_object())
    throw wrong("is no file of constants, which 'shardrun calibrate --rows' writes");
  for (const auto& [name, value] : all.items()) {
    if (std::find(std::begin(kFields), std::end(kFields), name) == std::end(kFields))
      throw wrong("field '" + shortened(name) + "' is not known; known are " + field_names());
  }
  ConstantsFile out;
  for (const auto& [name, value] : all["constants"].items()) {
    try {
      (void)constant_named(shortened(name));
    } catch (const Failure& failure) {
      throw wrong(failure.what());
    }
    if (!value.is_number() || !(value.get<double>() > 0) || value.get<double>() > kMostFactor)
      throw wrong("constant '" + name + "' is " + shortened(value.dump()) +
                  ", wanted a number above 0, and of a million at most");
    set_constant(out.constants, name, value.get<double>());
  }
  const auto text_of = [&](const char* field) {
    if (!all.contains(field)) return std::string();
    if (!all[field].is_string())
      throw wrong("'" + std::string(field) + "' is " + shortened(all[field].dump()) +
                  ", wanted a text");
    return all[field].get<std::string>();
  };
  out.assume = text_of("assume"), out.cluster = text_of("cluster");
  return out;
}

}  // namespace shardrun::cli
