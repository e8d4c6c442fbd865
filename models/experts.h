// A mixture of experts in ONNX: each token is sent to the experts that a router chooses for it.
#pragma once

#include <cstdint>
#include <string>

#include "models/onnx_writer.h"

namespace shardrun {

struct ExpertSizes {
  int64_t experts, top_k, slots;  // slots of each expert for the tokens of one sample
  int64_t context, hidden;
};

/// Slots for `capacity` times an expert's even fraction of a sample's context * top_k choices, at
/// least 1 and at most `context`.
int64_t expert_slots(int64_t context, int64_t top_k, int64_t experts, double capacity);

/// Where the tokens of each sample go.
struct ExpertRoutes {
  std::string slot;    // i64 [batch, context * top_k]: expert * slots + place, of a choice that
                       // found no place experts * slots
  std::string weight;  // f32 [batch, context * top_k], 0 where there is no place
};

/// Mixtral's gate (Jiang et al., 2024, section 2.1): the softmax of x [batch, context, hidden]
/// times `router` [hidden, experts] over the top_k experts of each token. With one expert a token,
/// the probability among all, or the router would learn nothing (Fedus et al., 2021). Tokens fill
/// an expert's slots in their order, so that none depends on a later one.
ExpertRoutes route_to_experts(OnnxWriter& w, const std::string& x, const std::string& router,
                              const ExpertSizes& sizes);

/// x [batch, context, hidden] as [batch, experts, slots, hidden]. What lies in an empty slot
/// is some token's, which nobody reads.
std::string send_to_experts(OnnxWriter& w, const std::string& x, const ExpertRoutes& routes,
                            const ExpertSizes& sizes);

/// y [batch, experts, slots, hidden] back as [batch, context, hidden]: the weighted sum of what a
/// token's experts made.
std::string bring_from_experts(OnnxWriter& w, const std::string& y, const ExpertRoutes& routes,
                               const ExpertSizes& sizes);

}  // namespace shardrun
