// Four warps of a block multiply together: of scores from shared memory, of weighted rows with weights from registers. For devices of
// compute capability 9.0.

static_assert(WARPS % 4 == 0, "groups make a block's products");
// Rows that a group makes at once, of which each warp has as many as a fragment.
constexpr int ROWS_OF_GROUP = 64;

// Rows that stay in shared memory or come through it, of WIDTH features and zeros up to a multiple of ROW_CHUNKS chunks: in strips of chunks that
// change places with each other, as many as divide a part's features.
template <int COUNT, int WIDTH, int CHUNKS = (WIDTH / CHUNK + ROW_CHUNKS - 1) / ROW_CHUNKS * ROW_CHUNKS>
using RowsOf = Strips<COUNT, CHUNKS, Swizzled<COUNT, CHUNKS / PARTS>::PLACES>;

// The block's first row of a group's, which follow each other.
DTL_INLINE int row_of_group() {
    return WARPS == 4 ? 0 : warp_of_block() / 4 * TILES_DOWN * ROWS_OF_GROUP;
}

DTL_INLINE int row_of_block(int row) {
    const int warp = WARPS == 4 ? warp_of_block() : warp_of_block() % 4;
    return row_of_group() + row / FRAGMENT * ROWS_OF_GROUP + warp * FRAGMENT + row % FRAGMENT;
}

DTL_INLINE void publish() {
    asm volatile("fence.proxy.async;" ::: "memory");
}

enum class Neighbours { FEATURES, ROWS };

// Where a product finds a factor in rows of shared memory, from a row and a feature on: the first byte; how chunks change places (1 over
// rows of 128 bytes, 2 over 64, 3 over 32); and in units of 16 bytes how far eight rows are, and where terms are rows the next strip.
template <class Place, Neighbours TERMS>
DTL_INLINE unsigned long long factor_at(unsigned tile, unsigned row, unsigned feature) {
    constexpr unsigned ROW_BYTES = Place::ROW_BYTES;
    constexpr unsigned FEATURES_OF_STRIP = ROW_BYTES / sizeof(Half);
    constexpr unsigned STRIP_BYTES = Place::ROWS * ROW_BYTES;
    static_assert(Place::ROWS % 8 == 0, "strips begin where chunks change places anew");
    constexpr unsigned long long SWIZZLE = ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3;
    constexpr unsigned long long EIGHT_ROWS = 8 * ROW_BYTES / 16;
    constexpr unsigned long long NEXT_STRIP = TERMS == Neighbours::ROWS ? STRIP_BYTES / 16 : 1;
    const unsigned byte = tile + feature / FEATURES_OF_STRIP * STRIP_BYTES + row * ROW_BYTES +
                          feature % FEATURES_OF_STRIP * static_cast<unsigned>(sizeof(Half));
    return SWIZZLE << 62 | EIGHT_ROWS << 32 | NEXT_STRIP << 16 | shared_address(byte) / 16;
}

// What is done to registers stays on its side of this, in the order of the text.
template <int ACROSS>
DTL_INLINE void hold(float (&sums)[TILES_DOWN][ACROSS][4]) {
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int across = 0; across < ACROSS; ++across) {
            float(&part)[4] = sums[down][across];
            asm volatile("" : "+f"(part[0]), "+f"(part[1]), "+f"(part[2]), "+f"(part[3])::"memory");
        }
    }
}

DTL_INLINE void hold(Weights& weights) {
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int across = 0; across < COLUMNS / FRAGMENT; ++across) {
            unsigned(&part)[4] = weights[down][across].at;
            asm volatile("" : "+r"(part[0]), "+r"(part[1]), "+r"(part[2]), "+r"(part[3])::"memory");
        }
    }
}

// Between what was done to registers and products that use them.
DTL_INLINE void open_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Makes a group of the products that are in none.
DTL_INLINE void close_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most LEFT groups of products are under way, the latest, and none that uses these registers.
template <int LEFT, class... Registers>
DTL_INLINE void end_products(Registers&... registers) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
    (hold(registers), ...);
}

// Begins: products[row][column] = row of the left tile · row of the right tile, over all features in their order.
template <int WIDTH>
DTL_INLINE void multiply_rows(Scores& products, unsigned left, unsigned right) {
    const unsigned first_row = row_of_group();
    clear(products);
    hold(products);
    open_products();
#pragma unroll
    for (unsigned feature = 0; feature < WIDTH; feature += FRAGMENT) {
        const unsigned long long columns = factor_at<RowsOf<COLUMNS, WIDTH>, Neighbours::FEATURES>(right, 0, feature);
#pragma unroll
        for (unsigned down = 0; down < TILES_DOWN; ++down) {
            add_group_product(products[down],
                              factor_at<RowsOf<ROWS, WIDTH>, Neighbours::FEATURES>(left, first_row + down * ROWS_OF_GROUP, feature),
                              columns);
        }
    }
    close_products();
}

// Begins: outputs[row][feature] += sum over column of weights[row][column] * row `column` of the tile[first_feature + feature].
template <int WIDTH, int FEATURES>
DTL_INLINE void add_weighted_rows(Sums<FEATURES>& outputs, Weights& weights, unsigned tile, unsigned first_feature) {
    hold(outputs);
    hold(weights);
    open_products();
#pragma unroll
    for (unsigned across = 0; across < TILES_ACROSS; across += 2) {
        const unsigned long long columns =
            factor_at<RowsOf<COLUMNS, WIDTH>, Neighbours::ROWS>(tile, across * 8, first_feature);
#pragma unroll
        for (int down = 0; down < TILES_DOWN; ++down) {
            add_group_product(outputs[down], weights[down][across / 2], columns);
        }
    }
    close_products();
}
