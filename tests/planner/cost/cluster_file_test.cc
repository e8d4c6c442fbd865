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
  EXPECT_EQ(refusal("{"),
            "c.json: is not JSON, wanted a cluster file; it ends too early, at line 1, column 2");
  EXPECT_EQ(refusal(R"({"name": "a", "flops": {"f32": 1, "f32": 2}})"),
            "c.json: field 'flops.f32' is there twice");
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
  EXPECT_EQ(changed("/within/latency", 1e300),
            "c.json: field 'within.latency' is 1e+300, wanted a number from 1e-30 to 1e30");
  EXPECT_EQ(changed("/within/bandwidth", 1e-300),
            "c.json: field 'within.bandwidth' is 1e-300, wanted a number from 1e-30 to 1e30");
  EXPECT_EQ(changed("/within", 3), "c.json: field 'within' is 3, wanted an object");
  EXPECT_EQ(changed("/flops/f32/reached", 1.5),
            "c.json: field 'flops.f32.reached' is 1.5, wanted a fraction of at most 1");
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
  const nlohmann::json tiles = {{"multiprocessors", 4},
                                {"shapes", {{256, 128}, {64, 64}}},
                                {"cache_bandwidth", {{"peak", 1e12}}},
                                {"latency", 0}};
  const auto of_tiles = [&](const char* name, const nlohmann::json& value) {
    nlohmann::json wrong = tiles;
    wrong[name] = value;
    return changed("/tiles", wrong);
  };
  EXPECT_EQ(changed("/tiles", tiles), "accepted");
  EXPECT_EQ(changed("/tiles", 1), "c.json: field 'tiles' is 1, wanted an object");
  EXPECT_EQ(changed("/tiles", {{"multiprocessors", 4}}), "c.json: field 'tiles.shapes' is missing");
  EXPECT_EQ(of_tiles("multiprocessors", 1e9),
            "c.json: field 'tiles.multiprocessors' is 1000000000.0, wanted a whole number of at "
            "most 65536");
  EXPECT_EQ(of_tiles("latency", -1),
            "c.json: field 'tiles.latency' is -1, wanted a number of at least 0");
  EXPECT_EQ(of_tiles("exponential_flops", 8), "accepted");
  EXPECT_EQ(of_tiles("exponential_flops", 0),
            "c.json: field 'tiles.exponential_flops' is 0, wanted a number above 0");
  using nlohmann::json;
  const json wide = json::array({65537, 64}), half = json::array({64, 0.5}),
             one = json::array({64});
  for (const json& shapes :
       {json(3), json::array(), json::array({64, 64}), json::array({wide}), json::array({half}),
        json::array({one}), json::array({{64, 64}, {128, 64}}),
        json(std::vector<std::vector<int>>(17, {64, 64}))}) {
    EXPECT_NE(of_tiles("shapes", shapes)
                  .find("wanted 1 to 16 pairs [rows, columns] of whole numbers to 65536, the "
                        "largest tile first"),
              std::string::npos)
        << shapes;
  }
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
        } else if (!value.is_string() && !value.is_boolean()) {
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
            "cluster 'h300' is not known; known are host, p100, v100-32, a100-40, a100-80, "
            "h100, h200, tpu-v3, several nodes of one ('h100:4'), or a file (with a '/' or '.json' "
            "in its name)");
  EXPECT_EQ(refused("h100:0"), "cluster 'h100:0': '0' is not a number of nodes, as in 'h100:4'");
  EXPECT_EQ(refused("h100:x"), "cluster 'h100:x': 'x' is not a number of nodes, as in 'h100:4'");
  EXPECT_EQ(refused("./none.json"), "./none.json: cannot open: No such file or directory");
  EXPECT_EQ(refused("h100:128"), "accepted");
  EXPECT_EQ(refused("./none,1x.json"), "./none,1x.json: cannot open: No such file or directory");
  EXPECT_NE(refused("h100,").find("cluster 'h100,': field '' is not known"), std::string::npos);
  EXPECT_EQ(refused("h100:2,speed=2x"),
            "cluster 'h100:2,speed=2x': field 'speed' is not known; known are memory, flops, "
            "memory_bandwidth, within, between, as in 'memory=2x'");
  for (const char* factor : {"2", "x", "-1x", "0x", "2xx", "2 x", "nanx", "infx", "1e9x", ""}) {
    EXPECT_EQ(refused(std::string("h100,within=") + factor),
              std::string("cluster 'h100,within=") + factor + "': within is '" + factor +
                  "', wanted a factor such as 2x or 0.5x");
  }
  EXPECT_EQ(refused("h100,memory"),
            "cluster 'h100,memory': memory is '', wanted a factor such as 2x or 0.5x");
  EXPECT_EQ(refused("h100,flops=2x,flops=3x"),
            "cluster 'h100,flops=2x,flops=3x': flops is there twice");
}

TEST(ClusterFile, FactorsMultiplyFigures) {
  const Cluster one = builtin_cluster("a100-80:2");
  EXPECT_EQ(load_cluster("a100-80:2"), one);
  const Cluster both = load_cluster("a100-80:2,memory=2x,within=2x");
  EXPECT_EQ(both.name, "a100-80:2,memory=2x,within=2x");
  Cluster wanted = one;
  wanted.name = both.name;
  wanted.memory_bytes *= 2;
  wanted.within.bandwidth *= 2;
  wanted.sources["memory_bytes"] += ", times 2 as asked for";
  wanted.sources["within.bandwidth"] += ", times 2 as asked for";
  EXPECT_EQ(both, wanted);
  // Where the bandwidth depends on the number of ranks, all of them.
  const Cluster v100 = builtin_cluster("v100-32"), faster = load_cluster("v100-32,within=1.5x");
  for (const int64_t ranks : {2, 4, 8})
    EXPECT_DOUBLE_EQ(faster.within.bandwidth_of(ranks), 1.5 * v100.within.bandwidth_of(ranks));
  const Cluster h100 = builtin_cluster("h100"),
                half = load_cluster("h100,flops=0.5x,memory_bandwidth=0.25x,between=3x");
  EXPECT_DOUBLE_EQ(half.flops_for(DType::bf16), 0.5 * h100.flops_for(DType::bf16));
  EXPECT_DOUBLE_EQ(half.flops_for(DType::f32), 0.5 * h100.flops_for(DType::f32));
  EXPECT_DOUBLE_EQ(half.tiles.cache_bandwidth.value(), 0.5 * h100.tiles.cache_bandwidth.value());
  EXPECT_NE(half.sources.at("tiles.cache_bandwidth.peak").find("times 0.5"), std::string::npos);
  EXPECT_DOUBLE_EQ(half.memory_bandwidth.value(), 0.25 * h100.memory_bandwidth.value());
  EXPECT_DOUBLE_EQ(half.between.bandwidth, 3 * h100.between.bandwidth);
  EXPECT_EQ(half.within, h100.within);
  EXPECT_EQ(parse_cluster(cluster_json(half), "written"), half);
}

}  // namespace
}  // namespace shardrun
