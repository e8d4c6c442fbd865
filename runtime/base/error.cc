// Printable names of error kinds.
#include "base/error.h"

namespace shardrun {

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_input: return "invalid input";
    case ErrorKind::unsupported: return "unsupported";
    case ErrorKind::out_of_memory: return "out of memory";
    case ErrorKind::device: return "device";
    case ErrorKind::comm: return "communication";
    case ErrorKind::internal: return "internal";
  }
  return "unknown";
}

}  // namespace shardrun
