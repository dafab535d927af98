// For each row of the table, the first of the TOKENS ids that names it, and how many do. Both are counted by atomics on integers,
// whose order does not matter. `first` starts at TOKENS, `count` at 0.

extern "C" __global__ void __launch_bounds__(256)
    KERNEL(const unsigned* ids, unsigned* first, unsigned* count, long long offset) {
    for (long long token = thread_of_launch(); token < TOKENS; token += threads_of_launch()) {
        const long long row = static_cast<int>(ids[token]) - offset;
        if (row >= 0 && row < VOCABULARY) {
            atomicMin(&first[row], static_cast<unsigned>(token));
            atomicAdd(&count[row], 1u);
        }
    }
}
