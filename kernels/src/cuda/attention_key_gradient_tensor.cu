// The gradients of a block of keys and their values of bf16 on the tensor cores: dV = Pᵀ dO and dK = SCALE * dSᵀ Q, over the query heads of
// the group and the blocks of queries that see the keys, in this order, with P and dS rounded to bf16. Rows are keys here, columns
// queries. Of PARTS blocks of the same keys each makes as many features.

constexpr int KEY_FEATURES = HEAD_WIDTH / PARTS;
constexpr int VALUE_FEATURES = VALUE_WIDTH / PARTS;
static_assert(KEY_FEATURES % FRAGMENT == 0 && VALUE_FEATURES % FRAGMENT == 0, "parts are made of fragments");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const bf16* q, const bf16* k, const bf16* v, const float* lse, const bf16* o_gradient, bf16* k_gradient,
           bf16* v_gradient, const float* delta, long long q_offset, long long k_offset) {
    using Keys = RowsOf<ROWS, HEAD_WIDTH>;
    using Values = RowsOf<ROWS, VALUE_WIDTH>;
    using QueryTile = RowsOf<COLUMNS, HEAD_WIDTH>;
    using GradientTile = RowsOf<COLUMNS, VALUE_WIDTH>;
    constexpr unsigned FIRST_STAGE = Keys::BYTES + Values::BYTES;
    constexpr unsigned STAGE_BYTES = QueryTile::BYTES + GradientTile::BYTES;
    static_assert(FIRST_STAGE + STAGES * STAGE_BYTES <= SHARED_BYTES, "tiles have room");

    constexpr unsigned K_BLOCKS = (K_LEN + ROWS - 1) / ROWS;
    const int first_key = static_cast<int>(blockIdx.x % K_BLOCKS) * ROWS;
    const int part = static_cast<int>(blockIdx.x / K_BLOCKS % PARTS);
    const unsigned first_head = blockIdx.x / K_BLOCKS / PARTS * GROUP;
    const Head key_head = head_of(first_head);

    const Visibility visibility = {q_offset - k_offset};
    const Range seeing = visibility.queries(Range{first_key, min(first_key + ROWS, K_LEN)});
    // Steps of a query head, and of all of the group.
    const int steps_of_head = (seeing.end - seeing.first + COLUMNS - 1) / COLUMNS;
    const int steps = GROUP * steps_of_head;
    const auto begin_stage = [&](int step) {
        if (step < steps) {
            const unsigned stage = FIRST_STAGE + step % STAGES * STAGE_BYTES;
            const int first_query = seeing.first + step % steps_of_head * COLUMNS;
            const Head head = head_of(first_head + step / steps_of_head);
            begin_rows<QueryTile>(stage, Rows<Q, HEAD_DIM>{q + start_of<Q>(head), Q_LEN}, first_query);
            begin_rows<GradientTile>(stage + QueryTile::BYTES,
                                     Rows<OGradient, VALUE_DIM>{o_gradient + start_of<OGradient>(head), Q_LEN}, first_query);
        }
        close_group();
    };

    Range seeing_row[TILES_DOWN][2];
    float scales[TILES_DOWN][2], ones[TILES_DOWN][2];
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int key = first_key + row_of_block(row_of(down, half));
            seeing_row[down][half] = key < K_LEN ? visibility.queries(Range{key, key + 1}) : Range{0, 0};
            scales[down][half] = SCALE;
            ones[down][half] = 1.0f;
        }
    }
    Sums<KEY_FEATURES> key_outputs = {};
    Sums<VALUE_FEATURES> value_outputs = {};
    begin_rows<Keys>(0, Rows<K, HEAD_DIM>{k + start_of<K>(key_head), K_LEN}, first_key);
    begin_rows<Values>(Keys::BYTES, Rows<V, VALUE_DIM>{v + start_of<V>(key_head), K_LEN}, first_key);
    begin_stage(0);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        await_tiles();
        // All are done with the stage before, where the next one goes.
        begin_stage(step + 1);
        const unsigned stage = FIRST_STAGE + step % STAGES * STAGE_BYTES;
        const int first_query = seeing.first + step % steps_of_head * COLUMNS;
        const unsigned head_number = first_head + step / steps_of_head;
        const Head head = head_of(head_number);
        Scores scores, gradients, slopes;
        multiply_rows<HEAD_WIDTH>(scores, 0, stage);
        multiply_rows<VALUE_WIDTH>(gradients, Keys::BYTES, stage + QueryTile::BYTES);
        end_products<1>(scores);
#pragma unroll
        for (int column = 0; column < TILES_ACROSS * 2; ++column) {
            const int query = first_query + column_of(column / 2, column % 2);
            const QueryTerms terms = terms_of(lse, delta, head, head_number, query);
#pragma unroll
            for (int row = 0; row < TILES_DOWN * 2; ++row) {
                const int down = row / 2, half = row % 2, index = half * 2 + column % 2;
                slopes[down][column / 2][index] = take_probability(scores[down][column / 2][index], terms,
                                                                   is_seen_by(seeing_row[down][half], query));
            }
        }
        Weights probabilities, differences;
        round_weights(probabilities, scores);
        add_weighted_rows<VALUE_WIDTH, VALUE_FEATURES>(value_outputs, probabilities, stage + QueryTile::BYTES,
                                                       part * VALUE_FEATURES);
        end_products<1>(gradients);
#pragma unroll
        for (int column = 0; column < TILES_ACROSS * 2; ++column) {
            const int query = first_query + column_of(column / 2, column % 2);
            const QueryTerms terms = terms_of(lse, delta, head, head_number, query);
#pragma unroll
            for (int row = 0; row < TILES_DOWN * 2; ++row) {
                const int down = row / 2, index = row % 2 * 2 + column % 2;
                take_gradient(gradients[down][column / 2][index], scores[down][column / 2][index],
                              slopes[down][column / 2][index], terms);
            }
        }
        round_weights(differences, gradients);
        add_weighted_rows<HEAD_WIDTH, KEY_FEATURES>(key_outputs, differences, stage, part * KEY_FEATURES);
        end_products<0>(value_outputs, key_outputs, probabilities, differences);
    }
    // All are done with the tiles, where the outputs go.
    wait_for_groups<0>();
    __syncthreads();
    put_outputs<KEY_FEATURES>(0, key_outputs, scales);
    put_outputs<VALUE_FEATURES>(Keys::BYTES, value_outputs, ones);
    __syncwarp();
    store_outputs<KGradient, HEAD_DIM, KEY_FEATURES>(k_gradient + start_of<KGradient>(key_head), 0, first_key, K_LEN,
                                                     part * KEY_FEATURES);
    store_outputs<VGradient, VALUE_DIM, VALUE_FEATURES>(v_gradient + start_of<VGradient>(key_head), Keys::BYTES, first_key, K_LEN,
                                                        part * VALUE_FEATURES);
}
