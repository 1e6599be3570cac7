/* A stand-in for cuBLASLt: descriptors and matrix products. The emulated GPU computes the products with NumPy, and reports
 * that it does. There is one algorithm, which needs no workspace. Other functions and attributes are refused with a message
 * that names them. The attribute numbers are those of cublasLt.h, the rules those of the cuBLAS library documentation.
 */
#include "blas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS_FIRST = 0, POINTERS_HOST = 0, FILL_FULL = 2 };

/* These fit into the memory that programs reserve for descriptors that they initialise themselves. */
typedef struct {
    int32_t type, order;
    uint64_t rows, columns;
    int64_t leading, stride;
    int32_t batch;
} Layout;

typedef struct {
    int32_t compute, scalars, pointers, transpose_a, transpose_b, epilogue, bias_type, multiprocessors;
    uint64_t bias;
    int64_t bias_stride;
    uint64_t scale_a, scale_b, scale_d;
    int8_t fast;
} Operation;

typedef struct {
    uint64_t algorithm[8];
    size_t workspace;
    Status state;
    float waves;
    int reserved[4];
} Answer;

/* ---- attributes ---- */

/* size: 0 if `usual` is the only supported value. */
typedef struct {
    const char *name;
    size_t size, at;
    int32_t usual;
} Attribute;

#define OF(kind, field, name) {name, sizeof(((kind *)0)->field), offsetof(kind, field), 0}
static const Attribute of_layout[] = {
    OF(Layout, type, "TYPE"), OF(Layout, order, "ORDER"), OF(Layout, rows, "ROWS"), OF(Layout, columns, "COLS"),
    OF(Layout, leading, "LD"), OF(Layout, batch, "BATCH_COUNT"), OF(Layout, stride, "STRIDED_BATCH_OFFSET"),
    {.name = "PLANE_OFFSET"}, {.name = "BATCH_MODE"},
};
static const Attribute of_operation[] = {
    [0] = OF(Operation, compute, "COMPUTE_TYPE"), OF(Operation, scalars, "SCALE_TYPE"), OF(Operation, pointers, "POINTER_MODE"),
    OF(Operation, transpose_a, "TRANSA"), OF(Operation, transpose_b, "TRANSB"), {.name = "TRANSC"},
    {.name = "FILL_MODE", .usual = FILL_FULL}, OF(Operation, epilogue, "EPILOGUE"), OF(Operation, bias, "BIAS_POINTER"),
    [10] = OF(Operation, bias_stride, "BIAS_BATCH_STRIDE"), {.name = "EPILOGUE_AUX_POINTER"}, {.name = "EPILOGUE_AUX_LD"},
    {.name = "EPILOGUE_AUX_BATCH_STRIDE"}, {.name = "ALPHA_VECTOR_BATCH_STRIDE"},
    OF(Operation, multiprocessors, "SM_COUNT_TARGET"),
    [17] = OF(Operation, scale_a, "A_SCALE_POINTER"), OF(Operation, scale_b, "B_SCALE_POINTER"), {.name = "C_SCALE_POINTER"},
    OF(Operation, scale_d, "D_SCALE_POINTER"), {.name = "AMAX_D_POINTER"}, {.name = "EPILOGUE_AUX_DATA_TYPE", .usual = NO_TYPE},
    {.name = "EPILOGUE_AUX_SCALE_POINTER"}, {.name = "EPILOGUE_AUX_AMAX_POINTER"}, OF(Operation, fast, "FAST_ACCUM"),
    OF(Operation, bias_type, "BIAS_DATA_TYPE"),
    [31] = {.name = "A_SCALE_MODE"}, {.name = "B_SCALE_MODE"}, {.name = "C_SCALE_MODE"}, {.name = "D_SCALE_MODE"},
    {.name = "EPILOGUE_AUX_SCALE_MODE"}, {.name = "D_OUT_SCALE_POINTER"}, {.name = "D_OUT_SCALE_MODE"},
};
#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

static Status refuse_attribute(const char *kind, const Attribute *known, int number) {
    char text[96];
    if (known)
        snprintf(text, sizeof text, "%s_%s", kind, known->name);
    else
        snprintf(text, sizeof text, "attribute %d of %s", number, kind);
    return emulatedGpuRefuses(text), REFUSED;
}

static Status set(const char *kind, void *object, const Attribute *table, int count, int number, const void *value, size_t size) {
    const Attribute *known = number >= 0 && number < count && table[number].name ? &table[number] : NULL;
    if (!object || !value) return INVALID;
    if (known && known->size) return size == known->size ? memcpy((char *)object + known->at, value, size), OK : INVALID;
    int64_t given = 0, usual = known ? known->usual : 0;
    if (size > sizeof given) return INVALID;
    memcpy(&given, value, size);
    return known && !memcmp(&given, &usual, size) ? OK : refuse_attribute(kind, known, number);
}

static Status get(const char *kind, const void *object, const Attribute *table, int count, int number, void *value, size_t size,
                  size_t *written) {
    const Attribute *known = number >= 0 && number < count && table[number].name ? &table[number] : NULL;
    if (!object) return INVALID;
    if (!known || !known->size) return refuse_attribute(kind, known, number);
    if (size ? !value || size != known->size : !written) return INVALID;
    if (size) memcpy(value, (const char *)object + known->at, size);
    if (written) *written = known->size;
    return OK;
}

/* ---- descriptors ---- */

API Status cublasLtCreate(void **handle) { return handle ? (*handle = malloc(1)) ? OK : ALLOC_FAILED : INVALID; }
API Status cublasLtDestroy(void *handle) { return handle ? free(handle), OK : NOT_INITIALISED; }
API size_t cublasLtGetVersion(void) { return 130000; }
API size_t cublasLtGetCudartVersion(void) { return 13000; }
API const char *cublasLtGetStatusString(Status status) { return status ? "an error of the emulated cuBLASLt" : "success"; }
API const char *cublasLtGetStatusName(Status status) { return status ? "CUBLAS_STATUS_ERROR" : "CUBLAS_STATUS_SUCCESS"; }

/* Allocates a descriptor, which `made` initialises. */
#define CREATE(descriptor, kind, made)            \
    if (!(descriptor)) return INVALID;            \
    *(descriptor) = malloc(sizeof(kind));         \
    return *(descriptor) ? (made) : ALLOC_FAILED

API Status cublasLtMatrixLayoutInit_internal(Layout *layout, size_t size, int type, uint64_t rows, uint64_t columns,
                                             int64_t leading) {
    if (size < sizeof *layout) return ALLOC_FAILED;
    *layout = (Layout){type, COLUMNS_FIRST, rows, columns, leading, 0, 1};
    return OK;
}
API Status cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    CREATE(layout, Layout, cublasLtMatrixLayoutInit_internal(*layout, sizeof(Layout), type, rows, columns, leading));
}
API Status cublasLtMatrixLayoutDestroy(Layout *layout) { return free(layout), OK; }
API Status cublasLtMatrixLayoutSetAttribute(Layout *layout, int number, const void *value, size_t size) {
    return set("CUBLASLT_MATRIX_LAYOUT", layout, of_layout, COUNT(of_layout), number, value, size);
}
API Status cublasLtMatrixLayoutGetAttribute(const Layout *layout, int number, void *value, size_t size, size_t *written) {
    return get("CUBLASLT_MATRIX_LAYOUT", layout, of_layout, COUNT(of_layout), number, value, size, written);
}

API Status cublasLtMatmulDescInit_internal(Operation *operation, size_t size, int compute, int scalars) {
    if (size < sizeof *operation) return ALLOC_FAILED;
    *operation = (Operation){.compute = compute, .scalars = scalars, .epilogue = EPILOGUE_DEFAULT, .bias_type = NO_TYPE};
    return OK;
}
API Status cublasLtMatmulDescCreate(Operation **operation, int compute, int scalars) {
    CREATE(operation, Operation, cublasLtMatmulDescInit_internal(*operation, sizeof(Operation), compute, scalars));
}
API Status cublasLtMatmulDescDestroy(Operation *operation) { return free(operation), OK; }
API Status cublasLtMatmulDescSetAttribute(Operation *operation, int number, const void *value, size_t size) {
    return set("CUBLASLT_MATMUL_DESC", operation, of_operation, COUNT(of_operation), number, value, size);
}
API Status cublasLtMatmulDescGetAttribute(const Operation *operation, int number, void *value, size_t size, size_t *written) {
    return get("CUBLASLT_MATMUL_DESC", operation, of_operation, COUNT(of_operation), number, value, size, written);
}

/* Preferences choose between algorithms, and there is only one. */
API Status cublasLtMatmulPreferenceInit_internal(void *preference, size_t size) { return memset(preference, 0, size), OK; }
API Status cublasLtMatmulPreferenceCreate(void **preference) { return cublasLtCreate(preference); }
API Status cublasLtMatmulPreferenceDestroy(void *preference) { return free(preference), OK; }
API Status cublasLtMatmulPreferenceSetAttribute(void *preference, int number, const void *value, size_t size) {
    return preference && number >= 0 && value && size ? OK : INVALID;
}

/* ---- products ---- */

static Matrix matrix(const Layout *layout, uint64_t address, uint64_t scale) {
    return (Matrix){address, layout->type, layout->order, (int64_t)layout->rows, (int64_t)layout->columns, layout->leading,
                    layout->stride, scale};
}

static Status product(const char *name, void *handle, const Operation *o, const void *alpha, uint64_t a, const Layout *of_a,
                      uint64_t b, const Layout *of_b, const void *beta, uint64_t c, const Layout *of_c, uint64_t d,
                      const Layout *of_d, int64_t asks) {
    if (!handle) return NOT_INITIALISED;
    if (!o || !of_a || !of_b || !of_c || !of_d) return INVALID;
    if (of_a->batch != of_d->batch || of_b->batch != of_d->batch || of_c->batch != of_d->batch) return INVALID;
    Product what = {.transpose_a = o->transpose_a, .transpose_b = o->transpose_b, .compute = o->compute, .scalars = o->scalars,
                    .pointers = o->pointers, .batch = of_d->batch, .epilogue = o->epilogue, .bias = o->bias,
                    .bias_type = o->bias_type, .bias_stride = o->bias_stride, .asks = asks, .a = matrix(of_a, a, o->scale_a),
                    .b = matrix(of_b, b, o->scale_b), .c = matrix(of_c, c, 0), .d = matrix(of_d, d, o->scale_d)};
    if (o->pointers != POINTERS_HOST) {
        what.alpha = (uint64_t)alpha, what.beta = (uint64_t)beta;
    } else if (!asks) {
        memcpy(&what.alpha, alpha, bytes_of_scalar(o->scalars));
        memcpy(&what.beta, beta, bytes_of_scalar(o->scalars));
    }
    return multiply(name, &what);
}

API Status cublasLtMatmulAlgoGetHeuristic(void *handle, const Operation *operation, const Layout *a, const Layout *b,
                                          const Layout *c, const Layout *d, void *preference, int count, Answer *answers,
                                          int *given) {
    if (!preference || count < 1 || !answers || !given) return INVALID;
    *given = 0;
    Status status = product("cublasLtMatmulAlgoGetHeuristic", handle, operation, NULL, 0, a, 0, b, NULL, 0, c, 0, d, 1);
    if (status != OK) return status;
    *answers = (Answer){.state = OK, .waves = 1};
    return *given = 1, OK;
}

API Status cublasLtMatmul(void *handle, const Operation *operation, const void *alpha, uint64_t a, const Layout *of_a, uint64_t b,
                          const Layout *of_b, const void *beta, uint64_t c, const Layout *of_c, uint64_t d, const Layout *of_d,
                          const void *algorithm, void *workspace, size_t bytes, uint64_t stream) {
    (void)algorithm, (void)workspace, (void)bytes, (void)stream;
    if (!alpha || !beta) return INVALID;
    return product("cublasLtMatmul", handle, operation, alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, 0);
}

API Status cublasLtLoggerSetLevel(int level) { return (void)level, OK; }
API Status cublasLtLoggerSetMask(int mask) { return (void)mask, OK; }
API Status cublasLtLoggerForceDisable(void) { return OK; }
REFUSES(cublasLtMatmulPreferenceGetAttribute)
REFUSES(cublasLtMatmulAlgoGetHeuristicForStream)
REFUSES(cublasLtMatmulAlgoGetIds)
REFUSES(cublasLtMatmulAlgoInit)
REFUSES(cublasLtMatmulAlgoCheck)
REFUSES(cublasLtMatmulAlgoCapGetAttribute)
REFUSES(cublasLtMatmulAlgoConfigGetAttribute)
REFUSES(cublasLtMatmulAlgoConfigSetAttribute)
REFUSES(cublasLtMatrixTransform)
REFUSES(cublasLtMatrixTransformDescCreate)
REFUSES(cublasLtGroupedMatrixLayoutCreate)
REFUSES(cublasLtGroupedMatrixLayoutInit_internal)
REFUSES(cublasLtEmulationDescCreate)
