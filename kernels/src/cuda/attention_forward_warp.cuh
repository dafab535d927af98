// The forward kernel's loop where each warp multiplies for itself.

// Sums up the values of all steps.
template <class Incoming>
DTL_INLINE void attend(Values& outputs, Running& running, const Incoming& incoming) {
    incoming.begin_values(0);
    close_group();
#pragma unroll 1
    for (int step = 0; incoming.first_key(step) < incoming.seen.end; ++step) {
        await_tiles();
        // All are done with the stage before, where the next one goes.
        incoming.begin_keys(step + 1);
        incoming.begin_values(step + 1);
        close_group();
        Scores scores;
        Weights weights;
        multiply_rows<HEAD_WIDTH>(scores, 0, Incoming::key_stage(step));
        take_scores(scores, running, incoming.first_key(step));
        decay_outputs(outputs, running);
        round_weights(weights, scores);
        add_weighted_rows<VALUE_WIDTH, VALUE_WIDTH>(outputs, weights, Incoming::value_stage(step), 0);
    }
}
