// Kernels as people write them: elementwise, a block's sum through shared memory, device functions, constants, atomics.
// The PTX beside this file is NVRTC's (13.0, sm_80, with line information).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Weights {
    float values[5];
    int shift;
};

__constant__ float table[4] = {1.0f, 2.0f, 3.0f, 4.0f};
__device__ int counter = 3;

extern "C" __global__ void saxpy(int n, float a, const float* __restrict__ x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

extern "C" __global__ void halves(int n, const __nv_bfloat16* x, __nv_bfloat16* y, __half* h) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float v = __bfloat162float(x[i]);
        y[i] = __hmul(__float2bfloat16(expf(v) + tanhf(v)), x[i]);
        h[i] = __hadd(h[i], __float2half(v));
    }
}

__device__ __noinline__ float looked_up(float x, int k) { return k > 0 ? x * table[k & 3] : sinf(x); }

// One block: the sum over all elements, through warps and shared memory.
extern "C" __global__ void sum(const float* x, float* out, int n, Weights weights) {
    __shared__ float partial[32];
    float v = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += looked_up(x[i], weights.shift) + weights.values[i % 5];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0;
        for (int i = 0; i < (int)(blockDim.x >> 5); i++) total += partial[i];
        atomicAdd(out, total);
        atomicAdd(&counter, 1);
    }
}

extern "C" __global__ void counted(int* out) { *out = counter; }

// Functions of libdevice in f32 and f64.
extern "C" __global__ void functions(const float* x, float* out, double* wide, int n) {
    int i = threadIdx.x;
    float v = x[i];
    float results[12] = {expf(v), logf(v),  powf(v, 0.7f), sinf(v * 1e6f), cosf(v),   tanhf(v),
                         erff(v), rsqrtf(v), fmodf(v, 3.0f), cbrtf(v),     log1pf(v), atan2f(v, 2.0f)};
    for (int k = 0; k < 12; k++) out[k * n + i] = results[k];
    double d = v;
    wide[i] = exp(d);
    wide[n + i] = pow(d, 0.3) / 3.0;
    wide[2 * n + i] = sin(d) + log(d);
}

// Integer arithmetic, bits and what warps do together.
extern "C" __global__ void integers(const unsigned* x, unsigned* out) {
    int i = threadIdx.x;
    unsigned v = x[i];
    unsigned ballot = __ballot_sync(~0u, v & 1);
    out[i] = __popc(v) + __clz(v) + __ffs(v);
    out[32 + i] = __brev(v) ^ __umulhi(v, 0x9e3779b9u);
    out[64 + i] = ballot ^ __reduce_add_sync(~0u, v);
    out[96 + i] = __byte_perm(v, ballot, 0x6420) + v / (x[31 - i] | 1) + v % 7;
    out[128 + i] = (unsigned)(((unsigned long long)v * x[31 - i]) >> 9) + (unsigned)((long long)(int)v / 10);
    out[160 + i] = __shfl_up_sync(~0u, v, 3) + __shfl_sync(~0u, v, i * 7, 8) + __match_any_sync(~0u, v & 3);
}
