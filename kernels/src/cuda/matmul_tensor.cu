// A matrix product of halves, or of floats as tf32, on the tensor cores: output[row, column] (+)= SCALE * sum over term of left[row, term] * right[term, column].
//
// A block of threads makes a tile of TILE_ROWS by TILE_COLUMNS of the output. Tiles of the factors, of TILE_TERMS terms, come through
// STAGES places in shared memory: while one is multiplied, the others are on their way. Each output is the sum of its terms in f32, 16
// after 16, so that nothing but the descriptor and the device decides its bits; or one of PARTS parts of it, of STEPS_OF_PART tiles' terms.
//
// Who multiplies is said by the file before: each warp for itself, or four warps together where the device has that. Left, Right and Output
// say where elements lie.

// A chunk of a tile that this thread brings.
struct Piece {
    // The byte of the tile where it goes, its first number in the operand, and how many are inside of the operand.
    unsigned place;
    int line, term, count;
};

template <class Operand, int TILE_LINES>
DTL_INLINE Piece piece_of(unsigned number, int first_line, int first_term) {
    using Place = Tile<Operand, TILE_LINES>;
    const unsigned which = number * THREADS + threadIdx.x;
    const unsigned row = which / Place::CHUNKS_OF_ROW;
    const unsigned chunk = which % Place::CHUNKS_OF_ROW;
    const int line = first_line + static_cast<int>(Place::ROWS_ARE_LINES ? row : chunk * CHUNK);
    const int term = first_term + static_cast<int>(Place::ROWS_ARE_LINES ? chunk * CHUNK : row);
    // Tiles that divide the operand are inside of it.
    const bool line_is_inside = Operand::LINES % TILE_LINES == 0 || line < Operand::LINES;
    const bool term_is_inside = TERMS % TILE_TERMS == 0 || term < TERMS;
    const int rest = Place::ROWS_ARE_LINES ? TERMS - term : Operand::LINES - line;
    const bool is_whole = (Place::ROWS_ARE_LINES ? TERMS : Operand::LINES) % CHUNK == 0;
    const int count = line_is_inside && term_is_inside ? (is_whole ? CHUNK : min(rest, CHUNK)) : 0;
    return Piece{Place::place(row, chunk), line, term, count};
}

template <class Operand>
DTL_INLINE Offset offset_of(int line, int term) {
    return line * Operand::LINE_STRIDE + Operand::of_term(static_cast<unsigned>(term));
}

template <class Half>
DTL_INLINE unsigned bits_of(Half x) {
    return x.bits;
}

DTL_INLINE unsigned bits_of(float x) {
    return __float_as_uint(x);
}

// Reads a chunk number by number, wherever they lie.
template <class Operand>
DTL_INLINE Chunk gather_chunk(const Factor* operand, const Piece& piece) {
    constexpr int OF_WORD = sizeof(unsigned) / sizeof(Factor);
    unsigned words[CHUNK / OF_WORD] = {};
#pragma unroll
    for (int number = 0; number < CHUNK; ++number) {
        if (number < piece.count) {
            const Offset offset = Operand::TERMS_ARE_NEIGHBOURS ? offset_of<Operand>(piece.line, piece.term + number)
                                                                : offset_of<Operand>(piece.line + number, piece.term);
            words[number / OF_WORD] |= bits_of(operand[offset]) << number % OF_WORD * 16;
        }
    }
    return Chunk{words[0], words[1], words[2], words[3]};
}

// Begins to read this thread's chunks of the tile at `first_line` and `first_term`, to this byte of shared memory; zeros outside of
// the operand.
template <class Operand, int TILE_LINES>
DTL_INLINE void begin_tile(unsigned tile, const Factor* operand, int first_line, int first_term) {
    constexpr unsigned COUNT = Tile<Operand, TILE_LINES>::CHUNKS / THREADS;
    if (Operand::IS_ALIGNED && address(operand) % sizeof(Chunk) == 0) {
#pragma unroll
        for (unsigned number = 0; number < COUNT; ++number) {
            const Piece piece = piece_of<Operand, TILE_LINES>(number, first_line, first_term);
            const Offset offset = piece.count == 0 ? 0 : offset_of<Operand>(piece.line, piece.term);
            begin_copy(tile + piece.place, operand + offset, piece.count);
        }
    } else {
#pragma unroll 1
        for (unsigned number = 0; number < COUNT; ++number) {
            const Piece piece = piece_of<Operand, TILE_LINES>(number, first_line, first_term);
            shared[(tile + piece.place) / sizeof(Chunk)] = gather_chunk<Operand>(operand, piece);
        }
    }
}

// Begins to read the tiles of a step; from `end_step` on, an empty group.
DTL_INLINE void begin_stage(int step, int end_step, const Factor* left, const Factor* right, int first_row, int first_column) {
    if (step < end_step) {
        const unsigned stage = static_cast<unsigned>(step) % STAGES * STAGE_BYTES;
        begin_tile<Left, TILE_ROWS>(stage, left, first_row, step * TILE_TERMS);
        begin_tile<Right, TILE_COLUMNS>(stage + LeftTile::BYTES, right, first_column, step * TILE_TERMS);
    }
    close_group();
}

// Makes a tile of one of the products, or a part of its sums: the one of this number.
DTL_INLINE void make_tile(unsigned block, const Factor* left, const Factor* right, OUTPUT_PARAMETERS) {
    auto output = OUTPUT;
    constexpr unsigned TILES =
        ((Left::LINES + TILE_ROWS - 1) / TILE_ROWS) * ((Right::LINES + TILE_COLUMNS - 1) / TILE_COLUMNS);
    constexpr int STEPS = (TERMS + TILE_TERMS - 1) / TILE_TERMS;
    int first_row, first_column;
    tile_of(block % TILES, first_row, first_column);
    const unsigned product = block / TILES / PARTS;
    const int first_step = static_cast<int>(block / TILES % PARTS) * STEPS_OF_PART;
    const int end_step = min(first_step + STEPS_OF_PART, STEPS);
    left += Left::of_product(product);
    right += Right::of_product(product);
    // Each part of a product's sums is an output of its own.
    output += Output::of_product(block / TILES);

    Sums sums = {};
#pragma unroll
    for (int step = 0; step < AHEAD; ++step) {
        begin_stage(first_step + step, end_step, left, right, first_row, first_column);
    }
    if constexpr (STEPS > 0) {
        // A part has a step at least.
        int step = first_step;
#pragma unroll 1
        do {
            // One group a step: this step's has those of AHEAD - 1 later steps behind it.
            wait_for_groups<AHEAD - 1>();
            end_stage();
            // All threads' parts of the stage are there, and all are done with the stage where the next one goes.
            __syncthreads();
            begin_stage(step + AHEAD, end_step, left, right, first_row, first_column);
            add_stage(sums, static_cast<unsigned>(step) % STAGES * STAGE_BYTES);
        } while (++step < end_step);
        end_products(sums);
    }

    // All are done with the stages, where the sums go.
    __syncthreads();
    store_sums(output, sums, first_row + static_cast<int>(row_of_warp()), first_column + static_cast<int>(column_of_warp()));
}
