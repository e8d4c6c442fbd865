// What of a Program's steps waits for what, where collectives have streams of their own.
#pragma once

#include <vector>

#include "base/named.h"
#include "graph/program.h"
#include "simulate/rank_lanes.h"

namespace shardrun {

enum class CommStreams {
  none,  // collectives stand between kernels
  one,   // a stream for all collectives, as the Executor has on GPUs
  axes   // a stream for each set of axes that collectives are over
};
inline constexpr Named<CommStreams> kCommStreams[] = {
    {"none", CommStreams::none}, {"one", CommStreams::one}, {"axes", CommStreams::axes}};

struct StepOrder {
  int stream = 0;          // 0: kernels', else that of a collective, from 1
  std::vector<int> after;  // steps of the same phase and other streams that end before it begins
};

struct ProgramOrder {
  std::vector<StepOrder> steps;  // by step
  int streams = 1;
};

/// A collective that ranks meet for: no move within a rank.
bool communicates(const Step& step);
/// The axes of the mesh over which one is, ascending.
AxisSet axes_of(const Step& step);

/// Of a program whose memory is placed, as stream_waits says (runtime/base/streams/stream_waits.h),
/// phase by phase. A phase ends when all of its steps have: that is for the caller to see to.
ProgramOrder order_of(const Program& program, CommStreams streams);

}  // namespace shardrun
