// Products on the tensor cores, and what feeds them: asynchronous copies to shared memory, the places of chunks there, and fragments
// loaded from them.
//
// A "term" is what is summed over, a "line" a row of the left or a column of the right factor.

// Eight halves that are neighbours in memory: what is copied at once, and a row of the matrices that fragments are made of.
using Chunk = uint4;
constexpr int CHUNK = 8;

// Lines and terms of a fragment.
constexpr int FRAGMENT = 16;

// 16 lines by 16 terms of a factor, spread over a warp, as four matrices of 8 by 8. Of a left factor: lines 0-7, 8-15, 0-7, 8-15 and
// terms 0-7, 0-7, 8-15, 8-15. Of a right one: lines 0-7, 0-7, 8-15, 8-15 and terms 0-7, 8-15, 0-7, 8-15, so that two that
// follow each other are 8 lines.
struct Fragment {
    unsigned at[4];
};

// All of a block's shared memory, whose size the launch says. Chunks change places by their addresses, in patterns of at most 1024 bytes.
extern __shared__ __align__(1024) Chunk shared[];

DTL_INLINE unsigned shared_address(unsigned byte) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared)) + byte;
}

// Begins to copy the first `count` numbers of a chunk to this byte of shared memory; the others become zeros.
DTL_INLINE void begin_copy(unsigned target, const Half* source, int count) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)),
                 "l"(__cvta_generic_to_global(source)), "r"(2 * count)
                 : "memory");
}

// Makes a group, perhaps an empty one, of this thread's copies that are in none.
DTL_INLINE void close_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most LEFT groups of this thread are under way, the latest.
template <int LEFT>
DTL_INLINE void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Rows of chunks in shared memory. Chunks change places with neighbours, by row, so that those of eight rows that follow each other,
// from which a matrix is read, are in different banks.
template <unsigned ROW_COUNT, unsigned CHUNKS_OF_A_ROW>
struct Swizzled {
    static constexpr unsigned ROWS = ROW_COUNT;
    static constexpr unsigned CHUNKS_OF_ROW = CHUNKS_OF_A_ROW;
    static constexpr unsigned CHUNKS = ROWS * CHUNKS_OF_ROW;
    static constexpr unsigned ROW_BYTES = CHUNKS_OF_ROW * sizeof(Chunk);
    static constexpr unsigned BYTES = ROWS * ROW_BYTES;
    // The greatest power of two that divides a row, but at most as many chunks as all banks hold.
    static constexpr unsigned PLACES = CHUNKS_OF_ROW % 8 == 0 ? 8 : CHUNKS_OF_ROW & (0u - CHUNKS_OF_ROW);

    // The byte of a tile where a chunk starts: eight rows further it is at the same place of its row.
    static constexpr DTL_INLINE unsigned place(unsigned row, unsigned chunk) {
        return row * ROW_BYTES + (chunk ^ row / (8 / PLACES) % PLACES) * sizeof(Chunk);
    }
};

// Rows of chunks in strips beside each other, each of at most eight chunks: a strip's rows follow each other, then comes the next strip.
template <unsigned ROW_COUNT, unsigned CHUNKS_OF_A_ROW, unsigned CHUNKS_OF_A_STRIP = CHUNKS_OF_A_ROW % 8 == 0 ? 8 : CHUNKS_OF_A_ROW>
struct Strips {
    using Strip = Swizzled<ROW_COUNT, CHUNKS_OF_A_STRIP>;
    static constexpr unsigned ROWS = ROW_COUNT;
    static constexpr unsigned CHUNKS_OF_ROW = CHUNKS_OF_A_ROW;
    static constexpr unsigned CHUNKS = ROWS * CHUNKS_OF_ROW;
    // From row to row.
    static constexpr unsigned ROW_BYTES = Strip::ROW_BYTES;
    static constexpr unsigned BYTES = CHUNKS * sizeof(Chunk);

    static constexpr DTL_INLINE unsigned place(unsigned row, unsigned chunk) {
        return chunk / Strip::CHUNKS_OF_ROW * Strip::BYTES + Strip::place(row, chunk % Strip::CHUNKS_OF_ROW);
    }
};

// Whether a chunk of each of eight rows that follow each other is in the banks of no other.
template <class Place>
constexpr __device__ bool banks_differ() {
    unsigned places = 0;
    for (unsigned chunk = 0; chunk < Place::CHUNKS_OF_ROW; ++chunk) {
        unsigned found = 0;
        for (unsigned row = 0; row < 8; ++row) {
            found |= 1u << Place::place(row, chunk) / sizeof(Chunk) % 8;
        }
        places += found == 0xff;
    }
    return places == Place::CHUNKS_OF_ROW;
}

// Lane L gives the byte of shared memory where row L % 8 of matrix L / 8 is. Transposed, where rows are terms.
template <bool TRANSPOSED>
DTL_INLINE Fragment load_fragment(unsigned row) {
    Fragment loaded;
    if constexpr (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(loaded.at[0]), "=r"(loaded.at[1]), "=r"(loaded.at[2]), "=r"(loaded.at[3])
                     : "r"(shared_address(row))
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(loaded.at[0]), "=r"(loaded.at[1]), "=r"(loaded.at[2]), "=r"(loaded.at[3])
                     : "r"(shared_address(row))
                     : "memory");
    }
    return loaded;
}

enum class Side { LEFT, RIGHT };

// The fragment of a tile, whose rows are lines or terms, at this line and term, multiples of eight.
template <Side SIDE, bool ROWS_ARE_LINES, class Place>
DTL_INLINE Fragment fragment_of(unsigned tile, unsigned line, unsigned term) {
    static_assert(banks_differ<Place>(), "a matrix is read from all banks at once");
    const unsigned lane = threadIdx.x % 32;
    const unsigned odd_matrix = lane / 8 % 2 * 8;
    const unsigned late_matrix = lane / 16 * 8;
    line += SIDE == Side::LEFT ? odd_matrix : late_matrix;
    term += SIDE == Side::LEFT ? late_matrix : odd_matrix;
    const unsigned first_row = ROWS_ARE_LINES ? line : term;
    const unsigned chunk = (ROWS_ARE_LINES ? term : line) / CHUNK;
    return load_fragment<!ROWS_ARE_LINES>(tile + first_row * Place::ROW_BYTES + Place::place(lane % 8, chunk));
}

// sums += left * right, of 16 rows by 8 columns: lane L holds columns L % 4 * 2 and the next, of row L / 4 and of the row 8 below it.
DTL_INLINE void add_product(float (&sums)[4], const Fragment& left, unsigned right_first_terms, unsigned right_last_terms) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." HALF_NAME "." HALF_NAME ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left.at[0]), "r"(left.at[1]), "r"(left.at[2]), "r"(left.at[3]), "r"(right_first_terms), "r"(right_last_terms));
}
