// What attention's kernels share whose tiles arrive in bulk: rows of a head as maps have them, and who has which registers.

constexpr unsigned BRINGING_THREADS = 128;

// Begins to copy a head's positions from `first` on, as many as the place has: strips of 64 features.
template <class Place>
DTL_INLINE void begin_positions(unsigned tile, const TensorMap& map, int first, int head, const unsigned long long& barrier) {
    static_assert(Place::ROW_BYTES == 128, "rows of 128 bytes");
#pragma unroll
    for (int strip = 0; strip < static_cast<int>(Place::BYTES / Place::Strip::BYTES); ++strip) {
        begin_box(tile + static_cast<unsigned>(strip) * Place::Strip::BYTES, map, strip * 64, first, head, barrier);
    }
}

// Where a head is in the last dimension of a tensor's map.
template <class Tensor>
DTL_INLINE int head_of_map(Head head, long long stride) {
    return static_cast<int>(start_of<Tensor>(head) / stride);
}

// Two groups that multiply and the one that brings tiles begin with 168 registers each, of which the others get what that one leaves. Fewer threads
// have enough from the start.
constexpr bool REGISTERS_MOVE = WARPS == 8;

DTL_INLINE void leave_registers() {
    if (REGISTERS_MOVE) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;" ::: "memory");
    }
}

DTL_INLINE void take_registers() {
    if (REGISTERS_MOVE) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;" ::: "memory");
    }
}

// Waits until all that multiply are done with the tiles.
DTL_INLINE void await_multiplying() {
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}
