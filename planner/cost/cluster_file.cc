// Cluster files: what each field must be.
#include "planner/cost/cluster_file.h"

#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/files/input_file.h"
#include "base/printable.h"
#include "graph/json_text.h"
#include "planner/cost/builtin_clusters.h"
#include "planner/cost/json_fields.h"
#include "planner/cost/measured_file.h"

namespace shardrun {
namespace {

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

Collectives read_collectives(Fields& fields, const std::string& origin) {
  const std::string text = fields.text("collectives");
  SR_REQUIRE(text == "together" || text == "apart", invalid_input, origin,
             ": field 'collectives' is '", printable(text), "', wanted together or apart");
  return text == "together" ? Collectives::together : Collectives::apart;
}

}  // namespace

Cluster parse_cluster(const std::string& text, const std::string& origin) {
  const Json root = parse_json<Json>(text, origin, "a cluster file");
  Fields fields(root, origin, "");
  Cluster cluster;
  cluster.name = printable(fields.text("name"));
  if (fields.find("about") != nullptr) cluster.about = printable(fields.text("about"));
  cluster.nodes = fields.count("nodes", 1);
  fields.get("devices");
  cluster.devices = fields.count("devices", 1);
  constexpr int64_t kMostDevices = 1 << 24;  // of a mesh, too
  SR_REQUIRE(cluster.nodes <= kMostDevices && cluster.devices <= kMostDevices / cluster.nodes,
             invalid_input, origin, ": fields 'nodes' and 'devices' are ", cluster.nodes, " and ",
             cluster.devices, ", wanted at most ", kMostDevices, " devices in all");
  cluster.oversubscribes = fields.flag("oversubscribes", false);
  if (fields.find("collectives") != nullptr) {
    cluster.collectives = read_collectives(fields, origin);
  } else if (!cluster.oversubscribes) {
    cluster.collectives = Collectives::apart;
  }
  cluster.memory_bytes = fields.count("memory_bytes", 0);
  cluster.library_bytes = fields.count("library_bytes", cluster.library_bytes);
  cluster.communicator_bytes = fields.count("communicator_bytes", cluster.communicator_bytes);
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
    for (const std::string& name : sources.names())
      cluster.sources[printable(name)] = printable(sources.text(name));
  }
  if (fields.find("measured") != nullptr)
    cluster.measured = read_measured(fields.object("measured"));
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
  out["collectives"] = cluster.collectives == Collectives::together ? "together" : "apart";
  if (cluster.memory_bytes > 0) out["memory_bytes"] = cluster.memory_bytes;
  if (cluster.library_bytes != Cluster().library_bytes)
    out["library_bytes"] = cluster.library_bytes;
  if (cluster.communicator_bytes != Cluster().communicator_bytes)
    out["communicator_bytes"] = cluster.communicator_bytes;
  out["flops"] = flops;
  out["memory_bandwidth"] = rate_json(cluster.memory_bandwidth);
  out["kernel_latency"] = cluster.kernel_latency;
  out["within"] = link_json(cluster.within);
  out["between"] = link_json(cluster.between);
  out["sources"] = sources;
  if (cluster.measured != Measured()) out["measured"] = measured_json(cluster.measured);
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
  constexpr int64_t kMostBytes = int64_t{16} << 20;
  return parse_cluster(read_input_file(path, "a cluster file", kMostBytes), path);
}

Cluster load_cluster(const std::string& text) {
  const bool file = text.find('/') != std::string::npos || text.ends_with(".json");
  return file ? read_cluster_file(text) : builtin_cluster(text);
}

}  // namespace shardrun
