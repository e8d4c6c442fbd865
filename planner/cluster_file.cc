// Strict reading of cluster files: every field is asked for by name, and those that nobody asked
// for are errors.
#include "planner/cluster_file.h"

#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "planner/builtin_clusters.h"

namespace shardrun {
namespace {

using Json = nlohmann::ordered_json;

/// One JSON object, its place in the file, and which of its fields were asked for.
class Fields {
 public:
  Fields(const Json& object, const std::string& origin, std::string place)
      : object_(object), origin_(origin), place_(std::move(place)) {
    if (!object.is_object()) wrong("", object, "an object");
  }

  const Json* find(const std::string& name) {
    known_.insert(name);
    const auto it = object_.find(name);
    return it == object_.end() ? nullptr : &*it;
  }
  const Json& get(const std::string& name) {
    const Json* value = find(name);
    SR_REQUIRE(value != nullptr, invalid_input, origin_, ": field '", place_, name, "' is missing");
    return *value;
  }

  std::string text(const std::string& name) {
    const Json& value = get(name);
    if (!value.is_string()) wrong(name, value, "a text");
    return value.get<std::string>();
  }
  double number(const std::string& name, bool zero = false) {
    return number_of(name, get(name), zero);
  }
  double number(const std::string& name, bool zero, double otherwise) {
    const Json* value = find(name);
    return value == nullptr ? otherwise : number_of(name, *value, zero);
  }
  int64_t count(const std::string& name, int64_t otherwise) {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    const double number = number_of(name, *value, false);
    if (number != std::floor(number) || number > 0x1p53) wrong(name, *value, "a whole number");
    return static_cast<int64_t>(number);
  }
  bool flag(const std::string& name, bool otherwise) {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) wrong(name, *value, "true or false");
    return value->get<bool>();
  }
  Fields object(const std::string& name) { return Fields(get(name), origin_, place_ + name + "."); }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& item : object_.items()) out.push_back(item.key());
    return out;
  }

  /// After everything was asked for.
  void finish() const {
    for (const auto& item : object_.items()) {
      if (known_.count(item.key()) > 0) continue;
      std::string wanted;
      for (const std::string& name : known_) wanted += (wanted.empty() ? "" : ", ") + name;
      fail(ErrorKind::invalid_input, origin_, ": field '", place_, item.key(),
           "' is not known; known are ", wanted);
    }
  }

  [[noreturn]] void wrong(const std::string& name, const Json& got, const char* wanted) const {
    std::string text = got.dump();
    if (text.size() > 40) text = text.substr(0, 40) + "…";
    std::string place = place_ + name;
    if (!place.empty() && place.back() == '.') place.pop_back();
    fail(ErrorKind::invalid_input, origin_, ": ",
         place.empty() ? "the file" : "field '" + place + "'", " is ", text, ", wanted ", wanted);
  }

 private:
  double number_of(const std::string& name, const Json& value, bool zero) const {
    const double number = value.is_number() ? value.get<double>() : -1;
    if (!std::isfinite(number) || number < 0 || (number == 0 && !zero))
      wrong(name, value, zero ? "a number of at least 0" : "a number above 0");
    return number;
  }

  const Json& object_;
  const std::string& origin_;
  std::string place_;
  std::set<std::string> known_;
};

Cluster::Rate read_rate(Fields fields) {
  Cluster::Rate rate;
  rate.peak = fields.number("peak");
  rate.reached = fields.number("reached", false, 1);
  if (rate.reached > 1) fields.wrong("reached", fields.get("reached"), "a share of at most 1");
  fields.finish();
  return rate;
}

std::map<int64_t, double> read_by_ranks(Fields& fields, const std::string& name) {
  std::map<int64_t, double> out;
  if (fields.find(name) == nullptr) return out;
  Fields by = fields.object(name);
  for (const std::string& ranks : by.names()) {
    int64_t n = 0;
    const auto [end, ec] = std::from_chars(ranks.data(), ranks.data() + ranks.size(), n);
    if (ec != std::errc() || end != ranks.data() + ranks.size() || n < 1)
      by.wrong(ranks, ranks, "a number of ranks for a name");
    out[n] = by.number(ranks);
  }
  return out;
}

Cluster::Link read_link(Fields fields) {
  Cluster::Link link;
  link.bandwidth = fields.number("bandwidth");
  link.latency = fields.number("latency", true);
  link.call_latency = fields.number("call_latency", true, link.call_latency);
  link.bandwidth_by_ranks = read_by_ranks(fields, "bandwidth_by_ranks");
  link.reduce_bandwidth_by_ranks = read_by_ranks(fields, "reduce_bandwidth_by_ranks");
  fields.finish();
  return link;
}

Json by_ranks_json(const std::map<int64_t, double>& by_ranks) {
  Json out = Json::object();
  for (const auto& [ranks, bandwidth] : by_ranks) out[std::to_string(ranks)] = bandwidth;
  return out;
}

Json link_json(const Cluster::Link& link) {
  Json out = {{"bandwidth", link.bandwidth},
              {"latency", link.latency},
              {"call_latency", link.call_latency}};
  if (!link.bandwidth_by_ranks.empty())
    out["bandwidth_by_ranks"] = by_ranks_json(link.bandwidth_by_ranks);
  if (!link.reduce_bandwidth_by_ranks.empty())
    out["reduce_bandwidth_by_ranks"] = by_ranks_json(link.reduce_bandwidth_by_ranks);
  return out;
}

Json rate_json(const Cluster::Rate& rate) {
  return {{"peak", rate.peak}, {"reached", rate.reached}};
}

}  // namespace

Cluster parse_cluster(const std::string& text, const std::string& origin) {
  const Json root = Json::parse(text, nullptr, false);
  SR_REQUIRE(!root.is_discarded(), invalid_input, origin, ": is not JSON");
  Fields fields(root, origin, "");
  Cluster cluster;
  cluster.name = fields.text("name");
  if (fields.find("about") != nullptr) cluster.about = fields.text("about");
  cluster.nodes = fields.count("nodes", 1);
  fields.get("devices");
  cluster.devices = fields.count("devices", 1);
  cluster.oversubscribes = fields.flag("oversubscribes", false);
  cluster.memory_bytes = fields.count("memory_bytes", 0);
  Fields flops = fields.object("flops");
  for (const std::string& name : flops.names()) {
    DType dtype = DType::f32;
    try {
      dtype = parse_dtype(name);
    } catch (const Error& e) {
      throw e.with_context(origin + ": field 'flops." + name + "'");
    }
    cluster.flops[dtype] = read_rate(flops.object(name));
  }
  SR_REQUIRE(cluster.flops.count(DType::f32) > 0, invalid_input, origin,
             ": field 'flops.f32' is missing");
  cluster.memory_bandwidth = read_rate(fields.object("memory_bandwidth"));
  cluster.kernel_latency = fields.number("kernel_latency", true, cluster.kernel_latency);
  cluster.within = read_link(fields.object("within"));
  if (cluster.nodes > 1 || fields.find("between") != nullptr)
    cluster.between = read_link(fields.object("between"));
  if (fields.find("sources") != nullptr) {
    Fields sources = fields.object("sources");
    for (const std::string& name : sources.names()) cluster.sources[name] = sources.text(name);
  }
  fields.finish();
  return cluster;
}

std::string cluster_json(const Cluster& cluster) {
  Json flops = Json::object(), sources = Json::object();
  for (const auto& [dtype, rate] : cluster.flops)
    flops[std::string(to_string(dtype))] = rate_json(rate);
  for (const auto& [field, source] : cluster.sources) sources[field] = source;
  Json out = {{"name", cluster.name},
              {"about", cluster.about},
              {"nodes", cluster.nodes},
              {"devices", cluster.devices},
              {"oversubscribes", cluster.oversubscribes}};
  if (cluster.memory_bytes > 0) out["memory_bytes"] = cluster.memory_bytes;
  out["flops"] = flops;
  out["memory_bandwidth"] = rate_json(cluster.memory_bandwidth);
  out["kernel_latency"] = cluster.kernel_latency;
  out["within"] = link_json(cluster.within);
  out["between"] = link_json(cluster.between);
  out["sources"] = sources;
  return out.dump(1) + "\n";
}

std::vector<std::string> builtin_clusters() {
  std::vector<std::string> out;
  for (const BuiltinCluster& cluster : kBuiltinClusters) out.emplace_back(cluster.name);
  return out;
}

Cluster builtin_cluster(const std::string& name) {
  const size_t colon = name.find(':');
  const std::string kind = name.substr(0, colon);
  for (const BuiltinCluster& builtin : kBuiltinClusters) {
    if (kind != builtin.name) continue;
    Cluster cluster = parse_cluster(builtin.json, kind + " (built in)");
    if (colon == std::string::npos) return cluster;
    const char *begin = name.data() + colon + 1, *end = name.data() + name.size();
    int64_t nodes = 0;
    const auto [stop, ec] = std::from_chars(begin, end, nodes);
    SR_REQUIRE(ec == std::errc() && stop == end && nodes >= 1 && nodes <= 1 << 20, invalid_input,
               "cluster '", name, "': '", std::string(begin, end),
               "' is not a number of nodes, as in '", kind, ":4'");
    cluster.nodes = nodes;
    cluster.name = name;
    if (nodes > 1) cluster.about = str(nodes, " nodes of ", cluster.about);
    return cluster;
  }
  std::string known;
  for (const std::string& builtin : builtin_clusters()) known += ", " + builtin;
  fail(ErrorKind::invalid_input, "cluster '", name, "' is not known; known are host", known,
       ", several nodes of one ('h100:4'), or a file (with a '/' or '.json' in its name)");
}

Cluster read_cluster_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream all;
  all << in.rdbuf();
  SR_REQUIRE(in.good() && all.good(), invalid_input, path, ": cannot read the cluster file");
  return parse_cluster(all.str(), path);
}

Cluster load_cluster(const std::string& text) {
  const bool file = text.find('/') != std::string::npos || text.ends_with(".json");
  return file ? read_cluster_file(text) : builtin_cluster(text);
}

}  // namespace shardrun
