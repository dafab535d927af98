// Combines the elements `first .. end` of a block over SOURCES sources, in their order, into each of TARGETS targets.
// A block is made of pieces of `inner` contiguous elements, `middle` of them for each outer one; strides are in elements.
//
// T is an element; Total is what it is combined in: floats in f32, rounded once. A target may be one of the sources:
// a thread reads an element of all sources before it writes it.

// Arguments that are read by number, so that the text doesn't grow with the parts.
struct Sources {
    const T* at[SOURCES];
};

struct Targets {
    T* at[TARGETS];
};

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
DTL_INLINE void reduce(const Sources& sources, const Targets& targets, const Block& block) {
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

        // The first source is taken as it is: -0 stays -0.
        const Pack<Width> first = *reinterpret_cast<const Pack<Width>*>(sources.at[0] + from);
        Total totals[Width];
#pragma unroll
        for (int lane = 0; lane < Width; ++lane) {
            totals[lane] = read(first.at[lane]);
        }
#pragma unroll 8
        for (int source = 1; source < SOURCES; ++source) {
            const Pack<Width> pack = *reinterpret_cast<const Pack<Width>*>(sources.at[source] + from);
#pragma unroll
            for (int lane = 0; lane < Width; ++lane) {
                totals[lane] = combine(totals[lane], read(pack.at[lane]));
            }
        }
        Pack<Width> result;
#pragma unroll
        for (int lane = 0; lane < Width; ++lane) {
            result.at[lane] = written(totals[lane]);
        }
#pragma unroll 8
        for (int target = 0; target < TARGETS; ++target) {
            *reinterpret_cast<Pack<Width>*>(targets.at[target] + to) = result;
        }
    }
}

template <int Width>
DTL_INLINE void reduce_packs(const Sources& sources, const Targets& targets, const Block& block) {
    // Division of 32-bit numbers is several times as fast. A thread's last step must not wrap either.
    if (block.end < 0x7fffffff) {
        reduce<Width, unsigned>(sources, targets, block);
    } else {
        reduce<Width, unsigned long long>(sources, targets, block);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    KERNEL(const __grid_constant__ Sources sources, const __grid_constant__ Targets targets, long long first, long long end,
           long long inner, long long middle, long long source_outer, long long source_middle, long long target_outer,
           long long target_middle) {
    const Block block = {first, end, inner, middle, source_outer, source_middle, target_outer, target_middle};

    constexpr int WIDTH = 16 / sizeof(T);
    unsigned long long pointers = 0;
#pragma unroll 8
    for (int source = 0; source < SOURCES; ++source) {
        pointers |= address(sources.at[source]);
    }
#pragma unroll 8
    for (int target = 0; target < TARGETS; ++target) {
        pointers |= address(targets.at[target]);
    }
    const unsigned long long sizes =
        first | end | inner | source_outer | source_middle | target_outer | target_middle;
    if (pointers % 16 == 0 && sizes % WIDTH == 0) {
        reduce_packs<WIDTH>(sources, targets, block);
    } else {
        reduce_packs<1>(sources, targets, block);
    }
}
