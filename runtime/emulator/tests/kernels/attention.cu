// Softmax over rows and a small attention: reductions in warps and blocks, dynamic shared memory, bank-padded tiles, exp2.
// The PTX beside this file is NVRTC's (13.0, sm_80, with line information).

extern __shared__ float dynamic[];

__device__ float block_sum(float v, float* scratch) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? scratch[threadIdx.x] : 0.0f;
        for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
        if (threadIdx.x == 0) scratch[0] = v;
    }
    __syncthreads();
    v = scratch[0];
    __syncthreads();
    return v;
}

// A row a block: y = x / sqrt(mean(x^2) + eps).
extern "C" __global__ void rms_norm(const float* x, float* y, int n, float eps) {
    __shared__ float scratch[32];
    const float* row = x + blockIdx.x * n;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += row[i] * row[i];
    float scale = rsqrtf(block_sum(sum, scratch) / n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = row[i] * scale;
}

// Causal attention of one head: a warp a query row, keys and values in tiles of 32 through dynamic shared memory. D is 32.
extern "C" __global__ void attention(const float* q, const float* k, const float* v, float* out, int s, float scale) {
    constexpr int D = 32, PITCH = D + 1;
    float* keys = dynamic;
    float* values = dynamic + 32 * PITCH;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    int row = blockIdx.x * warps + warp;
    float query = row < s ? q[row * D + lane] * scale * 1.44269504f : 0.0f;
    float most = -1e30f, total = 0.0f, sum = 0.0f;
    for (int tile = 0; tile < s && tile < (blockIdx.x + 1) * warps; tile += 32) {
        for (int r = warp; r < 32; r += warps)
            if (tile + r < s) {
                keys[r * PITCH + lane] = k[(tile + r) * D + lane];
                values[r * PITCH + lane] = v[(tile + r) * D + lane];
            } else {
                keys[r * PITCH + lane] = values[r * PITCH + lane] = 0.0f;
            }
        __syncthreads();
        float score = 0;
        for (int d = 0; d < D; d++) score += __shfl_sync(~0u, query, d) * keys[lane * PITCH + d];
        if (tile + lane > row) score = -1e30f;
        float best = score;
        for (int o = 16; o; o >>= 1) best = fmaxf(best, __shfl_xor_sync(~0u, best, o));
        float now = fmaxf(most, best);
        float p = exp2f(score - now), shrink = exp2f(most - now);
        total *= shrink;
        sum *= shrink;
        float tile_total = p;
        for (int o = 16; o; o >>= 1) tile_total += __shfl_xor_sync(~0u, tile_total, o);
        total += tile_total;
        for (int r = 0; r < 32; r++) sum += __shfl_sync(~0u, p, r) * values[r * PITCH + lane];
        most = now;
        __syncthreads();
    }
    if (row < s) out[row * D + lane] = sum / total;
}
