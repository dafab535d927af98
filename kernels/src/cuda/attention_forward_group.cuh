// The forward kernel's loop where four warps multiply together. While a step's scores become weights, they multiply the values of the step before,
// after Shah et al., "FlashAttention-3" (2024): so values come one step later than keys.

// Sums up the values of all steps.
template <class Incoming>
DTL_INLINE void attend(Values& outputs, Running& running, const Incoming& incoming) {
    const int steps = incoming.steps();
    if (steps == 0) {
        return;
    }
    Scores scores;
    Weights weights = {};
    const auto end_step = [&](int step) {
        end_products<0>(outputs, weights);
        incoming.leave(step);
        decay_outputs(outputs, running);
        round_weights(weights, scores);
    };
    incoming.await(0);
    multiply_rows<HEAD_WIDTH>(scores, 0, Incoming::key_stage(0));
    end_products<0>(scores);
    take_scores(scores, running, incoming.first_key(0));
    // The assembler moves a wait up to what it need not wait for, but not into the step before: so steps end here.
#pragma unroll 1
    for (int step = 1; step < steps; ++step) {
        end_step(step - 1);
        incoming.await(step);
        multiply_rows<HEAD_WIDTH>(scores, 0, Incoming::key_stage(step));
        add_weighted_rows<VALUE_WIDTH, VALUE_WIDTH>(outputs, weights, Incoming::value_stage(step - 1), 0);
        end_products<1>(scores);
        take_scores(scores, running, incoming.first_key(step));
    }
    end_step(steps - 1);
    incoming.await(steps);
    add_weighted_rows<VALUE_WIDTH, VALUE_WIDTH>(outputs, weights, Incoming::value_stage(steps - 1), 0);
    end_products<0>(outputs, weights);
}
