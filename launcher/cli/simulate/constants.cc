// One table of names.
#include "simulate/constants.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace shardrun::cli {
namespace {

struct NamedFactor {
  const char* name;
  double SimulateConstants::*field;
};
constexpr NamedFactor kFactors[] = {{"products", &SimulateConstants::products},
                                    {"memory", &SimulateConstants::memory},
                                    {"within", &SimulateConstants::within},
                                    {"between", &SimulateConstants::between}};
constexpr char kDispatch[] = "dispatch_us";

}  // namespace

std::vector<std::string> constant_names() {
  std::vector<std::string> out = {kDispatch};
  for (const NamedFactor& factor : kFactors) out.push_back(factor.name);
  return out;
}

void set_constant(SimulateConstants& constants, const std::string& name, double value) {
  if (name == kDispatch) {
    constants.dispatch_us = value;
    return;
  }
  const auto* const found =
      std::find_if(std::begin(kFactors), std::end(kFactors),
                   [&](const NamedFactor& factor) { return name == factor.name; });
  if (found == std::end(kFactors)) {
    std::string all;
    for (const std::string& one : constant_names()) all += (all.empty() ? "" : ", ") + one;
    throw Failure(Failure::Kind::call, "there is no constant '" + name + "', only " + all);
  }
  constants.*found->field = value;
}

ConstantsFile read_constants(const std::string& path) {
  const auto wrong = [&](const std::string& what) {
    return Failure(Failure::Kind::call, "--constants: '" + path + "': " + what);
  };
  std::ifstream file(path);
  if (!file) throw wrong("cannot be read");
  const nlohmann::json all = nlohmann::json::parse(file, nullptr, false);
  if (!all.is_object() || all.value("shardrun_constants", nlohmann::json()) != 1 ||
      !all.contains("constants") || !all["constants"].is_object())
    throw wrong("is no file of constants, which 'shardrun calibrate --rows' writes");
  ConstantsFile out;
  for (const auto& [name, value] : all["constants"].items()) {
    if (!value.is_number() || !(value.get<double>() > 0))
      throw wrong("constant '" + name + "' is " + value.dump() + ", wanted a number above 0");
    try {
      set_constant(out.constants, name, value.get<double>());
    } catch (const Failure& failure) {
      throw wrong(failure.what());
    }
  }
  if (all.contains("assume")) {
    if (!all["assume"].is_string()) throw wrong("'assume' is " + all["assume"].dump());
    out.assume = all["assume"].get<std::string>();
  }
  return out;
}

}  // namespace shardrun::cli
