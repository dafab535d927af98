// The gradient of a block of queries of bf16 on the tensor cores: dQ = SCALE * dS K over the blocks of keys that they see, in their order,
// with dS rounded to bf16.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const bf16* q, const bf16* k, const bf16* v, const float* lse, const bf16* o_gradient, bf16* q_gradient,
           const float* delta, long long q_offset, long long k_offset) {
    using Queries = RowsOf<ROWS, HEAD_WIDTH>;
    using OutputGradients = RowsOf<ROWS, VALUE_WIDTH>;
    using KeyTile = RowsOf<COLUMNS, HEAD_WIDTH>;
    using ValueTile = RowsOf<COLUMNS, VALUE_WIDTH>;
    constexpr unsigned FIRST_STAGE = Queries::BYTES + OutputGradients::BYTES;
    constexpr unsigned STAGE_BYTES = KeyTile::BYTES + ValueTile::BYTES;
    static_assert(FIRST_STAGE + STAGES * STAGE_BYTES <= SHARED_BYTES, "tiles have room");

    constexpr unsigned Q_BLOCKS = (Q_LEN + ROWS - 1) / ROWS;
    const int first_query = static_cast<int>(Q_BLOCKS - 1 - blockIdx.x % Q_BLOCKS) * ROWS;
    const unsigned head_number = blockIdx.x / Q_BLOCKS;
    const Head head = head_of(head_number);
    const Rows<K, HEAD_DIM> keys = {k + start_of<K>(head), K_LEN};
    const Rows<V, VALUE_DIM> values = {v + start_of<V>(head), K_LEN};

    const Visibility visibility = {q_offset - k_offset};
    const Range seen = visibility.keys(Range{first_query, min(first_query + ROWS, Q_LEN)});
    const auto begin_stage = [&](int first_key) {
        if (first_key < seen.end) {
            const unsigned stage = FIRST_STAGE + (first_key - seen.first) / COLUMNS % STAGES * STAGE_BYTES;
            begin_rows<KeyTile>(stage, keys, first_key);
            begin_rows<ValueTile>(stage + KeyTile::BYTES, values, first_key);
        }
        close_group();
    };

    Range seen_by_row[TILES_DOWN][2];
    QueryTerms terms[TILES_DOWN][2];
    float scales[TILES_DOWN][2];
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int query = first_query + row_of_block(row_of(down, half));
            seen_by_row[down][half] = query < Q_LEN ? visibility.keys(Range{query, query + 1}) : Range{0, 0};
            terms[down][half] = terms_of(lse, delta, head, head_number, query);
            scales[down][half] = SCALE;
        }
    }
    Sums<HEAD_WIDTH> outputs = {};
    begin_rows<Queries>(0, Rows<Q, HEAD_DIM>{q + start_of<Q>(head), Q_LEN}, first_query);
    begin_rows<OutputGradients>(Queries::BYTES, Rows<OGradient, VALUE_DIM>{o_gradient + start_of<OGradient>(head), Q_LEN},
                                first_query);
    begin_stage(seen.first);
#pragma unroll 1
    for (int first_key = seen.first; first_key < seen.end; first_key += COLUMNS) {
        await_tiles();
        // All are done with the stage before, where the next one goes.
        begin_stage(first_key + COLUMNS);
        const unsigned stage = FIRST_STAGE + (first_key - seen.first) / COLUMNS % STAGES * STAGE_BYTES;
        Scores scores, gradients, slopes;
        multiply_rows<HEAD_WIDTH>(scores, 0, stage);
        multiply_rows<VALUE_WIDTH>(gradients, Queries::BYTES, stage + KeyTile::BYTES);
        end_products<1>(scores);
#pragma unroll
        for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
            for (int number = 0; number < TILES_ACROSS * 4; ++number) {
                const int across = number / 4, half = number / 2 % 2, index = number % 4;
                const int key = first_key + column_of(across, number % 2);
                slopes[down][across][index] =
                    take_probability(scores[down][across][index], terms[down][half], sees(seen_by_row[down][half], key));
            }
        }
        end_products<0>(gradients);
#pragma unroll
        for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
            for (int number = 0; number < TILES_ACROSS * 4; ++number) {
                const int across = number / 4, half = number / 2 % 2, index = number % 4;
                take_gradient(gradients[down][across][index], scores[down][across][index], slopes[down][across][index],
                              terms[down][half]);
            }
        }
        Weights weights;
        round_weights(weights, gradients);
        add_weighted_rows<HEAD_WIDTH, HEAD_WIDTH>(outputs, weights, stage, 0);
        end_products<0>(outputs, weights);
    }
    // All are done with the tiles, where the outputs go.
    wait_for_groups<0>();
    __syncthreads();
    put_outputs<HEAD_WIDTH>(0, outputs, scales);
    __syncwarp();
    store_outputs<QGradient, HEAD_DIM, HEAD_WIDTH>(q_gradient + start_of<QGradient>(head), 0, first_query, Q_LEN, 0);
}
