// CUDA's mathematical functions, and its types of 16 and 8 bits: what the compiler makes of them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void singles(const float *x, float *y, int count) {
  int i = threadIdx.x;
  float v = x[i];
  float results[] = {expf(v), logf(fabsf(v) + 0.5f), sinf(v), cosf(1000.0f * v), tanhf(v), rsqrtf(v * v + 1.0f),
                     powf(fabsf(v) + 0.1f, 1.7f), v / 3.0f, sqrtf(fabsf(v)), __expf(v), __fdividef(v, 7.0f), erff(v),
                     cbrtf(v), log1pf(v * v), fmodf(v, 0.7f), atan2f(v, 2.0f)};
  for (int f = 0; f < 16; ++f) y[f * count + i] = results[f];
}

extern "C" __global__ void doubles(const double *x, double *y, int count) {
  int i = threadIdx.x;
  double v = x[i];
  double results[] = {exp(v), log(fabs(v) + 0.5), sin(v), v / 3.0, sqrt(fabs(v)), rsqrt(v * v + 1.0), fma(v, v, 0.1),
                      tanh(v)};
  for (int f = 0; f < 8; ++f) y[f * count + i] = results[f];
}

extern "C" __global__ void halves(const float *x, float *y, int count) {
  int i = threadIdx.x;
  half h = __float2half(x[i]);
  __nv_bfloat16 b = __float2bfloat16(x[i]);
  half2 pair = __hfma2(__half2half2(h), __floats2half2_rn(1.5f, -2.0f), __floats2half2_rn(0.25f, 3.0f));
  __nv_bfloat162 other = __hmul2(__bfloat162bfloat162(b), __floats2bfloat162_rn(3.0f, 0.1f));
  float results[] = {__half2float(hexp(h)), __low2float(pair), __high2float(pair), __low2float(other),
                     __high2float(other), __half2float(__hmax(h, __float2half(0.5f))), float(__nv_fp8_e4m3(x[i])),
                     float(__nv_fp8_e5m2(x[i])), (float)__half2int_rn(h), __half2float(__hdiv(h, __float2half(3.0f)))};
  for (int f = 0; f < 10; ++f) y[f * count + i] = results[f];
}
