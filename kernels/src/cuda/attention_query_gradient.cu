// The gradient of a block of queries: dQ = SCALE * dS K over the blocks of keys that they see, in their order.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const Element* q, const Element* k, const Element* v, const float* lse, const Element* o_gradient,
           Element* q_gradient, const float* delta, long long q_offset, long long k_offset PACKED(, const unsigned* q_documents, const unsigned* k_documents)) {
    __shared__ Chunks chunks;
    __shared__ Tile<CHUNK, FEATURES> chunk;
    __shared__ Tile<COLUMNS, ROWS> weights;

    constexpr unsigned Q_BLOCKS = (Q_LEN + ROWS - 1) / ROWS;
    constexpr unsigned PARTS = (HEAD_DIM + FEATURES - 1) / FEATURES;
    const int first_query = static_cast<int>(Q_BLOCKS - 1 - blockIdx.x % Q_BLOCKS) * ROWS;
    const int first_feature = static_cast<int>(blockIdx.x / Q_BLOCKS % PARTS) * FEATURES;
    const unsigned head_number = blockIdx.x / Q_BLOCKS / PARTS;
    const Head head = head_of(head_number);
    const Rows<Q, HEAD_DIM> queries = {q + start_of<Q>(head), Q_LEN};
    const Rows<K, HEAD_DIM> keys = {k + start_of<K>(head), K_LEN};
    const Rows<V, VALUE_DIM> values = {v + start_of<V>(head), K_LEN};
    const Rows<OGradient, VALUE_DIM> o_gradients = {o_gradient + start_of<OGradient>(head), Q_LEN};

    const Visibility visibility = {q_offset - k_offset PACKED(, {q_documents, k_documents})};
    const int end_query = first_query + ROWS < Q_LEN ? first_query + ROWS : Q_LEN;
    const Range seen = visibility.keys(Range{first_query, end_query} PACKED(, head));
    PACKED(const Documents documents = visibility.documents.of(head); unsigned of_rows[PART];)

    QueryTerms terms[PART];
#pragma unroll
    for (int row = 0; row < PART; ++row) {
        terms[row] = terms_of(lse, delta, head, head_number, first_query + line_of<ROWS, PART>(thread_row(), row));
        PACKED(of_rows[row] = documents.of_query(first_query + line_of<ROWS, PART>(thread_row(), row));)
    }
    Outputs outputs = {};
    for (int first_key = seen.first; first_key < seen.end; first_key += COLUMNS) {
        Scores scores, gradients;
        multiply_rows(scores, chunks, queries, first_query, keys, first_key);
        multiply_rows(gradients, chunks, o_gradients, first_query, values, first_key);
#pragma unroll
        for (int row = 0; row < PART; ++row) {
#pragma unroll
            for (int column = 0; column < PART; ++column) {
                const int query = first_query + line_of<ROWS, PART>(thread_row(), row);
                const int key = first_key + line_of<COLUMNS, PART>(thread_column(), column);
                differentiate(scores[row][column], gradients[row][column], terms[row],
                              visibility.is_seen(query, key) PACKED(&& is_same(of_rows[row], documents.of_key(key))));
            }
        }
        store_weights(weights, gradients);
        add_weighted_rows(outputs, weights, chunk, keys, first_key, first_feature);
    }
    const float scales[PART] = {SCALE, SCALE, SCALE, SCALE};
    store_outputs<QGradient, HEAD_DIM>(q_gradient + start_of<QGradient>(head), outputs, scales, first_query, Q_LEN,
                                       first_feature);
}
