// Adds up the parts of a product's sums, in their order, and stores what becomes of them. `parts` holds PARTS of each of PRODUCTS
// products, one behind another, each of rows of PART_PITCH sums.

extern "C" __global__ void __launch_bounds__(256) KERNEL(const float* parts, OUTPUT_PARAMETERS) {
    auto output = OUTPUT;
    constexpr int OUTPUTS = PRODUCTS * Left::LINES * Right::LINES;
    constexpr int PART = Left::LINES * PART_PITCH;
    for (int which = static_cast<int>(thread_of_launch()); which < OUTPUTS; which += static_cast<int>(threads_of_launch())) {
        const int column = which % Right::LINES;
        const int row = which / Right::LINES % Left::LINES;
        const int product = which / Right::LINES / Left::LINES;
        const float* const first = parts + product * PARTS * PART + row * PART_PITCH + column;
        float sum = first[0];
#pragma unroll
        for (int part = 1; part < PARTS; ++part) {
            sum += first[part * PART];
        }
        store_output(output + Output::of_product(static_cast<unsigned>(product)) + row * Output::ROW_STRIDE +
                         column * Output::COLUMN_STRIDE,
                     sum);
    }
}
