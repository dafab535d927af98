// The gradient of a block of queries by tiles that all threads copy.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const Half* q, const Half* k, const Half* v, const float* lse, const Half* o_gradient, Half* q_gradient,
           const float* delta, long long q_offset, long long k_offset PACKED(, const unsigned* q_documents, const unsigned* k_documents)) {
    const Block block = this_block();
    const Visibility visibility = {q_offset - k_offset PACKED(, {q_documents, k_documents})};
    const Steps steps = {block.keys(visibility)};
    const Rows<K, HEAD_DIM> keys = {k + start_of<K>(block.head), K_LEN};
    const Rows<V, VALUE_DIM> values = {v + start_of<V>(block.head), K_LEN};
    const auto begin_stage = [&](int step) {
        const int first_key = steps.first_key(step);
        if (first_key < steps.seen.end) {
            const unsigned stage = FIRST_STAGE + step % STAGES * STAGE_BYTES;
            begin_rows<KeyTile>(stage, keys, first_key);
            begin_rows<ValueTile>(stage + KeyTile::BYTES, values, first_key);
        }
        close_group();
    };

    QueryRows rows;
    start_rows(rows, block, visibility, lse, delta);
    Sums<HEAD_WIDTH> outputs = {};
    begin_rows<Queries>(0, Rows<Q, HEAD_DIM>{q + start_of<Q>(block.head), Q_LEN}, block.first_query);
    begin_rows<OutputGradients>(
        Queries::BYTES, Rows<OGradient, VALUE_DIM>{o_gradient + start_of<OGradient>(block.head), Q_LEN}, block.first_query);
    begin_stage(0);
#pragma unroll 1
    for (int step = 0; steps.first_key(step) < steps.seen.end; ++step) {
        await_tiles();
        // All are done with the stage before, where the next one goes.
        begin_stage(step + 1);
        add_step(outputs, rows, FIRST_STAGE + step % STAGES * STAGE_BYTES, steps.first_key(step));
    }
    // All are done with the tiles.
    wait_for_groups<0>();
    __syncthreads();
    write_outputs(outputs, block, q_gradient);
}
