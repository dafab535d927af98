// The gradient of a block of queries by tiles that arrive in bulk: for devices of compute capability 9.0, and tensors that a tensor map describes.

// Brings the queries and the gradients of their outputs, and all keys and values, those of each step when its stage is empty.
DTL_INLINE void bring_tiles(const TensorMap& q, const TensorMap& k, const TensorMap& v, const TensorMap& o_gradient,
                            const Block& block, const Steps& steps) {
    const int key_head = head_of_map<K>(block.head, K_HEAD_STRIDE);
    const int value_head = head_of_map<V>(block.head, V_HEAD_STRIDE);
    const int end = steps.steps();
#pragma unroll 1
    for (int step = 0; step < end; ++step) {
        const bool is_first = step == 0;
        const unsigned long long& barrier = open_stage(Stage(step), STAGE_BYTES + (is_first ? FIRST_STAGE : 0));
        if (is_first) {
            begin_positions<Queries>(0, q, block.first_query, head_of_map<Q>(block.head, Q_HEAD_STRIDE), barrier);
            begin_positions<OutputGradients>(Queries::BYTES, o_gradient, block.first_query,
                                             head_of_map<OGradient>(block.head, OGRADIENT_HEAD_STRIDE), barrier);
        }
        const unsigned stage = FIRST_STAGE + Stage(step).first_byte();
        begin_positions<KeyTile>(stage, k, steps.first_key(step), key_head, barrier);
        begin_positions<ValueTile>(stage + KeyTile::BYTES, v, steps.first_key(step), value_head, barrier);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS + BRINGING_THREADS, 1)
    KERNEL(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
           const __grid_constant__ TensorMap o_gradient, const float* lse, Half* q_gradient, const float* delta,
           long long q_offset, long long k_offset PACKED(, const unsigned* q_documents, const unsigned* k_documents)) {
    const Block block = this_block();
    const Visibility visibility = {q_offset - k_offset PACKED(, {q_documents, k_documents})};
    const Steps steps = {block.keys(visibility)};
    make_stages();
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        leave_registers();
        if (threadIdx.x == THREADS) {
            bring_tiles(q, k, v, o_gradient, block, steps);
        }
        return;
    }
    take_registers();
    QueryRows rows;
    start_rows(rows, block, visibility, lse, delta);
    Sums<HEAD_WIDTH> outputs = {};
    const int end = steps.steps();
#pragma unroll 1
    for (int step = 0; step < end; ++step) {
        await_stage(Stage(step));
        add_step(outputs, rows, FIRST_STAGE + Stage(step).first_byte(), steps.first_key(step));
        give_back(step);
    }
    await_multiplying();
    write_outputs(outputs, block, q_gradient);
}
