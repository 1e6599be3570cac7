/* The library for host code that CuTe DSL compiles: functions of the CUDA runtime and the driver under names with a
 * leading underscore (cute_stubs.c), and a few functions of its own. CuTe DSL's own library is linked statically to
 * NVIDIA's runtime; this one calls the emulated runtime.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))

typedef int32_t Error; /* cudaError_t */

const char *cudaGetErrorName(Error error);
const char *cudaGetErrorString(Error error);
Error cudaGetDeviceCount(int32_t *count);
Error cudaLibraryUnload(void *library);

API const char *cuda_dialect_get_error_name(Error error) { return cudaGetErrorName(error); }

API void cuda_dialect_print_on_error(Error error) {
    if (error) fprintf(stderr, "CuTe DSL: %s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
}

API void cuda_dialect_assert_success(Error error) {
    cuda_dialect_print_on_error(error);
    if (error) abort();
}

/* Programs that CuTe DSL compiles for TVM FFI raise their CUDA errors by a function of TVM FFI, which they pass. The
 * class of the exception (tvm_ffi_provider.py of CuTe DSL) refuses a text that does not begin with the number.
 */
#define KIND "CUDADialectError"
#define BEGINNING "CUDA Error Code: "
enum { INVALID_CONFIGURATION = 9 }; /* cudaErrorInvalidConfiguration */

static Error load_once(void **library, Error (*load)(void **), Error (*prepare)(void **, int32_t)) {
    if (__atomic_load_n(library, __ATOMIC_ACQUIRE)) return 0;
    void *made = NULL, *nothing = NULL;
    int32_t devices = 0;
    Error error = load(&made);
    if (!error && prepare) error = cudaGetDeviceCount(&devices);
    for (int32_t device = 0; !error && device < devices; device++) error = prepare(&made, device);
    if (error) return error;
    if (!__atomic_compare_exchange_n(library, &nothing, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        cudaLibraryUnload(made); /* another thread was faster */
    return 0;
}

/* The module of a compiled program, which the program's own functions load on first use. If this fails, the program
 * expects that the error has been raised.
 */
API Error cuda_dialect_init_library_once(void **library, Error (*load)(void **), Error (*prepare)(void **, int32_t),
                                         void (*raise)(const char *kind, const char *text)) {
    Error error = load_once(library, load, prepare);
    if (error && raise) {
        char text[256];
        snprintf(text, sizeof text, BEGINNING "%d %s: %s", error, cudaGetErrorName(error), cudaGetErrorString(error));
        raise(KIND, text);
    }
    return error;
}

API void cuda_dialect_unload_library_once(void **library) {
    void *loaded = __atomic_exchange_n(library, NULL, __ATOMIC_ACQ_REL);
    if (loaded) cudaLibraryUnload(loaded);
}

typedef void (*Raise)(const char *kind, const char **parts, int32_t count);

API void CuteDSLRT_TVMFFISetRaisedCudaError(Raise raise, int32_t error) {
    char number[32];
    snprintf(number, sizeof number, BEGINNING "%d ", error);
    const char *parts[] = {number, cudaGetErrorName(error), ": ", cudaGetErrorString(error)};
    if (raise) raise(KIND, parts, 4);
}

API void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(
    Raise raise, int32_t grid_x, int32_t grid_y, int32_t grid_z, int32_t block_x, int32_t block_y, int32_t block_z,
    int32_t threads, int64_t dynamic_shared, int32_t device, int32_t most_threads, int32_t most_block_x,
    int32_t most_block_y, int32_t most_block_z, int32_t most_grid_x, int32_t most_grid_y, int32_t most_grid_z,
    int32_t most_shared, int32_t most_shared_opt_in, const char *violation, const char *file, int32_t line,
    int32_t column, int32_t end_column) {
    /* The violation says which limit of the device it is. */
    (void)threads, (void)device, (void)most_threads, (void)most_block_x, (void)most_block_y, (void)most_block_z;
    (void)most_grid_x, (void)most_grid_y, (void)most_grid_z, (void)most_shared, (void)most_shared_opt_in;
    (void)column, (void)end_column;
    char text[1024];
    snprintf(text, sizeof text,
             BEGINNING "%d a launch is refused: %s; grid %dx%dx%d, block %dx%dx%d, %lld bytes of dynamic shared memory (%s:%d)",
             INVALID_CONFIGURATION, violation ? violation : "no reason given", grid_x, grid_y, grid_z, block_x, block_y, block_z,
             (long long)dynamic_shared, file ? file : "unknown file", line);
    const char *parts[] = {text};
    if (raise) raise(KIND, parts, 1);
}
