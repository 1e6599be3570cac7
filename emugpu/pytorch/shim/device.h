// What the parts of PyTorch's emulated device share.
#pragma once
#include <ATen/core/TensorBase.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <string>

namespace emulated {

inline const c10::Device GPU{c10::DeviceType::CUDA, 0};

// The allocator of tensors on the device: each storage is an allocation of the driver.
c10::Allocator *allocator();

// The allocator of pinned memory, and whether an address lies in such memory.
c10::Allocator *pinned_allocator();
bool is_pinned_address(const void *address);

// Tells the driver that the CPU has written all elements of a tensor on the device.
void mark_written(const at::TensorBase &tensor);

// Makes the device's context current in this thread, as NVIDIA's runtime does.
void use_context();

// Raises an error if a device is not the only one that there is.
void require(c10::Device device);

// Waits for all launches, or for those of this thread's current stream, and raises the error of one that failed.
void synchronize();
void synchronize_stream();

// Tells the driver that PyTorch computes an operator on the CPU. A name is told once in a section.
void tell_computed(const std::string &name);

// Tells the driver that an operator exists for CUDA alone.
void tell_refused(const std::string &name);

} // namespace emulated
