// What all attention kernels share: who sees whom, and what a score is. Of what is PACKED(…), where sequences are packed of several documents, nothing is
// left where they aren't.

// Who sees whom: query `q` sees key `k` where distance + q - k is neither negative, if CAUSAL, nor WINDOW or more, if HAS_WINDOW.
struct Visibility {
    // Global coordinate of query 0 less that of key 0.
    long long distance;
    PACKED(Documents documents;)

    // Documents aside.
    DTL_INLINE bool is_seen(int query, int key) const {
        const long long behind = distance + query - key;
        return query < Q_LEN && key < K_LEN && (!CAUSAL || behind >= 0) && (!HAS_WINDOW || behind < WINDOW);
    }

    // All keys that some query of the range sees lie in this range.
    DTL_INLINE Range keys(Range queries) const {
        const int end = CAUSAL ? clamped(distance + queries.end, 0, K_LEN) : K_LEN;
        const int first = HAS_WINDOW ? clamped(distance + queries.first - WINDOW + 1, 0, end) : 0;
        return Range{first, end};
    }

    // The same of one head, where all threads of a block ask together.
    PACKED(DTL_INLINE Range keys(Range queries, Head head) const {
        return documents.of(head).keys(queries, keys(queries));
    })

    // All queries that see some key of the range lie in this range.
    DTL_INLINE Range queries(Range keys) const {
        const int end = HAS_WINDOW ? clamped(keys.end - 1 + WINDOW - distance, 0, Q_LEN) : Q_LEN;
        const int first = CAUSAL ? clamped(keys.first - distance, 0, end) : 0;
        return Range{first, end};
    }

    // The same of one head, where all threads of a block ask together.
    PACKED(DTL_INLINE Range queries(Range keys, Head head) const {
        return documents.of(head).queries(keys, queries(keys));
    })
};

DTL_INLINE float minus_infinity() {
    return __uint_as_float(0xff800000u);
}

// A score from the product of a query and a key.
DTL_INLINE float scaled_and_capped(float product) {
    const float score = product * SCALE;
    return HAS_CAP ? CAP * tanhf(score / CAP) : score;
}
