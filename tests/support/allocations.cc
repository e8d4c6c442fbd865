// operator new that counts, and oneDNN's entries that a step uses, around which it does not.
#include "tests/support/allocations.h"

#include <dlfcn.h>
#include <omp.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> count{0};
thread_local bool in_onednn = false;
std::atomic<int> ranks_in_onednn{0};  // its OpenMP threads allocate then too

void* counted(size_t bytes, size_t alignment) {
  if (!in_onednn && !(ranks_in_onednn > 0 && omp_get_thread_num() > 0)) ++count;
  void* at = nullptr;
  if (posix_memalign(&at, alignment < sizeof(void*) ? sizeof(void*) : alignment, bytes) != 0)
    throw std::bad_alloc();
  return at;
}

/// The function of that name behind this program's own.
template <class F, class... A>
auto behind(const char* name, A... arguments) {
  const auto function = reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
  in_onednn = true, ++ranks_in_onednn;
  const auto status = function(arguments...);
  in_onednn = false, --ranks_in_onednn;
  return status;
}

}  // namespace

void* operator new(size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<size_t>(alignment));
}
// std::stable_sort's. AddressSanitizer has its own, whose memory std::free() would not take.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, size_t) noexcept { std::free(at); }
void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void* at, size_t, std::align_val_t) noexcept { std::free(at); }

// As oneDNN declares them, with its objects behind pointers of no type: a program that has no
// oneDNN links this file too, and never comes here.
extern "C" int dnnl_primitive_execute(const void* primitive, void* stream, int count,
                                      const void* arguments) {
  return behind<int(const void*, void*, int, const void*)>("dnnl_primitive_execute", primitive,
                                                           stream, count, arguments);
}
extern "C" int dnnl_memory_set_data_handle_v2(void* memory, void* handle, void* stream) {
  return behind<int(void*, void*, void*)>("dnnl_memory_set_data_handle_v2", memory, handle, stream);
}

namespace shardrun::test {

int64_t allocations() { return count; }

}  // namespace shardrun::test
