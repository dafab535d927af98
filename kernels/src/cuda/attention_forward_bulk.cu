// Attention of a block of queries of halves as `attention_forward_tensor.cu` makes it, of tiles that arrive in bulk: for devices of compute capability
// 9.0, and tensors that a tensor map describes. A stage has a step's keys and the values of the step before, which are multiplied at the same time.

// Keys and values on their way to shared memory, with the queries before them.
struct Incoming : Steps {
    static DTL_INLINE unsigned key_stage(int step) {
        return Queries::BYTES + Stage(step).first_byte();
    }

    static DTL_INLINE unsigned value_stage(int step) {
        return key_stage(step + 1) + KeyTile::BYTES;
    }

    // Waits for a step's keys and the values of the step before.
    DTL_INLINE void await(int step) const {
        await_stage(Stage(step));
    }

    // This warp is done with them.
    DTL_INLINE void leave(int step) const {
        give_back(step);
    }

    // Brings them all, those of each step when its stage is empty.
    DTL_INLINE void bring(const TensorMap& q, const TensorMap& k, const TensorMap& v, const Block& block) const {
        const int key_head = head_of_map<K>(block.head, K_HEAD_STRIDE);
        const int value_head = head_of_map<V>(block.head, V_HEAD_STRIDE);
        const int end = steps();
#pragma unroll 1
        for (int step = 0; end > 0 && step <= end; ++step) {
            const bool is_first = step == 0;
            const bool is_last = step == end;
            const unsigned long long& barrier = open_stage(
                Stage(step), (is_first ? Queries::BYTES : ValueTile::BYTES) + (is_last ? 0 : KeyTile::BYTES));
            if (is_first) {
                begin_positions<Queries>(0, q, block.first_query, head_of_map<Q>(block.head, Q_HEAD_STRIDE), barrier);
            } else {
                begin_positions<ValueTile>(value_stage(step - 1), v, first_key(step - 1), value_head, barrier);
            }
            if (!is_last) {
                begin_positions<KeyTile>(key_stage(step), k, first_key(step), key_head, barrier);
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS + BRINGING_THREADS, 1)
    KERNEL(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, Half* o,
           float* lse, long long q_offset, long long k_offset PACKED(, const unsigned* q_documents, const unsigned* k_documents)) {
    const Block block = this_block();
    const Visibility visibility = {q_offset - k_offset PACKED(, {q_documents, k_documents})};
    const Incoming incoming = {{block.keys(visibility)}};
    make_stages();
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        leave_registers();
        if (threadIdx.x == THREADS) {
            incoming.bring(q, k, v, block);
        }
        return;
    }
    take_registers();
    Running running;
    start_rows(running, block, visibility);
    Values outputs = {};
    attend(outputs, running, incoming);

    float factors[TILES_DOWN][2];
    end_rows(factors, running, block, lse);
    await_multiplying();
    write_outputs(outputs, factors, block, o);
}
