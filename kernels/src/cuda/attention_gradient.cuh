// The part of attention's gradient that both of its kernels compute anew from queries, keys and log-sum-exps.

// What all keys of a query have in common.
struct QueryTerms {
    float lse, delta;
};

DTL_INLINE QueryTerms terms_of(const float* lse, const float* delta, Head head, unsigned head_number, int query) {
    const bool is_inside = query < Q_LEN;
    return QueryTerms{is_inside ? lse[start_of<Lse>(head) + query * Lse::SEQUENCE_STRIDE] : 0.0f,
                      is_inside ? delta[static_cast<long long>(head_number) * Q_LEN + query] : 0.0f};
}

// Makes of query · key the probability. How much the score changes with it, relative to SCALE.
DTL_INLINE float take_probability(float& score, const QueryTerms& query, bool is_seen) {
    const float capped = scaled_and_capped(score);
    const float ratio = HAS_CAP ? capped / CAP : 0.0f;
    score = is_seen ? expf(capped - query.lse) : 0.0f;
    return __fmaf_rn(-ratio, ratio, 1.0f);
}

// Makes of value · gradient of the output the gradient of query · key * SCALE.
DTL_INLINE void take_gradient(float& gradient, float probability, float slope, const QueryTerms& query) {
    // Also where what comes for a key that is not seen is no number.
    gradient = probability == 0.0f ? 0.0f : probability * (gradient - query.delta) * slope;
}

// Both, one after the other.
DTL_INLINE void differentiate(float& score, float& gradient, const QueryTerms& query, bool is_seen) {
    const float slope = take_probability(score, query, is_seen);
    take_gradient(gradient, score, slope, query);
}
