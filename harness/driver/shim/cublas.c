/* cuBLAS, for programs that multiply by it: matrix products, which the emulated GPU computes with NumPy and says so.
 * Its other functions say which one the program has called (cuBLAS library documentation).
 */
#define _GNU_SOURCE
#include "core.h"

#include <string.h>

typedef int Status;   /* cublasStatus_t */
typedef int DataType; /* cudaDataType */

Result emulatedGpuRefuses(const char *name);
Result emulatedGpuGemm(const char *name, const void *what);

enum { OK = 0, NOT_INITIALISED = 1, INVALID = 7, EXECUTION_FAILED = 13, REFUSED = 15 };
enum { R_32F = 0, R_64F = 1, R_16F = 2 };
enum { COMPUTE_16F = 64, COMPUTE_32F = 68, COMPUTE_64F = 70 };

typedef struct {
    uint64_t stream;
    int math, pointers;
} Handle;

API Status cublasCreate_v2(Handle **handle) {
    static Handle only;
    return handle ? *handle = &only, OK : INVALID;
}
API Status cublasDestroy_v2(Handle *handle) { return handle ? OK : NOT_INITIALISED; }
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

typedef struct {
    uint64_t address;
    DataType type;
    int leading;
    long long stride;
} Matrix;

/* C = alpha op(A) op(B) + beta C, of matrices by columns, as the numbers that harness/driver/blas_calls.py reads. */
static Status gemm(const char *name, Handle *handle, int ta, int tb, int m, int n, int k, const void *alpha, Matrix a, Matrix b,
                   const void *beta, Matrix c, int batch, int compute) {
    if (!handle) return NOT_INITIALISED;
    if (m < 0 || n < 0 || k < 0 || batch < 0 || !alpha || !beta) return INVALID;
    if (handle->pointers) return emulatedGpuRefuses("cublasSetPointerMode(CUBLAS_POINTER_MODE_DEVICE)"), REFUSED;
    size_t size = compute == COMPUTE_64F || compute == COMPUTE_64F + 1 ? 8 : compute == COMPUTE_16F || compute == COMPUTE_16F + 1 ? 2 : 4;
    uint64_t what[21] = {(uint64_t)ta, (uint64_t)tb, (uint64_t)m, (uint64_t)n, (uint64_t)k, (uint64_t)batch, (uint64_t)compute, 0, 0};
    memcpy(&what[7], alpha, size);
    memcpy(&what[8], beta, size);
    const Matrix all[3] = {a, b, c};
    for (int i = 0; i < 3; i++) {
        what[9 + 4 * i] = all[i].address;
        what[10 + 4 * i] = (uint64_t)all[i].type;
        what[11 + 4 * i] = (uint64_t)all[i].leading;
        what[12 + 4 * i] = (uint64_t)all[i].stride;
    }
    Result result = emulatedGpuGemm(name, what);
    return result == SUCCESS ? OK : result == NOT_SUPPORTED ? REFUSED : result == INVALID_VALUE ? INVALID : EXECUTION_FAILED;
}

#define OF_TYPE(name, number, type, compute)                                                                                  \
    API Status name(Handle *handle, int ta, int tb, int m, int n, int k, const number *alpha, uint64_t a, int lda, uint64_t b, \
                    int ldb, const number *beta, uint64_t c, int ldc) {                                                       \
        return gemm(#name, handle, ta, tb, m, n, k, alpha, (Matrix){a, type, lda, 0}, (Matrix){b, type, ldb, 0}, beta,         \
                    (Matrix){c, type, ldc, 0}, 1, compute);                                                                   \
    }
#define BATCHED(name, number, type, compute)                                                                                   \
    API Status name(Handle *handle, int ta, int tb, int m, int n, int k, const number *alpha, uint64_t a, int lda,             \
                    long long sa, uint64_t b, int ldb, long long sb, const number *beta, uint64_t c, int ldc, long long sc,    \
                    int batch) {                                                                                               \
        return gemm(#name, handle, ta, tb, m, n, k, alpha, (Matrix){a, type, lda, sa}, (Matrix){b, type, ldb, sb}, beta,       \
                    (Matrix){c, type, ldc, sc}, batch, compute);                                                               \
    }
OF_TYPE(cublasSgemm_v2, float, R_32F, COMPUTE_32F)
OF_TYPE(cublasDgemm_v2, double, R_64F, COMPUTE_64F)
OF_TYPE(cublasHgemm, uint16_t, R_16F, COMPUTE_16F)
BATCHED(cublasSgemmStridedBatched, float, R_32F, COMPUTE_32F)
BATCHED(cublasDgemmStridedBatched, double, R_64F, COMPUTE_64F)
BATCHED(cublasHgemmStridedBatched, uint16_t, R_16F, COMPUTE_16F)

API Status cublasGemmEx(Handle *handle, int ta, int tb, int m, int n, int k, const void *alpha, uint64_t a, DataType at, int lda,
                        uint64_t b, DataType bt, int ldb, const void *beta, uint64_t c, DataType ct, int ldc, int compute, int how) {
    (void)how;
    return gemm("cublasGemmEx", handle, ta, tb, m, n, k, alpha, (Matrix){a, at, lda, 0}, (Matrix){b, bt, ldb, 0}, beta,
                (Matrix){c, ct, ldc, 0}, 1, compute);
}

API Status cublasGemmStridedBatchedEx(Handle *handle, int ta, int tb, int m, int n, int k, const void *alpha, uint64_t a,
                                      DataType at, int lda, long long sa, uint64_t b, DataType bt, int ldb, long long sb,
                                      const void *beta, uint64_t c, DataType ct, int ldc, long long sc, int batch, int compute,
                                      int how) {
    (void)how;
    return gemm("cublasGemmStridedBatchedEx", handle, ta, tb, m, n, k, alpha, (Matrix){a, at, lda, sa}, (Matrix){b, bt, ldb, sb},
                beta, (Matrix){c, ct, ldc, sc}, batch, compute);
}

#define REFUSES(name) \
    API Status name(void) { return emulatedGpuRefuses(#name), REFUSED; }
REFUSES(cublasGemmBatchedEx)
REFUSES(cublasSgemmBatched)
REFUSES(cublasGemmGroupedBatchedEx)
REFUSES(cublasSgemv_v2)
REFUSES(cublasSaxpy_v2)
REFUSES(cublasSdot_v2)
REFUSES(cublasSscal_v2)
REFUSES(cublasSnrm2_v2)
REFUSES(cublasStrsm_v2)
REFUSES(cublasLtCreate)
REFUSES(cublasLtMatmul)
