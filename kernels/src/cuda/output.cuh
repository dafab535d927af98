// What becomes of a sum at its place in the output, which holds `old`: scaled, added to that if ACCUMULATES, not yet rounded.
DTL_INLINE float result_of(float sum, float old) {
    const float product = SCALE == 1.0f ? sum : SCALE * sum;
    return ACCUMULATES ? old + product : product;
}

DTL_INLINE void store_output(Output::Element* place, float sum) {
    *place = narrow<Output::Element>(result_of(sum, ACCUMULATES ? widen(*place) : 0.0f));
}
