// Each warp multiplies for itself, from fragments that it loads: on every device.

// Rows that stay in shared memory or come through it, of WIDTH features.
template <int COUNT, int WIDTH>
using RowsOf = Swizzled<COUNT, WIDTH / CHUNK>;

// A warp's rows follow each other.
DTL_INLINE int row_of_block(int row) {
    return warp_of_block() * WARP_ROWS + row;
}

DTL_INLINE void publish() {}

// products[row][column] = row of the left tile, of this warp's, · row of the right tile, over all features in their order.
template <int WIDTH>
DTL_INLINE void multiply_rows(Scores& products, unsigned left, unsigned right) {
    clear(products);
    const unsigned first_row = row_of_block(0);
    // No further, so that fragments on their way fit into registers beside the outputs.
#pragma unroll 4
    for (unsigned feature = 0; feature < WIDTH; feature += FRAGMENT) {
        Fragment rows[TILES_DOWN];
#pragma unroll
        for (int down = 0; down < TILES_DOWN; ++down) {
            rows[down] = fragment_of<Side::LEFT, true, RowsOf<ROWS, WIDTH>>(left, first_row + down * FRAGMENT, feature);
        }
#pragma unroll
        for (int across = 0; across < TILES_ACROSS; across += 2) {
            const Fragment columns = fragment_of<Side::RIGHT, true, RowsOf<COLUMNS, WIDTH>>(right, across * 8, feature);
#pragma unroll
            for (int down = 0; down < TILES_DOWN; ++down) {
                add_product(products[down][across], rows[down], columns.at[0], columns.at[1]);
                add_product(products[down][across + 1], rows[down], columns.at[2], columns.at[3]);
            }
        }
    }
}

// outputs[row][feature] += sum over column of weights[row][column] * row `column` of the tile[first_feature + feature].
template <int WIDTH, int FEATURES>
DTL_INLINE void add_weighted_rows(Sums<FEATURES>& outputs, const Weights& weights, unsigned tile, unsigned first_feature) {
#pragma unroll
    for (int across = 0; across < TILES_ACROSS; across += 2) {
#pragma unroll
        for (int feature = 0; feature < FEATURES / 8; feature += 2) {
            const Fragment columns = fragment_of<Side::RIGHT, false, RowsOf<COLUMNS, WIDTH>>(
                tile, first_feature + static_cast<unsigned>(feature) * 8, across * 8);
#pragma unroll
            for (int down = 0; down < TILES_DOWN; ++down) {
                const Fragment& rows = weights[down][across / 2];
                add_product(outputs[down][feature], rows, columns.at[0], columns.at[1]);
                add_product(outputs[down][feature + 1], rows, columns.at[2], columns.at[3]);
            }
        }
    }
}

// Products are done when their text is.
template <int LEFT, class... Registers>
DTL_INLINE void end_products(Registers&...) {}
