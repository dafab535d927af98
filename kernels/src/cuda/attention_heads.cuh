// What all attention kernels share: where heads lie, who sees whom, and what a score is.

// One query head.
struct Head {
    int batch, kv_head, group;
};

DTL_INLINE Head head_of(unsigned number) {
    return Head{static_cast<int>(number / (GROUP * KV_HEADS)), static_cast<int>(number / GROUP % KV_HEADS),
                static_cast<int>(number % GROUP)};
}

// Where a head's first position lies in a tensor.
template <class Tensor>
DTL_INLINE long long start_of(Head head) {
    return head.batch * Tensor::BATCH_STRIDE + head.kv_head * Tensor::KV_HEAD_STRIDE + head.group * Tensor::GROUP_STRIDE;
}

// Some neighbouring numbers, `first` to `end - 1`.
struct Range {
    int first, end;
};

DTL_INLINE int clamped(long long x, int low, int high) {
    return x < low ? low : x > high ? high : static_cast<int>(x);
}

// Who sees whom: query `q` sees key `k` where distance + q - k is neither negative, if CAUSAL, nor WINDOW or more, if HAS_WINDOW.
struct Visibility {
    // Global coordinate of query 0 less that of key 0.
    long long distance;

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

    // All queries that see some key of the range lie in this range.
    DTL_INLINE Range queries(Range keys) const {
        const int end = HAS_WINDOW ? clamped(keys.end - 1 + WINDOW - distance, 0, Q_LEN) : Q_LEN;
        const int first = CAUSAL ? clamped(keys.first - distance, 0, end) : 0;
        return Range{first, end};
    }
};

DTL_INLINE float minus_infinity() {
    return __uint_as_float(0xff800000u);
}

// A score from the product of a query and a key.
DTL_INLINE float scaled_and_capped(float product) {
    const float score = product * SCALE;
    return HAS_CAP ? CAP * tanhf(score / CAP) : score;
}
