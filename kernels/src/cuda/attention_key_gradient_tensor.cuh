// The gradients of a block of keys and their values of halves on the tensor cores: dV = Pᵀ dO and dK = SCALE * dSᵀ Q, over the query heads of
// the group and the blocks of queries that see the keys, in this order, with P and dS rounded to halves. Rows are keys here, columns
// queries. Of PARTS blocks of the same keys each makes as many features. How tiles arrive is said by the files behind.

constexpr int KEY_FEATURES = HEAD_WIDTH / PARTS;
constexpr int VALUE_FEATURES = VALUE_WIDTH / PARTS;
static_assert(KEY_FEATURES % FRAGMENT == 0 && VALUE_FEATURES % FRAGMENT == 0, "parts are made of fragments");

using Keys = RowsOf<ROWS, HEAD_WIDTH>;
using Values = RowsOf<ROWS, VALUE_WIDTH>;
using QueryTile = RowsOf<COLUMNS, HEAD_WIDTH>;
using GradientTile = RowsOf<COLUMNS, VALUE_WIDTH>;
constexpr unsigned FIRST_STAGE = Keys::BYTES + Values::BYTES;
constexpr unsigned STAGE_BYTES = QueryTile::BYTES + GradientTile::BYTES;
static_assert(FIRST_STAGE + STAGES * STAGE_BYTES <= SHARED_BYTES, "tiles have room");

// The keys of a block, and the steps over the queries that see them.
struct KeyBlock {
    int first_key, part;
    unsigned first_head;
    Range seeing;
    // Of each query head.
    int steps_of_head;

    DTL_INLINE int steps() const {
        return GROUP * steps_of_head;
    }

    DTL_INLINE int first_query(int step) const {
        return seeing.first + step % steps_of_head * COLUMNS;
    }

    DTL_INLINE unsigned head_number(int step) const {
        return first_head + step / steps_of_head;
    }

    DTL_INLINE Head key_head() const {
        return head_of(first_head);
    }
};

DTL_INLINE KeyBlock this_key_block(Visibility visibility) {
    constexpr unsigned K_BLOCKS = (K_LEN + ROWS - 1) / ROWS;
    const int first_key = static_cast<int>(blockIdx.x % K_BLOCKS) * ROWS;
    const int part = static_cast<int>(blockIdx.x / K_BLOCKS % PARTS);
    const Range seeing = visibility.queries(
        Range{first_key, min(first_key + ROWS, K_LEN)} PACKED(, head_of(blockIdx.x / K_BLOCKS / PARTS * GROUP)));
    return KeyBlock{first_key, part, blockIdx.x / K_BLOCKS / PARTS * GROUP, seeing,
                    (seeing.end - seeing.first + COLUMNS - 1) / COLUMNS};
}

struct KeyOutputs {
    Sums<KEY_FEATURES> keys;
    Sums<VALUE_FEATURES> values;
};

// Which queries see a lane's rows.
using Seeing = Range[TILES_DOWN][2];

DTL_INLINE void start_rows(Seeing& seeing, const KeyBlock& block, Visibility visibility PACKED(, RowDocuments& packed)) {
    PACKED(packed.documents = visibility.documents.of(block.key_head());)
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int key = block.first_key + row_of_block(row_of(down, half));
            PACKED(packed.of_rows[down][half] = packed.documents.of_key(key);)
            seeing[down][half] = key < K_LEN ? visibility.queries(Range{key, key + 1}) : Range{0, 0};
        }
    }
}

// Adds what comes of a step's queries and the gradients of their outputs, which are in this stage.
DTL_INLINE void add_step(KeyOutputs& outputs, const KeyBlock& block, const Seeing& seeing, unsigned stage, int step,
                         const float* lse, const float* delta PACKED(, const RowDocuments& packed)) {
    const int first_query = block.first_query(step);
    const unsigned head_number = block.head_number(step);
    const Head head = head_of(head_number);
    Scores scores, gradients, slopes;
    multiply_rows<HEAD_WIDTH>(scores, 0, stage);
    multiply_rows<VALUE_WIDTH>(gradients, Keys::BYTES, stage + QueryTile::BYTES);
    end_products<1>(scores);
#pragma unroll
    for (int column = 0; column < TILES_ACROSS * 2; ++column) {
        const int query = first_query + column_of(column / 2, column % 2);
        const QueryTerms terms = terms_of(lse, delta, head, head_number, query);
        PACKED(const unsigned of_column = packed.documents.of_query(query);)
#pragma unroll
        for (int row = 0; row < TILES_DOWN * 2; ++row) {
            const int down = row / 2, half = row % 2, index = half * 2 + column % 2;
            slopes[down][column / 2][index] =
                take_probability(scores[down][column / 2][index], terms,
                                 is_seen_by(seeing[down][half], query) PACKED(& is_same(packed.of_rows[down][half], of_column)));
        }
    }
    Weights probabilities, differences;
    round_weights(probabilities, scores);
    add_weighted_rows<VALUE_WIDTH, VALUE_FEATURES>(outputs.values, probabilities, stage + QueryTile::BYTES,
                                                   block.part * VALUE_FEATURES);
    end_products<1>(gradients);
#pragma unroll
    for (int column = 0; column < TILES_ACROSS * 2; ++column) {
        const int query = first_query + column_of(column / 2, column % 2);
        const QueryTerms terms = terms_of(lse, delta, head, head_number, query);
#pragma unroll
        for (int row = 0; row < TILES_DOWN * 2; ++row) {
            const int down = row / 2, index = row % 2 * 2 + column % 2;
            take_gradient(gradients[down][column / 2][index], scores[down][column / 2][index],
                          slopes[down][column / 2][index], terms);
        }
    }
    round_weights(differences, gradients);
    add_weighted_rows<HEAD_WIDTH, KEY_FEATURES>(outputs.keys, differences, stage, block.part * KEY_FEATURES);
    end_products<0>(outputs.values, outputs.keys, probabilities, differences);
}

// Writes a warp's outputs by way of its own parts of shared memory, where no tile is in use any more.
DTL_INLINE void write_outputs(const KeyOutputs& outputs, const KeyBlock& block, Half* k_gradient, Half* v_gradient) {
    float scales[TILES_DOWN][2], ones[TILES_DOWN][2];
#pragma unroll
    for (int down = 0; down < TILES_DOWN; ++down) {
        scales[down][0] = scales[down][1] = SCALE;
        ones[down][0] = ones[down][1] = 1.0f;
    }
    put_outputs<KEY_FEATURES>(0, outputs.keys, scales);
    put_outputs<VALUE_FEATURES>(Keys::BYTES, outputs.values, ones);
    __syncwarp();
    const Head head = block.key_head();
    store_outputs<KGradient, HEAD_DIM, KEY_FEATURES>(k_gradient + start_of<KGradient>(head), 0, block.first_key, K_LEN,
                                                     block.part * KEY_FEATURES);
    store_outputs<VGradient, VALUE_DIM, VALUE_FEATURES>(v_gradient + start_of<VGradient>(head), Keys::BYTES, block.first_key, K_LEN,
                                                        block.part * VALUE_FEATURES);
}
