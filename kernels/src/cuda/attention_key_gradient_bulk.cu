// The gradients of a block of keys and their values by tiles that arrive in bulk: for devices of compute capability 9.0, and tensors that a tensor
// map describes.

// Brings the keys and values, and all queries and gradients of their outputs, those of each step when its stage is empty.
DTL_INLINE void bring_tiles(const TensorMap& q, const TensorMap& k, const TensorMap& v, const TensorMap& o_gradient,
                            const KeyBlock& block) {
    const int steps = block.steps();
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const bool is_first = step == 0;
        const unsigned long long& barrier = open_stage(Stage(step), STAGE_BYTES + (is_first ? FIRST_STAGE : 0));
        if (is_first) {
            const Head head = block.key_head();
            begin_positions<Keys>(0, k, block.first_key, head_of_map<K>(head, K_HEAD_STRIDE), barrier);
            begin_positions<Values>(Keys::BYTES, v, block.first_key, head_of_map<V>(head, V_HEAD_STRIDE), barrier);
        }
        const unsigned stage = FIRST_STAGE + Stage(step).first_byte();
        const Head head = head_of(block.head_number(step));
        const int first_query = block.first_query(step);
        begin_positions<QueryTile>(stage, q, first_query, head_of_map<Q>(head, Q_HEAD_STRIDE), barrier);
        begin_positions<GradientTile>(stage + QueryTile::BYTES, o_gradient, first_query,
                                      head_of_map<OGradient>(head, OGRADIENT_HEAD_STRIDE), barrier);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS + BRINGING_THREADS, 1)
    KERNEL(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
           const __grid_constant__ TensorMap o_gradient, const float* lse, Half* k_gradient, Half* v_gradient, const float* delta,
           long long q_offset, long long k_offset PACKED(, const unsigned* q_documents, const unsigned* k_documents)) {
    const Visibility visibility = {q_offset - k_offset PACKED(, {q_documents, k_documents})};
    const KeyBlock block = this_key_block(visibility);
    make_stages();
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        leave_registers();
        if (threadIdx.x == THREADS) {
            bring_tiles(q, k, v, o_gradient, block);
        }
        return;
    }
    take_registers();
    Seeing seeing;
    PACKED(RowDocuments packed;)
    start_rows(seeing, block, visibility PACKED(, packed));
    KeyOutputs outputs = {};
    const int steps = block.steps();
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        await_stage(Stage(step));
        add_step(outputs, block, seeing, FIRST_STAGE + Stage(step).first_byte(), step, lse, delta PACKED(, packed));
        give_back(step);
    }
    await_multiplying();
    write_outputs(outputs, block, k_gradient, v_gradient);
}
