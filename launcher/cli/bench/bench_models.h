// The models of `bench weak-scaling`: one for each number of ranks, so that a rank's work stays.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace shardrun::cli {

struct BenchModel {
  std::string size;                // "4 layers, hidden 512, batch 8", for people
  std::vector<std::string> train;  // flags of `shardrun train` that it needs
  std::function<void(const std::string& path)> write;  // without weights
};

std::vector<std::string> bench_models();  // gpt, wide-resnet, gat

std::vector<std::string> bench_scales();  // tiny, small, paper

/// tiny: to see that the command works; small: for a machine of a few cores; both for any number of
/// ranks. paper: MetaDist's (Tables 2 to 4), for 1, 2, 4 and 8. Throws Failure(call).
BenchModel bench_model(const std::string& name, const std::string& scale, int ranks);

}  // namespace shardrun::cli
