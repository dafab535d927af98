// What becomes of the sums of a product on the tensor cores, and which tile of the output a block makes.

// Tile rows whose tiles blocks that run together make: what these read stays in the cache that all multiprocessors share.
constexpr int GROUP = 8;

// Sixteen rows of a warp's sums in shared memory, with a gap behind each row so that rows start in different banks.
constexpr int ROOM_PITCH = WARP_COLUMNS + 8;
constexpr int ROOM_OF_WARP = 16 * ROOM_PITCH;
static_assert(ROOM_OF_WARP * (THREADS / 32) * sizeof(float) <= STAGES * STAGE_BYTES, "sums go where the stages were");

// Of such rows a lane stores vectors: neighbouring lanes store neighbours.
constexpr int COUNT = Vector<Output::Element>::COUNT;
constexpr int VECTORS_OF_ROW = WARP_COLUMNS / COUNT;
constexpr int VECTORS_OF_LANE = 16 * VECTORS_OF_ROW / 32;

DTL_INLINE int row_of_vector(int number) {
    return (number * 32 + static_cast<int>(threadIdx.x % 32)) / VECTORS_OF_ROW;
}

DTL_INLINE int column_of_vector(int number) {
    return (number * 32 + static_cast<int>(threadIdx.x % 32)) % VECTORS_OF_ROW * COUNT;
}

// Whether sums are stored as vectors at all: `Target` is a pointer, or what stands for one where there is an epilogue.
template <class Target>
DTL_INLINE bool has_vectors(const Target& output) {
    return Output::IS_ALIGNED && address(output) % 16 == 0;
}

DTL_INLINE bool is_whole(int column) {
    return column + COUNT <= Right::LINES;
}

// Reads what vectors of sixteen rows from `row` and `column` on need beside their sums.
template <class Target, class Ahead>
DTL_INLINE void read_rows_ahead(Ahead (&ahead)[VECTORS_OF_LANE], const Target& output, int row, int column) {
#pragma unroll
    for (int number = 0; number < VECTORS_OF_LANE; ++number) {
        const int output_row = row + row_of_vector(number);
        const int output_column = column + column_of_vector(number);
        if (has_vectors(output) && output_row < Left::LINES && is_whole(output_column)) {
            ahead[number] =
                read_ahead(output + output_row * Output::ROW_STRIDE + output_column * Output::COLUMN_STRIDE);
        }
    }
}

// Stores sixteen rows of sums from `row` and `column` of the output on.
template <class Target, class Ahead>
DTL_INLINE void store_rows(const Target& output, const float* room, const Ahead (&ahead)[VECTORS_OF_LANE], int row, int column) {
    const bool is_aligned = has_vectors(output);
#pragma unroll
    for (int number = 0; number < VECTORS_OF_LANE; ++number) {
        const float* const sums = room + row_of_vector(number) * ROOM_PITCH + column_of_vector(number);
        const int output_row = row + row_of_vector(number);
        const int output_column = column + column_of_vector(number);
        if (output_row < Left::LINES && output_column < Right::LINES) {
            const Target place = output + output_row * Output::ROW_STRIDE + output_column * Output::COLUMN_STRIDE;
            if (is_aligned && is_whole(output_column)) {
                store_vector(place, sums, ahead[number]);
            } else {
                const int count = min(Right::LINES - output_column, COUNT);
#pragma unroll 1
                for (int index = 0; index < count; ++index) {
                    store_output(place + index * Output::COLUMN_STRIDE, sums[index]);
                }
            }
        }
    }
}

// Strips of a warp's sums, sixteen rows by WARP_COLUMNS each, and whether the stages have room for all of them.
constexpr int STRIPS = DOWN * ACROSS * 8 / WARP_COLUMNS;
constexpr int PARTS_OF_STRIP = WARP_COLUMNS / 8;
constexpr bool ALL_HAVE_ROOM = STRIPS * ROOM_OF_WARP * (THREADS / 32) * sizeof(float) <= STAGES * STAGE_BYTES;

DTL_INLINE int down_of_strip(int number) {
    return number * PARTS_OF_STRIP / ACROSS;
}

DTL_INLINE int across_of_strip(int number) {
    return number * PARTS_OF_STRIP % ACROSS;
}

// Puts a strip of sums into its room.
DTL_INLINE void put_strip(float* room, const float (&sums)[ACROSS][4], int first) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int across = 0; across < PARTS_OF_STRIP; ++across) {
        const float(&part)[4] = sums[first + across];
        float* const place = room + lane / 4 * ROOM_PITCH + across * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(place) = float2{part[0], part[1]};
        *reinterpret_cast<float2*>(place + 8 * ROOM_PITCH) = float2{part[2], part[3]};
    }
}

// The sums of each strip become those of the one before.
DTL_INLINE void move_up(Sums& sums) {
#pragma unroll
    for (int part = PARTS_OF_STRIP; part < DOWN * ACROSS; ++part) {
        const int before = part - PARTS_OF_STRIP;
#pragma unroll
        for (int number = 0; number < 4; ++number) {
            sums[before / ACROSS][before % ACROSS][number] = sums[part / ACROSS][part % ACROSS][number];
        }
    }
}

// Stores this warp's sums, of which the first is at `row` and `column` of the output, through its own room in shared memory, strip after strip.
// What is read beside them is on its way while they go to their room. The long text of an epilogue is there for one strip only: where all of them have
// room, none is in registers any more, and else each in turn is the first.
template <class Target>
DTL_INLINE void store_sums(const Target& output, Sums& sums, int row, int column) {
    constexpr bool ARE_PUT_FIRST = HAS_EPILOGUE && ALL_HAVE_ROOM;
    float* const room = reinterpret_cast<float*>(shared) + threadIdx.x / 32 * ROOM_OF_WARP * (ARE_PUT_FIRST ? STRIPS : 1);
    if constexpr (ARE_PUT_FIRST) {
#pragma unroll
        for (int number = 0; number < STRIPS; ++number) {
            put_strip(room + number * ROOM_OF_WARP, sums[down_of_strip(number)], across_of_strip(number));
        }
        __syncwarp();
    }
#pragma unroll (HAS_EPILOGUE ? 1 : STRIPS)
    for (int number = 0; number < STRIPS; ++number) {
        const int strip_row = row + down_of_strip(number) * ROWS_APART;
        const int strip_column = column + across_of_strip(number) * 8;
        decltype(read_ahead(output)) ahead[VECTORS_OF_LANE];
        read_rows_ahead(ahead, output, strip_row, strip_column);
        if constexpr (ARE_PUT_FIRST) {
            store_rows(output, room + number * ROOM_OF_WARP, ahead, strip_row, strip_column);
        } else {
            const int in_registers = HAS_EPILOGUE ? 0 : number;
            put_strip(room, sums[down_of_strip(in_registers)], across_of_strip(in_registers));
            __syncwarp();
            store_rows(output, room, ahead, strip_row, strip_column);
            __syncwarp();
            if constexpr (HAS_EPILOGUE) {
                move_up(sums);
            }
        }
    }
}

// The tile of a block: GROUP tile rows after another, and in each group column after column.
DTL_INLINE void tile_of(unsigned number, int& first_row, int& first_column) {
    constexpr unsigned TILES_DOWN = (Left::LINES + TILE_ROWS - 1) / TILE_ROWS;
    constexpr unsigned TILES_ACROSS = (Right::LINES + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const unsigned first_of_group = number / (GROUP * TILES_ACROSS) * GROUP;
    const unsigned rows_of_group = min(TILES_DOWN - first_of_group, static_cast<unsigned>(GROUP));
    const unsigned in_group = number % (GROUP * TILES_ACROSS);
    first_row = static_cast<int>(first_of_group + in_group % rows_of_group) * TILE_ROWS;
    first_column = static_cast<int>(in_group / rows_of_group) * TILE_COLUMNS;
}
