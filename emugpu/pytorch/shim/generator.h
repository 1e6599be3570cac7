// A generator of random numbers of the device: one of the CPU, which draws for it.
#pragma once
#include <ATen/core/Generator.h>

namespace emulated {

struct Generator final : c10::GeneratorImpl {
  explicit Generator(at::Generator on_cpu);
  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl &state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  at::Generator on_cpu;

private:
  Generator *clone_impl() const override;
};

} // namespace emulated
