// What becomes of the sums of a product on the tensor cores, and which tile of the output a block makes.

// Tile rows whose tiles blocks that run together make: what these read stays in the cache that all multiprocessors share.
constexpr int GROUP = 8;

// Sixteen bytes of the output.
template <class Element>
struct Vector;

template <>
struct Vector<float> {
    static constexpr int COUNT = 4;

    static DTL_INLINE void store(float* place, const float* sums) {
        const float4 old = ACCUMULATES ? *reinterpret_cast<const float4*>(place) : float4{};
        *reinterpret_cast<float4*>(place) = float4{result_of(sums[0], old.x), result_of(sums[1], old.y),
                                                   result_of(sums[2], old.z), result_of(sums[3], old.w)};
    }
};

template <>
struct Vector<bf16> {
    static constexpr int COUNT = 8;

    static DTL_INLINE unsigned pair(unsigned old, float low, float high) {
        const bf16 first = narrow<bf16>(result_of(low, __uint_as_float(old << 16)));
        const bf16 second = narrow<bf16>(result_of(high, __uint_as_float(old & 0xffff0000u)));
        return first.bits | static_cast<unsigned>(second.bits) << 16;
    }

    static DTL_INLINE void store(bf16* place, const float* sums) {
        const uint4 old = ACCUMULATES ? *reinterpret_cast<const uint4*>(place) : uint4{};
        *reinterpret_cast<uint4*>(place) = uint4{pair(old.x, sums[0], sums[1]), pair(old.y, sums[2], sums[3]),
                                                 pair(old.z, sums[4], sums[5]), pair(old.w, sums[6], sums[7])};
    }
};

// Sixteen rows of a warp's sums in shared memory, with a gap behind each row so that rows start in different banks.
constexpr int ROOM_PITCH = WARP_COLUMNS + 8;
constexpr int ROOM_OF_WARP = 16 * ROOM_PITCH;
static_assert(ROOM_OF_WARP * (THREADS / 32) * sizeof(float) <= STAGES * STAGE_BYTES, "sums go where the stages were");

// Stores sixteen rows of sums from `row` and `column` of the output on: neighbouring lanes store neighbours.
DTL_INLINE void store_rows(Output::Element* output, const float* room, int row, int column) {
    constexpr int COUNT = Vector<Output::Element>::COUNT;
    constexpr int VECTORS_OF_ROW = WARP_COLUMNS / COUNT;
    const bool is_aligned = Output::IS_ALIGNED && address(output) % 16 == 0;
#pragma unroll
    for (int number = 0; number < 16 * VECTORS_OF_ROW / 32; ++number) {
        const int which = number * 32 + static_cast<int>(threadIdx.x % 32);
        const int row_of_room = which / VECTORS_OF_ROW;
        const int column_of_room = which % VECTORS_OF_ROW * COUNT;
        const float* const sums = room + row_of_room * ROOM_PITCH + column_of_room;
        const int output_row = row + row_of_room;
        const int output_column = column + column_of_room;
        if (output_row < Left::LINES && output_column < Right::LINES) {
            Output::Element* const place =
                output + output_row * Output::ROW_STRIDE + output_column * Output::COLUMN_STRIDE;
            if (is_aligned && output_column + COUNT <= Right::LINES) {
                Vector<Output::Element>::store(place, sums);
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

// Stores this warp's sums, of which the first is at `row` and `column` of the output, through its own room in shared memory, sixteen rows by
// WARP_COLUMNS after another.
DTL_INLINE void store_sums(Output::Element* output, const Sums& sums, int row, int column) {
    const unsigned lane = threadIdx.x % 32;
    float* const room = reinterpret_cast<float*>(shared) + threadIdx.x / 32 * ROOM_OF_WARP;
#pragma unroll
    for (int number = 0; number < DOWN * ACROSS * 8 / WARP_COLUMNS; ++number) {
        const int down = number * WARP_COLUMNS / 8 / ACROSS;
        const int first = number * WARP_COLUMNS / 8 % ACROSS;
#pragma unroll
        for (int across = 0; across < WARP_COLUMNS / 8; ++across) {
            const float(&part)[4] = sums[down][first + across];
            float* const place = room + lane / 4 * ROOM_PITCH + across * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(place) = float2{part[0], part[1]};
            *reinterpret_cast<float2*>(place + 8 * ROOM_PITCH) = float2{part[2], part[3]};
        }
        __syncwarp();
        store_rows(output, room, row + down * ROWS_APART, column + first * 8);
        __syncwarp();
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
