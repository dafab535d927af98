// Combines the elements `first .. end` of a block over SOURCES sources, in their order, into each of TARGETS targets.
// A block is made of pieces of `inner` contiguous elements, `middle` of them for each outer one; strides are in elements.
//
// T is an element; Total is what it is combined in: floats in f32, rounded once. A target may be one of the sources:
// a thread reads an element of all sources before it writes it.

struct Block {
    long long first, end, inner, middle;
    long long source_outer, source_middle, target_outer, target_middle;
};

template <int Width>
struct alignas(sizeof(T) * Width) Pack {
    T at[Width];
};

// Combines Width neighbours at once; Width divides all sizes and addresses.
template <int Width, class Index>
DTL_INLINE void reduce(const T* const (&sources)[SOURCES], T* const (&targets)[TARGETS], const Block& block) {
    const Index inner = static_cast<Index>(block.inner);
    const Index middle = static_cast<Index>(block.middle);
    const Index end = static_cast<Index>(block.end);
    const Index step = static_cast<Index>(threads_of_launch()) * Width;
    for (Index element = static_cast<Index>(block.first + thread_of_launch() * Width); element < end; element += step) {
        const Index piece = element / inner;
        const long long within = element % inner;
        const long long outer_piece = piece / middle;
        const long long middle_piece = piece % middle;
        const long long from = outer_piece * block.source_outer + middle_piece * block.source_middle + within;
        const long long to = outer_piece * block.target_outer + middle_piece * block.target_middle + within;

        Total totals[Width];
#pragma unroll
        for (int source = 0; source < SOURCES; ++source) {
            const Pack<Width> pack = *reinterpret_cast<const Pack<Width>*>(sources[source] + from);
#pragma unroll
            for (int lane = 0; lane < Width; ++lane) {
                // The first source is taken as it is: -0 stays -0.
                const Total value = read(pack.at[lane]);
                totals[lane] = source == 0 ? value : combine(totals[lane], value);
            }
        }
        Pack<Width> result;
#pragma unroll
        for (int lane = 0; lane < Width; ++lane) {
            result.at[lane] = written(totals[lane]);
        }
#pragma unroll
        for (int target = 0; target < TARGETS; ++target) {
            *reinterpret_cast<Pack<Width>*>(targets[target] + to) = result;
        }
    }
}

template <int Width>
DTL_INLINE void reduce_packs(const T* const (&sources)[SOURCES], T* const (&targets)[TARGETS], const Block& block) {
    // Division of 32-bit numbers is several times as fast. A thread's last step must not wrap either.
    if (block.end < 0x7fffffff) {
        reduce<Width, unsigned>(sources, targets, block);
    } else {
        reduce<Width, unsigned long long>(sources, targets, block);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    KERNEL(PARAMETERS, long long first, long long end, long long inner, long long middle, long long source_outer,
           long long source_middle, long long target_outer, long long target_middle) {
    const T* const sources[SOURCES] = {SOURCE_LIST};
    T* const targets[TARGETS] = {TARGET_LIST};
    const Block block = {first, end, inner, middle, source_outer, source_middle, target_outer, target_middle};

    constexpr int WIDTH = 16 / sizeof(T);
    unsigned long long pointers = 0;
#pragma unroll
    for (int source = 0; source < SOURCES; ++source) {
        pointers |= address(sources[source]);
    }
#pragma unroll
    for (int target = 0; target < TARGETS; ++target) {
        pointers |= address(targets[target]);
    }
    const unsigned long long sizes =
        first | end | inner | source_outer | source_middle | target_outer | target_middle;
    if (pointers % 16 == 0 && sizes % WIDTH == 0) {
        reduce_packs<WIDTH>(sources, targets, block);
    } else {
        reduce_packs<1>(sources, targets, block);
    }
}
