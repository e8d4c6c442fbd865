// shardrun bench: measurements that anybody can repeat.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shardrun::cli {

/// How benches start ranks of MPI, unless --mpirun says otherwise.
inline constexpr const char* kMpirun = "mpirun --oversubscribe --bind-to none";

/// One of bench's subcommands, and what it does if the call names it: returns the exit status or
/// throws Failure.
struct Bench {
  CLI::App* command;
  std::function<int()> run;
  bool on_all = false;  // under mpirun it runs on every process, else on the first
};

Bench add_bench_weak_scaling(CLI::App& bench);
Bench add_bench_checkpoint(CLI::App& bench);
Bench add_bench_collectives(CLI::App& bench);
Bench add_bench_ops(CLI::App& bench);
Bench add_bench_step(CLI::App& bench);
Bench add_bench_sample(CLI::App& bench);

}  // namespace shardrun::cli
