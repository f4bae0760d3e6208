// Page-mapped memory that the kernel is asked to back with huge pages.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace radish {

constexpr int64_t kHugePage = 2 << 20;

// Zeroed and 2 MiB aligned when large; nullptr when there is none.
inline char* map_memory(int64_t bytes) {
  const int64_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* raw = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  if (slack == 0) return static_cast<char*>(raw);
  char* start = static_cast<char*>(raw);
  char* aligned = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(start) + kHugePage - 1) & ~(kHugePage - 1));
  if (aligned > start) munmap(start, aligned - start);
  if (start + slack > aligned) munmap(aligned + bytes, start + slack - aligned);
#ifdef MADV_HUGEPAGE
  madvise(aligned, bytes, MADV_HUGEPAGE);
#endif
  return aligned;
}

inline int64_t whole_pages(int64_t bytes) { return (bytes + 4095) & ~int64_t{4095}; }

// A growing buffer; its contents are lost when it grows.
class Memory {
 public:
  Memory() = default;
  ~Memory() { release(); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Memory(Memory&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
    other.data_ = nullptr;
    other.bytes_ = 0;
  }

  char* data() const { return data_; }

  void reserve(int64_t bytes) {
    if (bytes <= bytes_) return;
    release();
    const int64_t rounded = whole_pages(bytes + bytes / 4);
    data_ = map_memory(rounded);
    if (data_ == nullptr) throw std::bad_alloc();
    bytes_ = rounded;
  }

 private:
  void release() {
    if (data_ != nullptr) munmap(data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
  }

  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace radish
