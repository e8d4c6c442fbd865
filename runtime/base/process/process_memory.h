// What memory this process holds, as Linux counts it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shardrun {

/// Bytes that are in memory now. Zeros where /proc cannot be read.
struct ProcessMemory {
  int64_t resident = 0;  // all that it maps, shared with others or not
  /// The same, but of what n processes map each has an nth (the kernel's Pss): those of several
  /// processes add up to what they take together.
  int64_t proportional = 0;
};
ProcessMemory process_memory();

/// What a process may map at most, used or not (`ulimit -v`), and what it maps now, in bytes.
struct AddressSpace {
  int64_t limit = 0, mapped = 0;
};
/// nullopt: there is no limit.
std::optional<AddressSpace> address_space();

/// From now on require_memory lets this process hold so many.
void limit_process_memory(int64_t bytes);
/// Before `bytes` are taken: throws out_of_memory where this process would then hold more than it
/// may. `takes`: "a.npz: array 'x' takes 8192 bytes unpacked", for the message; `advice` ends it.
void require_memory(int64_t bytes, const std::string& takes, const std::string& advice);

/// Bytes of the heap that are in use, with mimalloc of this thread's; 0 where the allocator does
/// not say.
int64_t heap_in_use();

/// Gives what the heap has free back to the system, which else keeps much of what planning took.
/// With mimalloc that is whole blocks of 32 MiB alone, unless what was freed went back at once.
void trim_heap();

/// From now on mimalloc gives what is freed back at once, in place of after some 25 ms, if then
/// anything is freed next to it. Planning takes up to a tenth longer by that.
void return_freed_memory_at_once();

}  // namespace shardrun
