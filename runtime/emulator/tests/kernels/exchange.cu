// Threads that hand values to each other: a histogram with atomics, a transposition inside a warp, and one warp that fills a buffer for
// another through named barriers. The PTX beside this file is NVRTC's (13.0, sm_80, with line information).

// One block: how often each of 16 values occurs.
extern "C" __global__ void histogram(const unsigned* x, unsigned* counts, int n) {
    __shared__ unsigned bins[16];
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&bins[x[i] & 15], 1u);
    __syncthreads();
    if (threadIdx.x < 16) counts[threadIdx.x] = bins[threadIdx.x];
}

// Each warp transposes a matrix of 32 by 32.
extern "C" __global__ void transpose(const float* x, float* y) {
    __shared__ float tiles[2][32][33];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float(*tile)[33] = tiles[warp];
    const float* from = x + (blockIdx.x * 2 + warp) * 1024;
    float* to = y + (blockIdx.x * 2 + warp) * 1024;
    for (int r = 0; r < 32; r++) tile[r][lane] = from[r * 32 + lane];
    __syncwarp();
    for (int r = 0; r < 32; r++) to[r * 32 + lane] = tile[lane][r];
}

// Two warps: the first fills a buffer, the second takes the running sum out of it.
extern "C" __global__ void hand_over(const float* x, float* sums, int rounds) {
    __shared__ float buffer[32];
    int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        for (int r = 0; r < rounds; r++) {
            if (r > 0) asm volatile("bar.sync 2, 64;" ::: "memory");
            buffer[lane] = x[r * 32 + lane];
            asm volatile("bar.arrive 1, 64;" ::: "memory");
        }
        asm volatile("bar.sync 2, 64;" ::: "memory");
    } else {
        float sum = 0;
        for (int r = 0; r < rounds; r++) {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            sum += buffer[31 - lane];
            asm volatile("bar.arrive 2, 64;" ::: "memory");
        }
        sums[lane] = sum;
    }
}
