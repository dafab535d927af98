// The gradients of a block of keys and their values by tiles that all threads copy.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const Half* q, const Half* k, const Half* v, const float* lse, const Half* o_gradient, Half* k_gradient,
           Half* v_gradient, const float* delta, long long q_offset, long long k_offset PACKED(, const unsigned* q_documents, const unsigned* k_documents)) {
    const Visibility visibility = {q_offset - k_offset PACKED(, {q_documents, k_documents})};
    const KeyBlock block = this_key_block(visibility);
    const int steps = block.steps();
    const auto begin_stage = [&](int step) {
        if (step < steps) {
            const unsigned stage = FIRST_STAGE + step % STAGES * STAGE_BYTES;
            const Head head = head_of(block.head_number(step));
            const int first_query = block.first_query(step);
            begin_rows<QueryTile>(stage, Rows<Q, HEAD_DIM>{q + start_of<Q>(head), Q_LEN}, first_query);
            begin_rows<GradientTile>(stage + QueryTile::BYTES,
                                     Rows<OGradient, VALUE_DIM>{o_gradient + start_of<OGradient>(head), Q_LEN}, first_query);
        }
        close_group();
    };

    Seeing seeing;
    PACKED(RowDocuments packed;)
    start_rows(seeing, block, visibility PACKED(, packed));
    KeyOutputs outputs = {};
    begin_rows<Keys>(0, Rows<K, HEAD_DIM>{k + start_of<K>(block.key_head()), K_LEN}, block.first_key);
    begin_rows<Values>(Keys::BYTES, Rows<V, VALUE_DIM>{v + start_of<V>(block.key_head()), K_LEN}, block.first_key);
    begin_stage(0);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        await_tiles();
        // All are done with the stage before, where the next one goes.
        begin_stage(step + 1);
        add_step(outputs, block, seeing, FIRST_STAGE + step % STAGES * STAGE_BYTES, step, lse, delta PACKED(, packed));
    }
    // All are done with the tiles.
    wait_for_groups<0>();
    __syncthreads();
    write_outputs(outputs, block, k_gradient, v_gradient);
}
