// BoxesOnHost: where tests move boxes as a GPU does, without one.
#pragma once

#include <cstring>

#include "device/cuda/box_bodies.h"

namespace shardrun::cuda {

struct BoxesOnHost {
  template <class Body>
  void each(int64_t count, const Body& body) const {
    for (int64_t i = 0; i < count; ++i) body(i);
  }
  /// What no thread has loaded is a number that none of a test's is.
  template <class Body>
  void tiles(int64_t count, const Body& body) const {
    typename Body::Element tile[Body::kTileElements];
    for (int64_t i = 0; i < count; ++i) {
      std::memset(tile, 0xa5, sizeof tile);
      for (int thread = 0; thread < Body::kThreads; ++thread) body.load(i, thread, tile);
      for (int thread = 0; thread < Body::kThreads; ++thread) body.store(i, thread, tile);
    }
  }
};

}  // namespace shardrun::cuda
