// Sequences of several documents each: a query sees keys of its own only, those with the same number. Steps over keys, or over queries, go from the
// first that may share a document with the block's rows to the last, so that where documents follow each other blocks of others cost nothing.

// What numbers of documents lie between.
struct Span {
    unsigned least, greatest;
};

// That of some positions: the same in all lanes.
template <class Tensor>
DTL_INLINE Span span_of(const unsigned* numbers, Range positions) {
    Span span = {0xffffffffu, 0u};
    for (int position = positions.first + static_cast<int>(threadIdx.x) % 32; position < positions.end; position += 32) {
        const unsigned number = numbers[position * Tensor::SEQUENCE_STRIDE];
        span.least = min(span.least, number);
        span.greatest = max(span.greatest, number);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        span.least = min(span.least, __shfl_xor_sync(0xffffffffu, span.least, distance));
        span.greatest = max(span.greatest, __shfl_xor_sync(0xffffffffu, span.greatest, distance));
    }
    return span;
}

// All of the positions whose documents lie in the span are in this part of them. All threads of the block find it together.
template <class Tensor>
DTL_INLINE Range range_of(const unsigned* numbers, Range positions, Span span) {
    __shared__ Range found[32];
    Range range = {positions.end, positions.first};
#pragma unroll 4
    for (int position = positions.first + static_cast<int>(threadIdx.x); position < positions.end;
         position += static_cast<int>(blockDim.x)) {
        const unsigned number = numbers[position * Tensor::SEQUENCE_STRIDE];
        if (span.least <= number && number <= span.greatest) {
            range = Range{min(range.first, position), position + 1};
        }
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        range.first = min(range.first, __shfl_xor_sync(0xffffffffu, range.first, distance));
        range.end = max(range.end, __shfl_xor_sync(0xffffffffu, range.end, distance));
    }
    if (threadIdx.x % 32 == 0) {
        found[threadIdx.x / 32] = range;
    }
    __syncthreads();
#pragma unroll 1
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
        range = Range{min(range.first, found[warp].first), max(range.end, found[warp].end)};
    }
    return range.first < range.end ? range : Range{positions.first, positions.first};
}

struct Documents {
    const unsigned* numbers_of_queries;
    const unsigned* numbers_of_keys;

    // Those of a head.
    DTL_INLINE Documents of(Head head) const {
        return Documents{numbers_of_queries + start_of<QDocuments>(head), numbers_of_keys + start_of<KDocuments>(head)};
    }

    // Behind the last position any, and without a branch: warps that part hold up products that they make together.
    DTL_INLINE unsigned of_query(int query) const {
        return numbers_of_queries[min(query, Q_LEN - 1) * QDocuments::SEQUENCE_STRIDE];
    }

    DTL_INLINE unsigned of_key(int key) const {
        return numbers_of_keys[min(key, K_LEN - 1) * KDocuments::SEQUENCE_STRIDE];
    }

    // All of the keys that share a document with some of the queries lie in this part of them.
    DTL_INLINE Range keys(Range queries, Range keys) const {
        return range_of<KDocuments>(numbers_of_keys, keys, span_of<QDocuments>(numbers_of_queries, queries));
    }

    // All of the queries that share a document with some of the keys lie in this part of them.
    DTL_INLINE Range queries(Range keys, Range queries) const {
        return range_of<QDocuments>(numbers_of_queries, queries, span_of<KDocuments>(numbers_of_keys, keys));
    }
};

DTL_INLINE bool is_same(unsigned document, unsigned other) {
    return document == other;
}
