// Matrix products through the tensor cores: bf16 with a two-stage pipeline of asynchronous copies, ldmatrix and mma.sync; tf32; f16 with an f16 sum.
// A is M by K and B is K by N, both row-major, as is C. Tiles of 64 by 64 by 32, four warps of 32 by 32.
// The PTX beside this file is NVRTC's (13.0, sm_80, with line information).

typedef unsigned short bf16;
typedef unsigned int u32;

constexpr int TILE = 64;
constexpr int DEPTH = 32;
constexpr int A_PITCH = DEPTH + 8;
constexpr int B_PITCH = TILE + 8;

__device__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Copies 16 bytes; where `bytes` is less, the rest becomes zero.
__device__ void copy16(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}

__device__ void load_tiles(bf16 (*a_tile)[A_PITCH], bf16 (*b_tile)[B_PITCH], const bf16* a, const bf16* b, int m, int n, int k,
                           int row0, int column0, int depth0) {
    for (int i = threadIdx.x; i < TILE * DEPTH / 8; i += blockDim.x) {
        int row = i / (DEPTH / 8), column = i % (DEPTH / 8) * 8;
        bool inside = row0 + row < m && depth0 + column < k;
        copy16(&a_tile[row][column], inside ? a + (row0 + row) * k + depth0 + column : a, inside ? 16 : 0);
    }
    for (int i = threadIdx.x; i < DEPTH * TILE / 8; i += blockDim.x) {
        int row = i / (TILE / 8), column = i % (TILE / 8) * 8;
        bool inside = depth0 + row < k && column0 + column < n;
        copy16(&b_tile[row][column], inside ? b + (depth0 + row) * n + column0 + column : b, inside ? 16 : 0);
    }
    asm volatile("cp.async.commit_group;");
}

extern "C" __global__ void matmul_bf16(const bf16* a, const bf16* b, float* c, int m, int n, int k) {
    __shared__ __align__(16) bf16 a_tiles[2][TILE][A_PITCH];
    __shared__ __align__(16) bf16 b_tiles[2][DEPTH][B_PITCH];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE;
    int warp_row = warp / 2 * 32, warp_column = warp % 2 * 32;
    float sums[2][4][4] = {};
    int steps = (k + DEPTH - 1) / DEPTH;
    load_tiles(a_tiles[0], b_tiles[0], a, b, m, n, k, row0, column0, 0);
    for (int step = 0; step < steps; step++) {
        int now = step % 2;
        if (step + 1 < steps) {
            load_tiles(a_tiles[1 - now], b_tiles[1 - now], a, b, m, n, k, row0, column0, (step + 1) * DEPTH);
            asm volatile("cp.async.wait_group 1;");
        } else {
            asm volatile("cp.async.wait_group 0;");
        }
        __syncthreads();
        for (int depth = 0; depth < DEPTH; depth += 16) {
            u32 fa[2][4], fb[4][2];
            for (int i = 0; i < 2; i++) {
                u32 at = shared_address(&a_tiles[now][warp_row + i * 16 + lane % 16][depth + lane / 16 * 8]);
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(fa[i][0]), "=r"(fa[i][1]), "=r"(fa[i][2]), "=r"(fa[i][3])
                             : "r"(at));
            }
            for (int j = 0; j < 4; j++) {
                u32 at = shared_address(&b_tiles[now][depth + lane % 16][warp_column + j * 8]);
                asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                             : "=r"(fb[j][0]), "=r"(fb[j][1])
                             : "r"(at));
            }
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 4; j++) {
                    float* s = sums[i][j];
                    asm volatile(
                        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                        : "r"(fa[i][0]), "r"(fa[i][1]), "r"(fa[i][2]), "r"(fa[i][3]), "r"(fb[j][0]), "r"(fb[j][1]));
                }
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            for (int e = 0; e < 4; e++) {
                int row = row0 + warp_row + i * 16 + lane / 4 + e / 2 * 8;
                int column = column0 + warp_column + j * 8 + lane % 4 * 2 + e % 2;
                if (row < m && column < n) c[row * n + column] = sums[i][j][e];
            }
}

// One warp: 16 by 8, depth a multiple of 8, fragments straight from memory.
extern "C" __global__ void matmul_tf32(const float* a, const float* b, float* c, int n, int k) {
    int group = threadIdx.x / 4, t = threadIdx.x % 4;
    float s[4] = {};
    for (int d = 0; d < k; d += 8) {
        float values[6] = {a[group * k + d + t],     a[(group + 8) * k + d + t],   a[group * k + d + t + 4],
                           a[(group + 8) * k + d + t + 4], b[(d + t) * n + group], b[(d + t + 4) * n + group]};
        u32 f[6];
        for (int i = 0; i < 6; i++) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(f[i]) : "f"(values[i]));
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                     : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "r"(f[4]), "r"(f[5]));
    }
    for (int e = 0; e < 4; e++) c[(group + e / 2 * 8) * n + t * 2 + e % 2] = s[e];
}
