// Cluster files: read back equal, refused with the field named; the built-in ones.
#include "planner/cost/cluster_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace shardrun {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_cluster(text, "c.json");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input) << e.what();
    return e.what();
  }
  return "accepted";
}

const char* const kSmall = R"({
 "name": "lab", "devices": 4, "flops": {"f32": {"peak": 1e12}}, "memory_bandwidth": {"peak": 1e11},
 "within": {"bandwidth": 1e10, "latency": 1e-6}})";

std::string changed(const std::string& pointer, const nlohmann::json& value) {
  nlohmann::json file = nlohmann::json::parse(kSmall);
  if (value.is_discarded()) {
    const nlohmann::json::json_pointer at(pointer);
    file.at(at.parent_pointer()).erase(at.back());
  } else {
    file[nlohmann::json::json_pointer(pointer)] = value;
  }
  return refusal(file.dump());
}

TEST(ClusterFile, WhatIsLeftOutHasADefault) {
  const Cluster c = parse_cluster(kSmall, "c.json");
  EXPECT_EQ(c.name, "lab");
  EXPECT_EQ(c.size(), 4);
  EXPECT_FALSE(c.oversubscribes);
  EXPECT_EQ(c.memory_bytes, 0);
  EXPECT_DOUBLE_EQ(c.flops_for(DType::f32), 1e12);
  EXPECT_DOUBLE_EQ(c.flops_for(DType::bf16), 1e12);
  EXPECT_DOUBLE_EQ(c.flops_for(DType::f64), 5e11);
}

TEST(ClusterFile, ErrorsNameFileFieldValueAndWhatIsWanted) {
  const nlohmann::json gone = nlohmann::json::value_t::discarded;
  EXPECT_EQ(refusal("{"), "c.json: is not JSON, wanted a cluster file");
  EXPECT_EQ(refusal("{\"name\": " + std::string(1 << 20, '[') + std::string(1 << 20, ']') + "}"),
            "c.json: lists and objects are nested deeper than 64");
  EXPECT_EQ(refusal("[1]"), "c.json: the file is [1], wanted an object");
  EXPECT_EQ(changed("/devices", gone), "c.json: field 'devices' is missing");
  EXPECT_EQ(changed("/within/latency", gone), "c.json: field 'within.latency' is missing");
  EXPECT_EQ(changed("/flops/f32", gone), "c.json: field 'flops.f32' is missing");
  EXPECT_EQ(changed("/devices", 0), "c.json: field 'devices' is 0, wanted a number above 0");
  EXPECT_EQ(changed("/devices", 2.5), "c.json: field 'devices' is 2.5, wanted a whole number");
  EXPECT_EQ(changed("/devices", "8"), "c.json: field 'devices' is \"8\", wanted a number above 0");
  EXPECT_EQ(changed("/within/latency", -1),
            "c.json: field 'within.latency' is -1, wanted a number of at least 0");
  EXPECT_EQ(changed("/within", 3), "c.json: field 'within' is 3, wanted an object");
  EXPECT_EQ(changed("/flops/f32/reached", 1.5),
            "c.json: field 'flops.f32.reached' is 1.5, wanted a share of at most 1");
  EXPECT_EQ(
      changed("/within/bandwidth_by_ranks", {{"two", 1e9}}),
      "c.json: field 'within.bandwidth_by_ranks.two' is \"two\", wanted a number of ranks for "
      "a name");
  EXPECT_EQ(changed("/oversubscribes", 1),
            "c.json: field 'oversubscribes' is 1, wanted true or false");
  EXPECT_EQ(changed("/collectives", "aside"),
            "c.json: field 'collectives' is 'aside', wanted together or apart");
  EXPECT_EQ(changed("/within/latencies", 1),
            "c.json: field 'within.latencies' is not known; known are bandwidth, "
            "bandwidth_by_ranks, call_latency, latency, reduce_bandwidth_by_ranks");
  EXPECT_EQ(changed("/nodes", 2), "c.json: field 'between' is missing");
  EXPECT_EQ(changed("/nodes", int64_t{1} << 53),
            "c.json: fields 'nodes' and 'devices' are 9007199254740992 and 4, wanted at most "
            "16777216 devices in all");
  EXPECT_NE(changed("/flops/f33", {{"peak", 1}}).find("c.json: field 'flops.f33'"),
            std::string::npos);
  EXPECT_EQ(changed("/name", "other"), "accepted");
  const nlohmann::json op = {{"op", "add"},   {"variant", ""},          {"dtype", "f32"},
                             {"by", "bytes"}, {"sizes", {4096, 65536}}, {"seconds", {1e-6, 5e-6}}};
  const auto measured = [&](const char* name, const nlohmann::json& value) {
    nlohmann::json wrong = op;
    wrong[name] = value;
    return changed("/measured", {{"kernels", {{{"ranks", 1}, {"ops", {wrong}}}}}});
  };
  EXPECT_EQ(measured("by", "bytes"), "accepted");
  EXPECT_EQ(measured("by", "bits"),
            "c.json: field 'measured.kernels[0].ops[0].by' is \"bits\", wanted bytes or flops");
  EXPECT_EQ(measured("sizes", {65536, 4096}),
            "c.json: field 'measured.kernels[0].ops[0].sizes' is [65536,4096], wanted an ascending "
            "list");
  EXPECT_EQ(measured("seconds", {1e-6}),
            "c.json: field 'measured.kernels[0].ops[0].seconds' is [1e-06], wanted as many numbers "
            "as there are sizes");
  EXPECT_EQ(measured("seconds", {1e-6, 0}),
            "c.json: field 'measured.kernels[0].ops[0].seconds' is 0, wanted a number above 0");
}

TEST(ClusterFile, BuiltInOnesReadBackEqual) {
  for (const std::string& name : builtin_clusters()) {
    const Cluster cluster = builtin_cluster(name + ":3");
    EXPECT_EQ(cluster.size(), 24) << name;
    EXPECT_EQ(parse_cluster(cluster_json(cluster), "written"), cluster) << name;
  }
  Cluster host = host_cluster();
  EXPECT_EQ(parse_cluster(cluster_json(host), "written"), host);
  host.library_bytes = 123, host.communicator_bytes = 45;
  EXPECT_EQ(parse_cluster(cluster_json(host), "written"), host);
  MeasuredKernels kernels;
  kernels.threads = 2;
  kernels.grids[{"matmul", "tn", DType::bf16}] = {{{{8, 16}, {8}, {8}}}, {1e-6, 1.5e-6}};
  kernels.ops[{"reduce_sum", "rows", DType::f32}] = {false, Curve{{{4096, 1e-6}, {8192, 2e-6}}}};
  kernels.ops[{"conv", "", DType::f32}] = {true, Curve{{{1e6, 1e-5}}}};
  host.measured.kernels = {kernels};
  host.measured.collectives = {
      {"mpi", 4, 2, Collective::Kind::reduce_scatter, Curve{{{256, 2e-6}, {1024, 3e-6}}}}};
  EXPECT_EQ(parse_cluster(cluster_json(host), "written"), host);
}

/// Every number of a file, by its path, has a source, and every source a number.
TEST(ClusterFile, EveryFigureOfABuiltInClusterHasItsSource) {
  for (const std::string& name : builtin_clusters()) {
    const Cluster cluster = builtin_cluster(name);
    const nlohmann::json file = nlohmann::json::parse(cluster_json(cluster));
    std::set<std::string> figures;
    const auto collect = [&](const auto& self, const nlohmann::json& at,
                             const std::string& place) -> void {
      for (const auto& [key, value] : at.items()) {
        const std::string here = place.empty() ? key : place + "." + key;
        if (here == "sources" || here == "nodes") continue;
        if (value.is_object() && key.find("_by_ranks") == std::string::npos) {
          self(self, value, here);
        } else if (value.is_number() || value.is_object()) {
          figures.insert(here);
        }
      }
    };
    collect(collect, file, "");
    EXPECT_GE(figures.size(), 14u);
    for (const std::string& figure : figures) {
      const auto source = cluster.sources.find(figure);
      ASSERT_NE(source, cluster.sources.end()) << name << ": " << figure << " has no source";
      EXPECT_GT(source->second.size(), 10u) << name << ": " << figure;
    }
    EXPECT_EQ(cluster.sources.size(), figures.size()) << name;
    EXPECT_GT(cluster.memory_bytes, 0) << name;
    EXPECT_FALSE(cluster.oversubscribes) << name;
  }
}

TEST(ClusterFile, NamesThatAreNotKnown) {
  const auto refused = [](const std::string& name) {
    try {
      load_cluster(name);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused("h300"),
            "cluster 'h300' is not known; known are host, v100-32, a100-80, h100, h200, several "
            "nodes of one ('h100:4'), or a file (with a '/' or '.json' in its name)");
  EXPECT_EQ(refused("h100:0"), "cluster 'h100:0': '0' is not a number of nodes, as in 'h100:4'");
  EXPECT_EQ(refused("h100:x"), "cluster 'h100:x': 'x' is not a number of nodes, as in 'h100:4'");
  EXPECT_EQ(refused("./none.json"), "./none.json: cannot open: No such file or directory");
  EXPECT_EQ(refused("h100:128"), "accepted");
}

}  // namespace
}  // namespace shardrun
