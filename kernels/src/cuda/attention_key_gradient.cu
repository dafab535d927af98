// The gradients of a block of keys and their values: dV = Pᵀ dO and dK = SCALE * dSᵀ Q, over the query heads of the group and the blocks
// of queries that see the keys, in this order. Rows of a tile are keys here, columns queries.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const Element* q, const Element* k, const Element* v, const float* lse, const Element* o_gradient,
           Element* k_gradient, Element* v_gradient, const float* delta, long long q_offset, long long k_offset PACKED(, const unsigned* q_documents, const unsigned* k_documents)) {
    __shared__ Chunks chunks;
    __shared__ Tile<CHUNK, FEATURES> chunk;
    __shared__ Tile<COLUMNS, ROWS> weights;

    constexpr unsigned K_BLOCKS = (K_LEN + ROWS - 1) / ROWS;
    constexpr int WIDEST = HEAD_DIM > VALUE_DIM ? HEAD_DIM : VALUE_DIM;
    constexpr unsigned PARTS = (WIDEST + FEATURES - 1) / FEATURES;
    const int first_key = static_cast<int>(blockIdx.x % K_BLOCKS) * ROWS;
    const int first_feature = static_cast<int>(blockIdx.x / K_BLOCKS % PARTS) * FEATURES;
    const unsigned first_head = blockIdx.x / K_BLOCKS / PARTS * GROUP;
    const Head key_head = head_of(first_head);
    const Rows<K, HEAD_DIM> keys = {k + start_of<K>(key_head), K_LEN};
    const Rows<V, VALUE_DIM> values = {v + start_of<V>(key_head), K_LEN};

    const Visibility visibility = {q_offset - k_offset PACKED(, {q_documents, k_documents})};
    const int end_key = first_key + ROWS < K_LEN ? first_key + ROWS : K_LEN;
    const Range seeing = visibility.queries(Range{first_key, end_key} PACKED(, key_head));
    PACKED(const Documents documents = visibility.documents.of(key_head);)

    Outputs key_outputs = {};
    Outputs value_outputs = {};
    for (unsigned group = 0; group < GROUP; ++group) {
        const Head head = head_of(first_head + group);
        const Rows<Q, HEAD_DIM> queries = {q + start_of<Q>(head), Q_LEN};
        const Rows<OGradient, VALUE_DIM> o_gradients = {o_gradient + start_of<OGradient>(head), Q_LEN};
        for (int first_query = seeing.first; first_query < seeing.end; first_query += COLUMNS) {
            Scores scores, gradients;
            multiply_rows(scores, chunks, keys, first_key, queries, first_query);
            multiply_rows(gradients, chunks, values, first_key, o_gradients, first_query);
#pragma unroll
            for (int column = 0; column < PART; ++column) {
                const int query = first_query + line_of<COLUMNS, PART>(thread_column(), column);
                const QueryTerms terms = terms_of(lse, delta, head, first_head + group, query);
#pragma unroll
                for (int row = 0; row < PART; ++row) {
                    const int key = first_key + line_of<ROWS, PART>(thread_row(), row);
                    differentiate(scores[row][column], gradients[row][column], terms,
                                  visibility.is_seen(query, key)
                                      PACKED(&& is_same(documents.of_key(key), documents.of_query(query))));
                }
            }
            store_weights(weights, scores);
            add_weighted_rows(value_outputs, weights, chunk, o_gradients, first_query, first_feature);
            store_weights(weights, gradients);
            add_weighted_rows(key_outputs, weights, chunk, queries, first_query, first_feature);
        }
    }
    const float scales[PART] = {SCALE, SCALE, SCALE, SCALE};
    const float ones[PART] = {1.0f, 1.0f, 1.0f, 1.0f};
    store_outputs<KGradient, HEAD_DIM>(k_gradient + start_of<KGradient>(key_head), key_outputs, scales, first_key, K_LEN,
                                       first_feature);
    store_outputs<VGradient, VALUE_DIM>(v_gradient + start_of<VGradient>(key_head), value_outputs, ones, first_key, K_LEN,
                                        first_feature);
}
