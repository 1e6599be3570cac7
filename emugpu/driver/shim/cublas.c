/* A stand-in for cuBLAS: the emulated GPU computes matrix products with NumPy, and reports that it does. All other
 * functions are refused with a message that names them (cuBLAS library documentation).
 */
#include "blas.h"

#include <stdlib.h>
#include <string.h>

enum { TF32_TENSOR_OP_MATH = 3, DEVICE_POINTERS = 1 };

typedef struct {
    uint64_t stream;
    int math, pointers;
} Handle;

API Status cublasCreate_v2(Handle **handle) {
    if (!handle) return INVALID;
    *handle = calloc(1, sizeof(Handle));
    return *handle ? OK : ALLOC_FAILED;
}
API Status cublasDestroy_v2(Handle *handle) { return handle ? free(handle), OK : NOT_INITIALISED; }
API Status cublasGetVersion_v2(Handle *handle, int *version) { return (void)handle, *version = 130000, OK; }
API Status cublasSetStream_v2(Handle *handle, uint64_t stream) { return handle->stream = stream, OK; }
API Status cublasGetStream_v2(Handle *handle, uint64_t *stream) { return *stream = handle->stream, OK; }
API Status cublasSetMathMode(Handle *handle, int mode) { return handle->math = mode, OK; }
API Status cublasGetMathMode(Handle *handle, int *mode) { return *mode = handle->math, OK; }
API Status cublasSetPointerMode_v2(Handle *handle, int mode) { return handle->pointers = mode, OK; }
API Status cublasGetPointerMode_v2(Handle *handle, int *mode) { return *mode = handle->pointers, OK; }
API Status cublasSetAtomicsMode(Handle *handle, int mode) { return (void)handle, (void)mode, OK; }
API Status cublasSetWorkspace_v2(Handle *handle, uint64_t at, size_t bytes) { return (void)handle, (void)at, (void)bytes, OK; }
API const char *cublasGetStatusString(Status status) { return status ? "an error of the emulated cuBLAS" : "success"; }
API const char *cublasGetStatusName(Status status) { return status ? "CUBLAS_STATUS_ERROR" : "CUBLAS_STATUS_SUCCESS"; }

/* C = alpha op(A) op(B) + beta C, with column-major matrices. */
static Status gemm(const char *name, Handle *handle, int ta, int tb, int m, int n, int k, const void *alpha, Matrix a, Matrix b,
                   const void *beta, Matrix c, int batch, int compute) {
    if (!handle) return NOT_INITIALISED;
    if (m < 0 || n < 0 || k < 0 || batch < 0 || !alpha || !beta) return INVALID;
    if (compute == COMPUTE_32F && (handle->math & 15) == TF32_TENSOR_OP_MATH) compute = COMPUTE_32F_FAST_TF32;
    int family = compute & ~1;
    int scalars = family == COMPUTE_64F ? R_64F : family == COMPUTE_16F ? R_16F : family == COMPUTE_32I ? R_32I : R_32F;
    a.rows = ta ? k : m, a.columns = ta ? m : k;
    b.rows = tb ? n : k, b.columns = tb ? k : n;
    c.rows = m, c.columns = n;
    Product what = {.transpose_a = ta, .transpose_b = tb, .compute = compute, .scalars = scalars, .pointers = handle->pointers,
                    .batch = batch, .epilogue = EPILOGUE_DEFAULT, .bias_type = NO_TYPE, .a = a, .b = b, .c = c, .d = c};
    if (handle->pointers == DEVICE_POINTERS) {
        what.alpha = (uint64_t)alpha, what.beta = (uint64_t)beta;
    } else {
        memcpy(&what.alpha, alpha, bytes_of_scalar(scalars));
        memcpy(&what.beta, beta, bytes_of_scalar(scalars));
    }
    return multiply(name, &what);
}

#define BY_COLUMNS(at, of, ld, step) ((Matrix){.address = at, .type = of, .leading = ld, .stride = step})
#define OF_TYPE(name, number, type, compute)                                                                                 \
    API Status name(Handle *handle, int ta, int tb, int m, int n, int k, const number *alpha, uint64_t a, int lda, uint64_t b,\
                    int ldb, const number *beta, uint64_t c, int ldc) {                                                      \
        return gemm(#name, handle, ta, tb, m, n, k, alpha, BY_COLUMNS(a, type, lda, 0), BY_COLUMNS(b, type, ldb, 0), beta,   \
                    BY_COLUMNS(c, type, ldc, 0), 1, compute);                                                                \
    }
#define BATCHED(name, number, type, compute)                                                                                 \
    API Status name(Handle *handle, int ta, int tb, int m, int n, int k, const number *alpha, uint64_t a, int lda,           \
                    long long sa, uint64_t b, int ldb, long long sb, const number *beta, uint64_t c, int ldc, long long sc,  \
                    int batch) {                                                                                             \
        return gemm(#name, handle, ta, tb, m, n, k, alpha, BY_COLUMNS(a, type, lda, sa), BY_COLUMNS(b, type, ldb, sb), beta, \
                    BY_COLUMNS(c, type, ldc, sc), batch, compute);                                                           \
    }
OF_TYPE(cublasSgemm_v2, float, R_32F, COMPUTE_32F)
OF_TYPE(cublasDgemm_v2, double, R_64F, COMPUTE_64F)
OF_TYPE(cublasHgemm, uint16_t, R_16F, COMPUTE_16F)
BATCHED(cublasSgemmStridedBatched, float, R_32F, COMPUTE_32F)
BATCHED(cublasDgemmStridedBatched, double, R_64F, COMPUTE_64F)
BATCHED(cublasHgemmStridedBatched, uint16_t, R_16F, COMPUTE_16F)

API Status cublasGemmEx(Handle *handle, int ta, int tb, int m, int n, int k, const void *alpha, uint64_t a, int at, int lda,
                        uint64_t b, int bt, int ldb, const void *beta, uint64_t c, int ct, int ldc, int compute, int how) {
    (void)how;
    return gemm("cublasGemmEx", handle, ta, tb, m, n, k, alpha, BY_COLUMNS(a, at, lda, 0), BY_COLUMNS(b, bt, ldb, 0), beta,
                BY_COLUMNS(c, ct, ldc, 0), 1, compute);
}

API Status cublasGemmStridedBatchedEx(Handle *handle, int ta, int tb, int m, int n, int k, const void *alpha, uint64_t a,
                                      int at, int lda, long long sa, uint64_t b, int bt, int ldb, long long sb,
                                      const void *beta, uint64_t c, int ct, int ldc, long long sc, int batch, int compute,
                                      int how) {
    (void)how;
    return gemm("cublasGemmStridedBatchedEx", handle, ta, tb, m, n, k, alpha, BY_COLUMNS(a, at, lda, sa), BY_COLUMNS(b, bt, ldb, sb),
                beta, BY_COLUMNS(c, ct, ldc, sc), batch, compute);
}

REFUSES(cublasGemmBatchedEx)
REFUSES(cublasSgemmBatched)
REFUSES(cublasGemmGroupedBatchedEx)
REFUSES(cublasSgemv_v2)
REFUSES(cublasSaxpy_v2)
REFUSES(cublasSdot_v2)
REFUSES(cublasSscal_v2)
REFUSES(cublasSnrm2_v2)
REFUSES(cublasStrsm_v2)
