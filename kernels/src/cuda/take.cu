// Copies for each of TOKENS ids the row of a table that it names, or zeros where the table has no such row: id - offset is
// outside of [0, VOCABULARY). A row has ROW_BYTES bytes. One warp makes a row.

// Copies or clears a row in pieces of a Piece, which divides ROW_BYTES and both addresses.
template <class Piece>
DTL_INLINE void make_row(unsigned char* to, const unsigned char* from, bool is_there) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    constexpr long long PIECES = ROW_BYTES / sizeof(Piece);
    for (long long piece = lane; piece < PIECES; piece += 32) {
        reinterpret_cast<Piece*>(to)[piece] = is_there ? reinterpret_cast<const Piece*>(from)[piece] : Piece{};
    }
}

extern "C" __global__ void __launch_bounds__(256)
    KERNEL(const unsigned char* table, const unsigned* ids, unsigned char* output, long long offset) {
    const bool is_aligned = (address(table) | address(output) | ROW_BYTES) % 16 == 0;
    const long long warps = threads_of_launch() / 32;
    for (long long token = thread_of_launch() / 32; token < TOKENS; token += warps) {
        const long long row = static_cast<int>(ids[token]) - offset;
        const bool is_there = row >= 0 && row < VOCABULARY;
        unsigned char* const to = output + token * ROW_BYTES;
        const unsigned char* const from = table + (is_there ? row : 0) * ROW_BYTES;
        if (is_aligned) {
            make_row<uint4>(to, from, is_there);
        } else {
            make_row<Unit>(to, from, is_there);
        }
    }
}
