// What the attention kernels on the ordinary cores share: products of tiles.
//
// A block has 16 by 16 threads and works on tiles of ROWS by COLUMNS scores, of which a thread has PART by PART. Features pass
// through shared memory CHUNK at a time, so any head dim will do; a block makes FEATURES of an output's features, and where there are more,
// further blocks compute the same scores again.

constexpr int ROWS = 64;
constexpr int COLUMNS = 64;
constexpr int PART = 4;
constexpr int CHUNK = 16;
constexpr int THREADS = 256;
// Features of an output that a thread makes.
constexpr int FEATURE_PART = FEATURES / 16;

using Scores = float[PART][PART];
using Outputs = float[PART][FEATURE_PART];

DTL_INLINE int thread_row() {
    return static_cast<int>(threadIdx.x) / 16;
}

DTL_INLINE int thread_column() {
    return static_cast<int>(threadIdx.x) % 16;
}

// A head's rows, of `count` positions with FEATURES_OF_ROW features each.
template <class Tensor, int FEATURES_OF_ROW>
struct Rows {
    const Element* at;
    int count;

    DTL_INLINE float read(int position, int feature) const {
        const bool is_inside = position < count && feature < FEATURES_OF_ROW;
        return is_inside ? widen(at[position * Tensor::SEQUENCE_STRIDE + feature]) : 0.0f;
    }
};

// The chunks of two tensors whose product is on its way.
struct Chunks {
    Tile<CHUNK, ROWS> left;
    Tile<CHUNK, COLUMNS> right;
};

// products[row][column] = left row · right row, over all features in their order.
template <class Left, class Right, int FEATURES_OF_ROW>
DTL_INLINE void multiply_rows(Scores& products, Chunks& chunks, const Rows<Left, FEATURES_OF_ROW>& left, int first_left,
                              const Rows<Right, FEATURES_OF_ROW>& right, int first_right) {
#pragma unroll
    for (int row = 0; row < PART; ++row) {
#pragma unroll
        for (int column = 0; column < PART; ++column) {
            products[row][column] = 0.0f;
        }
    }
#pragma unroll 1
    for (int first_feature = 0; first_feature < FEATURES_OF_ROW; first_feature += CHUNK) {
        __syncthreads();
#pragma unroll
        for (int element = static_cast<int>(threadIdx.x); element < ROWS * CHUNK; element += THREADS) {
            const int row = element / CHUNK;
            const int feature = element % CHUNK;
            chunks.left.at[feature][row] = left.read(first_left + row, first_feature + feature);
            chunks.right.at[feature][row] = right.read(first_right + row, first_feature + feature);
        }
        __syncthreads();
        add_products(products, chunks.left, 0, chunks.right, thread_row(), thread_column());
    }
}

// Puts a thread's part of a tile of weights where the others of its rows find it, which are of its warp: a row's weights are a line,
// columns are the terms.
DTL_INLINE void store_weights(Tile<COLUMNS, ROWS>& weights, const Scores& part) {
    __syncwarp();
#pragma unroll
    for (int column = 0; column < PART; ++column) {
#pragma unroll
        for (int row = 0; row < PART; ++row) {
            weights.at[line_of<COLUMNS, PART>(thread_column(), column)][line_of<ROWS, PART>(thread_row(), row)] =
                part[row][column];
        }
    }
}

// outputs[row][feature] += sum over column of weights[row, column] * rows[first + column][first_feature + feature].
template <class Tensor, int FEATURES_OF_ROW>
DTL_INLINE void add_weighted_rows(Outputs& outputs, const Tile<COLUMNS, ROWS>& weights, Tile<CHUNK, FEATURES>& chunk,
                                  const Rows<Tensor, FEATURES_OF_ROW>& rows, int first, int first_feature) {
#pragma unroll 1
    for (int first_column = 0; first_column < COLUMNS; first_column += CHUNK) {
        __syncthreads();
#pragma unroll
        for (int element = static_cast<int>(threadIdx.x); element < CHUNK * FEATURES; element += THREADS) {
            const int column = element / FEATURES;
            const int feature = element % FEATURES;
            chunk.at[column][feature] = rows.read(first + first_column + column, first_feature + feature);
        }
        __syncthreads();
        add_products(outputs, weights, first_column, chunk, thread_row(), thread_column());
    }
}

// Writes a thread's part of outputs, each times `factor` of its row.
template <class Tensor, int FEATURES_OF_ROW>
DTL_INLINE void store_outputs(Element* tensor, const Outputs& outputs, const float (&factors)[PART], int first, int count,
                              int first_feature) {
#pragma unroll
    for (int row = 0; row < PART; ++row) {
        const int position = first + line_of<ROWS, PART>(thread_row(), row);
#pragma unroll
        for (int number = 0; number < FEATURE_PART; ++number) {
            const int feature = first_feature + line_of<FEATURES, FEATURE_PART>(thread_column(), number);
            if (position < count && feature < FEATURES_OF_ROW) {
                tensor[position * Tensor::SEQUENCE_STRIDE + feature] = narrow<Element>(outputs[row][number] * factors[row]);
            }
        }
    }
}
