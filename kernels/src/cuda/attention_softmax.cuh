// The online softmax of attention's forward kernels on the tensor cores, after Dao, "FlashAttention-2" (2023): what becomes of scores, and what a
// block of queries has of them at its end. No score leaves a warp's registers. Weights of values are rounded to halves, relative to the greatest
// so far; what they sum up to is taken of them as they were.

constexpr float LOG2_OF_E = 1.4426950408889634f;
constexpr float LN_OF_2 = 0.6931471805599453f;

using Values = Sums<VALUE_WIDTH>;

// What a lane knows of its rows so far.
struct Running {
    // Greatest score, as a power of two: the same in all lanes of a row, which are four neighbours.
    float maximum[TILES_DOWN][2];
    // Sum of exponentials relative to it, of the lane's columns.
    float sum[TILES_DOWN][2];
    // By how much the last step made worth less what was summed up before.
    float decay[TILES_DOWN][2];
    // The keys that a row sees.
    Range seen[TILES_DOWN][2];
    PACKED(RowDocuments packed;)
};

// Close to it: to 2 units in the last place.
DTL_INLINE float power_of_two(float exponent) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
    return power;
}

DTL_INLINE float greatest_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

DTL_INLINE float sum_of_row(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Makes a row's products its scores with the keys from `first_key` on, of which it sees those in `seen` that are marked. The greatest of a lane's.
template <int HALF>
DTL_INLINE float score_row(float (&products)[TILES_ACROSS][4], Range seen, int first_key PACKED(, Marks marks)) {
    float greatest = minus_infinity();
#pragma unroll
    for (int across = 0; across < TILES_ACROSS; ++across) {
#pragma unroll
        for (int number = 0; number < 2; ++number) {
            float& score = products[across][2 * HALF + number];
            const int key = first_key + column_of(across, number);
            score = sees(seen, key) PACKED(& marks.has(HALF, across, number)) ? scaled_and_capped(score) : minus_infinity();
            greatest = fmaxf(greatest, score);
        }
    }
    return greatest;
}

// Takes a row's scores into the running maximum and sum and makes them exponentials relative to the new maximum. What was summed up
// relative to the old one is worth this many times as much now.
template <int HALF>
DTL_INLINE float take_row(float (&scores)[TILES_ACROSS][4], float& maximum, float& sum, float greatest) {
    greatest = fmaxf(maximum, greatest_of_row(greatest) * LOG2_OF_E);
    // A query that has seen no key yet: any finite number makes its exponentials 0 rather than NaN.
    const float reference = greatest == minus_infinity() ? 0.0f : greatest;
    const float decay = power_of_two(maximum - reference);
    maximum = greatest;
    sum *= decay;
#pragma unroll
    for (int across = 0; across < TILES_ACROSS; ++across) {
#pragma unroll
        for (int number = 2 * HALF; number < 2 * HALF + 2; ++number) {
            scores[across][number] = power_of_two(__fmaf_rn(scores[across][number], LOG2_OF_E, -reference));
            sum += scores[across][number];
        }
    }
    return decay;
}

// Makes of products with the keys from `first_key` on what values are weighted with.
DTL_INLINE void take_scores(Scores& scores, Running& running, int first_key) {
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
        PACKED(const Marks marks = marks_of(running.packed.of_rows[down], running.packed.documents, first_key);)
        const float upper = score_row<0>(scores[down], running.seen[down][0], first_key PACKED(, marks));
        const float lower = score_row<1>(scores[down], running.seen[down][1], first_key PACKED(, marks));
        running.decay[down][0] = take_row<0>(scores[down], running.maximum[down][0], running.sum[down][0], upper);
        running.decay[down][1] = take_row<1>(scores[down], running.maximum[down][1], running.sum[down][1], lower);
    }
}

DTL_INLINE void decay_outputs(Values& outputs, const Running& running) {
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int across = 0; across < VALUE_WIDTH / 8; ++across) {
#pragma unroll
            for (int number = 0; number < 4; ++number) {
                outputs[down][across][number] *= running.decay[down][number / 2];
            }
        }
    }
}

using Queries = RowsOf<ROWS, HEAD_WIDTH>;
using KeyTile = RowsOf<COLUMNS, HEAD_WIDTH>;
using ValueTile = RowsOf<COLUMNS, VALUE_WIDTH>;
constexpr unsigned STAGE_BYTES = KeyTile::BYTES + ValueTile::BYTES;
static_assert(Queries::BYTES + STAGES * STAGE_BYTES <= SHARED_BYTES, "tiles have room");

// Before the first step.
DTL_INLINE void start_rows(Running& running, const Block& block, Visibility visibility) {
    PACKED(running.packed.documents = visibility.documents.of(block.head);)
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int query = block.first_query + row_of_block(row_of(down, half));
            running.seen[down][half] = query < Q_LEN ? visibility.keys(Range{query, query + 1}) : Range{0, 0};
            PACKED(running.packed.of_rows[down][half] = running.packed.documents.of_query(query);)
            running.maximum[down][half] = minus_infinity();
            running.sum[down][half] = 0.0f;
        }
    }
}

// Behind the last: writes log-sum-exps, and gives what makes outputs of sums of values.
DTL_INLINE void end_rows(float (&factors)[TILES_DOWN][2], const Running& running, const Block& block, float* lse) {
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float sum = sum_of_row(running.sum[down][half]);
            // Only a query that saw no key has sum 0.
            factors[down][half] = sum == 0.0f ? 0.0f : 1.0f / sum;
            const int query = block.first_query + row_of_block(row_of(down, half));
            if (threadIdx.x % 4 == 0 && query < Q_LEN) {
                lse[start_of<Lse>(block.head) + query * Lse::SEQUENCE_STRIDE] =
                    sum == 0.0f ? minus_infinity() : __fmaf_rn(running.maximum[down][half], LN_OF_2, logf(sum));
            }
        }
    }
}

// Writes a warp's outputs by way of its own part of shared memory, where no tile is in use any more.
DTL_INLINE void write_outputs(const Values& outputs, const float (&factors)[TILES_DOWN][2], const Block& block, Half* o) {
    static_assert(ROWS * VALUE_WIDTH * sizeof(Half) <= SHARED_BYTES, "outputs go where the tiles were");
    put_outputs<VALUE_WIDTH>(0, outputs, factors);
    __syncwarp();
    store_outputs<O, VALUE_DIM, VALUE_WIDTH>(o + start_of<O>(block.head), 0, block.first_query, Q_LEN, 0);
}
