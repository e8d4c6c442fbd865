// Cluster files: what each field must be.
#include "planner/cost/cluster_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

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
  if (rate.reached > 1) fields.wrong("reached", fields.get("reached"), "a fraction of at most 1");
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

Cluster::Tiles read_tiles(Fields fields) {
  Cluster::Tiles tiles;
  constexpr int64_t kMost = 1 << 16;  // multiprocessors, rows or columns
  const Json& count = fields.get("multiprocessors");
  tiles.multiprocessors = fields.count("multiprocessors", 1);
  if (tiles.multiprocessors > kMost)
    fields.wrong("multiprocessors", count, "a whole number of at most 65536");
  const Json& shapes = fields.get("shapes");
  const auto is_size = [](const Json& size) {
    return size.is_number_integer() && size.get<int64_t>() >= 1 && size.get<int64_t>() <= kMost;
  };
  bool right = shapes.is_array() && !shapes.empty() && shapes.size() <= Cluster::Tiles::kMostShapes;
  for (size_t s = 0; right && s < shapes.size(); ++s) {
    const Json& shape = shapes[s];
    right = shape.is_array() && shape.size() == 2 && is_size(shape[0]) && is_size(shape[1]);
    if (right) tiles.shapes.emplace_back(shape[0].get<int64_t>(), shape[1].get<int64_t>());
  }
  const auto elements = [](const std::pair<int64_t, int64_t>& s) { return s.first * s.second; };
  right = right &&
          std::is_sorted(tiles.shapes.begin(), tiles.shapes.end(),
                         [&](const auto& a, const auto& b) { return elements(a) > elements(b); });
  if (!right) {
    fields.wrong("shapes", shapes,
                 "1 to 16 pairs [rows, columns] of whole numbers to 65536, the largest tile first");
  }
  tiles.cache_bandwidth = read_rate(fields.object("cache_bandwidth"));
  tiles.latency = fields.number("latency", true);
  tiles.exponential_flops = fields.number("exponential_flops", false, tiles.exponential_flops);
  fields.finish();
  return tiles;
}

Json tiles_json(const Cluster::Tiles& tiles) {
  Json shapes = Json::array();
  for (const auto& [rows, columns] : tiles.shapes) shapes.push_back(Json::array({rows, columns}));
  return {{"multiprocessors", tiles.multiprocessors},
          {"shapes", shapes},
          {"cache_bandwidth", rate_json(tiles.cache_bandwidth)},
          {"latency", tiles.latency},
          {"exponential_flops", tiles.exponential_flops}};
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
  if (fields.find("tiles") != nullptr) cluster.tiles = read_tiles(fields.object("tiles"));
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
  if (cluster.tiles != Cluster::Tiles()) out["tiles"] = tiles_json(cluster.tiles);
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

namespace {

/// A figure, or several, that a factor multiplies; by these fields `sources` know them.
struct Scalable {
  std::string_view name;
  bool (*is_source)(std::string_view field);
  void (*multiply)(Cluster& cluster, double factor);
};

void multiply(Cluster::Link& link, double factor) {
  link.bandwidth *= factor;
  for (auto* by_ranks : {&link.bandwidth_by_ranks, &link.reduce_bandwidth_by_ranks}) {
    for (auto& [ranks, bandwidth] : *by_ranks) bandwidth *= factor;
  }
}

/// With the arithmetic goes the cache that feeds it.
constexpr Scalable kScalable[] = {
    {"memory", [](std::string_view field) { return field == "memory_bytes"; },
     [](Cluster& c, double factor) {
       c.memory_bytes = std::llround(static_cast<double>(c.memory_bytes) * factor);
     }},
    {"flops",
     [](std::string_view field) {
       return (field.starts_with("flops.") && field.ends_with(".peak")) ||
              field == "tiles.cache_bandwidth.peak";
     },
     [](Cluster& c, double factor) {
       for (auto& [dtype, rate] : c.flops) rate.peak *= factor;
       c.tiles.cache_bandwidth.peak *= factor;
     }},
    {"memory_bandwidth", [](std::string_view field) { return field == "memory_bandwidth.peak"; },
     [](Cluster& c, double factor) { c.memory_bandwidth.peak *= factor; }},
    {"within",
     [](std::string_view field) {
       return field.starts_with("within.") && field.find("bandwidth") != std::string_view::npos;
     },
     [](Cluster& c, double factor) { multiply(c.within, factor); }},
    {"between",
     [](std::string_view field) {
       return field.starts_with("between.") && field.find("bandwidth") != std::string_view::npos;
     },
     [](Cluster& c, double factor) { multiply(c.between, factor); }}};

/// One "FIELD=2x" of `text`.
void scale(Cluster& cluster, const std::string& item, const std::string& text) {
  const size_t equals = item.find('=');
  const std::string name = item.substr(0, equals);
  const auto* const found = std::find_if(std::begin(kScalable), std::end(kScalable),
                                         [&](const Scalable& s) { return s.name == name; });
  std::string known;
  for (const Scalable& s : kScalable) known += (known.empty() ? "" : ", ") + std::string(s.name);
  SR_REQUIRE(found != std::end(kScalable), invalid_input, "cluster '", text, "': field '", name,
             "' is not known; known are ", known, ", as in 'memory=2x'");
  const std::string value = equals == std::string::npos ? "" : item.substr(equals + 1);
  double factor = 0;
  const auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), factor);
  constexpr double kMost = 1e6;  // of a figure that stays one
  SR_REQUIRE(ec == std::errc() && end + 1 == value.data() + value.size() && *end == 'x' &&
                 factor >= 1 / kMost && factor <= kMost,
             invalid_input, "cluster '", text, "': ", name, " is '", value,
             "', wanted a factor such as 2x or 0.5x");
  SR_REQUIRE(name != "memory" || cluster.memory_bytes > 0, invalid_input, "cluster '", text,
             "': the memory of its devices is not known; say how much with --memory");
  found->multiply(cluster, factor);
  for (auto& [field, source] : cluster.sources) {
    if (found->is_source(field))
      source += ", times " + value.substr(0, value.size() - 1) + " as asked for";
  }
}

/// Where the factors begin; npos: there are none.
size_t factors_in(const std::string& text) {
  return text.ends_with(".json") ? std::string::npos : text.find(',');
}

}  // namespace

std::string cluster_file_in(const std::string& text) {
  const std::string name = text.substr(0, factors_in(text));
  return name.find('/') != std::string::npos || name.ends_with(".json") ? name : "";
}

Cluster load_cluster(const std::string& text) {
  const size_t comma = factors_in(text);
  const std::string name = text.substr(0, comma);
  SR_REQUIRE(name != "host", invalid_input, "cluster '", text,
             "': this machine's figures cannot be multiplied; name a built-in cluster or a file");
  Cluster cluster = cluster_file_in(text).empty() ? builtin_cluster(name) : read_cluster_file(name);
  if (comma == std::string::npos) return cluster;
  SR_REQUIRE(cluster.measured == Measured(), invalid_input, "cluster '", text,
             "': was measured, and what was measured cannot be multiplied");
  cluster.name = text;
  std::set<std::string> seen;
  for (size_t at = comma; at != std::string::npos;) {
    const size_t next = text.find(',', at + 1);
    const std::string item = text.substr(at + 1, next - at - 1);
    const std::string field = item.substr(0, item.find('='));
    SR_REQUIRE(seen.insert(field).second, invalid_input, "cluster '", text, "': ", field,
               " is there twice");
    scale(cluster, item, text);
    at = next;
  }
  return cluster;
}

}  // namespace shardrun
