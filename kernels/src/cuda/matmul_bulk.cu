// A matrix product of bf16 as `matmul_tensor.cu` makes it, of tiles that arrive in bulk: for devices of compute capability 9.0, and operands
// that a tensor map describes.
//
// The last warp brings tiles, of TILE_TERMS terms, through STAGES places in shared memory, and the others multiply, four together. Each stage
// has two barriers. One phase of `full` is over when the bytes of a step are there, one of `empty` when every warp that multiplies is done
// with them. Both sides count the steps of the block: a stage's phases have the parity of how often the ring went round.

// What a kernel is given of a tensor map.
struct alignas(128) TensorMap {
    unsigned long long opaque[16];
};

__shared__ unsigned long long full[STAGES];
__shared__ unsigned long long empty[STAGES];

constexpr unsigned MULTIPLYING_WARPS = THREADS / 32;

DTL_INLINE unsigned barrier_address(const unsigned long long& barrier) {
    return static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
}

DTL_INLINE void make_barrier(unsigned long long& barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier_address(barrier)), "r"(arrivals) : "memory");
}

// Arrives, behind all that this thread did.
DTL_INLINE void arrive(unsigned long long& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier_address(barrier)) : "memory");
}

// Arrives; the phase waits for so many bytes more.
DTL_INLINE void arrive_expecting(unsigned long long& barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier_address(barrier)), "r"(bytes)
                 : "memory");
}

// Waits until the phase of this parity is over, the current one or the one before.
DTL_INLINE void wait_for_phase(const unsigned long long& barrier, unsigned parity) {
    unsigned is_over;
    do {
        asm volatile("{.reg .pred over; mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2; selp.b32 %0, 1, 0, over;}"
                     : "=r"(is_over)
                     : "r"(barrier_address(barrier)), "r"(parity)
                     : "memory");
    } while (is_over == 0);
}

// Begins to copy the box at these places of the map's dimensions to this byte of shared memory.
DTL_INLINE void begin_box(unsigned target, const TensorMap& map, int first, int second, int product,
                          const unsigned long long& barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(target)),
                 "l"(&map), "r"(first), "r"(second), "r"(product), "r"(barrier_address(barrier))
                 : "memory");
}

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

// The place of the block's so-manieth step.
struct Stage {
    unsigned number, round;

    DTL_INLINE explicit Stage(int step) : number(static_cast<unsigned>(step) % STAGES), round(static_cast<unsigned>(step) / STAGES) {}

    DTL_INLINE unsigned first_byte() const {
        return number * STAGE_BYTES;
    }
};

// Brings the tiles of some steps, each when its stage is empty.
DTL_INLINE void bring_tiles(const TensorMap& left, const TensorMap& right, int first_step, int steps, int first_row,
                            int first_column, unsigned product) {
    const int left_product = static_cast<int>(Left::of_product(product) / LEFT_PRODUCT_STRIDE);
    const int right_product = static_cast<int>(Right::of_product(product) / RIGHT_PRODUCT_STRIDE);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const Stage stage(step);
        // The phase before the first counts as over.
        wait_for_phase(empty[stage.number], (stage.round + 1) % 2);
        unsigned long long& barrier = full[stage.number];
        arrive_expecting(barrier, STAGE_BYTES);
        const int term = (first_step + step) * TILE_TERMS;
        begin_tile<Left, TILE_ROWS>(stage.first_byte(), left, first_row, term, left_product, barrier);
        begin_tile<Right, TILE_COLUMNS>(stage.first_byte() + LeftTile::BYTES, right, first_column, term, right_product,
                                        barrier);
    }
}

// Gives back the stage of a step whose products are done.
DTL_INLINE void give_back(int step) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        arrive(empty[Stage(step).number]);
    }
}

// Multiplies the tiles of some steps, one at least, while the products of each step go on into the next.
DTL_INLINE void multiply_tiles(Sums& sums, int steps) {
    int step = 0;
#pragma unroll 1
    do {
        const Stage stage(step);
        wait_for_phase(full[stage.number], stage.round % 2);
        add_stage(sums, stage.first_byte());
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (step > 0) {
            give_back(step - 1);
        }
    } while (++step < steps);
    end_products(sums);
}

extern "C" __global__ void __launch_bounds__(THREADS + 32)
    KERNEL(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right, Output::Element* output) {
    constexpr unsigned TILES =
        ((Left::LINES + TILE_ROWS - 1) / TILE_ROWS) * ((Right::LINES + TILE_COLUMNS - 1) / TILE_COLUMNS);
    constexpr int STEPS = (TERMS + TILE_TERMS - 1) / TILE_TERMS;
    int first_row, first_column;
    tile_of(blockIdx.x % TILES, first_row, first_column);
    const unsigned product = blockIdx.x / TILES / PARTS;
    const int first_step = static_cast<int>(blockIdx.x / TILES % PARTS) * STEPS_OF_PART;
    const int steps = min(STEPS_OF_PART, STEPS - first_step);

    if (threadIdx.x == 0) {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            make_barrier(full[stage], 1);
            make_barrier(empty[stage], MULTIPLYING_WARPS);
        }
        // Copies may know of the barriers from here on.
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
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
    output += Output::of_product(blockIdx.x / TILES);
    store_sums(output, sums, first_row + static_cast<int>(row_of_warp()), first_column + static_cast<int>(column_of_warp()));
}
