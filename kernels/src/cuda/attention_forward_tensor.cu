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
    // By how much the last step made worth less what was summed up before.
    float decay[TILES_DOWN][2];
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
DTL_INLINE void take_scores(Scores& scores, Running& running, const Range (&seen_by_row)[TILES_DOWN][2], int first_key) {
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
        const float upper = score_row<0>(scores[down], seen_by_row[down][0], first_key);
        const float lower = score_row<1>(scores[down], seen_by_row[down][1], first_key);
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
static_assert(ROWS * VALUE_WIDTH * sizeof(bf16) <= SHARED_BYTES, "outputs go where the tiles were");

// The keys that some query of the block sees and their values, COLUMNS a step, on their way to shared memory.
struct Incoming {
    Rows<K, HEAD_DIM> keys;
    Rows<V, VALUE_DIM> values;
    Range seen;

    DTL_INLINE int first_key(int step) const {
        return seen.first + step * COLUMNS;
    }

    DTL_INLINE int steps() const {
        return (seen.end - seen.first + COLUMNS - 1) / COLUMNS;
    }

    static DTL_INLINE unsigned key_stage(int step) {
        return Queries::BYTES + static_cast<unsigned>(step) % STAGES * STAGE_BYTES;
    }

    static DTL_INLINE unsigned value_stage(int step) {
        return key_stage(step) + KeyTile::BYTES;
    }

    DTL_INLINE void begin_keys(int step) const {
        if (first_key(step) < seen.end) {
            begin_rows<KeyTile>(key_stage(step), keys, first_key(step));
        }
    }

    DTL_INLINE void begin_values(int step) const {
        if (first_key(step) < seen.end) {
            begin_rows<ValueTile>(value_stage(step), values, first_key(step));
        }
    }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Sums up the values of all steps. While a step's scores become weights, the group multiplies the values of the step before, after
// Shah et al., "FlashAttention-3" (2024): so values come one step later than keys.
DTL_INLINE void attend(Values& outputs, Running& running, const Range (&seen_by_row)[TILES_DOWN][2], const Incoming& incoming) {
    incoming.begin_keys(0);
    close_group();
    const int steps = incoming.steps();
    if (steps == 0) {
        return;
    }
    await_tiles();
    incoming.begin_keys(1);
    incoming.begin_values(0);
    close_group();
    Scores scores;
    Weights weights = {};
    const auto end_values = [&] {
        end_products<0>(outputs, weights);
        decay_outputs(outputs, running);
        round_weights(weights, scores);
    };
    multiply_rows<HEAD_WIDTH>(scores, 0, Incoming::key_stage(0));
    end_products<0>(scores);
    take_scores(scores, running, seen_by_row, incoming.first_key(0));
    // The assembler moves a wait up to what it need not wait for, but not into the step before: so values end here.
#pragma unroll 1
    for (int step = 1; step < steps; ++step) {
        end_values();
        await_tiles();
        // All are done with the keys and the values before, where these go.
        incoming.begin_keys(step + 1);
        incoming.begin_values(step);
        close_group();
        multiply_rows<HEAD_WIDTH>(scores, 0, Incoming::key_stage(step));
        add_weighted_rows<VALUE_WIDTH, VALUE_WIDTH>(outputs, weights, Incoming::value_stage(step - 1), 0);
        end_products<1>(scores);
        take_scores(scores, running, seen_by_row, incoming.first_key(step));
    }
    end_values();
    await_tiles();
    add_weighted_rows<VALUE_WIDTH, VALUE_WIDTH>(outputs, weights, Incoming::value_stage(steps - 1), 0);
    end_products<0>(outputs, weights);
}

#else

// Sums up the values of all steps.
DTL_INLINE void attend(Values& outputs, Running& running, const Range (&seen_by_row)[TILES_DOWN][2], const Incoming& incoming) {
    incoming.begin_keys(0);
    incoming.begin_values(0);
    close_group();
#pragma unroll 1
    for (int step = 0; incoming.first_key(step) < incoming.seen.end; ++step) {
        await_tiles();
        // All are done with the stage before, where the next one goes.
        incoming.begin_keys(step + 1);
        incoming.begin_values(step + 1);
        close_group();
        Scores scores;
        Weights weights;
        multiply_rows<HEAD_WIDTH>(scores, 0, Incoming::key_stage(step));
        take_scores(scores, running, seen_by_row, incoming.first_key(step));
        decay_outputs(outputs, running);
        round_weights(weights, scores);
        add_weighted_rows<VALUE_WIDTH, VALUE_WIDTH>(outputs, weights, Incoming::value_stage(step), 0);
    }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const bf16* q, const bf16* k, const bf16* v, bf16* o, float* lse, long long q_offset, long long k_offset) {
    constexpr unsigned Q_BLOCKS = (Q_LEN + ROWS - 1) / ROWS;
    // Under a causal mask later queries see more keys: they start first.
    const int first_query = static_cast<int>(Q_BLOCKS - 1 - blockIdx.x % Q_BLOCKS) * ROWS;
    const Head head = head_of(blockIdx.x / Q_BLOCKS);
    const Visibility visibility = {q_offset - k_offset};
    const Incoming incoming = {{k + start_of<K>(head), K_LEN},
                               {v + start_of<V>(head), K_LEN},
                               visibility.keys(Range{first_query, min(first_query + ROWS, Q_LEN)})};
    Range seen_by_row[TILES_DOWN][2];
    Running running;
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int query = first_query + row_of_block(row_of(down, half));
            seen_by_row[down][half] = query < Q_LEN ? visibility.keys(Range{query, query + 1}) : Range{0, 0};
            running.maximum[down][half] = minus_infinity();
            running.sum[down][half] = 0.0f;
        }
    }
    Values outputs = {};
    begin_rows<Queries>(0, Rows<Q, HEAD_DIM>{q + start_of<Q>(head), Q_LEN}, first_query);
    attend(outputs, running, seen_by_row, incoming);

    float inverse[TILES_DOWN][2];
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float sum = sum_of_row(running.sum[down][half]);
            // Only a query that saw no key has sum 0.
            inverse[down][half] = sum == 0.0f ? 0.0f : 1.0f / sum;
            const int query = first_query + row_of_block(row_of(down, half));
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
