// What products on the ordinary cores share: tiles in shared memory, and a thread's part of their product.
//
// A "term" is what is summed over, a "line" a row of the left or a column of the right factor.

// Neighbours that a thread reads at once from shared memory.
constexpr int QUAD = 4;

// A tile of a factor: all lines of a term beside each other.
template <int TERMS_OF_TILE, int LINES>
struct alignas(16) Tile {
    // Behind each term a gap, so that terms start in different banks.
    float at[TERMS_OF_TILE][LINES + QUAD];
};

// The line of a tile that has this number among a thread's COUNT: quads of neighbours, as far apart as all threads' quads.
template <int LINES, int COUNT>
DTL_INLINE int line_of(int thread, int number) {
    return number / QUAD * (LINES / (COUNT / QUAD)) + thread * QUAD + number % QUAD;
}

template <int TERMS_OF_TILE, int LINES, int COUNT>
DTL_INLINE void read_lines(float (&lines)[COUNT], const Tile<TERMS_OF_TILE, LINES>& tile, int thread, int term) {
#pragma unroll
    for (int number = 0; number < COUNT; number += QUAD) {
        const float4 quad = *reinterpret_cast<const float4*>(&tile.at[term][line_of<LINES, COUNT>(thread, number)]);
        lines[number] = quad.x;
        lines[number + 1] = quad.y;
        lines[number + 2] = quad.z;
        lines[number + 3] = quad.w;
    }
}

// sums[row][column] += left[first_left + term][row] * right[term][column] over the terms of `right`, in their order.
template <int LEFT_TERMS, int TERMS_OF_TILE, int ROWS, int COLUMNS, int ROWS_OF_THREAD, int COLUMNS_OF_THREAD>
DTL_INLINE void add_products(float (&sums)[ROWS_OF_THREAD][COLUMNS_OF_THREAD], const Tile<LEFT_TERMS, ROWS>& left, int first_left,
                             const Tile<TERMS_OF_TILE, COLUMNS>& right, int thread_row, int thread_column) {
#pragma unroll 8
    for (int term = 0; term < TERMS_OF_TILE; ++term) {
        float rows[ROWS_OF_THREAD];
        float columns[COLUMNS_OF_THREAD];
        read_lines(rows, left, thread_row, first_left + term);
        read_lines(columns, right, thread_column, term);
#pragma unroll
        for (int row = 0; row < ROWS_OF_THREAD; ++row) {
#pragma unroll
            for (int column = 0; column < COLUMNS_OF_THREAD; ++column) {
                sums[row][column] = __fmaf_rn(rows[row], columns[column], sums[row][column]);
            }
        }
    }
}
