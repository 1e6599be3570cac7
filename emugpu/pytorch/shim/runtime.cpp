// What PyTorch asks of a device that is no operator: its guard, its hooks and its generators of random numbers.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "generator.h"

namespace emulated {
namespace {

// There is one device, and all work has ended when a call returns; so events have nothing to wait for.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, GPU); }
  c10::DeviceType type() const override { return GPU.type(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    setDevice(device);
    return GPU;
  }
  c10::Device getDevice() const override { return GPU; }
  void setDevice(c10::Device device) const override {
    require(device);
    use_context();
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  void *getStreamNativeHandle(const c10::Stream) const override { return nullptr; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void **, const c10::Stream &, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void *, const c10::Stream &) const override {}
  bool queryEvent(void *) const override { return true; }
  bool queryStream(const c10::Stream &) const override { return true; }
  void synchronizeStream(const c10::Stream &) const override { synchronize(); }
  void synchronizeEvent(void *) const override { synchronize(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { synchronize(); }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

} // namespace

void require(c10::Device device) {
  TORCH_CHECK(device.index() <= 0, "CUDA error: invalid device ordinal: ", device, "; the emulated GPU is cuda:0");
}

Generator::Generator(at::Generator on_cpu)
    : GeneratorImpl(GPU, c10::DispatchKeySet(c10::DispatchKey::CUDA)), on_cpu(std::move(on_cpu)) {}
void Generator::set_current_seed(uint64_t seed) { on_cpu.set_current_seed(seed); }
void Generator::set_offset(uint64_t offset) { on_cpu.set_offset(offset); }
uint64_t Generator::get_offset() const { return on_cpu.get_offset(); }
uint64_t Generator::current_seed() const { return on_cpu.current_seed(); }
uint64_t Generator::seed() { return on_cpu.seed(); }
void Generator::set_state(const c10::TensorImpl &state) { on_cpu.unsafeGetGeneratorImpl()->set_state(state); }
c10::intrusive_ptr<c10::TensorImpl> Generator::get_state() const {
  return on_cpu.unsafeGetGeneratorImpl()->get_state();
}
Generator *Generator::clone_impl() const { return new Generator(on_cpu.clone()); }

struct Hooks final : at::CUDAHooksInterface {
  void init() const override { use_context(); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void deviceSynchronize(c10::DeviceIndex) const override { synchronize(); }
  c10::Device getDeviceFromPtr(void *) const override { return GPU; }
  c10::Allocator *getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void *data) const override { return is_pinned_address(data); }
  c10::Allocator *getCUDADeviceAllocator() const override { return allocator(); }
  std::string showConfig() const override { return "emulated GPU"; }
  const at::Generator &getDefaultGenerator(c10::DeviceIndex) const override {
    static at::Generator shared = at::make_generator<Generator>(at::detail::getDefaultCPUGenerator());
    return shared;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<Generator>(at::detail::createCPUGenerator());
  }
};

// PyTorch has made its hooks when it was imported: those of a build without a GPU. These take their place.
static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));
static const auto *hooks = new (const_cast<at::CUDAHooksInterface *>(&at::detail::getCUDAHooks())) Hooks;

} // namespace emulated
