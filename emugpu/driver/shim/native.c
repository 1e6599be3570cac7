/* Functions of the driver API that must run in the program: contexts belong to threads, names and pointers must stay
 * valid in the program, launches read parameters from the program's memory, and callbacks run here.
 */
#define _GNU_SOURCE
#include "stubs.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors, and functions by name ---- */

static const ResultName *find_result(int code) {
    for (int n = 0; n < result_name_count; n++)
        if (result_names[n].code == code) return &result_names[n];
    return NULL;
}

API Result emulatedGpuRefuses(const char *name) {
    Result result = emulatedRefusal(name);
    return result == SUCCESS ? NOT_SUPPORTED : result;
}

/* A function of the stand-in for cuBLAS. */
API Result emulatedGpuGemm(const char *name, const void *what) {
    Result ready = require_context();
    return ready == SUCCESS ? emulatedGemm(name, what) : ready;
}

API Result cuGetErrorName(int32_t error, uint64_t text) {
    const ResultName *found = find_result(error);
    if (text) *(const char **)text = found ? found->name : NULL;
    return found && text ? SUCCESS : INVALID_VALUE;
}

API Result cuGetErrorString(int32_t error, uint64_t text) {
    const ResultName *found = find_result(error);
    if (text) *(const char **)text = found ? found->text : NULL;
    return found && text ? SUCCESS : INVALID_VALUE;
}

/* Finds the newest form that the requested version has. A name with a suffix selects exactly that form. */
static void *find_function(const char *name, int version, uint32_t *status) {
    const Entry *best = NULL;
    *status = 1;
    for (int n = 0; n < entry_count; n++) {
        if (!strcmp(entries[n].name, name) && strcmp(entries[n].base, name)) best = &entries[n];
        if (strcmp(entries[n].base, name)) continue;
        if (entries[n].since > version) {
            if (!best) *status = 2;
        } else if (!best || entries[n].since >= best->since) {
            best = &entries[n];
        }
    }
    if (best) *status = 0;
    return best ? best->function : NULL;
}

API Result cuGetProcAddress_v2(const char *symbol, uint64_t function, int32_t version, uint64_t flags, uint64_t status) {
    (void)flags; /* all streams are in order, so per-thread default streams make no difference */
    uint32_t found;
    if (!symbol || !function) return INVALID_VALUE;
    *(void **)function = find_function(symbol, version, &found);
    if (status) *(uint32_t *)status = found;
    if (found && getenv("EMULATED_GPU_TRACE")) fprintf(stderr, "emulated GPU: there is no %s (%d)\n", symbol, version);
    return SUCCESS;
}

API Result cuGetProcAddress(const char *symbol, uint64_t function, int32_t version, uint64_t flags) {
    uint64_t found = 0;
    Result result = cuGetProcAddress_v2(symbol, (uint64_t)&found, version, flags, 0);
    if (result == SUCCESS) *(void **)function = (void *)found;
    return result == SUCCESS && !found ? NOT_FOUND : result;
}

/* ---- contexts: one device, and a stack for each thread ---- */

#define MOST_CONTEXTS 64

typedef struct {
    uint64_t id;
} Context;

static Context primary = {1};
static uint64_t last_id = 1;
static int retained;
static __thread Context *stack[MOST_CONTEXTS];
static __thread int depth;

Result require_context(void) {
    if (!is_initialised()) return NOT_INITIALIZED;
    return depth && stack[depth - 1] ? SUCCESS : INVALID_CONTEXT;
}

API Result cuInit(uint32_t flags) { return flags ? INVALID_VALUE : initialise(); }

static Result check_device(int32_t device) {
    return !is_initialised() ? NOT_INITIALIZED : device ? INVALID_DEVICE : SUCCESS;
}

API Result cuDevicePrimaryCtxRetain(uint64_t context, int32_t device) {
    Result result = check_device(device);
    if (result != SUCCESS) return result;
    if (!context) return INVALID_VALUE;
    __atomic_add_fetch(&retained, 1, __ATOMIC_SEQ_CST);
    *(Context **)context = &primary;
    return SUCCESS;
}

API Result cuDevicePrimaryCtxRelease(int32_t device) {
    Result result = check_device(device);
    if (result != SUCCESS) return result;
    if (__atomic_sub_fetch(&retained, 1, __ATOMIC_SEQ_CST) < 0) {
        __atomic_add_fetch(&retained, 1, __ATOMIC_SEQ_CST);
        return INVALID_CONTEXT;
    }
    return SUCCESS;
}

API Result cuDevicePrimaryCtxRelease_v2(int32_t device) { return cuDevicePrimaryCtxRelease(device); }

API Result cuDevicePrimaryCtxReset(int32_t device) {
    Call call;
    Result result = check_device(device);
    if (result != SUCCESS) return result;
    begin(&call, NUMBER_emulatedReset);
    return finish(&call);
}

API Result cuDevicePrimaryCtxReset_v2(int32_t device) { return cuDevicePrimaryCtxReset(device); }

API Result cuDevicePrimaryCtxGetState(int32_t device, uint64_t flags, uint64_t active) {
    Result result = check_device(device);
    if (result != SUCCESS) return result;
    if (flags) *(uint32_t *)flags = 0;
    if (active) *(int32_t *)active = retained > 0;
    return SUCCESS;
}

API Result cuCtxPushCurrent_v2(uint64_t context) {
    if (!is_initialised()) return NOT_INITIALIZED;
    if (!context || depth == MOST_CONTEXTS) return INVALID_CONTEXT;
    stack[depth++] = (Context *)context;
    return SUCCESS;
}

API Result cuCtxPopCurrent_v2(uint64_t context) {
    Result result = require_context();
    if (result != SUCCESS) return result;
    depth--;
    if (context) *(Context **)context = stack[depth];
    return SUCCESS;
}

API Result cuCtxSetCurrent(uint64_t context) {
    if (!is_initialised()) return NOT_INITIALIZED;
    if (!depth) depth = 1;
    stack[depth - 1] = (Context *)context;
    if (!context) depth--;
    return SUCCESS;
}

API Result cuCtxGetCurrent(uint64_t context) {
    if (!is_initialised()) return NOT_INITIALIZED;
    if (!context) return INVALID_VALUE;
    *(Context **)context = depth ? stack[depth - 1] : NULL;
    return SUCCESS;
}

API Result cuCtxCreate_v2(uint64_t context, uint32_t flags, int32_t device) {
    (void)flags;
    Result result = check_device(device);
    if (result != SUCCESS) return result;
    if (!context) return INVALID_VALUE;
    Context *made = malloc(sizeof *made);
    made->id = __atomic_add_fetch(&last_id, 1, __ATOMIC_SEQ_CST);
    *(Context **)context = made;
    return cuCtxPushCurrent_v2((uint64_t)made);
}

API Result cuCtxCreate_v3(uint64_t context, uint64_t affinities, int32_t count, uint32_t flags, int32_t device) {
    return affinities || count ? NOT_SUPPORTED : cuCtxCreate_v2(context, flags, device);
}

API Result cuCtxCreate_v4(uint64_t context, uint64_t parameters, uint32_t flags, int32_t device) {
    (void)parameters; /* affinities and cigs do not change any results */
    return cuCtxCreate_v2(context, flags, device);
}

API Result cuCtxDestroy_v2(uint64_t context) {
    if (!is_initialised()) return NOT_INITIALIZED;
    if (!context || (Context *)context == &primary) return INVALID_CONTEXT;
    if (depth && stack[depth - 1] == (Context *)context) depth--;
    free((Context *)context);
    return SUCCESS;
}

API Result cuCtxGetDevice(uint64_t device) {
    Result result = require_context();
    if (result == SUCCESS) *(int32_t *)device = 0;
    return result;
}

API Result cuCtxGetDevice_v2(uint64_t device, uint64_t context) {
    if (!context) return cuCtxGetDevice(device);
    *(int32_t *)device = 0;
    return SUCCESS;
}

API Result cuCtxGetId(uint64_t context, uint64_t id) {
    if (!context) {
        Result result = require_context();
        if (result != SUCCESS) return result;
        context = (uint64_t)stack[depth - 1];
    }
    *(uint64_t *)id = ((Context *)context)->id;
    return SUCCESS;
}

API Result cuStreamGetCtx(uint64_t stream, uint64_t context) {
    (void)stream;
    Result result = require_context();
    if (result == SUCCESS) *(Context **)context = stack[depth - 1];
    return result;
}

API Result cuPointerGetAttributes(uint32_t count, uint64_t attributes, uint64_t values, uint64_t address) {
    for (uint32_t n = 0; n < count; n++) {
        void *value = ((void **)values)[n];
        int32_t attribute = ((int32_t *)attributes)[n];
        memset(value, 0, pointer_attribute_bytes(attribute));
        Result result = cuPointerGetAttribute(value, attribute, address);
        if (result != SUCCESS && result != INVALID_VALUE) return result; /* attributes of unknown memory are zeros */
    }
    return SUCCESS;
}

/* ---- a cache of functions' names and parameters, which never change ---- */

typedef struct Known {
    struct Known *next;
    uint64_t function;
    char *name;
    uint32_t count, bytes;
    uint32_t *layout; /* offset and size of each parameter */
} Known;

static Known *known;
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

static Result learn(uint64_t function, Known **found) {
    char name[4096] = "";
    uint32_t *layout = calloc(16384, sizeof *layout);
    Known *made = calloc(1, sizeof *made);
    Result result = emulatedFunctionName(function, name);
    if (result == SUCCESS) result = emulatedParameters(function, layout);
    if (result != SUCCESS) {
        free(layout);
        free(made);
        return result;
    }
    *made = (Known){known, function, strdup(name), layout[0], layout[1], NULL};
    made->layout = malloc((made->count + 1) * 2 * sizeof *layout);
    memcpy(made->layout, layout + 2, made->count * 2 * sizeof *layout);
    free(layout);
    known = made;
    *found = made;
    return SUCCESS;
}

static Result find_known(uint64_t function, Known **found) {
    pthread_mutex_lock(&known_lock);
    *found = known;
    while (*found && (*found)->function != function) *found = (*found)->next;
    Result result = *found ? SUCCESS : learn(function, found);
    pthread_mutex_unlock(&known_lock);
    return result;
}

API Result cuFuncGetName(uint64_t name, uint64_t function) {
    Known *found;
    Result result = find_known(function, &found);
    if (result == SUCCESS) *(const char **)name = found->name;
    return result;
}

API Result cuKernelGetName(uint64_t name, uint64_t kernel) { return cuFuncGetName(name, kernel); }

/* ---- launches ---- */

typedef struct {
    uint32_t shape[7]; /* grid, block, dynamic shared memory */
    uint64_t stream;
    const void *attributes;
    uint32_t count;
} Config; /* CUlaunchConfig */

/* A launch's `extra`: pairs of a key and a pointer, ended by a zero. */
static Result take_extra(void **extra, const void **data, size_t *bytes) {
    for (; *extra; extra += 2) {
        if (*extra == (void *)1) *data = extra[1];
        else if (*extra == (void *)2) *bytes = *(size_t *)extra[1];
        else return INVALID_VALUE;
    }
    return *data ? SUCCESS : INVALID_VALUE;
}

static Result launch(const Config *config, uint64_t function, void **parameters, void **extra) {
    Known *found;
    Result result = require_context();
    if (result == SUCCESS) result = find_known(function, &found);
    if (result != SUCCESS) return result;
    unsigned char packed[32768] = {0};
    const void *data = packed;
    size_t bytes = found->bytes;
    if (bytes > sizeof packed) return INVALID_VALUE;
    if (extra) {
        result = take_extra(extra, &data, &bytes);
    } else if (found->count && !parameters) {
        result = INVALID_VALUE;
    } else {
        for (uint32_t n = 0; n < found->count; n++) {
            if (!parameters[n]) return INVALID_VALUE;
            memcpy(packed + found->layout[2 * n], parameters[n], found->layout[2 * n + 1]);
        }
    }
    if (result != SUCCESS) return result;
    return emulatedLaunch(function, config->stream, config->shape, data, bytes, config->attributes, config->count);
}

API Result cuLaunchKernel(uint64_t function, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z, uint32_t block_x,
                          uint32_t block_y, uint32_t block_z, uint32_t shared, uint64_t stream, uint64_t parameters,
                          uint64_t extra) {
    Config config = {{grid_x, grid_y, grid_z, block_x, block_y, block_z, shared}, stream, NULL, 0};
    return launch(&config, function, (void **)parameters, (void **)extra);
}

API Result cuLaunchCooperativeKernel(uint64_t function, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
                                     uint32_t block_x, uint32_t block_y, uint32_t block_z, uint32_t shared,
                                     uint64_t stream, uint64_t parameters) {
    uint32_t cooperative[18] = {2, 0, 1}; /* CU_LAUNCH_ATTRIBUTE_COOPERATIVE */
    Config config = {{grid_x, grid_y, grid_z, block_x, block_y, block_z, shared}, stream, cooperative, 1};
    return launch(&config, function, (void **)parameters, NULL);
}

API Result cuLaunchKernelEx(uint64_t config, uint64_t function, uint64_t parameters, uint64_t extra) {
    if (!config) return INVALID_VALUE;
    return launch((const Config *)config, function, (void **)parameters, (void **)extra);
}

/* Streams are in order: when the emulated GPU replies, everything before has ended. */
API Result cuLaunchHostFunc(uint64_t stream, uint64_t function, uint64_t argument) {
    Result result = cuStreamQuery(stream);
    if (result == SUCCESS) ((void (*)(void *))function)((void *)argument);
    return result;
}

API Result cuStreamAddCallback(uint64_t stream, uint64_t function, uint64_t argument, uint32_t flags) {
    if (flags) return INVALID_VALUE;
    Result result = cuStreamQuery(stream);
    ((void (*)(uint64_t, Result, void *))function)(stream, result, (void *)argument);
    return result;
}

/* ---- occupancy ---- */

/* Finds the block size in whole warps with the most threads on a multiprocessor, and the largest of several. */
API Result cuOccupancyMaxPotentialBlockSizeWithFlags(uint64_t grid, uint64_t block, uint64_t function,
                                                     uint64_t shared_of_block, uint64_t shared, int32_t limit,
                                                     uint32_t flags) {
    (void)flags;
    int32_t best = 0, best_block = 0, best_count = 0, most, processors;
    Result result = cuFuncGetAttribute(&most, 0, function);
    if (result == SUCCESS) result = cuDeviceGetAttribute(&processors, 16, 0);
    if (result != SUCCESS) return result;
    if (limit > 0 && limit < most) most = limit;
    for (int32_t size = most; size > 0; size -= size % 32 ? size % 32 : 32) {
        int32_t count;
        size_t bytes = shared_of_block ? ((size_t (*)(int))shared_of_block)(size) : shared;
        result = cuOccupancyMaxActiveBlocksPerMultiprocessor(&count, function, size, bytes);
        if (result != SUCCESS) return result;
        if (count * size > best) best = count * size, best_block = size, best_count = count;
    }
    *(int32_t *)block = best_block;
    *(int32_t *)grid = best_count * processors;
    return SUCCESS;
}

API Result cuOccupancyMaxPotentialBlockSize(uint64_t grid, uint64_t block, uint64_t function, uint64_t shared_of_block,
                                            uint64_t shared, int32_t limit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of_block, shared, limit, 0);
}

API Result cuOccupancyMaxActiveClusters(uint64_t clusters, uint64_t function, uint64_t config) {
    const Config *given = (const Config *)config;
    if (!given) return INVALID_VALUE;
    return emulatedActiveClusters((int32_t *)clusters, function, given->shape, given->attributes, given->count);
}

API Result cuOccupancyMaxPotentialClusterSize(uint64_t size, uint64_t function, uint64_t config) {
    const Config *given = (const Config *)config;
    if (!given) return INVALID_VALUE;
    return emulatedLargestCluster((int32_t *)size, function, given->shape, given->attributes, given->count);
}

/* ---- tensor maps ---- */

API Result cuTensorMapReplaceAddress(uint64_t map, uint64_t address) {
    if (!map) return INVALID_VALUE;
    return emulatedReplaceAddress((void *)map, (const void *)map, address);
}
