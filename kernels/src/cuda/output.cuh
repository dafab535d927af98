// What becomes of a sum at its place in the output, which holds `old`: scaled, added to that if ACCUMULATES, not yet rounded.
DTL_INLINE float result_of(float sum, float old) {
    const float product = SCALE == 1.0f ? sum : SCALE * sum;
    return ACCUMULATES ? old + product : product;
}

DTL_INLINE void store_output(Output::Element* place, float sum) {
    *place = narrow<Output::Element>(result_of(sum, ACCUMULATES ? widen(*place) : 0.0f));
}

// Sixteen bytes of the output, here of floats of 16 bits.
template <class Half>
struct Vector {
    static constexpr int COUNT = 8;

    static DTL_INLINE unsigned pair(unsigned old, float low, float high) {
        const Half first = narrow<Half>(result_of(low, widen(Half{static_cast<unsigned short>(old)})));
        const Half second = narrow<Half>(result_of(high, widen(Half{static_cast<unsigned short>(old >> 16)})));
        return first.bits | static_cast<unsigned>(second.bits) << 16;
    }

    static DTL_INLINE void store(Half* place, const float* sums) {
        const uint4 old = ACCUMULATES ? *reinterpret_cast<const uint4*>(place) : uint4{};
        *reinterpret_cast<uint4*>(place) = uint4{pair(old.x, sums[0], sums[1]), pair(old.y, sums[2], sums[3]),
                                                 pair(old.z, sums[4], sums[5]), pair(old.w, sums[6], sums[7])};
    }
};

template <>
struct Vector<float> {
    static constexpr int COUNT = 4;

    static DTL_INLINE void store(float* place, const float* sums) {
        const float4 old = ACCUMULATES ? *reinterpret_cast<const float4*>(place) : float4{};
        *reinterpret_cast<float4*>(place) = float4{result_of(sums[0], old.x), result_of(sums[1], old.y),
                                                   result_of(sums[2], old.z), result_of(sums[3], old.w)};
    }
};

// What is read ahead of storing the vector from there on: nothing.
struct Nothing {};

DTL_INLINE Nothing read_ahead(const Output::Element*) {
    return Nothing{};
}

// The sums of neighbours, from a multiple of sixteen bytes on.
DTL_INLINE void store_vector(Output::Element* place, const float* sums, const Nothing&) {
    Vector<Output::Element>::store(place, sums);
}
