// The thread that keeps KV pages backed, for who owns their memory.
#include "backing.h"

#include <new>

#pragma GCC visibility push(default)
extern "C" {

void* radish_backing_create(char* memory, int64_t layers, int64_t pages, int64_t page_bytes, int64_t ahead) {
  return new (std::nothrow) radish::Backing(memory, layers, pages, page_bytes, ahead);
}
void radish_backing_destroy(void* backing) { delete static_cast<radish::Backing*>(backing); }

}  // extern "C"
#pragma GCC visibility pop
