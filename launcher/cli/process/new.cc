// The command's `new` and `delete`: mimalloc's ends a process that finds no memory, this one
// throws.
#include <cstdlib>
#include <new>

namespace {

void* given(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* allocated(std::size_t bytes) { return given(std::malloc(bytes > 0 ? bytes : 1)); }
void* allocated(std::size_t bytes, std::align_val_t alignment) {
  const auto a = static_cast<std::size_t>(alignment);
  return given(std::aligned_alloc(a, bytes > 0 ? (bytes + a - 1) / a * a : a));
}

}  // namespace

void* operator new(std::size_t bytes) { return allocated(bytes); }
void* operator new[](std::size_t bytes) { return allocated(bytes); }
void* operator new(std::size_t bytes, std::align_val_t a) { return allocated(bytes, a); }
void* operator new[](std::size_t bytes, std::align_val_t a) { return allocated(bytes, a); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
