// A matrix product on the ordinary cores: output[row, column] (+)= SCALE * sum over term of left[row, term] * right[term, column].
//
// A block of threads makes a tile of TILE_ROWS by TILE_COLUMNS of the output, TILE_TERMS terms at a time, through two pairs of
// tiles in shared memory: while one is multiplied, the next is on its way in registers. A thread makes THREAD_ROWS by
// THREAD_COLUMNS outputs; each is the sum of its terms in their order, in f32, so that nothing but the descriptor decides its bits.
//
// Left, Right and Output say where elements lie.

constexpr int THREADS = TILE_ROWS / THREAD_ROWS * (TILE_COLUMNS / THREAD_COLUMNS);
// What this thread brings of a tile, on its way through registers.
template <int LINES>
struct Piece {
    static constexpr int COUNT = LINES * TILE_TERMS / THREADS;
    float at[COUNT];
};

// Which element of a tile is the one with this number in this thread's piece. Neighbouring threads take elements that are
// neighbours in memory.
template <class Operand, int LINES>
DTL_INLINE void place_of(int number, int& line, int& term) {
    const int element = number * THREADS + static_cast<int>(threadIdx.x);
    line = Operand::TERMS_ARE_NEIGHBOURS ? element / TILE_TERMS : element % LINES;
    term = Operand::TERMS_ARE_NEIGHBOURS ? element % TILE_TERMS : element / LINES;
}

// What is multiplied of a number: itself, or the nearest of tf32, of two the one further from zero.
DTL_INLINE float factor_of(float x) {
    if constexpr (ROUNDS_FACTORS) {
        return isnan(x) ? x : __uint_as_float((__float_as_uint(x) + 0x1000) & ~0x1fffu);
    } else {
        return x;
    }
}

// Reads this thread's piece of the tile at `first_line` and `first_term`; zeros outside of the operand.
template <class Operand, int LINES>
DTL_INLINE void read_piece(Piece<LINES>& piece, const typename Operand::Element* operand, int first_line, int first_term,
                           int end_term) {
#pragma unroll
    for (int number = 0; number < Piece<LINES>::COUNT; ++number) {
        int line, term;
        place_of<Operand, LINES>(number, line, term);
        line += first_line;
        term += first_term;
        const bool is_inside = line < Operand::LINES && term < end_term;
        piece.at[number] =
            is_inside
                ? factor_of(widen(operand[line * Operand::LINE_STRIDE + Operand::of_term(static_cast<unsigned>(term))]))
                : 0.0f;
    }
}

template <class Operand, int LINES>
DTL_INLINE void store_piece(Tile<TILE_TERMS, LINES>& tile, const Piece<LINES>& piece) {
#pragma unroll
    for (int number = 0; number < Piece<LINES>::COUNT; ++number) {
        int line, term;
        place_of<Operand, LINES>(number, line, term);
        tile.at[term][line] = piece.at[number];
    }
}

// Each row of sums becomes the one before it.
template <int ROWS, int COLUMNS>
DTL_INLINE void move_up(float (&sums)[ROWS][COLUMNS]) {
#pragma unroll
    for (int row = 1; row < ROWS; ++row) {
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column) {
            sums[row - 1][column] = sums[row][column];
        }
    }
}

// A tile of each factor.
struct Pair {
    Tile<TILE_TERMS, TILE_ROWS> left;
    Tile<TILE_TERMS, TILE_COLUMNS> right;
};

// All of a block's shared memory, whose size the launch says: two pairs.
extern __shared__ Pair pairs[];

// Makes a tile of one of the products: the one of this number.
DTL_INLINE void make_tile(unsigned block, const Left::Element* left, const Right::Element* right, OUTPUT_PARAMETERS) {
    auto output = OUTPUT;

    // Blocks that follow each other share their columns.
    constexpr int TILES_DOWN = (Left::LINES + TILE_ROWS - 1) / TILE_ROWS;
    constexpr int TILES_ACROSS = (Right::LINES + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const unsigned product = block / (TILES_DOWN * TILES_ACROSS);
    const int first_row = static_cast<int>(block % TILES_DOWN) * TILE_ROWS;
    const int first_column = static_cast<int>(block / TILES_DOWN % TILES_ACROSS) * TILE_COLUMNS;
    left += Left::of_product(product);
    right += Right::of_product(product);
    output += Output::of_product(product);

    constexpr int THREADS_ACROSS = TILE_COLUMNS / THREAD_COLUMNS;
    const int thread_row = static_cast<int>(threadIdx.x) / THREADS_ACROSS;
    const int thread_column = static_cast<int>(threadIdx.x) % THREADS_ACROSS;

    float sums[THREAD_ROWS][THREAD_COLUMNS] = {};
    Piece<TILE_ROWS> left_piece;
    Piece<TILE_COLUMNS> right_piece;
    int current = 0;
    read_piece<Left>(left_piece, left, first_row, 0, TERMS);
    read_piece<Right>(right_piece, right, first_column, 0, TERMS);
    store_piece<Left>(pairs[0].left, left_piece);
    store_piece<Right>(pairs[0].right, right_piece);
    __syncthreads();
    for (int first_term = 0; first_term < TERMS; first_term += TILE_TERMS) {
        const int next_term = first_term + TILE_TERMS;
        const bool has_next = next_term < TERMS;
        if (has_next) {
            read_piece<Left>(left_piece, left, first_row, next_term, TERMS);
            read_piece<Right>(right_piece, right, first_column, next_term, TERMS);
        }
        add_products(sums, pairs[current].left, 0, pairs[current].right, thread_row, thread_column);
        if (has_next) {
            // The other pair was last read before the barrier that is behind all threads.
            store_piece<Left>(pairs[1 - current].left, left_piece);
            store_piece<Right>(pairs[1 - current].right, right_piece);
            __syncthreads();
            current = 1 - current;
        }
    }

    // With an epilogue one row of sums after the other is the first, so that the text of it stands here for one row only.
#pragma unroll (HAS_EPILOGUE ? 1 : THREAD_ROWS)
    for (int row_number = 0; row_number < THREAD_ROWS; ++row_number) {
        const int row = first_row + line_of<TILE_ROWS, THREAD_ROWS>(thread_row, row_number);
#pragma unroll
        for (int column_number = 0; column_number < THREAD_COLUMNS; ++column_number) {
            const int column = first_column + line_of<TILE_COLUMNS, THREAD_COLUMNS>(thread_column, column_number);
            if (row < Left::LINES && column < Right::LINES) {
                store_output(output + row * Output::ROW_STRIDE + column * Output::COLUMN_STRIDE,
                             sums[HAS_EPILOGUE ? 0 : row_number][column_number]);
            }
        }
        if constexpr (HAS_EPILOGUE) {
            move_up(sums);
        }
    }
}
