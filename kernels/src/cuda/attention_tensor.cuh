// What the attention kernels on the tensor cores share: rows on their way to shared memory, products of tiles, and outputs on their
// way back.
//
// A block has WARPS warps and works on tiles of ROWS by COLUMNS scores, of which a warp has WARP_ROWS rows. What belongs to the rows, its
// own, stays in shared memory; what belongs to the columns comes through STAGES places there: while one is multiplied, the other is on its
// way. In shared memory a row has HEAD_WIDTH or VALUE_WIDTH features, of which those behind the head's are zeros.
//
// Who multiplies is said by the file behind: each warp for itself, or the block's four together where the device has that.

constexpr unsigned THREADS = 32 * WARPS;
constexpr int ROWS = WARPS * WARP_ROWS;
// Products of a warp: as high as a fragment, half as wide.
constexpr int TILES_DOWN = WARP_ROWS / FRAGMENT;
constexpr int TILES_ACROSS = COLUMNS / 8;

// A warp's sums of so many columns: of each product a lane has two neighbours, and the two that are eight rows below.
template <int WIDTH>
using Sums = float[TILES_DOWN][WIDTH / 8][4];
using Scores = Sums<COLUMNS>;
// Left factors of as many terms.
using Weights = Fragment[TILES_DOWN][COLUMNS / FRAGMENT];

// A head's rows, of `count` positions with FEATURES_OF_ROW features each.
template <class Tensor, int FEATURES_OF_ROW>
struct Rows {
    const Half* at;
    int count;
};

DTL_INLINE int warp_of_block() {
    return static_cast<int>(threadIdx.x) / 32;
}

// The row of the block that is this one of the warp's.
DTL_INLINE int row_of_block(int row);

// The row among its warp's that has this number among those of a lane.
DTL_INLINE int row_of(int down, int half) {
    return down * FRAGMENT + half * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
}

// The column of a lane's number in a product.
DTL_INLINE int column_of(int across, int number) {
    return across * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + number;
}

// Whether a query sees a key, of the range of keys that it sees.
DTL_INLINE bool sees(Range keys, int key) {
    return (!HAS_WINDOW || key >= keys.first) && key < keys.end;
}

// Whether a key is seen by a query, of the range of queries that see it.
DTL_INLINE bool is_seen_by(Range queries, int query) {
    return (!CAUSAL || query >= queries.first) && query < queries.end;
}

// The queries of a block whose rows are queries.
struct Block {
    unsigned head_number;
    Head head;
    int first_query;

    // All keys that some of them sees lie in this range.
    DTL_INLINE Range keys(Visibility visibility) const {
        return visibility.keys(Range{first_query, min(first_query + ROWS, Q_LEN)} PACKED(, head));
    }
};

DTL_INLINE Block this_block() {
    constexpr unsigned Q_BLOCKS = (Q_LEN + ROWS - 1) / ROWS;
    // Under a causal mask later queries see more keys: they start first.
    const unsigned head_number = blockIdx.x / Q_BLOCKS;
    return Block{head_number, head_of(head_number), static_cast<int>(Q_BLOCKS - 1 - blockIdx.x % Q_BLOCKS) * ROWS};
}

// The keys that some query of the block sees and their values, COLUMNS a step.
struct Steps {
    Range seen;

    DTL_INLINE int first_key(int step) const {
        return seen.first + step * COLUMNS;
    }

    DTL_INLINE int steps() const {
        return (seen.end - seen.first + COLUMNS - 1) / COLUMNS;
    }
};

// Two numbers side by side, the first in the lower half.
DTL_INLINE unsigned pair_of(float low, float high) {
    unsigned pair;
    asm("cvt.rn." FACTOR_NAME "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Reads the first `count` numbers of a chunk one by one; the others are zeros.
DTL_INLINE Chunk gather_chunk(const Half* source, int count) {
    unsigned pairs[CHUNK / 2] = {};
#pragma unroll
    for (int number = 0; number < CHUNK; ++number) {
        if (number < count) {
            pairs[number / 2] |= static_cast<unsigned>(source[number].bits) << number % 2 * 16;
        }
    }
    return Chunk{pairs[0], pairs[1], pairs[2], pairs[3]};
}

// Begins to read the positions from `first` on to this byte of shared memory; zeros behind the last position and the last feature.
template <class Place, class Tensor, int FEATURES_OF_ROW>
DTL_INLINE void begin_rows(unsigned tile, const Rows<Tensor, FEATURES_OF_ROW>& rows, int first) {
    const bool is_aligned = Tensor::IS_ALIGNED && address(rows.at) % sizeof(Chunk) == 0;
#pragma unroll 4
    for (unsigned which = threadIdx.x; which < Place::CHUNKS; which += THREADS) {
        const unsigned row = which / Place::CHUNKS_OF_ROW;
        const unsigned chunk = which % Place::CHUNKS_OF_ROW;
        const int position = first + static_cast<int>(row);
        const int feature = static_cast<int>(chunk) * CHUNK;
        const int count = position < rows.count ? clamped(FEATURES_OF_ROW - feature, 0, CHUNK) : 0;
        const Half* const source = rows.at + (count == 0 ? 0 : position * Tensor::SEQUENCE_STRIDE + feature);
        const unsigned byte = tile + Place::place(row, chunk);
        if (is_aligned) {
            begin_copy(byte, source, count);
        } else {
            shared[byte / sizeof(Chunk)] = gather_chunk(source, count);
        }
    }
}

// Makes what this thread brought to shared memory ready for products, once a barrier is behind it.
DTL_INLINE void publish();

// Waits until all that the block's threads brought is in shared memory, and all are done with what they read there.
DTL_INLINE void await_tiles() {
    wait_for_groups<0>();
    publish();
    __syncthreads();
}

template <int ACROSS>
DTL_INLINE void clear(float (&sums)[TILES_DOWN][ACROSS][4]) {
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int across = 0; across < ACROSS; ++across) {
#pragma unroll
            for (float& sum : sums[down][across]) {
                sum = 0.0f;
            }
        }
    }
}

// What lanes have of two products side by side is what they have to have of a left factor, but for its rounding.
DTL_INLINE void round_weights(Weights& weights, const Scores& scores) {
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int across = 0; across < TILES_ACROSS; across += 2) {
            const float(&early)[4] = scores[down][across];
            const float(&late)[4] = scores[down][across + 1];
            weights[down][across / 2] = Fragment{{pair_of(early[0], early[1]), pair_of(early[2], early[3]),
                                                  pair_of(late[0], late[1]), pair_of(late[2], late[3])}};
        }
    }
}

// A warp's outputs on their way back.
template <int FEATURES>
using Room = Swizzled<WARP_ROWS, FEATURES / CHUNK>;

// Puts a warp's outputs, each times the factor of its row, into its own rows of this byte of shared memory.
template <int FEATURES>
DTL_INLINE void put_outputs(unsigned room, const Sums<FEATURES>& outputs, const float (&factors)[TILES_DOWN][2]) {
    using Place = Room<FEATURES>;
    room += static_cast<unsigned>(warp_of_block()) * Place::BYTES;
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int across = 0; across < FEATURES / 8; ++across) {
                const float* const sums = &outputs[down][across][2 * half];
                const unsigned byte = room + Place::place(row_of(down, half), across) + threadIdx.x % 4 * 4;
                reinterpret_cast<unsigned*>(shared)[byte / 4] =
                    pair_of(sums[0] * factors[down][half], sums[1] * factors[down][half]);
            }
        }
    }
}

// Writes what a warp has put there to a tensor: neighbouring lanes store neighbours. The block's first row is position `first`; of a
// position's features these are those from `first_feature` on.
template <class Tensor, int FEATURES_OF_ROW, int FEATURES>
DTL_INLINE void store_outputs(Half* tensor, unsigned room, int first, int end, int first_feature) {
    using Place = Room<FEATURES>;
    room += static_cast<unsigned>(warp_of_block()) * Place::BYTES;
    const bool is_aligned = Tensor::IS_ALIGNED && address(tensor) % sizeof(Chunk) == 0;
#pragma unroll 4
    for (unsigned which = threadIdx.x % 32; which < Place::CHUNKS; which += 32) {
        const unsigned row = which / Place::CHUNKS_OF_ROW;
        const unsigned chunk = which % Place::CHUNKS_OF_ROW;
        const int position = first + row_of_block(static_cast<int>(row));
        const int feature = first_feature + static_cast<int>(chunk) * CHUNK;
        const int count = position < end ? clamped(FEATURES_OF_ROW - feature, 0, CHUNK) : 0;
        const unsigned byte = room + Place::place(row, chunk);
        Half* const target = tensor + position * Tensor::SEQUENCE_STRIDE + feature;
        if (is_aligned && count == CHUNK) {
            *reinterpret_cast<Chunk*>(target) = shared[byte / sizeof(Chunk)];
        } else {
#pragma unroll 1
            for (int number = 0; number < count; ++number) {
                target[number] = reinterpret_cast<const Half*>(shared)[byte / sizeof(Half) + static_cast<unsigned>(number)];
            }
        }
    }
}
