// The memory of PyTorch's emulated device, by calls of the emulated driver, which this process has loaded.
#include "device.h"
#include "driver.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace emulated {
namespace {

struct Block {
  void *address;
  size_t nbytes;
  bool written; // every byte of it
};

// What torch.cuda.memory_stats tells: of bytes, in steps of 512 as on a GPU, and of allocations.
struct Count {
  int64_t current, peak, allocated, freed;

  void add(int64_t amount) {
    current += amount;
    peak = std::max(peak, current);
    (amount > 0 ? allocated : freed) += std::abs(amount);
  }
};
std::mutex counting;
Count counts[2];

void count(size_t nbytes, int sign) {
  std::lock_guard<std::mutex> held(counting);
  counts[0].add(sign * static_cast<int64_t>((nbytes + 511) / 512 * 512));
  counts[1].add(sign);
}

void release(void *context) {
  auto block = static_cast<Block *>(context);
  call_at_end("emulatedTensorFree", reinterpret_cast<uint64_t>(block->address));
  count(block->nbytes, -1);
  delete block;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    if (!nbytes) return {nullptr, GPU};
    use_context();
    uint64_t address = 0;
    call<uint64_t *, uint64_t>("emulatedTensorAllocate", &address, nbytes);
    count(nbytes, 1);
    auto block = new Block{reinterpret_cast<void *>(address), nbytes, false};
    return {block->address, block, &release, GPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void *to, const void *from, size_t count) const override { default_copy_data(to, from, count); }
};

struct Range {
  uint64_t address, nbytes;
};
constexpr size_t MOST_RANGES = 4096; // of a tensor with more, what lies between its elements counts as written, too

struct Dimension {
  int64_t size, stride; // the stride in bytes
};

// Adds the ranges of memory that the elements of a tensor take; `outer` dimensions come with descending strides.
void add_ranges(std::vector<Range> &found, uint64_t address, uint64_t item, const Dimension *outer, size_t count) {
  uint64_t dense = item;
  size_t inner = count;
  while (inner && static_cast<uint64_t>(outer[inner - 1].stride) <= dense) {
    auto [size, stride] = outer[--inner];
    dense += (size - 1) * stride;
  }
  if (!inner || found.size() >= MOST_RANGES) {
    for (size_t i = 0; i < inner; i++) dense += (outer[i].size - 1) * outer[i].stride;
    found.push_back({address, dense});
    return;
  }
  for (int64_t i = 0; i < outer[0].size; i++)
    add_ranges(found, address + i * outer[0].stride, item, outer + 1, count - 1);
}

} // namespace

c10::Allocator *allocator() {
  static Memory memory;
  return &memory;
}

void mark_written(const at::TensorBase &tensor) {
  const auto &data = tensor.storage().data_ptr();
  if (data.get_deleter() != &release || !tensor.numel()) return;
  auto block = static_cast<Block *>(data.get_context());
  if (block->written) return;
  std::vector<Dimension> dimensions;
  const auto item = static_cast<int64_t>(tensor.itemsize());
  for (int64_t i = 0; i < tensor.dim(); i++)
    if (tensor.size(i) > 1 && tensor.stride(i)) dimensions.push_back({tensor.size(i), tensor.stride(i) * item});
  std::stable_sort(dimensions.begin(), dimensions.end(), [](auto &a, auto &b) { return a.stride > b.stride; });
  std::vector<Range> ranges;
  auto address = reinterpret_cast<uint64_t>(block->address) + tensor.storage_offset() * item;
  add_ranges(ranges, address, item, dimensions.data(), dimensions.size());
  call<const void *, int>("emulatedTensorWritten", ranges.data(), static_cast<int>(ranges.size()));
  block->written = ranges.size() == 1 && ranges[0].nbytes >= block->nbytes;
}

void use_context() {
  static thread_local bool ready = false;
  if (ready) return;
  static void *const context = [] {
    void *made = nullptr;
    call<unsigned>("cuInit", 0);
    call<void **, int>("cuDevicePrimaryCtxRetain", &made, 0);
    return made;
  }();
  call<void *>("cuCtxSetCurrent", context);
  ready = true;
}

void synchronize() {
  use_context();
  call("cuCtxSynchronize");
}

static thread_local void *current_stream = nullptr;

void synchronize_stream() {
  use_context();
  call("cuStreamSynchronize", current_stream);
}

static std::mutex names;
static std::unordered_set<std::string> told;

void tell_computed(const std::string &name) {
  {
    std::lock_guard<std::mutex> lock(names);
    if (!told.insert(name).second) return;
  }
  call<const char *>("emulatedTensorComputed", name.c_str());
}

void tell_refused(const std::string &name) { call<const char *>("emulatedTensorRefused", name.c_str()); }

} // namespace emulated

// What emugpu/pytorch calls through ctypes.
extern "C" {
#define EXPORTED __attribute__((visibility("default")))

// A section of the emulated GPU begins, with an empty log.
EXPORTED void emulated_section_begins() {
  std::lock_guard<std::mutex> lock(emulated::names);
  emulated::told.clear();
}

EXPORTED void emulated_make_current(void *stream) { emulated::current_stream = stream; }

EXPORTED c10::Allocator *emulated_allocator() { return emulated::allocator(); }

// Copies the counts of bytes and of allocations.
EXPORTED void emulated_counts(int64_t *to) {
  std::lock_guard<std::mutex> held(emulated::counting);
  std::memcpy(to, emulated::counts, sizeof emulated::counts);
}

// Forgets what was: the peaks, or the sums of all that was allocated and freed.
EXPORTED void emulated_forget(bool peaks) {
  std::lock_guard<std::mutex> held(emulated::counting);
  for (auto &each : emulated::counts)
    each = peaks ? emulated::Count{each.current, each.current, each.allocated, each.freed}
                 : emulated::Count{each.current, each.peak, 0, 0};
}
}
