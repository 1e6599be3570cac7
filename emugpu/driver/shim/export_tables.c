/* The private tables through which NVIDIA's runtime library, if it is linked into a program, calls the driver
 * (cuGetExportTable).
 *
 * They are undocumented. This file has the tables that the runtime of CUDA 13.0 asks for, with the entries whose meaning
 * is publicly known: they load registered modules, find the primary context, keep the runtime's state with a context,
 * and serve as hooks for profilers, which do not exist here. Each table begins with its size.
 */
#define _GNU_SOURCE
#include "stubs.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(table) (sizeof(table) / sizeof *(table))
#define SIZE_OF(count) ((void *)((count) * sizeof(void *)))

/* ---- for the runtime itself ---- */

static Result load_module(uint64_t *module, const void *wrapper) { return cuModuleLoadData(module, wrapper); }

static Result load_module_with(uint64_t *module, const void *wrapper, void *a, void *b, uint32_t c) {
    (void)a, (void)b, (void)c;
    return cuModuleLoadData(module, wrapper);
}

static Result load_fatbin_with(const void *fatbin, uint64_t *module, void *a, void *b, uint32_t c) {
    (void)a, (void)b, (void)c;
    return cuModuleLoadData(module, fatbin);
}

static Result primary_context(uint64_t context, int32_t device) { return cuDevicePrimaryCtxRetain(context, device); }

static Result do_nothing(void) { return SUCCESS; }

static void *const runtime_table[] = {SIZE_OF(13), load_module, primary_context, do_nothing, do_nothing, do_nothing,
                                      load_module_with, do_nothing, load_fatbin_with, do_nothing, do_nothing,
                                      do_nothing, do_nothing};

/* ---- state that the runtime keeps with a context ---- */

typedef struct Kept {
    struct Kept *next;
    uint64_t context;
    void *key, *value;
} Kept;

static Kept *kept;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static Kept **find_kept(uint64_t context, void *key) {
    if (!context) cuCtxGetCurrent((uint64_t)&context);
    Kept **at = &kept;
    while (*at && ((*at)->context != context || (*at)->key != key)) at = &(*at)->next;
    return at;
}

static Result keep(uint64_t context, void *key, void *value, void *destroy) {
    (void)destroy; /* contexts live as long as the process */
    if (!context) cuCtxGetCurrent((uint64_t)&context);
    pthread_mutex_lock(&kept_lock);
    Kept **at = find_kept(context, key);
    if (!*at) {
        *at = calloc(1, sizeof **at);
        **at = (Kept){NULL, context, key, NULL};
    }
    (*at)->value = value;
    pthread_mutex_unlock(&kept_lock);
    return SUCCESS;
}

static Result forget(uint64_t context, void *key) {
    pthread_mutex_lock(&kept_lock);
    Kept **at = find_kept(context, key), *old = *at;
    if (old) *at = old->next;
    pthread_mutex_unlock(&kept_lock);
    free(old);
    return SUCCESS;
}

static Result recall(void **value, uint64_t context, void *key) {
    pthread_mutex_lock(&kept_lock);
    Kept *found = *find_kept(context, key);
    *value = found ? found->value : NULL;
    pthread_mutex_unlock(&kept_lock);
    return found ? SUCCESS : NOT_FOUND;
}

static void *const context_table[] = {keep, forget, recall, do_nothing};

/* ---- profilers ---- */

static void flags_of_callbacks(void **flags, size_t *count) {
    static unsigned char none[1024];
    *flags = none;
    *count = sizeof none;
}

static void flags_of_domains(void **flags, size_t *count) {
    static unsigned char none[14];
    *flags = none;
    *count = sizeof none;
}

static void *const hook_table[] = {SIZE_OF(7), do_nothing, flags_of_callbacks, do_nothing, do_nothing, do_nothing,
                                   flags_of_domains};
static void *const thread_table[] = {SIZE_OF(4), do_nothing, do_nothing, do_nothing};

/* ---- checks of a context before a call ---- */

static Result check_context(uint64_t context, uint32_t *failed, const void **why) {
    (void)context, (void)why;
    if (failed) *failed = 0;
    return SUCCESS;
}

static void *const check_table[] = {SIZE_OF(4), do_nothing, check_context, do_nothing};

static const struct {
    unsigned char id[16];
    const void *table;
} tables[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}, runtime_table},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93}, context_table},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}, hook_table},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}, thread_table},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e}, check_table},
};

static const unsigned char driver_check[16] = {0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b,
                                               0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2};

API Result cuGetExportTable(uint64_t table, uint64_t id) {
    if (!table || !id) return INVALID_VALUE;
    *(const void **)table = NULL;
    for (size_t n = 0; n < COUNT(tables); n++)
        if (!memcmp((const void *)id, tables[n].id, sizeof tables[n].id)) *(const void **)table = tables[n].table;
    if (!memcmp((const void *)id, driver_check, sizeof driver_check)) emulatedRuntimeCheck();
    if (*(const void **)table) return SUCCESS;
    char text[33];
    for (int n = 0; n < 16; n++) snprintf(text + 2 * n, 3, "%02x", ((const unsigned char *)id)[n]);
    if (getenv("EMULATED_GPU_TRACE")) fprintf(stderr, "emulated GPU: there is no export table %s\n", text);
    Dl_info asks;
    const char *library = dladdr(__builtin_return_address(0), &asks) && asks.dli_fname ? asks.dli_fname : "the program";
    emulatedNoExportTable(text, library);
    return NOT_FOUND;
}
