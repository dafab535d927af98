// output[row, :] (+)= sum of source[token, :] over the tokens whose id names the row, in the order of the tokens, in f32, rounded
// once. One warp makes WARP_COLUMNS columns of a row: it looks at 32 ids at a time, from the first that names the row until it has seen
// all of them.

// Columns of a lane.
constexpr int COLUMNS = 4;
constexpr int WARP_COLUMNS = 32 * COLUMNS;
constexpr long long STRIPS = (WIDTH + WARP_COLUMNS - 1) / WARP_COLUMNS;

// The column of a row that a lane has as its `number`-th: neighbouring lanes have neighbouring columns.
DTL_INLINE long long column_of(long long strip, int number) {
    return strip * WARP_COLUMNS + number * 32 + threadIdx.x % 32;
}

DTL_INLINE void add_row(float (&totals)[COLUMNS], const Source* row, long long strip) {
#pragma unroll
    for (int number = 0; number < COLUMNS; ++number) {
        const long long column = column_of(strip, number);
        if (column < WIDTH) {
            totals[number] += widen(row[column]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    KERNEL(const Source* source, const unsigned* ids, Output* output, const unsigned* first, const unsigned* count,
           long long offset) {
    const unsigned lane = threadIdx.x % 32;
    const long long warps = threads_of_launch() / 32;
    for (long long task = thread_of_launch() / 32; task < VOCABULARY * STRIPS; task += warps) {
        const long long row = task / STRIPS;
        const long long strip = task % STRIPS;
        unsigned missing = count[row];
        if (missing == 0 && ACCUMULATES) {
            continue;
        }
        float totals[COLUMNS] = {};
        for (long long token = first[row]; missing > 0; token += 32) {
            const bool is_named = token + lane < TOKENS && static_cast<int>(ids[token + lane]) - offset == row;
            unsigned named = __ballot_sync(0xffffffffu, is_named);
            missing -= __popc(named);
            while (named != 0) {
                add_row(totals, source + (token + __ffs(named) - 1) * WIDTH, strip);
                named &= named - 1;
            }
        }
#pragma unroll
        for (int number = 0; number < COLUMNS; ++number) {
            const long long column = column_of(strip, number);
            if (column < WIDTH) {
                Output* const place = &output[row * WIDTH + column];
                *place = narrow<Output>(ACCUMULATES ? widen(*place) + totals[number] : totals[number]);
            }
        }
    }
}
