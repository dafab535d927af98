// Attention of a block of queries of halves on the tensor cores: outputs and log-sum-exps by an online softmax over blocks of keys.

// Keys and values on their way to shared memory, by copies of all threads.
struct Incoming : Steps {
    Rows<K, HEAD_DIM> keys;
    Rows<V, VALUE_DIM> values;

    static DTL_INLINE unsigned key_stage(int step) {
        return Queries::BYTES + static_cast<unsigned>(step) % STAGES * STAGE_BYTES;
    }

    static DTL_INLINE unsigned value_stage(int step) {
        return key_stage(step) + KeyTile::BYTES;
    }

    DTL_INLINE void begin_keys(int step) const {
        if (first_key(step) < seen.end) {
            begin_rows<KeyTile>(key_stage(step), keys, first_key(step));
        }
    }

    DTL_INLINE void begin_values(int step) const {
        if (first_key(step) < seen.end) {
            begin_rows<ValueTile>(value_stage(step), values, first_key(step));
        }
    }

    // Waits for a step's keys and the values of the step before.
    DTL_INLINE void await(int step) const {
        await_tiles();
        // All are done with the keys and the values before, where these go.
        begin_keys(step + 1);
        begin_values(step);
        close_group();
    }

    // Whoever waits has left all steps before.
    DTL_INLINE void leave(int) const {}
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const Half* q, const Half* k, const Half* v, Half* o, float* lse, long long q_offset, long long k_offset PACKED(, const unsigned* q_documents, const unsigned* k_documents)) {
    const Block block = this_block();
    const Visibility visibility = {q_offset - k_offset PACKED(, {q_documents, k_documents})};
    const Incoming incoming = {
        {block.keys(visibility)}, {k + start_of<K>(block.head), K_LEN}, {v + start_of<V>(block.head), K_LEN}};
    Running running;
    start_rows(running, block, visibility);
    Values outputs = {};
    begin_rows<Queries>(0, Rows<Q, HEAD_DIM>{q + start_of<Q>(block.head), Q_LEN}, block.first_query);
    incoming.begin_keys(0);
    close_group();
    attend(outputs, running, incoming);

    float factors[TILES_DOWN][2];
    end_rows(factors, running, block, lse);
    // All are done with the tiles.
    wait_for_groups<0>();
    __syncthreads();
    write_outputs(outputs, factors, block, o);
}
