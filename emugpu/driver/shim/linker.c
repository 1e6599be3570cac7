/* The driver's linker. It joins the texts of PTX modules to one module with the version and target of the first. If one
 * module declares a function that another one defines, the loader finds it by its name.
 */
#define _GNU_SOURCE
#include "stubs.h"

#include <stdlib.h>
#include <string.h>

enum { INPUT_PTX = 1, INPUT_LIBRARY = 4 }; /* CUjitInputType */

/* The functions of NVIDIA's libcudadevrt by which numba-cuda's grid.sync() meets; the library has machine code alone.
 * Two registers hold the address of the workspace of a cooperative launch, whose second word is the barrier. Each CTA
 * adds 1, but the first one 2^31 less the others, so the sign turns when all are here (as in CUDA's
 * cooperative_groups).
 */
static const char grid_barrier[] =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope) {\n"
    ".reg .b32 %low, %high; .reg .b64 %workspace;\n"
    "mov.u32 %low, %envreg2; mov.u32 %high, %envreg1; mov.b64 %workspace, {%low, %high};\n"
    "st.param.b64 [handle], %workspace; ret;\n}\n"
    ".visible .func (.param .b32 error) cudaCGSynchronize(.param .b64 handle, .param .b32 flags) {\n"
    ".reg .b32 %a, %b, %c, %old, %new; .reg .b64 %workspace; .reg .pred %p, %q;\n"
    "ld.param.b64 %workspace, [handle]; setp.ne.u64 %p, %workspace, 0; @%p bra COOPERATES; trap;\n"
    "COOPERATES: barrier.sync 0;\n"
    "mov.u32 %a, %tid.x; mov.u32 %b, %tid.y; mov.u32 %c, %tid.z; or.b32 %a, %a, %b; or.b32 %a, %a, %c;\n"
    "setp.ne.u32 %p, %a, 0; @%p bra MET;\n"
    "mov.u32 %a, %nctaid.x; mov.u32 %b, %nctaid.y; mov.u32 %c, %nctaid.z;\n"
    "mul.lo.u32 %a, %a, %b; mul.lo.u32 %a, %a, %c; sub.u32 %new, 0x80000001, %a;\n"
    "mov.u32 %a, %ctaid.x; mov.u32 %b, %ctaid.y; mov.u32 %c, %ctaid.z; or.b32 %a, %a, %b; or.b32 %a, %a, %c;\n"
    "setp.eq.u32 %q, %a, 0; selp.u32 %new, %new, 1, %q;\n"
    "fence.acq_rel.gpu; atom.add.release.gpu.u32 %old, [%workspace+4], %new;\n"
    "POLL: ld.acquire.gpu.u32 %new, [%workspace+4];\n"
    "xor.b32 %new, %new, %old; setp.gt.s32 %q, %new, -1; @%q bra POLL;\n"
    "MET: barrier.sync 0; st.param.b32 [error], 0; ret;\n}\n";

typedef struct {
    char *text;
    size_t bytes;
    bool has_grid_barrier;
} Link;

API Result cuLinkCreate_v2(uint32_t count, uint64_t options, uint64_t values, uint64_t state) {
    (void)count, (void)options, (void)values;
    Result ready = require_context();
    if (ready != SUCCESS) return ready;
    if (!state) return INVALID_VALUE;
    Link *made = calloc(1, sizeof *made);
    if (!made) return OUT_OF_MEMORY;
    *(Link **)state = made;
    return SUCCESS;
}

API Result cuLinkAddData_v2(uint64_t state, uint32_t kind, uint64_t data, uint64_t bytes, uint64_t name, uint32_t count,
                            uint64_t options, uint64_t values) {
    (void)name, (void)count, (void)options, (void)values;
    Link *link = (Link *)state;
    if (!link || !data || !bytes) return INVALID_VALUE;
    static const char member[] = "cuda_device_runtime.o";
    if (kind == INPUT_LIBRARY && memmem((void *)data, bytes, member, sizeof member - 1)) {
        if (link->has_grid_barrier) return SUCCESS; /* a second copy of a library defines nothing that is missing */
        link->has_grid_barrier = true;
        kind = INPUT_PTX, data = (uint64_t)grid_barrier, bytes = sizeof grid_barrier;
    }
    if (kind != INPUT_PTX) return emulatedGpuRefuses("cuLinkAddData_v2 of an input other than PTX and libcudadevrt");
    const char *from = (const char *)data;
    size_t before = link->text ? link->bytes - 1 : 0;
    char *text = realloc(link->text, before + bytes + 2);
    if (!text) return OUT_OF_MEMORY;
    link->text = text;
    text += before;
    if (before) *text++ = '\n';
    memcpy(text, from, bytes);
    text[bytes] = 0;
    if (before) {
        /* Spaces replace its own directives of version, target and address size. */
        char *end = strstr(text, ".address_size");
        char *line = end ? strchr(end, '\n') : NULL;
        for (char *at = text; line && at < line; at++)
            if (*at != '\n') *at = ' ';
    }
    link->bytes = (size_t)(text - link->text) + strlen(text) + 1;
    return SUCCESS;
}

API Result cuLinkComplete(uint64_t state, uint64_t image, uint64_t bytes) {
    Link *link = (Link *)state;
    if (!link || !link->text) return INVALID_VALUE;
    if (image) *(void **)image = link->text;
    if (bytes) *(size_t *)bytes = link->bytes;
    return SUCCESS;
}

API Result cuLinkDestroy(uint64_t state) {
    Link *link = (Link *)state;
    if (!link) return INVALID_VALUE;
    free(link->text);
    free(link);
    return SUCCESS;
}
