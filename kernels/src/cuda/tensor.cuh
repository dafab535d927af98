// Products on the tensor cores, and what feeds them: asynchronous copies to shared memory, the places of chunks there, and fragments
// loaded from them.
//
// A "term" is what is summed over, a "line" a row of the left or a column of the right factor.

// Numbers of a factor that are neighbours in memory, eight halves or four floats: what is copied at once, and a row of the matrices that fragments
// are made of.
using Chunk = uint4;
constexpr int CHUNK = sizeof(Chunk) / sizeof(Factor);

// Lines and terms of a fragment.
[[maybe_unused]] constexpr int FRAGMENT = 16;
[[maybe_unused]] constexpr int FRAGMENT_TERMS = 2 * CHUNK;

// 16 lines by two chunks of terms of a factor, spread over a warp, as four matrices of 8 lines by a chunk. Of a left factor: lines 0-7, 8-15, 0-7,
// 8-15 and the first, first, second, second chunk. Of a right one: lines 0-7, 0-7, 8-15, 8-15 and the first, second, first, second chunk, so
// that two that follow each other are 8 lines. A lane has four bytes of each: of line L / 4, the word L % 4.
struct Fragment {
    unsigned at[4];
};

// All of a block's shared memory, whose size the launch says. Chunks change places by their addresses, in patterns of at most 1024 bytes.
extern __shared__ __align__(1024) Chunk shared[];

DTL_INLINE unsigned shared_address(unsigned byte) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared)) + byte;
}

// Begins to copy the first `count` numbers of a chunk to this byte of shared memory; the others become zeros.
DTL_INLINE void begin_copy(unsigned target, const Factor* source, int count) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)),
                 "l"(__cvta_generic_to_global(source)), "r"(static_cast<int>(sizeof(Factor)) * count)
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
// from which a matrix is read, are in different banks; or in pairs, so that those of four rows are, two of each.
template <unsigned ROW_COUNT, unsigned CHUNKS_OF_A_ROW, unsigned CHUNKS_TOGETHER = 1>
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
        return row * ROW_BYTES + (chunk ^ CHUNKS_TOGETHER * row / (8 / PLACES) % PLACES) * sizeof(Chunk);
    }
};

constexpr __device__ unsigned chunks_of_strip(unsigned chunks_of_row) {
    return chunks_of_row % 8 == 0 ? 8 : chunks_of_row;
}

// Rows of chunks in strips beside each other, each of at most eight chunks: a strip's rows follow each other, then comes the next strip.
template <unsigned ROW_COUNT, unsigned CHUNKS_OF_A_ROW, unsigned CHUNKS_OF_A_STRIP = chunks_of_strip(CHUNKS_OF_A_ROW),
          unsigned CHUNKS_TOGETHER = 1>
struct Strips {
    using Strip = Swizzled<ROW_COUNT, CHUNKS_OF_A_STRIP, CHUNKS_TOGETHER>;
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

// Whether of each of four rows two chunks that follow each other are beside each other, in the banks of no other row; four rows further they are
// at the same places.
template <class Place>
constexpr __device__ bool banks_of_pairs_differ() {
    unsigned pairs = 0;
    for (unsigned chunk = 0; chunk < Place::CHUNKS_OF_ROW; chunk += 2) {
        unsigned found = 0;
        for (unsigned row = 0; row < 4; ++row) {
            const unsigned first = Place::place(row, chunk);
            const bool is_beside = Place::place(row, chunk + 1) == first + sizeof(Chunk);
            const bool is_repeated = Place::place(row + 4, chunk) == first + 4 * Place::ROW_BYTES;
            found |= is_beside && is_repeated ? 3u << first / sizeof(Chunk) % 8 : 0u;
        }
        pairs += found == 0xff;
    }
    return pairs == Place::CHUNKS_OF_ROW / 2;
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

// The fragment of a tile of floats whose rows are terms, where no instruction turns matrices.
template <Side SIDE, class Place>
DTL_INLINE Fragment load_words(unsigned tile, unsigned line, unsigned term) {
    static_assert(banks_of_pairs_differ<Place>(), "a matrix is read from all banks at once");
    const unsigned lane = threadIdx.x % 32;
    Fragment loaded;
#pragma unroll
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
        const bool is_odd = matrix % 2 != 0;
        const bool is_late = matrix / 2 != 0;
        const unsigned first_line = line + ((SIDE == Side::LEFT ? is_odd : is_late) ? 8 : 0);
        const unsigned first_term = term + ((SIDE == Side::LEFT ? is_late : is_odd) ? CHUNK : 0);
        // Two chunks are beside each other. Rows further are an offset in the instruction, for which the compiler must not take this apart.
        unsigned first = shared_address(tile + Place::place(lane % 4, first_line / CHUNK) + lane / 4 * 4);
        asm("" : "+r"(first));
        const unsigned address = first + first_term * Place::ROW_BYTES;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(loaded.at[matrix]) : "r"(address) : "memory");
    }
    return loaded;
}

// What is multiplied of a number: the nearest of tf32.
DTL_INLINE unsigned rounded(unsigned word) {
    unsigned nearest;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(nearest) : "f"(__uint_as_float(word)));
    return nearest;
}

// The fragment of a tile, whose rows are lines or terms, at this line and term, multiples of eight and of a fragment's terms or half of them.
template <Side SIDE, bool ROWS_ARE_LINES, class Place>
DTL_INLINE Fragment fragment_of(unsigned tile, unsigned line, unsigned term) {
    constexpr bool ARE_FLOATS = sizeof(Factor) == sizeof(float);
    Fragment loaded;
    if constexpr (ARE_FLOATS && !ROWS_ARE_LINES) {
        loaded = load_words<SIDE, Place>(tile, line, term);
    } else {
        static_assert(banks_differ<Place>(), "a matrix is read from all banks at once");
        const unsigned lane = threadIdx.x % 32;
        const unsigned odd_matrix = lane / 8 % 2;
        const unsigned late_matrix = lane / 16;
        line += (SIDE == Side::LEFT ? odd_matrix : late_matrix) * 8;
        term += (SIDE == Side::LEFT ? late_matrix : odd_matrix) * CHUNK;
        const unsigned first_row = ROWS_ARE_LINES ? line : term;
        const unsigned chunk = (ROWS_ARE_LINES ? term : line) / CHUNK;
        loaded = load_fragment<!ROWS_ARE_LINES>(tile + first_row * Place::ROW_BYTES + Place::place(lane % 8, chunk));
    }
    if constexpr (ARE_FLOATS) {
#pragma unroll
        for (unsigned matrix = 0; matrix < 4; ++matrix) {
            loaded.at[matrix] = rounded(loaded.at[matrix]);
        }
    }
    return loaded;
}

// sums += left * right, of 16 rows by 8 columns: lane L holds columns L % 4 * 2 and the next, of row L / 4 and of the row 8 below it.
DTL_INLINE void add_product(float (&sums)[4], const Fragment& left, unsigned right_first_terms, unsigned right_last_terms) {
    asm("mma.sync.aligned." WARP_PRODUCT " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left.at[0]), "r"(left.at[1]), "r"(left.at[2]), "r"(left.at[3]), "r"(right_first_terms), "r"(right_last_terms));
}
