// What becomes of a sum at its place in the output: scaled, added to what was there if ACCUMULATES, rounded once.
DTL_INLINE void store_output(Output::Element* place, float sum) {
    const float product = SCALE == 1.0f ? sum : SCALE * sum;
    *place = narrow<Output::Element>(ACCUMULATES ? widen(*place) + product : product);
}
