// Preloaded into Python: the aligned memory of PyTorch's CPU allocator comes from the emulated driver, so that the
// address of a CPU tensor is one that kernels can use.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef int (*Allocate)(uint64_t *, size_t, unsigned);
typedef int (*Release)(uint64_t);
static Allocate allocate;
static Release release_managed;
static uint64_t lowest = UINT64_MAX, highest;
static __thread int inside; // the driver's own calls of these functions

void managed_memory_begins(Allocate allocation, Release release) {
  release_managed = release;
  allocate = allocation;
}

int posix_memalign(void **result, size_t alignment, size_t size) {
  static int (*usual)(void **, size_t, size_t);
  if (!usual) usual = dlsym(RTLD_NEXT, "posix_memalign");
  if (!allocate || inside || !size) return usual(result, alignment, size);
  uint64_t address = 0;
  inside = 1;
  int error = allocate(&address, size, 1); // CU_MEM_ATTACH_GLOBAL
  inside = 0;
  if (error) return usual(result, alignment, size);
  if (address < lowest) lowest = address;
  if (address > highest) highest = address;
  *result = (void *)address;
  return 0;
}

// The driver reserves the addresses of its memory, so malloc returns none between two of its allocations.
void free(void *pointer) {
  static void (*usual)(void *);
  uint64_t address = (uint64_t)pointer;
  if (allocate && address >= lowest && address <= highest) {
    inside = 1;
    release_managed(address);
    inside = 0;
    return;
  }
  if (!usual) usual = dlsym(RTLD_NEXT, "free");
  usual(pointer);
}
