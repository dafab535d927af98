// Attention of a block of queries: outputs and log-sum-exps by an online softmax over blocks of keys, after Dao et al.,
// "FlashAttention" (2022). No score leaves the block.

// What a thread knows of its queries so far.
struct Running {
    // Greatest score.
    float maximum[PART];
    // Sum of exponentials relative to it.
    float sum[PART];
};

// The same in all threads of a row, which are 16 neighbouring lanes.
DTL_INLINE float greatest_of_row(float x) {
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, x, distance);
        x = other > x ? other : x;
    }
    return x;
}

DTL_INLINE float sum_of_row(float x) {
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    }
    return x;
}

// Takes a tile's scores into the running maximum and sum, makes them exponentials relative to the new maximum, and what was summed
// up relative to the old one worth what it is now.
DTL_INLINE void take_scores(Scores& scores, Running& running, Outputs& outputs) {
#pragma unroll
    for (int row = 0; row < PART; ++row) {
        float greatest = scores[row][0];
#pragma unroll
        for (int column = 1; column < PART; ++column) {
            greatest = scores[row][column] > greatest ? scores[row][column] : greatest;
        }
        greatest = greatest_of_row(greatest);
        greatest = running.maximum[row] > greatest ? running.maximum[row] : greatest;
        // A query that has seen no key yet: any finite number makes its exponentials 0 rather than NaN.
        const float reference = greatest == minus_infinity() ? 0.0f : greatest;
        float total = 0.0f;
#pragma unroll
        for (int column = 0; column < PART; ++column) {
            scores[row][column] = expf(scores[row][column] - reference);
            total += scores[row][column];
        }
        const float decay = expf(running.maximum[row] - reference);
        running.sum[row] = running.sum[row] * decay + sum_of_row(total);
        running.maximum[row] = greatest;
#pragma unroll
        for (int feature = 0; feature < FEATURE_PART; ++feature) {
            outputs[row][feature] *= decay;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const Element* q, const Element* k, const Element* v, Element* o, float* lse, long long q_offset,
           long long k_offset PACKED(, const unsigned* q_documents, const unsigned* k_documents)) {
    __shared__ Chunks chunks;
    __shared__ Tile<CHUNK, FEATURES> chunk;
    __shared__ Tile<COLUMNS, ROWS> weights;

    constexpr unsigned Q_BLOCKS = (Q_LEN + ROWS - 1) / ROWS;
    constexpr unsigned PARTS = (VALUE_DIM + FEATURES - 1) / FEATURES;
    // Under a causal mask later queries see more keys: they start first.
    const int first_query = static_cast<int>(Q_BLOCKS - 1 - blockIdx.x % Q_BLOCKS) * ROWS;
    const int first_feature = static_cast<int>(blockIdx.x / Q_BLOCKS % PARTS) * FEATURES;
    const Head head = head_of(blockIdx.x / Q_BLOCKS / PARTS);
    const Rows<Q, HEAD_DIM> queries = {q + start_of<Q>(head), Q_LEN};
    const Rows<K, HEAD_DIM> keys = {k + start_of<K>(head), K_LEN};
    const Rows<V, VALUE_DIM> values = {v + start_of<V>(head), K_LEN};

    const Visibility visibility = {q_offset - k_offset PACKED(, {q_documents, k_documents})};
    const int end_query = first_query + ROWS < Q_LEN ? first_query + ROWS : Q_LEN;
    const Range seen = visibility.keys(Range{first_query, end_query} PACKED(, head));
    PACKED(const Documents documents = visibility.documents.of(head); unsigned of_rows[PART];)

    Running running;
#pragma unroll
    for (int row = 0; row < PART; ++row) {
        running.maximum[row] = minus_infinity();
        running.sum[row] = 0.0f;
        PACKED(of_rows[row] = documents.of_query(first_query + line_of<ROWS, PART>(thread_row(), row));)
    }
    Outputs outputs = {};
    for (int first_key = seen.first; first_key < seen.end; first_key += COLUMNS) {
        Scores scores;
        multiply_rows(scores, chunks, queries, first_query, keys, first_key);
#pragma unroll
        for (int row = 0; row < PART; ++row) {
#pragma unroll
            for (int column = 0; column < PART; ++column) {
                const int query = first_query + line_of<ROWS, PART>(thread_row(), row);
                const int key = first_key + line_of<COLUMNS, PART>(thread_column(), column);
                const bool is_seen = visibility.is_seen(query, key) PACKED(&& is_same(of_rows[row], documents.of_key(key)));
                scores[row][column] = is_seen ? scaled_and_capped(scores[row][column]) : minus_infinity();
            }
        }
        take_scores(scores, running, outputs);
        store_weights(weights, scores);
        add_weighted_rows(outputs, weights, chunk, values, first_key, first_feature);
    }

    float inverse[PART];
#pragma unroll
    for (int row = 0; row < PART; ++row) {
        const float sum = running.sum[row];
        // Only a query that saw no key has sum 0.
        inverse[row] = sum == 0.0f ? 0.0f : 1.0f / sum;
        const int query = first_query + line_of<ROWS, PART>(thread_row(), row);
        if (first_feature == 0 && thread_column() == 0 && query < Q_LEN) {
            lse[start_of<Lse>(head) + query * Lse::SEQUENCE_STRIDE] =
                sum == 0.0f ? minus_infinity() : running.maximum[row] + logf(sum);
        }
    }
    store_outputs<O, VALUE_DIM>(o + start_of<O>(head), outputs, inverse, first_query, Q_LEN, first_feature);
}
