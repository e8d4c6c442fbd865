// A Communicator whose ranks compare each call before they make it.
#pragma once

#include <memory>

#include "collectives/communicator.h"

namespace shardrun {

/// `inner`, of memory of the host, and all that is split from it, with every collective announced:
/// before it is made its ranks exchange kind, bytes, reduction and number (the group's calls
/// counted from 1). Where they differ every rank of the group throws Error(comm):
///
///   checked collectives: rank 0 enters call 17, all_gather of 64 bytes between ranks 0 and 1, and
///   rank 1 all_reduce of 4096 bytes
///
/// Ranks that wait in calls of different groups for each other throw, too, within a second
/// (refuse_circle in collectives/job.h). All ranks have it, or none. send and recv are not checked.
/// A call costs one small message more.
std::unique_ptr<Communicator> make_checked(std::unique_ptr<Communicator> inner);

/// The same for `inner`, of memory of a device, if `host`, by which it was made, is checked; else
/// `inner` itself. Its calls are announced between the hosts, "device all_reduce", before the
/// device is asked for them, and cannot be recorded.
std::unique_ptr<Communicator> checked_as(Communicator& host, std::unique_ptr<Communicator> inner);

}  // namespace shardrun
