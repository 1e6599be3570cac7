// Calls of the emulated driver, which this process has loaded.
#pragma once
#include <c10/util/Exception.h>
#include <dlfcn.h>

namespace emulated {

// Calls a function of the driver, and raises the error that it returns. The driver's C header is not needed for that.
template <typename... Arguments> void call(const char *name, Arguments... arguments) {
  static void *const driver = dlopen("libcuda.so.1", RTLD_NOW);
  using Function = int (*)(Arguments...);
  auto function = driver ? reinterpret_cast<Function>(dlsym(driver, name)) : nullptr;
  TORCH_CHECK(function, name, " is not there: this process has no emulated GPU");
  if (int error = function(arguments...)) {
    auto text_of = reinterpret_cast<int (*)(int, const char **)>(dlsym(driver, "cuGetErrorString"));
    const char *text = nullptr;
    text_of(error, &text);
    TORCH_CHECK_WITH(OutOfMemoryError, error != 2, "CUDA out of memory (", name, ")");
    TORCH_CHECK(false, "CUDA error: ", text ? text : "unknown error", " (", name, ")");
  }
}

// Calls a function that frees something. At the end of the process the driver may be gone before the last tensor.
template <typename... Arguments> void call_at_end(const char *name, Arguments... arguments) {
  try {
    call(name, arguments...);
  } catch (const c10::Error &) {
  }
}

} // namespace emulated
