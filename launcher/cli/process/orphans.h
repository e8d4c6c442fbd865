// Ranks whose launcher has ended before them.
#pragma once

namespace shardrun::cli {

/// From now on processes below this one whose parent ends become its children (prctl(2),
/// PR_SET_CHILD_SUBREAPER).
void adopt_orphans();

/// Ends by SIGKILL all processes below this one that run this program's file, and waits until they
/// are no more, for ten seconds at most. Others go on, such as a connection that ssh keeps. Reaps
/// the children that have ended; to be called where nobody else waits for any.
void end_orphans();

}  // namespace shardrun::cli
