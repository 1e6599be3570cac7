/* A matrix product, as the stand-ins for cuBLAS and cuBLASLt pass it to the emulated GPU: numbers of eight bytes, in the
 * order in which emugpu/driver/blas_calls.py reads them.
 */
#pragma once

#include "core.h"

typedef int Status; /* cublasStatus_t */

enum { OK = 0, NOT_INITIALISED = 1, ALLOC_FAILED = 3, INVALID = 7, EXECUTION_FAILED = 13, REFUSED = 15 };
enum { COMPUTE_16F = 64, COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_32I = 72, COMPUTE_32F_FAST_TF32 = 77 };
enum { R_32F = 0, R_64F = 1, R_16F = 2, R_32I = 10 }; /* cudaDataType */

/* order: 0 is column-major, 1 is row-major. scale: the address of a factor, or 0. */
typedef struct {
    uint64_t address;
    int64_t type, order, rows, columns, leading, stride;
    uint64_t scale;
} Matrix;

/* D = epilogue(alpha op(A) op(B) + beta C). scalars: the type of alpha and beta; pointers: whether these are device
 * addresses. asks: the call only asks whether this product is supported. */
typedef struct {
    int64_t transpose_a, transpose_b, compute, scalars, pointers;
    uint64_t alpha, beta;
    int64_t batch, epilogue;
    uint64_t bias;
    int64_t bias_type, bias_stride, asks;
    Matrix a, b, c, d;
} Product;

enum { EPILOGUE_DEFAULT = 1, NO_TYPE = -1 };

Result emulatedGpuGemm(const char *name, const void *what);

static inline Status multiply(const char *name, const Product *what) {
    Result result = emulatedGpuGemm(name, what);
    return result == SUCCESS ? OK : result == NOT_SUPPORTED ? REFUSED : result == INVALID_VALUE ? INVALID : EXECUTION_FAILED;
}

static inline size_t bytes_of_scalar(int64_t type) { return type == R_64F ? 8 : type == R_16F ? 2 : 4; }

#define REFUSES(name) \
    API Status name(void) { return emulatedGpuRefuses(#name), REFUSED; }
