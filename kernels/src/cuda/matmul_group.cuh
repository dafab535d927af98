// Four warps multiply together, from shared memory, where neither fragments nor sums pass through registers on the way: for devices
// of compute capability 9.0. Of a tile each group of four has 64 rows or twice as many, and all columns.

constexpr int GROUP_ROWS = TILE_ROWS / (THREADS / 128);
static_assert(THREADS % 128 == 0 && GROUP_ROWS % 64 == 0, "a group makes 64 rows at once");

// As with single warps; a warp has 16 of each 64 rows.
constexpr int DOWN = GROUP_ROWS / 64;
constexpr int ACROSS = TILE_COLUMNS / 8;
constexpr int ROWS_APART = 64;
using Sums = float[DOWN][ACROSS][4];

// Stages that are under way while one is multiplied and the products of the one before come to their end.
[[maybe_unused]] constexpr int AHEAD = STAGES - 2;

DTL_INLINE unsigned row_of_warp() {
    return threadIdx.x / 128 * GROUP_ROWS + threadIdx.x / 32 % 4 * 16;
}

DTL_INLINE unsigned column_of_warp() {
    return 0;
}

// Where a tile has 16 terms of the lines from `line` on: its first byte; how its chunks change places (1 over rows of 128 bytes, 2 over 64); and
// from there, all in units of 16 bytes, how far eight rows are, and with rows of terms 64 lines.
template <class Place>
DTL_INLINE unsigned long long place_of(unsigned tile, unsigned line, unsigned term) {
    constexpr unsigned ROW_BYTES = Place::ROW_BYTES;
    static_assert(ROW_BYTES == 64 || ROW_BYTES == 128, "rows as long as chunks change places over");
    static_assert(Place::ROWS_ARE_LINES || ROW_BYTES == 128, "64 lines beside each other");
    constexpr unsigned LINES_OF_ROW = 64;
    const unsigned first = Place::ROWS_ARE_LINES
                               ? line * ROW_BYTES + term * sizeof(Factor)
                               : line / LINES_OF_ROW * Place::ROWS * ROW_BYTES + term * ROW_BYTES;
    constexpr unsigned long long SWIZZLE = ROW_BYTES == 128 ? 1 : 2;
    constexpr unsigned long long EIGHT_ROWS = 8 * ROW_BYTES / 16;
    constexpr unsigned long long NEXT_LINES = Place::ROWS_ARE_LINES ? 1 : Place::ROWS * ROW_BYTES / 16;
    return SWIZZLE << 62 | EIGHT_ROWS << 32 | NEXT_LINES << 16 | shared_address(tile + first) / 16;
}

// What is done to sums stays on its side of this, in the order of the text.
DTL_INLINE void hold(Sums& sums) {
#pragma unroll
    for (int down = 0; down < DOWN; ++down) {
#pragma unroll
        for (int across = 0; across < ACROSS; ++across) {
            float(&part)[4] = sums[down][across];
            asm volatile("" : "+f"(part[0]), "+f"(part[1]), "+f"(part[2]), "+f"(part[3])::"memory");
        }
    }
}

// Begins to add a stage's products to this group's sums.
DTL_INLINE void add_stage(Sums& sums, unsigned stage) {
    const unsigned row = threadIdx.x / 128 * GROUP_ROWS;
    hold(sums);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (unsigned term = 0; term < TILE_TERMS; term += FRAGMENT_TERMS) {
        const unsigned long long right = place_of<RightTile>(stage + LeftTile::BYTES, 0, term);
#pragma unroll
        for (unsigned down = 0; down < DOWN; ++down) {
            add_group_product(sums[down], place_of<LeftTile>(stage, row + down * 64, term), right);
        }
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Before others may write to the stage of the step before last and read what this thread brought: those products are done, and what threads
// wrote is there for products.
DTL_INLINE void end_stage() {
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
}

DTL_INLINE void end_products(Sums& sums) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    hold(sums);
}
