// A matrix product of halves as `matmul_tensor.cu` makes it, of tiles that arrive in bulk: for devices of compute capability 9.0, and operands
// that a tensor map describes. Each step has TILE_TERMS terms.

// Begins to copy the tile at `first_line` and `first_term`, as its rows lie: of 64 terms each, or of 64 lines, strip after strip.
template <class Operand, int TILE_LINES>
DTL_INLINE void begin_tile(unsigned tile, const TensorMap& map, int first_line, int first_term, int product,
                           const unsigned long long& barrier) {
    using Place = Tile<Operand, TILE_LINES>;
    static_assert(TILE_TERMS == 64 && TILE_LINES % 64 == 0, "rows of 128 bytes");
    if constexpr (Place::ROWS_ARE_LINES) {
        begin_box(tile, map, first_term, first_line, product, barrier);
    } else {
#pragma unroll
        for (int strip = 0; strip < TILE_LINES / 64; ++strip) {
            begin_box(tile + static_cast<unsigned>(strip) * Place::Strip::BYTES, map, first_line + strip * 64, first_term,
                      product, barrier);
        }
    }
}

// Brings the tiles of some steps, each when its stage is empty.
DTL_INLINE void bring_tiles(const TensorMap& left, const TensorMap& right, int first_step, int steps, int first_row,
                            int first_column, unsigned product) {
    const int left_product = static_cast<int>(Left::of_product(product) / LEFT_PRODUCT_STRIDE);
    const int right_product = static_cast<int>(Right::of_product(product) / RIGHT_PRODUCT_STRIDE);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const Stage stage(step);
        const unsigned long long& barrier = open_stage(stage, STAGE_BYTES);
        const int term = (first_step + step) * TILE_TERMS;
        begin_tile<Left, TILE_ROWS>(stage.first_byte(), left, first_row, term, left_product, barrier);
        begin_tile<Right, TILE_COLUMNS>(stage.first_byte() + LeftTile::BYTES, right, first_column, term, right_product,
                                        barrier);
    }
}

// Multiplies the tiles of some steps, one at least, while the products of each step go on into the next.
DTL_INLINE void multiply_tiles(Sums& sums, int steps) {
    int step = 0;
#pragma unroll 1
    do {
        const Stage stage(step);
        await_stage(stage);
        add_stage(sums, stage.first_byte());
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (step > 0) {
            give_back(step - 1);
        }
    } while (++step < steps);
    end_products(sums);
}

// As there.
DTL_INLINE void make_tile(unsigned block, const TensorMap& left, const TensorMap& right, OUTPUT_PARAMETERS) {
    auto output = OUTPUT;
    constexpr unsigned TILES =
        ((Left::LINES + TILE_ROWS - 1) / TILE_ROWS) * ((Right::LINES + TILE_COLUMNS - 1) / TILE_COLUMNS);
    constexpr int STEPS = (TERMS + TILE_TERMS - 1) / TILE_TERMS;
    int first_row, first_column;
    tile_of(block % TILES, first_row, first_column);
    const unsigned product = block / TILES / PARTS;
    const int first_step = static_cast<int>(block / TILES % PARTS) * STEPS_OF_PART;
    const int steps = min(STEPS_OF_PART, STEPS - first_step);

    make_stages();
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        if (threadIdx.x == THREADS) {
            bring_tiles(left, right, first_step, steps, first_row, first_column, product);
        }
        return;
    }
    Sums sums = {};
    multiply_tiles(sums, steps);
    // All that multiply are done with the stages, where the sums go.
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
    // Each part of a product's sums is an output of its own.
    output += Output::of_product(block / TILES);
    store_sums(output, sums, first_row + static_cast<int>(row_of_warp()), first_column + static_cast<int>(column_of_warp()));
}
