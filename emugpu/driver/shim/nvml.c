/* The functions of NVML by which programs look for a GPU (NVML API reference). They call the driver library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, UNKNOWN = 999 };
enum { MAJOR = 75, MINOR = 76, BUS = 33, DEVICE = 34, DOMAIN = 50, PROCESSORS = 16, CLOCK = 13, MEMORY_CLOCK = 36 };

typedef int Nvml; /* nvmlReturn_t */
static char the_device;

/* Finds a function of the driver library, which is already loaded or lies in the same folder. */
static void *driver(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    return library ? dlsym(library, name) : NULL;
}

static int attribute(int number) {
    int32_t (*get)(int32_t *, int32_t, int32_t) = driver("cuDeviceGetAttribute");
    int32_t value = 0;
    if (get) get(&value, number, 0);
    return value;
}

static Nvml copy(char *to, unsigned room, const char *text) {
    if (!to || strlen(text) >= room) return INVALID_ARGUMENT;
    strcpy(to, text);
    return SUCCESS;
}

API Nvml nvmlInit_v2(void) {
    int32_t (*init)(uint32_t) = driver("cuInit");
    return init && init(0) == 0 ? SUCCESS : UNKNOWN;
}
API Nvml nvmlInit(void) { return nvmlInit_v2(); }
API Nvml nvmlInitWithFlags(unsigned flags) { return flags ? nvmlInit_v2() : nvmlInit_v2(); }
API Nvml nvmlShutdown(void) { return SUCCESS; }
API const char *nvmlErrorString(Nvml result) { return result == SUCCESS ? "Success" : "Not Supported"; }

API Nvml nvmlSystemGetDriverVersion(char *text, unsigned room) { return copy(text, room, "580.00.00"); }
API Nvml nvmlSystemGetNVMLVersion(char *text, unsigned room) { return copy(text, room, "13.580.00.00"); }
API Nvml nvmlSystemGetCudaDriverVersion(int *version) { return *version = 13000, SUCCESS; }
API Nvml nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = 13000, SUCCESS; }

API Nvml nvmlDeviceGetCount_v2(unsigned *count) { return *count = 1, SUCCESS; }
API Nvml nvmlDeviceGetCount(unsigned *count) { return *count = 1, SUCCESS; }
API Nvml nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &the_device;
    return index ? INVALID_ARGUMENT : SUCCESS;
}
API Nvml nvmlDeviceGetHandleByIndex(unsigned index, void **device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }
API Nvml nvmlDeviceGetIndex(void *device, unsigned *index) { return (void)device, *index = 0, SUCCESS; }
API Nvml nvmlDeviceGetMinorNumber(void *device, unsigned *number) { return (void)device, *number = 0, SUCCESS; }

API Nvml nvmlDeviceGetName(void *device, char *text, unsigned room) {
    int32_t (*get)(char *, int32_t, int32_t) = driver("cuDeviceGetName");
    (void)device;
    return get && get(text, (int32_t)room, 0) == 0 ? SUCCESS : UNKNOWN;
}

API Nvml nvmlDeviceGetUUID(void *device, char *text, unsigned room) {
    int32_t (*get)(unsigned char *, int32_t) = driver("cuDeviceGetUuid");
    unsigned char id[16] = {0};
    (void)device;
    if (!get || get(id, 0) || room < 41) return INVALID_ARGUMENT;
    char *at = text + sprintf(text, "GPU");
    for (int n = 0; n < 16; n++)
        at += sprintf(at, n == 0 || n == 4 || n == 6 || n == 8 || n == 10 ? "-%02x" : "%02x", id[n]);
    return SUCCESS;
}

API Nvml nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    (void)device;
    *major = attribute(MAJOR), *minor = attribute(MINOR);
    return SUCCESS;
}

typedef struct {
    unsigned long long total, free, used;
} Memory;

API Nvml nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    int32_t (*get)(size_t *, int32_t) = driver("cuDeviceTotalMem_v2");
    size_t total = 0;
    (void)device;
    if (!get || get(&total, 0)) return UNKNOWN;
    *memory = (Memory){total, total, 0};
    return SUCCESS;
}

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} MemoryV2;

API Nvml nvmlDeviceGetMemoryInfo_v2(void *device, MemoryV2 *memory) {
    Memory found;
    Nvml result = nvmlDeviceGetMemoryInfo(device, &found);
    if (result == SUCCESS) memory->total = memory->free = found.total, memory->reserved = memory->used = 0;
    return result;
}

typedef struct {
    char old_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
} Pci;

API Nvml nvmlDeviceGetPciInfo_v3(void *device, Pci *pci) {
    (void)device;
    memset(pci, 0, sizeof *pci);
    pci->domain = (unsigned)attribute(DOMAIN), pci->bus = (unsigned)attribute(BUS);
    pci->device = (unsigned)attribute(DEVICE);
    snprintf(pci->old_id, sizeof pci->old_id, "%04x:%02x:%02x.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
    snprintf(pci->id, sizeof pci->id, "%08x:%02x:%02x.0", pci->domain, pci->bus & 0xff, pci->device & 0xff);
    return SUCCESS;
}

API Nvml nvmlDeviceGetPciInfo_v2(void *device, Pci *pci) { return nvmlDeviceGetPciInfo_v3(device, pci); }
API Nvml nvmlDeviceGetNumGpuCores(void *device, unsigned *cores) {
    return (void)device, *cores = 128u * (unsigned)attribute(PROCESSORS), SUCCESS;
}
API Nvml nvmlDeviceGetMaxClockInfo(void *device, unsigned kind, unsigned *mhz) {
    return (void)device, *mhz = (unsigned)attribute(kind == 2 ? MEMORY_CLOCK : CLOCK) / 1000, SUCCESS;
}
API Nvml nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *next) { return (void)device, *now = *next = 0, SUCCESS; }
API Nvml nvmlDeviceGetPersistenceMode(void *device, unsigned *mode) { return (void)device, *mode = 1, SUCCESS; }
API Nvml nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    return (void)device, *reasons = 0, SUCCESS;
}
API Nvml nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
    return (void)device, *reasons = 0, SUCCESS;
}
API Nvml nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *count) {
    return (void)device, (void)kind, (void)counter, *count = 0, SUCCESS;
}
API Nvml nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *processes) {
    return (void)device, (void)processes, *count = 0, SUCCESS;
}
/* There are no measurements. */
API Nvml nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) {
    return (void)device, (void)sensor, (void)degrees, NOT_SUPPORTED;
}
API Nvml nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { return (void)device, (void)milliwatts, NOT_SUPPORTED; }
API Nvml nvmlDeviceGetClockInfo(void *device, unsigned kind, unsigned *mhz) {
    return (void)device, (void)kind, (void)mhz, NOT_SUPPORTED;
}
API Nvml nvmlDeviceGetUtilizationRates(void *device, void *rates) { return (void)device, (void)rates, NOT_SUPPORTED; }
