// Reads /proc.
#include "bench/machine.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "shardrun/bench.h"

namespace shardrun::cli {
namespace {

constexpr const char* kFlags[] = {"avx2",     "fma",   "avx512f", "avx512_vnni", "avx512_bf16",
                                  "amx_bf16", "asimd", "sve",     "bf16"};

/// What stands behind the colon of the first line that begins so.
std::string cpuinfo(const std::string& name) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(name, 0) != 0 || line.find(": ") == std::string::npos) continue;
    return line.substr(line.find(": ") + 2);
  }
  return "";
}

}  // namespace

Machine this_machine() {
  Machine m;
  if (const std::string name = cpuinfo("model name"); !name.empty()) m.processor = name;
  m.cores = machine_cores();
  std::istringstream words(cpuinfo("flags") + cpuinfo("Features"));
  const std::vector<std::string> have{std::istream_iterator<std::string>(words), {}};
  for (const char* flag : kFlags) {
    if (std::find(have.begin(), have.end(), flag) != have.end()) m.flags.emplace_back(flag);
  }
  struct sysinfo info {};
  if (sysinfo(&info) == 0) m.memory_bytes = static_cast<int64_t>(info.totalram) * info.mem_unit;
  getloadavg(&m.load, 1);
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  m.date = text;
  return m;
}

std::string describe(const Machine& m) {
  std::string flags, built;
  for (const std::string& flag : m.flags) flags += (flags.empty() ? "" : " ") + flag;
  for (const auto& [name, version] : versions()) {
    built += (built.empty() ? "" : ", ") + name + " " + version;
  }
  char text[256];
  std::snprintf(text, sizeof text, "%s, %d core%s (%s), %.1f GiB; load %.1f; %s\n",
                m.processor.c_str(), m.cores, m.cores == 1 ? "" : "s", flags.c_str(),
                static_cast<double>(m.memory_bytes) / 0x1p30, m.load, m.date.c_str());
  return text + built + "\n";
}

nlohmann::json to_json(const Machine& m) {
  nlohmann::json built;
  for (const auto& [name, version] : versions()) built[name] = version;
  return {{"processor", m.processor}, {"cores", m.cores},
          {"flags", m.flags},         {"memory_bytes", m.memory_bytes},
          {"load", m.load},           {"date", m.date},
          {"versions", built}};
}

}  // namespace shardrun::cli
