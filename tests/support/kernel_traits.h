// Traits of a backend that is nothing but its kernels: what they need, and how their steps fuse.
#pragma once

#include "exec/executor.h"
#include "program/compile.h"

namespace shardrun::test {

inline BackendTraits with_kernels(BackendTraits traits, std::span<const KernelList* const> lists) {
  const StepNeeds needs(lists);
  traits.needs = needs;
  traits.fusion = [needs](const Program& program, const Step& step, int threads) {
    return needs.fusion(program, step, threads);
  };
  return traits;
}

}  // namespace shardrun::test
