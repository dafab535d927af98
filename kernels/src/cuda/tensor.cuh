// Products on the tensor cores, and what feeds them: asynchronous copies to shared memory, and fragments loaded from there.
//
// A "term" is what is summed over, a "line" a row of the left or a column of the right factor.

// Eight bf16 numbers that are neighbours in memory: what is copied at once, and a row of the matrices that fragments are made of.
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

// All of a block's shared memory, whose size the launch says.
extern __shared__ Chunk shared[];

DTL_INLINE unsigned shared_address(unsigned byte) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared)) + byte;
}

// Begins to copy the first `count` numbers of a chunk to this byte of shared memory; the others become zeros.
DTL_INLINE void begin_copy(unsigned target, const bf16* source, int count) {
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

// sums += left * right, of 16 rows by 8 columns: lane L holds columns L % 4 * 2 and the next, of row L / 4 and of the row 8 below it.
DTL_INLINE void add_product(float (&sums)[4], const Fragment& left, unsigned right_first_terms, unsigned right_last_terms) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left.at[0]), "r"(left.at[1]), "r"(left.at[2]), "r"(left.at[3]), "r"(right_first_terms), "r"(right_last_terms));
}
