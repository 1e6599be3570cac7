// The operators of PyTorch's emulated device. Those that only make or reshape tensors work on the device's tensors.
// All others run as those of the CPU, on CPU tensors over the same memory.
#include "device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/op_registration.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <unordered_map>
#include <unordered_set>

#include "generator.h"

namespace emulated {
namespace {

using at::Tensor;
using c10::IValue;
constexpr c10::DispatchKeySet CUDA{c10::DispatchKey::CUDA};

bool on_gpu(const Tensor &tensor) { return tensor.defined() && tensor.is_cuda(); }

// The CPU tensors over the memory of the device's tensors in one call of an operator.
class Aliases {
public:
  explicit Aliases(const std::string &name) : name(name) {}

  Tensor cpu(const Tensor &tensor, bool written) {
    if (!on_gpu(tensor)) {
      other |= tensor.defined() && tensor.dim() && !tensor.is_meta();
      return tensor;
    }
    TORCH_CHECK(tensor.layout() == at::kStrided && tensor.has_storage(), name, ": a tensor of layout ", tensor.layout(),
                " on the emulated GPU; only strided tensors are supported");
    any = true;
    auto impl = tensor.unsafeGetTensorImpl();
    auto known = made.find(impl);
    if (known == made.end()) known = made.emplace(impl, Alias{tensor, over(tensor), false}).first;
    known->second.written |= written;
    return known->second.cpu;
  }

  IValue cpu(const IValue &value, bool written) {
    if (value.isTensor()) return cpu(value.toTensor(), written);
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor &each : value.toTensorVector()) list.push_back(cpu(each, written));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor> &each : value.toOptionalTensorVector())
        list.push_back(each ? std::optional<Tensor>(cpu(*each, written)) : each);
      return list;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(c10::DeviceType::CPU);
    if (value.isGenerator())
      if (auto own = dynamic_cast<Generator *>(value.toGenerator().unsafeGetGeneratorImpl())) return own->on_cpu;
    return value;
  }

  // Whether tensors of both devices were given; a CPU tensor without dimensions counts as a number.
  bool mixed() const { return any && other; }

  // Brings what the operator has changed back to the tensors of the device.
  void finish() {
    for (auto &[impl, alias] : made)
      if (alias.written) {
        keep_resized(alias);
        mark_written(alias.tensor);
      }
  }

  IValue gpu(const IValue &value) {
    if (value.isTensor()) return gpu(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> list;
    for (const Tensor &each : value.toTensorVector()) list.push_back(gpu(each));
    return list;
  }

private:
  struct Alias {
    Tensor tensor, cpu;
    bool written;
  };

  Tensor over(const Tensor &tensor) {
    auto storage = storages.find(tensor.storage().unsafeGetStorageImpl());
    if (storage == storages.end()) {
      // An operator in Python may keep its argument, so the CPU tensor keeps the memory of the device's tensor alive.
      auto owner = new c10::Storage(tensor.storage());
      c10::DataPtr data(owner->mutable_data(), owner, [](void *it) { delete static_cast<c10::Storage *>(it); },
                        c10::Device(c10::DeviceType::CPU));
      auto made = c10::Storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data),
                               c10::GetAllocator(c10::DeviceType::CPU), /*resizable=*/true);
      storage = storages.emplace(tensor.storage().unsafeGetStorageImpl(), made).first;
    }
    return shaped(storage->second, c10::DispatchKey::CPU, tensor);
  }

  static Tensor shaped(c10::Storage storage, c10::DispatchKey key, const Tensor &like) {
    auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
    auto impl = made.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    made._set_conj(like.is_conj());
    made._set_neg(like.is_neg());
    return made;
  }

  static c10::DataPtr moved(const c10::Storage &from) {
    auto data = allocator()->allocate(from.nbytes());
    if (from.nbytes()) std::memcpy(data.get(), from.data(), from.nbytes());
    return data;
  }

  void keep_resized(Alias &alias) {
    auto impl = alias.tensor.unsafeGetTensorImpl();
    const auto &storage = alias.tensor.storage();
    if (alias.cpu.storage().data() != storage.data()) {
      storage.unsafeGetStorageImpl()->set_data_ptr_noswap(moved(alias.cpu.storage()));
      storage.unsafeGetStorageImpl()->set_nbytes(alias.cpu.storage().nbytes());
    }
    if (alias.cpu.sizes() != alias.tensor.sizes() || alias.cpu.strides() != alias.tensor.strides())
      impl->set_sizes_and_strides(alias.cpu.sizes(), alias.cpu.strides(), alias.cpu.storage_offset());
  }

  Tensor gpu(const Tensor &result) {
    if (!result.defined() || !result.is_cpu()) return result;
    for (auto &[impl, alias] : made)
      if (alias.cpu.is_same(result)) return alias.tensor;
    TORCH_CHECK(result.layout() == at::kStrided, name, ": a result of layout ", result.layout(),
                " on the emulated GPU; only strided tensors are supported");
    for (auto &[impl, storage] : storages)
      if (storage.is_alias_of(result.storage()))
        for (auto &[own, alias] : made)
          if (alias.tensor.storage().unsafeGetStorageImpl() == impl)
            return shaped(alias.tensor.storage(), c10::DispatchKey::CUDA, result);
    c10::Storage storage(c10::Storage::use_byte_size_t(), result.storage().nbytes(), moved(result.storage()),
                         allocator(), /*resizable=*/true);
    auto made = shaped(storage, c10::DispatchKey::CUDA, result);
    auto all = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), CUDA, caffe2::TypeMeta::Make<uint8_t>());
    all.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(storage.nbytes())});
    mark_written(all);
    return made;
  }

  const std::string &name;
  bool any = false, other = false;
  std::unordered_map<c10::TensorImpl *, Alias> made;
  std::unordered_map<c10::StorageImpl *, c10::Storage> storages;
};

// Operators that on a GPU, too, take CPU tensors for a tensor of the device, which is the first argument.
const std::unordered_set<std::string> MIXES = {
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index",
    "aten::_unsafe_index_put", "aten::_pin_memory",
};

// Whether an operator stores to a CPU tensor. On a GPU, too, it takes indices of the device (PyTorch moves them to the
// tensor that it stores to), and a value of the device if that has no dimensions.
bool stores_to_cpu(const std::string &name, const IValue *arguments) {
  if (!MIXES.count(name) || name.find("index_put") == std::string::npos) return false;
  if (on_gpu(arguments[0].toTensor())) return false;
  return !on_gpu(arguments[2].toTensor()) || !arguments[2].toTensor().dim();
}

// Operators that keep statistics and sums of bfloat16 and half in float on a GPU, and in their own type on a CPU.
const std::unordered_set<std::string> IN_FLOAT = {
    "aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::native_group_norm",
    "aten::native_group_norm_backward",
};

// Operators that take more types and layouts on a GPU than on a CPU: what the CPU refuses says nothing of a GPU.
const std::unordered_set<std::string> WIDER_ON_GPU = {"aten::_scaled_mm", "aten::_scaled_mm_v2"};

// Makes arguments float. Returns the type that they had, if they were bfloat16 or half.
std::optional<at::ScalarType> widen(torch::jit::Stack &stack, size_t first) {
  at::AutoDispatchBelowAutograd guard;
  std::optional<at::ScalarType> found;
  for (size_t i = first; i < stack.size(); i++) {
    auto tensor = stack[i].isTensor() ? stack[i].toTensor() : Tensor();
    if (!tensor.defined() || !at::isReducedFloatingType(tensor.scalar_type())) continue;
    found = found.value_or(tensor.scalar_type());
    stack[i] = tensor.to(at::kFloat);
  }
  return found;
}

// Whether the host waits for the device to learn the size of a result: how many elements a mask selects, or are unique.
bool waits_for_size(const c10::OperatorHandle &op, const std::string &name, const IValue &last) {
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return false;
  if (name == "aten::repeat_interleave") return last.isNone();
  if (name != "aten::index") return true;
  for (const std::optional<Tensor> &each : last.toOptionalTensorVector())
    if (each && each->defined() && (each->scalar_type() == at::kBool || each->scalar_type() == at::kByte)) return true;
  return false;
}

void run_on_cpu(const c10::OperatorHandle &op, c10::DispatchKeySet, torch::jit::Stack *stack) {
  const auto &schema = op.schema();
  const std::string &name = schema.name();
  const auto first = stack->size() - schema.arguments().size();
  const auto narrow = IN_FLOAT.count(name) ? widen(*stack, first) : std::nullopt;
  Aliases aliases(name);
  const bool to_cpu = stores_to_cpu(name, stack->data() + first);
  const bool mixes = to_cpu || (MIXES.count(name) && (*stack)[first].isTensor() && on_gpu((*stack)[first].toTensor()));
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto *alias = schema.arguments()[i].alias_info();
    IValue &value = (*stack)[first + i];
    value = aliases.cpu(value, alias && alias->isWrite());
  }
  TORCH_CHECK(!aliases.mixed() || mixes, "Expected all tensors to be on the same device, but found at "
              "least two devices, cuda:0 and cpu! (in ", name, ")");
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
    tell_refused(name);
    TORCH_CHECK_NOT_IMPLEMENTED(false, name, " is an operator that PyTorch has for CUDA alone; the emulated GPU runs "
                                "PyTorch's operators by those of the CPU, and cannot run this one");
  }
  tell_computed(name);
  const bool copies_index = mixes && aliases.mixed();  // to the other device; the host waits for that
  if (copies_index || waits_for_size(op, name, stack->back())) synchronize_stream();
  try {
    at::AutoDispatchBelowAutograd guard;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  } catch (const c10::Error &) {
    if (WIDER_ON_GPU.count(name)) tell_refused(name);
    throw;
  }
  aliases.finish();
  const auto results = stack->size() - schema.returns().size();
  for (size_t i = results; i < stack->size(); i++) {
    IValue &value = (*stack)[i];
    if (!value.isTensor() && !value.isTensorList()) synchronize_stream();
    if (!to_cpu) value = aliases.gpu(value);
    // The statistics that a forward operator returns behind its result stay in float.
    const bool statistics = i > results && name.find("backward") == std::string::npos;
    if (narrow && !statistics && value.toTensor().defined()) value = value.toTensor().to(*narrow);
  }
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  require(device.value_or(GPU));
  return Tensor(at::detail::empty_generic(size, allocator(), CUDA, c10::dtype_or_default(dtype), format));
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  require(device.value_or(GPU));
  return Tensor(at::detail::empty_strided_generic(size, stride, allocator(), CUDA, c10::dtype_or_default(dtype)));
}

// Copies between the devices, and on the device. A copy between the devices is in the current stream. The host waits
// for it, except for a non-blocking one that is not to pageable memory (CUDA Driver API, API synchronization behavior).
Tensor &copy(Tensor &to, const Tensor &from, bool non_blocking) {
  static const std::string name = "aten::copy_";
  const bool to_pageable = !on_gpu(to) && !is_pinned_address(to.const_data_ptr());
  if (on_gpu(to) != on_gpu(from) && (!non_blocking || to_pageable)) synchronize_stream();
  Aliases aliases(name);
  auto target = aliases.cpu(to, true), source = aliases.cpu(from, false);
  at::AutoDispatchBelowAutograd guard;
  target.copy_(source, non_blocking);
  aliases.finish();
  return to;
}

Tensor &set_empty(Tensor &tensor) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, allocator(), /*resizable=*/true);
  return at::native::set_storage_cpu_(tensor, storage, 0, {0}, {});
}

Tensor attention(const Tensor &query, const Tensor &key, const Tensor &value, const std::optional<Tensor> &mask,
                 double dropout, bool causal, std::optional<double> scale, bool grouped) {
  return std::get<0>(
      at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, std::nullopt, scale, grouped));
}

void record_stream(Tensor &, c10::Stream) {}
bool is_pinned(const Tensor &, std::optional<at::Device>) { return false; }

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy);
  m.impl("record_stream", record_stream);
  m.impl("is_pinned", is_pinned);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("resize_", at::native::resize_);
  m.impl("set_", set_empty);
  m.impl("set_.source_Storage", [](Tensor &self, at::Storage source) -> Tensor & {
    return at::native::set_(self, source);
  });
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("scaled_dot_product_attention", attention);
  m.impl("mm.dtype", [](const Tensor &a, const Tensor &b, at::ScalarType type) { return a.to(type).mm(b.to(type)); });
  m.impl("bmm.dtype", [](const Tensor &a, const Tensor &b, at::ScalarType type) { return a.to(type).bmm(b.to(type)); });
  // PyTorch chooses the kernels of convolutions by the device; those of the CPU are chosen by this.
  for (auto name : {"convolution", "convolution_backward", "_convolution"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  // A CPU's own kernel is more exact than the composition of other operators that serves devices without one.
  using Key = c10::DispatchKey;
  auto &dispatcher = c10::Dispatcher::singleton();
  for (const auto &name : dispatcher.getAllOpNames()) {
    auto op = name.name.rfind("aten::", 0) ? std::nullopt : dispatcher.findOp(name);
    auto has = [&](Key key) { return op->hasKernelForDispatchKey(key); };
    if (op && has(Key::CPU) && (has(Key::CompositeExplicitAutograd) || has(Key::CompositeImplicitAutograd) ||
                                has(Key::CompositeExplicitAutogradNonFunctional)))
      m.impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

// Gives the storage of a tensor another size, and what fits of its contents.
void resize_storage(const Tensor &tensor, int64_t nbytes) {
  at::native::resize_bytes_cpu(tensor.storage().unsafeGetStorageImpl(), nbytes);
}

TORCH_LIBRARY(emulated, m) { m.def("resize_storage(Tensor it, int nbytes) -> ()"); }
TORCH_LIBRARY_IMPL(emulated, CUDA, m) { m.impl("resize_storage", resize_storage); }

TORCH_LIBRARY_IMPL(aten, AutogradCUDA, m) { m.impl("scaled_dot_product_attention", attention); }

} // namespace
} // namespace emulated
