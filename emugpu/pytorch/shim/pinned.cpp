// Pinned memory of the CPU, which kernels reach at the same addresses.
#include "device.h"
#include "driver.h"

#include <map>
#include <mutex>

namespace emulated {
namespace {

std::mutex lock;
std::map<const void *, size_t> &blocks() {
  static auto *made = new std::map<const void *, size_t>; // tensors may outlive static objects
  return *made;
}

void release(void *address) {
  {
    std::lock_guard<std::mutex> held(lock);
    blocks().erase(address);
  }
  call_at_end("emulatedTensorFree", reinterpret_cast<uint64_t>(address));
}

struct Pinned final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (!nbytes) return {nullptr, cpu};
    use_context();
    void *address = nullptr;
    call<void **, size_t>("cuMemAllocHost_v2", &address, nbytes);
    std::lock_guard<std::mutex> held(lock);
    blocks().emplace(address, nbytes);
    return {address, address, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void *to, const void *from, size_t count) const override { default_copy_data(to, from, count); }
};

} // namespace

c10::Allocator *pinned_allocator() {
  static Pinned pinned;
  return &pinned;
}

bool is_pinned_address(const void *address) {
  std::lock_guard<std::mutex> held(lock);
  auto next = blocks().upper_bound(address);
  if (next == blocks().begin()) return false;
  auto [base, nbytes] = *--next;
  return address < static_cast<const char *>(base) + nbytes;
}

} // namespace emulated
