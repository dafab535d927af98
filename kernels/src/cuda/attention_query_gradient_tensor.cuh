// The gradient of a block of queries of halves on the tensor cores: dQ = SCALE * dS K over the blocks of keys that they see, in their order,
// with dS rounded to halves. How tiles arrive is said by the files behind.

using Queries = RowsOf<ROWS, HEAD_WIDTH>;
using OutputGradients = RowsOf<ROWS, VALUE_WIDTH>;
using KeyTile = RowsOf<COLUMNS, HEAD_WIDTH>;
using ValueTile = RowsOf<COLUMNS, VALUE_WIDTH>;
constexpr unsigned FIRST_STAGE = Queries::BYTES + OutputGradients::BYTES;
constexpr unsigned STAGE_BYTES = KeyTile::BYTES + ValueTile::BYTES;
static_assert(FIRST_STAGE + STAGES * STAGE_BYTES <= SHARED_BYTES, "tiles have room");

// What a lane knows of its rows.
struct QueryRows {
    Range seen[TILES_DOWN][2];
    PACKED(RowDocuments packed;)
    QueryTerms terms[TILES_DOWN][2];
};

DTL_INLINE void start_rows(QueryRows& rows, const Block& block, Visibility visibility, const float* lse, const float* delta) {
    PACKED(rows.packed.documents = visibility.documents.of(block.head);)
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int query = block.first_query + row_of_block(row_of(down, half));
            rows.seen[down][half] = query < Q_LEN ? visibility.keys(Range{query, query + 1}) : Range{0, 0};
            PACKED(rows.packed.of_rows[down][half] = rows.packed.documents.of_query(query);)
            rows.terms[down][half] = terms_of(lse, delta, block.head, block.head_number, query);
        }
    }
}

// Adds what comes of the keys from `first_key` on, which are in this stage.
DTL_INLINE void add_step(Sums<HEAD_WIDTH>& outputs, const QueryRows& rows, unsigned stage, int first_key) {
    Scores scores, gradients, slopes;
    multiply_rows<HEAD_WIDTH>(scores, 0, stage);
    multiply_rows<VALUE_WIDTH>(gradients, Queries::BYTES, stage + KeyTile::BYTES);
    end_products<1>(scores);
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int number = 0; number < TILES_ACROSS * 4; ++number) {
            const int across = number / 4, half = number / 2 % 2, index = number % 4;
            const int key = first_key + column_of(across, number % 2);
            PACKED(const unsigned of_column = rows.packed.documents.of_key(key);)
            slopes[down][across][index] =
                take_probability(scores[down][across][index], rows.terms[down][half],
                                 sees(rows.seen[down][half], key) PACKED(& is_same(rows.packed.of_rows[down][half], of_column)));
        }
    }
    end_products<0>(gradients);
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int number = 0; number < TILES_ACROSS * 4; ++number) {
            const int across = number / 4, half = number / 2 % 2, index = number % 4;
            take_gradient(gradients[down][across][index], scores[down][across][index], slopes[down][across][index],
                          rows.terms[down][half]);
        }
    }
    Weights weights;
    round_weights(weights, gradients);
    add_weighted_rows<HEAD_WIDTH, HEAD_WIDTH>(outputs, weights, stage, 0);
    end_products<0>(outputs, weights);
}

// Writes a warp's outputs by way of its own part of shared memory, where no tile is in use any more.
DTL_INLINE void write_outputs(const Sums<HEAD_WIDTH>& outputs, const Block& block, Half* q_gradient) {
    float scales[TILES_DOWN][2];
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
        scales[down][0] = scales[down][1] = SCALE;
    }
    put_outputs<HEAD_WIDTH>(0, outputs, scales);
    __syncwarp();
    store_outputs<QGradient, HEAD_DIM, HEAD_WIDTH>(q_gradient + start_of<QGradient>(block.head), 0, block.first_query, Q_LEN, 0);
}
