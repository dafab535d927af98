// Attention of a block of queries of bf16 on the tensor cores: outputs and log-sum-exps by an online softmax over blocks of keys, after
// Dao, "FlashAttention-2" (2023). No score leaves a warp's registers. Weights of values are rounded to bf16, relative to the greatest
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

// Makes a row's products its scores with the keys from `first_key` on, of which it sees those in `seen`. The greatest of a lane's.
template <int HALF>
DTL_INLINE float score_row(float (&products)[TILES_ACROSS][4], Range seen, int first_key) {
    float greatest = minus_infinity();
#pragma unroll
    for (int across = 0; across < TILES_ACROSS; ++across) {
#pragma unroll
        for (int number = 0; number < 2; ++number) {
            float& score = products[across][2 * HALF + number];
            const int key = first_key + column_of(across, number);
            score = sees(seen, key) ? scaled_and_capped(score) : minus_infinity();
            greatest = fmaxf(greatest, score);
        }
    }
    return greatest;
}

// Takes a row's scores into the running maximum and sum, makes them exponentials relative to the new maximum, and what was summed up
// relative to the old one worth what it is now.
template <int HALF>
DTL_INLINE void take_row(float (&scores)[TILES_ACROSS][4], float& maximum, float& sum, float (&outputs)[VALUE_WIDTH / 8][4],
                         float greatest) {
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
#pragma unroll
    for (int across = 0; across < VALUE_WIDTH / 8; ++across) {
        outputs[across][2 * HALF] *= decay;
        outputs[across][2 * HALF + 1] *= decay;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const bf16* q, const bf16* k, const bf16* v, bf16* o, float* lse, long long q_offset, long long k_offset) {
    using Queries = RowsOf<ROWS, HEAD_WIDTH>;
    using KeyTile = RowsOf<COLUMNS, HEAD_WIDTH>;
    using ValueTile = RowsOf<COLUMNS, VALUE_WIDTH>;
    constexpr unsigned STAGE_BYTES = KeyTile::BYTES + ValueTile::BYTES;
    static_assert(Queries::BYTES + STAGES * STAGE_BYTES <= SHARED_BYTES, "tiles have room");
    static_assert(ROWS * VALUE_WIDTH * sizeof(bf16) <= SHARED_BYTES, "outputs go where the tiles were");

    constexpr unsigned Q_BLOCKS = (Q_LEN + ROWS - 1) / ROWS;
    // Under a causal mask later queries see more keys: they start first.
    const int first_query = static_cast<int>(Q_BLOCKS - 1 - blockIdx.x % Q_BLOCKS) * ROWS;
    const Head head = head_of(blockIdx.x / Q_BLOCKS);
    const Rows<K, HEAD_DIM> keys = {k + start_of<K>(head), K_LEN};
    const Rows<V, VALUE_DIM> values = {v + start_of<V>(head), K_LEN};

    const Visibility visibility = {q_offset - k_offset};
    const Range seen = visibility.keys(Range{first_query, min(first_query + ROWS, Q_LEN)});
    const auto begin_stage = [&](int first_key) {
        if (first_key < seen.end) {
            const unsigned stage = Queries::BYTES + (first_key - seen.first) / COLUMNS % STAGES * STAGE_BYTES;
            begin_rows<KeyTile>(stage, keys, first_key);
            begin_rows<ValueTile>(stage + KeyTile::BYTES, values, first_key);
        }
        close_group();
    };

    const int warp_row = warp_of_block() * WARP_ROWS;
    Range seen_by_row[TILES_DOWN][2];
    Running running;
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int query = first_query + warp_row + row_of(down, half);
            seen_by_row[down][half] = query < Q_LEN ? visibility.keys(Range{query, query + 1}) : Range{0, 0};
            running.maximum[down][half] = minus_infinity();
            running.sum[down][half] = 0.0f;
        }
    }
    Values outputs = {};
    begin_rows<Queries>(0, Rows<Q, HEAD_DIM>{q + start_of<Q>(head), Q_LEN}, first_query);
    begin_stage(seen.first);
#pragma unroll 1
    for (int first_key = seen.first; first_key < seen.end; first_key += COLUMNS) {
        wait_for_groups<0>();
        // All threads' parts of the stage are there, and all are done with the stage before, where the next one goes.
        __syncthreads();
        begin_stage(first_key + COLUMNS);
        const unsigned stage = Queries::BYTES + (first_key - seen.first) / COLUMNS % STAGES * STAGE_BYTES;
        Scores scores;
        multiply_rows<HEAD_WIDTH>(scores, 0, warp_row, stage);
#pragma unroll
        for (int down = 0; down < TILES_DOWN; ++down) {
            const float upper = score_row<0>(scores[down], seen_by_row[down][0], first_key);
            const float lower = score_row<1>(scores[down], seen_by_row[down][1], first_key);
            take_row<0>(scores[down], running.maximum[down][0], running.sum[down][0], outputs[down], upper);
            take_row<1>(scores[down], running.maximum[down][1], running.sum[down][1], outputs[down], lower);
        }
        add_weighted_rows<VALUE_WIDTH, VALUE_WIDTH>(outputs, scores, stage + KeyTile::BYTES, 0);
    }

    float inverse[TILES_DOWN][2];
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float sum = sum_of_row(running.sum[down][half]);
            // Only a query that saw no key has sum 0.
            inverse[down][half] = sum == 0.0f ? 0.0f : 1.0f / sum;
            const int query = first_query + warp_row + row_of(down, half);
            if (threadIdx.x % 4 == 0 && query < Q_LEN) {
                lse[start_of<Lse>(head) + query * Lse::SEQUENCE_STRIDE] =
                    sum == 0.0f ? minus_infinity() : __fmaf_rn(running.maximum[down][half], LN_OF_2, logf(sum));
            }
        }
    }
    // All are done with the tiles, where the outputs go.
    wait_for_groups<0>();
    __syncthreads();
    put_outputs<VALUE_WIDTH>(0, outputs, inverse);
    __syncwarp();
    store_outputs<O, VALUE_DIM, VALUE_WIDTH>(o + start_of<O>(head), 0, first_query, Q_LEN, 0);
}
