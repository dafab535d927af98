// Each warp multiplies for itself, WARP_ROWS by WARP_COLUMNS of the tile, from fragments that it loads: on every device.

// A warp's sums: strips of 16 rows, ROWS_APART rows from each to the next, by 8 columns. Where in it a lane's are, `add_product` says.
constexpr int DOWN = WARP_ROWS / 16;
constexpr int ACROSS = WARP_COLUMNS / 8;
constexpr int ROWS_APART = 16;
using Sums = float[DOWN][ACROSS][4];

// Stages that are under way while one is multiplied: all others.
constexpr int AHEAD = STAGES - 1;

DTL_INLINE unsigned row_of_warp() {
    return threadIdx.x / 32 / WARPS_ACROSS * WARP_ROWS;
}

DTL_INLINE unsigned column_of_warp() {
    return threadIdx.x / 32 % WARPS_ACROSS * WARP_COLUMNS;
}

// Adds a stage's products to this warp's sums.
DTL_INLINE void add_stage(Sums& sums, unsigned stage) {
    const unsigned row = row_of_warp();
    const unsigned column = column_of_warp();
#pragma unroll
    for (unsigned term = 0; term < TILE_TERMS; term += FRAGMENT_TERMS) {
        Fragment rows[WARP_ROWS / FRAGMENT];
        Fragment columns[WARP_COLUMNS / FRAGMENT];
#pragma unroll
        for (unsigned number = 0; number < WARP_ROWS / FRAGMENT; ++number) {
            rows[number] = fragment_of<Side::LEFT, LeftTile::ROWS_ARE_LINES, LeftTile>(stage, row + number * FRAGMENT, term);
        }
#pragma unroll
        for (unsigned number = 0; number < WARP_COLUMNS / FRAGMENT; ++number) {
            columns[number] =
                fragment_of<Side::RIGHT, RightTile::ROWS_ARE_LINES, RightTile>(stage + LeftTile::BYTES,
                                                                               column + number * FRAGMENT, term);
        }
#pragma unroll
        for (int down = 0; down < DOWN; ++down) {
#pragma unroll
            for (int across = 0; across < ACROSS; ++across) {
                const Fragment& right = columns[across / 2];
                add_product(sums[down][across], rows[down], right.at[across % 2 * 2], right.at[across % 2 * 2 + 1]);
            }
        }
    }
}

// Before others may write to the stage of the step before last: nothing, since its products are done.
DTL_INLINE void end_stage() {}

DTL_INLINE void end_products(Sums&) {}
