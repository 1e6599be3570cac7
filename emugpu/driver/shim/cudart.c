/* The CUDA runtime API, for programs that are built with `nvcc -cudart shared`: the documented functions, on top of the
 * driver API. It cannot replace NVIDIA's runtime in a program that is linked statically to that.
 *
 * Error codes are those of the driver API, with few exceptions (CUDA Runtime API, Data types).
 */
#define _GNU_SOURCE
#include "stubs.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Error; /* cudaError_t */
typedef uint64_t Stream;
typedef struct {
    uint32_t x, y, z;
} Dim3;

#define MOST_HANDLES 0x10000000
enum { INVALID_CONFIGURATION = 9, INVALID_SYMBOL = 13, INVALID_FUNCTION = 98, INVALID_HANDLE = 400, NOT_READY = 600 };

/* ---- errors: each thread has a last one ---- */

static __thread Error last_error;

static const struct {
    Error code;
    const char *name, *text;
} errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {13, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {46, "cudaErrorDevicesUnavailable", "the emulated GPU has ended"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {200, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {201, "cudaErrorDeviceUninitialized", "invalid device context"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {218, "cudaErrorInvalidPtx", "a PTX JIT compilation failed"},
    {301, "cudaErrorFileNotFound", "file not found"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {702, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {715, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {716, "cudaErrorMisalignedAddress", "misaligned address"},
    {717, "cudaErrorInvalidAddressSpace", "operation not supported on global/shared address space"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {720, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {912, "cudaErrorInvalidClusterSize", "cluster misconfiguration"},
    {999, "cudaErrorUnknown", "unknown error"},
};

static Error note(Error code) {
    if (code && code != NOT_READY) last_error = code;
    return code;
}

API const char *cudaGetErrorName(Error code) {
    for (size_t n = 0; n < sizeof errors / sizeof *errors; n++)
        if (errors[n].code == code) return errors[n].name;
    return "cudaErrorUnknown";
}

API const char *cudaGetErrorString(Error code) {
    for (size_t n = 0; n < sizeof errors / sizeof *errors; n++)
        if (errors[n].code == code) return errors[n].text;
    return "unrecognized error code";
}

/* The error of a kernel stays, because the context is lost. */
API Error cudaGetLastError(void) {
    Error code = last_error;
    if (code < 700 || code > 719) last_error = 0;
    return code;
}

API Error cudaPeekAtLastError(void) { return last_error; }

/* ---- the one device, and its primary context in every thread that calls the runtime ---- */

static Error start_result;
static uint64_t primary;

static void start(void) {
    start_result = cuInit(0);
    if (!start_result) start_result = cuDevicePrimaryCtxRetain((uint64_t)&primary, 0);
}

static Error ready(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    uint64_t current = 0;
    pthread_once(&once, start);
    if (start_result) return start_result;
    cuCtxGetCurrent((uint64_t)&current);
    return current ? 0 : cuCtxSetCurrent(primary);
}

/* A function that makes a context if there is none, and then calls the driver. */
#define READY                        \
    do {                             \
        Error ready_ = ready();      \
        if (ready_) return note(ready_); \
    } while (0)
#define CALL(expression)           \
    do {                           \
        READY;                     \
        return note(expression);   \
    } while (0)

API Error cudaGetDeviceCount(int32_t *count) { CALL(cuDeviceGetCount(count)); }
API Error cudaGetDevice(int32_t *device) {
    READY;
    *device = 0;
    return 0;
}
API Error cudaSetDevice(int32_t device) {
    if (device) return note(INVALID_DEVICE);
    CALL(0);
}
API Error cudaInitDevice(int32_t device, uint32_t flags, uint32_t valid) { return (void)flags, (void)valid, cudaSetDevice(device); }
API Error cudaSetDeviceFlags(uint32_t flags) { return (void)flags, 0; }
API Error cudaGetDeviceFlags(uint32_t *flags) { return *flags = 0, 0; }
API Error cudaDeviceSynchronize(void) { CALL(cuCtxSynchronize()); }
static void forget_handles(void);

API Error cudaDeviceReset(void) {
    READY;
    last_error = 0;
    forget_handles();
    return note(cuDevicePrimaryCtxReset_v2(0));
}
API Error cudaDeviceGetLimit(size_t *value, uint32_t limit) { CALL(cuCtxGetLimit(value, limit)); }
API Error cudaDeviceSetLimit(uint32_t limit, size_t value) { CALL(cuCtxSetLimit(limit, value)); }
API Error cudaDeviceSetCacheConfig(int config) { return (void)config, 0; }
API Error cudaDeviceGetStreamPriorityRange(int32_t *least, int32_t *greatest) { CALL(cuCtxGetStreamPriorityRange(least, greatest)); }
API Error cudaDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer) { CALL(cuDeviceCanAccessPeer(can, device, peer)); }
API Error cudaDeviceGetAttribute(int32_t *value, int32_t attribute, int32_t device) { CALL(cuDeviceGetAttribute(value, attribute, device)); }
API Error cudaDeviceGetPCIBusId(char *id, int32_t room, int32_t device) { CALL(cuDeviceGetPCIBusId(id, room, device)); }
API Error cudaDeviceGetDefaultMemPool(uint64_t *pool, int32_t device) { CALL(cuDeviceGetDefaultMemPool(pool, device)); }
API Error cudaDeviceGetMemPool(uint64_t *pool, int32_t device) { CALL(cuDeviceGetMemPool(pool, device)); }
API Error cudaMemPoolSetAttribute(uint64_t pool, int32_t attribute, void *value) { CALL(cuMemPoolSetAttribute(pool, attribute, value)); }
API Error cudaMemPoolTrimTo(uint64_t pool, size_t bytes) { CALL(cuMemPoolTrimTo(pool, bytes)); }
API Error cudaDriverGetVersion(int32_t *version) { return cuDriverGetVersion(version); }
API Error cudaRuntimeGetVersion(int32_t *version) { return *version = 13000, 0; }
API Error cudaMemGetInfo(size_t *unused, size_t *total) { CALL(cuMemGetInfo_v2(unused, total)); }

/* cudaDeviceProp of CUDA 13: the places of the driver API's attributes, each an int or a size_t. */
#define PROPERTIES_BYTES 1008
static const struct {
    uint16_t offset, bytes, attribute;
} properties[] = {
    {296, 8, 8},   {304, 4, 12},  {308, 4, 10},  {312, 8, 11},  {320, 4, 1},   {324, 4, 2},   {328, 4, 3},   {332, 4, 4},
    {336, 4, 5},   {340, 4, 6},   {344, 4, 7},   {352, 8, 9},   {360, 4, 75},  {364, 4, 76},  {368, 8, 14},  {376, 8, 51},
    {384, 4, 16},  {388, 4, 18},  {392, 4, 19},  {396, 4, 21},  {552, 8, 30},  {560, 4, 31},  {564, 4, 32},  {568, 4, 33},
    {572, 4, 34},  {576, 4, 50},  {580, 4, 35},  {584, 4, 40},  {588, 4, 41},  {592, 4, 37},  {596, 4, 38},  {600, 4, 108},
    {604, 4, 39},  {608, 4, 78},  {612, 4, 79},  {616, 4, 80},  {624, 8, 81},  {632, 4, 82},  {636, 4, 83},  {640, 4, 84},
    {644, 4, 85},  {648, 4, 86},  {652, 4, 88},  {656, 4, 89},  {660, 4, 90},  {664, 4, 91},  {668, 4, 95},  {672, 8, 97},
    {680, 4, 100}, {684, 4, 101}, {688, 4, 106}, {692, 4, 109}, {696, 8, 111}, {704, 4, 99},  {708, 4, 112}, {712, 4, 113},
    {716, 4, 114}, {720, 4, 115}, {724, 4, 116}, {748, 4, 120}, {752, 4, 129},
};

API Error cudaGetDeviceProperties(unsigned char *to, int32_t device) {
    READY;
    if (device) return note(INVALID_DEVICE);
    memset(to, 0, PROPERTIES_BYTES);
    cuDeviceGetName(to, 256, device);
    cuDeviceGetUuid_v2(to + 256, device);
    cuDeviceTotalMem_v2((size_t *)(to + 288), device);
    for (size_t n = 0; n < sizeof properties / sizeof *properties; n++) {
        int32_t value = 0;
        cuDeviceGetAttribute(&value, properties[n].attribute, device);
        memcpy(to + properties[n].offset, &value, sizeof value); /* the upper bytes of a size_t stay 0 */
    }
    return 0;
}

API Error cudaGetDeviceProperties_v2(unsigned char *to, int32_t device) { return cudaGetDeviceProperties(to, device); }

/* ---- memory ---- */

API Error cudaMalloc(uint64_t *address, size_t bytes) {
    READY;
    if (!bytes) return *address = 0, 0;
    return note(cuMemAlloc_v2(address, bytes));
}
API Error cudaFree(uint64_t address) { CALL(cuMemFree_v2(address)); }
API Error cudaMallocHost(uint64_t *address, size_t bytes) { CALL(cuMemAllocHost_v2(address, bytes)); }
API Error cudaHostAlloc(uint64_t *address, size_t bytes, uint32_t flags) { CALL(cuMemHostAlloc(address, bytes, flags)); }
API Error cudaFreeHost(uint64_t address) { CALL(cuMemFreeHost(address)); }
API Error cudaHostGetDevicePointer(uint64_t *device, uint64_t host, uint32_t flags) { CALL(cuMemHostGetDevicePointer_v2(device, host, flags)); }
API Error cudaHostRegister(uint64_t address, size_t bytes, uint32_t flags) { CALL(cuMemHostRegister_v2(address, bytes, flags)); }
API Error cudaHostUnregister(uint64_t address) { CALL(cuMemHostUnregister(address)); }
API Error cudaMallocPitch(uint64_t *address, size_t *pitch, size_t width, size_t height) { CALL(cuMemAllocPitch_v2(address, pitch, width, height, 16)); }
API Error cudaMallocAsync(uint64_t *address, size_t bytes, Stream stream) { CALL(cuMemAllocAsync(address, bytes, stream)); }
API Error cudaFreeAsync(uint64_t address, Stream stream) { CALL(cuMemFreeAsync(address, stream)); }
API Error cudaMallocManaged(uint64_t *address, size_t bytes, uint32_t flags) { CALL(cuMemAllocManaged(address, bytes, flags)); }
API Error cudaMemPrefetchAsync(uint64_t address, size_t bytes, uint64_t location, uint32_t flags, Stream stream) {
    CALL(cuMemPrefetchAsync_v2(address, bytes, location, flags, stream));
}
API Error cudaMemAdvise(uint64_t address, size_t bytes, uint32_t advice, uint64_t location) {
    CALL(cuMemAdvise_v2(address, bytes, advice, location));
}

/* The addresses determine the direction. */
enum { TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3 };

/* The program gives the direction, and the driver checks that the device's side is device memory. */
API Error cudaMemcpy(uint64_t to, uint64_t from, size_t bytes, int kind) {
    if (kind == TO_DEVICE) CALL(cuMemcpyHtoD_v2(to, from, bytes));
    if (kind == TO_HOST) CALL(cuMemcpyDtoH_v2(to, from, bytes));
    if (kind == ON_DEVICE) CALL(cuMemcpyDtoD_v2(to, from, bytes));
    CALL(cuMemcpy(to, from, bytes));
}
API Error cudaMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, int kind, Stream stream) {
    if (kind == TO_DEVICE) CALL(cuMemcpyHtoDAsync_v2(to, from, bytes, stream));
    if (kind == TO_HOST) CALL(cuMemcpyDtoHAsync_v2(to, from, bytes, stream));
    if (kind == ON_DEVICE) CALL(cuMemcpyDtoDAsync_v2(to, from, bytes, stream));
    CALL(cuMemcpyAsync(to, from, bytes, stream));
}
API Error cudaMemset(uint64_t to, int value, size_t bytes) { CALL(cuMemsetD8_v2(to, (uint8_t)value, bytes)); }
API Error cudaMemsetAsync(uint64_t to, int value, size_t bytes, Stream stream) { CALL(cuMemsetD8Async(to, (uint8_t)value, bytes, stream)); }
API Error cudaMemset2D(uint64_t to, size_t pitch, int value, size_t width, size_t height) { CALL(cuMemsetD2D8_v2(to, pitch, (uint8_t)value, width, height)); }
API Error cudaMemset2DAsync(uint64_t to, size_t pitch, int value, size_t width, size_t height, Stream stream) {
    CALL(cuMemsetD2D8Async(to, pitch, (uint8_t)value, width, height, stream));
}

typedef struct {
    uint64_t x, y, type, host, device, array, pitch;
} Side;
typedef struct {
    Side from, to;
    uint64_t width, height;
} Copy2D; /* CUDA_MEMCPY2D */

API Error cudaMemcpy2D(uint64_t to, size_t to_pitch, uint64_t from, size_t from_pitch, size_t width, size_t height, int kind) {
    (void)kind;
    Copy2D copy = {{0, 0, 4, 0, from, 0, from_pitch}, {0, 0, 4, 0, to, 0, to_pitch}, width, height};
    CALL(cuMemcpy2D_v2(&copy));
}
API Error cudaMemcpy2DAsync(uint64_t to, size_t to_pitch, uint64_t from, size_t from_pitch, size_t width, size_t height,
                            int kind, Stream stream) {
    (void)stream;
    return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}

typedef struct {
    int32_t type, device;
    uint64_t device_pointer, host_pointer, reserved[8];
} PointerAttributes;

API Error cudaPointerGetAttributes(PointerAttributes *attributes, uint64_t address) {
    READY;
    uint32_t kind = 0;
    memset(attributes, 0, sizeof *attributes);
    if (cuPointerGetAttribute(&kind, 2, address)) {
        attributes->device = -2;
        attributes->host_pointer = address;
        return 0;
    }
    uint32_t managed = 0;
    cuPointerGetAttribute(&managed, 8, address);
    attributes->type = managed ? 3 : (int32_t)kind;
    attributes->device_pointer = address;
    if (kind == 1 || managed) attributes->host_pointer = address;
    return 0;
}

/* ---- registration by the compiler: modules, kernels, variables ---- */

typedef struct Binary {
    const void *wrapper;
    uint64_t module;
    Error result;
    bool loaded;
} Binary;

typedef struct Symbol {
    struct Symbol *next;
    const void *host;
    const char *name;
    Binary *binary;
    uint64_t handle; /* of a kernel */
} Symbol;

static Symbol *kernels, *variables;
static pthread_mutex_t registered_lock = PTHREAD_MUTEX_INITIALIZER;

static void add(Symbol **list, void **binary, const void *host, const char *name) {
    Symbol *made = malloc(sizeof *made);
    pthread_mutex_lock(&registered_lock);
    *made = (Symbol){*list, host, name, (Binary *)binary, 0};
    *list = made;
    pthread_mutex_unlock(&registered_lock);
}

/* After a reset, the first use of a module's symbol loads the module again. */
static void forget_handles(void) {
    pthread_mutex_lock(&registered_lock);
    for (Symbol *each = kernels; each; each = each->next) each->handle = each->binary->loaded = 0;
    for (Symbol *each = variables; each; each = each->next) each->binary->loaded = false;
    pthread_mutex_unlock(&registered_lock);
}

static Symbol *find(Symbol *list, const void *host) {
    while (list && list->host != host) list = list->next;
    return list;
}

API void **__cudaRegisterFatBinary(const void *wrapper) {
    Binary *made = calloc(1, sizeof *made);
    made->wrapper = wrapper;
    return (void **)made;
}
API void __cudaRegisterFatBinaryEnd(void **binary) { (void)binary; }
API void __cudaUnregisterFatBinary(void **binary) { (void)binary; /* at the end of the process */ }
API char __cudaInitModule(void **binary) { return (void)binary, 1; }
API void __cudaRegisterFunction(void **binary, const void *host, char *name, const char *other, int limit, void *a, void *b,
                                void *c, void *d, int *e) {
    (void)name, (void)limit, (void)a, (void)b, (void)c, (void)d, (void)e;
    add(&kernels, binary, host, other);
}
API void __cudaRegisterVar(void **binary, const void *host, char *address, const char *name, int external, size_t bytes,
                           int constant, int global) {
    (void)address, (void)external, (void)bytes, (void)constant, (void)global;
    add(&variables, binary, host, name);
}

/* The first use of a module's symbol loads the module. */
static Error load(Binary *binary) {
    pthread_mutex_lock(&registered_lock);
    if (!binary->loaded) {
        binary->result = cuModuleLoadData(&binary->module, binary->wrapper);
        binary->loaded = true;
    }
    pthread_mutex_unlock(&registered_lock);
    return binary->result;
}

/* Finds the handle of a kernel, given its host function or, for a library's kernel, the handle itself. The driver's
 * handles are small numbers, which cannot be the addresses of functions.
 */
static Error handle_of(const void *host, uint64_t *handle) {
    READY;
    Symbol *kernel = find(kernels, host);
    if (!kernel && host && (uint64_t)host < MOST_HANDLES) {
        *handle = (uint64_t)host;
        return SUCCESS;
    }
    if (!kernel) return note(INVALID_FUNCTION);
    Error result = kernel->handle ? 0 : load(kernel->binary);
    if (!result && !kernel->handle) result = cuModuleGetFunction(&kernel->handle, kernel->binary->module, kernel->name);
    *handle = kernel->handle;
    return note(result == NOT_FOUND ? INVALID_FUNCTION : result);
}

static Error place_of(const void *host, uint64_t *address, size_t *bytes) {
    READY;
    Symbol *variable = find(variables, host);
    if (!variable) return note(INVALID_SYMBOL);
    Error result = load(variable->binary);
    if (!result) result = cuModuleGetGlobal_v2(address, bytes, variable->binary->module, variable->name);
    return note(result == NOT_FOUND ? INVALID_SYMBOL : result);
}

API Error cudaGetSymbolAddress(uint64_t *address, const void *symbol) { return place_of(symbol, address, NULL); }
API Error cudaGetSymbolSize(size_t *bytes, const void *symbol) { return place_of(symbol, NULL, bytes); }
API Error cudaMemcpyToSymbol(const void *symbol, uint64_t from, size_t bytes, size_t offset, int kind) {
    uint64_t address;
    Error result = place_of(symbol, &address, NULL);
    return result ? result : cudaMemcpy(address + offset, from, bytes, kind);
}
API Error cudaMemcpyFromSymbol(uint64_t to, const void *symbol, size_t bytes, size_t offset, int kind) {
    uint64_t address;
    Error result = place_of(symbol, &address, NULL);
    return result ? result : cudaMemcpy(to, address + offset, bytes, kind);
}
API Error cudaMemcpyToSymbolAsync(const void *symbol, uint64_t from, size_t bytes, size_t offset, int kind, Stream stream) {
    return (void)stream, cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}
API Error cudaMemcpyFromSymbolAsync(uint64_t to, const void *symbol, size_t bytes, size_t offset, int kind, Stream stream) {
    return (void)stream, cudaMemcpyFromSymbol(to, symbol, bytes, offset, kind);
}

/* ---- launches ---- */

#define MOST_CONFIGURATIONS 16

static __thread struct {
    Dim3 grid, block;
    size_t shared;
    Stream stream;
} configurations[MOST_CONFIGURATIONS];
static __thread int configuration_count;

API uint32_t __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, Stream stream) {
    if (configuration_count == MOST_CONFIGURATIONS) return 1;
    configurations[configuration_count].grid = grid, configurations[configuration_count].block = block;
    configurations[configuration_count].shared = shared, configurations[configuration_count].stream = stream;
    configuration_count++;
    return 0;
}

API Error __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, Stream *stream) {
    if (!configuration_count) return note(INVALID_CONFIGURATION);
    configuration_count--;
    *grid = configurations[configuration_count].grid, *block = configurations[configuration_count].block;
    *shared = configurations[configuration_count].shared, *stream = configurations[configuration_count].stream;
    return 0;
}

static bool is_possible(Dim3 grid, Dim3 block) {
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    return grid.x && grid.y && grid.z && threads && threads <= 1024 && block.z <= 64 && grid.y <= 65535 && grid.z <= 65535;
}

static Error launch(uint64_t function, Dim3 grid, Dim3 block, void **arguments, size_t shared, Stream stream) {
    if (!is_possible(grid, block)) return note(INVALID_CONFIGURATION);
    return note(cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (uint32_t)shared, stream,
                               (uint64_t)arguments, 0));
}

API Error cudaLaunchKernel(const void *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared, Stream stream) {
    uint64_t function;
    Error result = handle_of(kernel, &function);
    return result ? result : launch(function, grid, block, arguments, shared, stream);
}

/* The program keeps this result for its whole life, so it is the host function: a reset changes the handle. */
API Error __cudaGetKernel(uint64_t *kernel, const void *host) {
    Error result = handle_of(host, kernel);
    if (!result) *kernel = (uint64_t)host;
    return result;
}
API Error cudaGetKernel(uint64_t *kernel, const void *host) { return handle_of(host, kernel); }
API Error cudaGetFuncBySymbol(uint64_t *function, const void *host) { return handle_of(host, function); }

API Error __cudaLaunchKernel(uint64_t kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared, Stream stream) {
    READY;
    return kernel ? cudaLaunchKernel((const void *)kernel, grid, block, arguments, shared, stream)
                  : note(last_error ? last_error : INVALID_FUNCTION);
}

API Error cudaLaunchCooperativeKernel(const void *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared, Stream stream) {
    uint64_t function;
    Error result = handle_of(kernel, &function);
    if (result) return result;
    return note(cuLaunchCooperativeKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (uint32_t)shared,
                                          stream, (uint64_t)arguments));
}

typedef struct {
    Dim3 grid, block;
    size_t shared;
    Stream stream;
    const void *attributes;
    uint32_t count;
} RuntimeConfig; /* cudaLaunchConfig_t */
typedef struct {
    uint32_t shape[7];
    Stream stream;
    const void *attributes;
    uint32_t count;
} DriverConfig; /* CUlaunchConfig */

static DriverConfig driver_config(const RuntimeConfig *config) {
    Dim3 grid = config->grid, block = config->block;
    DriverConfig made = {{grid.x, grid.y, grid.z, block.x, block.y, block.z, (uint32_t)config->shared},
                         config->stream, config->attributes, config->count};
    return made;
}

API Error cudaLaunchKernelExC(const RuntimeConfig *config, const void *kernel, void **arguments) {
    uint64_t function;
    Error result = handle_of(kernel, &function);
    if (result) return result;
    /* With attributes, the driver refuses an invalid shape with its own code. */
    if (!is_possible(config->grid, config->block)) return note(INVALID_VALUE);
    DriverConfig asked = driver_config(config);
    return note(cuLaunchKernelEx((uint64_t)&asked, function, (uint64_t)arguments, 0));
}

API Error cudaLaunchHostFunc(Stream stream, uint64_t function, uint64_t argument) { CALL(cuLaunchHostFunc(stream, function, argument)); }
API Error cudaStreamAddCallback(Stream stream, uint64_t function, uint64_t argument, uint32_t flags) {
    CALL(cuStreamAddCallback(stream, function, argument, flags));
}

API Error cudaFuncSetAttribute(const void *kernel, int attribute, int value) {
    uint64_t function;
    Error result = handle_of(kernel, &function);
    return result ? result : note(cuFuncSetAttribute(function, attribute, value));
}
API Error cudaFuncSetCacheConfig(const void *kernel, int config) { return (void)kernel, (void)config, 0; }

/* cudaFuncAttributes: three sizes, then numbers in the order of the driver's attributes, with one exception. */
typedef struct {
    int x, y, z, w, kind;
} ChannelFormat;

API ChannelFormat cudaCreateChannelDesc(int x, int y, int z, int w, int kind) {
    return (ChannelFormat){x, y, z, w, kind};
}

API Error cudaFuncGetAttributes(unsigned char *to, const void *kernel) {
    static const int sizes[] = {1, 2, 3}, numbers[] = {0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 14};
    uint64_t function;
    Error result = handle_of(kernel, &function);
    if (result) return result;
    memset(to, 0, 144);
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes && !result; n++)
        result = cuFuncGetAttribute((int32_t *)(to + 8 * n), sizes[n], function);
    for (size_t n = 0; n < sizeof numbers / sizeof *numbers && !result; n++)
        result = cuFuncGetAttribute((int32_t *)(to + 24 + 4 * n), numbers[n], function);
    return note(result);
}

API Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int32_t *blocks, const void *kernel, int32_t threads, size_t shared) {
    uint64_t function;
    Error result = handle_of(kernel, &function);
    return result ? result : note(cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared));
}
API Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int32_t *blocks, const void *kernel, int32_t threads,
                                                                 size_t shared, uint32_t flags) {
    return (void)flags, cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared);
}
API Error cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *kernel, int32_t blocks, int32_t threads) {
    uint64_t function;
    Error result = handle_of(kernel, &function);
    return result ? result : note(cuOccupancyAvailableDynamicSMemPerBlock(bytes, function, blocks, threads));
}
API Error cudaOccupancyMaxActiveClusters(int32_t *clusters, const void *kernel, const RuntimeConfig *config) {
    uint64_t function;
    Error result = handle_of(kernel, &function);
    DriverConfig asked = driver_config(config);
    return result ? result : note(cuOccupancyMaxActiveClusters((uint64_t)clusters, function, (uint64_t)&asked));
}
API Error cudaOccupancyMaxPotentialClusterSize(int32_t *size, const void *kernel, const RuntimeConfig *config) {
    uint64_t function;
    Error result = handle_of(kernel, &function);
    DriverConfig asked = driver_config(config);
    return result ? result : note(cuOccupancyMaxPotentialClusterSize((uint64_t)size, function, (uint64_t)&asked));
}

/* ---- streams and events ---- */

API Error cudaStreamCreate(Stream *stream) { CALL(cuStreamCreate(stream, 0)); }
API Error cudaStreamCreateWithFlags(Stream *stream, uint32_t flags) { CALL(cuStreamCreate(stream, flags)); }
API Error cudaStreamCreateWithPriority(Stream *stream, uint32_t flags, int32_t priority) { CALL(cuStreamCreateWithPriority(stream, flags, priority)); }
API Error cudaStreamDestroy(Stream stream) { CALL(cuStreamDestroy_v2(stream)); }
API Error cudaStreamSynchronize(Stream stream) { CALL(cuStreamSynchronize(stream)); }
API Error cudaStreamQuery(Stream stream) { CALL(cuStreamQuery(stream)); }
API Error cudaStreamWaitEvent(Stream stream, uint64_t event, uint32_t flags) { CALL(cuStreamWaitEvent(stream, event, flags)); }
API Error cudaStreamGetPriority(Stream stream, int32_t *priority) { CALL(cuStreamGetPriority(stream, priority)); }
API Error cudaStreamGetFlags(Stream stream, uint32_t *flags) { CALL(cuStreamGetFlags(stream, flags)); }
API Error cudaStreamGetDevice(Stream stream, int32_t *device) { CALL(cuStreamGetDevice(stream, device)); }
API Error cudaStreamSetAttribute(Stream stream, uint32_t attribute, const void *value) { CALL(cuStreamSetAttribute(stream, attribute, (uint64_t)value)); }
API Error cudaStreamAttachMemAsync(Stream stream, uint64_t address, size_t bytes, uint32_t flags) { CALL(cuStreamAttachMemAsync(stream, address, bytes, flags)); }
API Error cudaStreamIsCapturing(Stream stream, uint32_t *status) { CALL(cuStreamIsCapturing(stream, status)); }
API Error cudaStreamBeginCapture(Stream stream, int mode) {
    (void)stream, (void)mode;
    CALL(cuStreamBeginCapture_v2());
}
API Error cudaEventCreate(uint64_t *event) { CALL(cuEventCreate(event, 0)); }
API Error cudaEventCreateWithFlags(uint64_t *event, uint32_t flags) { CALL(cuEventCreate(event, flags)); }
API Error cudaEventRecord(uint64_t event, Stream stream) { CALL(cuEventRecord(event, stream)); }
API Error cudaEventRecordWithFlags(uint64_t event, Stream stream, uint32_t flags) { CALL(cuEventRecordWithFlags(event, stream, flags)); }
API Error cudaEventSynchronize(uint64_t event) { CALL(cuEventSynchronize(event)); }
API Error cudaEventQuery(uint64_t event) { CALL(cuEventQuery(event)); }
API Error cudaEventElapsedTime(float *milliseconds, uint64_t start, uint64_t end) { CALL(cuEventElapsedTime_v2(milliseconds, start, end)); }
API Error cudaEventDestroy(uint64_t event) { CALL(cuEventDestroy_v2(event)); }

/* ---- the driver API by name ---- */

API Error cudaGetDriverEntryPointByVersion(const char *name, uint64_t function, uint32_t version, uint64_t flags, uint64_t status) {
    CALL(cuGetProcAddress_v2(name, function, (int32_t)version, flags, status));
}
API Error cudaGetDriverEntryPoint(const char *name, uint64_t function, uint64_t flags, uint64_t status) {
    return cudaGetDriverEntryPointByVersion(name, function, 13000, flags, status);
}
API Error cudaProfilerStart(void) { return 0; }
API Error cudaProfilerStop(void) { return 0; }

/* ---- pools and libraries ---- */

API Error cudaDeviceSetMemPool(int32_t device, uint64_t pool) { CALL(cuDeviceSetMemPool(device, pool)); }
API Error cudaMallocFromPoolAsync(uint64_t *address, size_t bytes, uint64_t pool, Stream stream) {
    CALL(cuMemAllocFromPoolAsync(address, bytes, pool, stream));
}
API Error cudaMemPoolCreate(uint64_t *pool, const void *properties) { CALL(cuMemPoolCreate(pool, properties)); }
API Error cudaMemPoolDestroy(uint64_t pool) { CALL(cuMemPoolDestroy(pool)); }
API Error cudaMemPoolGetAttribute(uint64_t pool, int32_t attribute, void *value) {
    CALL(cuMemPoolGetAttribute(pool, attribute, value));
}
API Error cudaMemPoolSetAccess(uint64_t pool, uint64_t access, size_t count) { CALL(cuMemPoolSetAccess(pool, access, count)); }

API Error cudaLibraryLoadData(uint64_t *library, const void *code, uint64_t a, uint64_t b, uint32_t c, uint64_t d, uint64_t e,
                              uint32_t f) {
    CALL(cuLibraryLoadData(library, code, a, b, c, d, e, f));
}
API Error cudaLibraryLoadFromFile(uint64_t *library, const char *path, uint64_t a, uint64_t b, uint32_t c, uint64_t d,
                                  uint64_t e, uint32_t f) {
    CALL(cuLibraryLoadFromFile(library, path, a, b, c, d, e, f));
}
API Error cudaLibraryUnload(uint64_t library) { CALL(cuLibraryUnload(library)); }
API Error cudaLibraryGetKernel(uint64_t *kernel, uint64_t library, const char *name) {
    CALL(cuLibraryGetKernel(kernel, library, name));
}
API Error cudaLibraryGetKernelCount(uint32_t *count, uint64_t library) { CALL(cuLibraryGetKernelCount(count, library)); }
API Error cudaLibraryGetGlobal(uint64_t *address, size_t *bytes, uint64_t library, const char *name) {
    CALL(cuLibraryGetGlobal(address, bytes, library, name));
}
API Error cudaKernelSetAttributeForDevice(uint64_t kernel, int attribute, int value, int device) {
    CALL(cuKernelSetAttribute(attribute, value, kernel, device));
}
API Error cudaFuncGetName(const char **name, const void *kernel) {
    uint64_t function;
    Error result = handle_of(kernel, &function);
    return result ? result : note(cuFuncGetName((uint64_t)name, function));
}
API Error cudaFuncGetParamInfo(const void *kernel, size_t index, size_t *offset, size_t *bytes) {
    uint64_t function;
    Error result = handle_of(kernel, &function);
    return result ? result : note(cuFuncGetParamInfo(function, index, offset, bytes));
}
API Error cudaStreamGetId(Stream stream, uint64_t *id) { CALL(cuStreamGetId(stream, id)); }
API Error cudaHostGetFlags(uint32_t *flags, uint64_t address) { CALL(cuMemHostGetFlags(flags, address)); }
API Error cudaDeviceGetByPCIBusId(int32_t *device, const char *id) { CALL(cuDeviceGetByPCIBusId(device, id)); }
API Error cudaChooseDevice(int32_t *device, const void *wanted) { return (void)wanted, cudaGetDevice(device); }

/* ---- all others; generated ---- */

Error refuse_by_name(const char *name) { CALL(emulatedGpuRefuses(name)); }
