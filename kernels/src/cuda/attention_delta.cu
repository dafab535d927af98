// delta[head, query] = output · gradient of the output: what all keys' score gradients of a query have in common. One warp a query;
// there are QUERIES, of all heads.

extern "C" __global__ void __launch_bounds__(256) KERNEL(const Element* o, const Element* o_gradient, float* delta) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const long long warps = threads_of_launch() / 32;
    for (long long number = thread_of_launch() / 32; number < QUERIES; number += warps) {
        const Head head = head_of(static_cast<unsigned>(number / Q_LEN));
        const int query = static_cast<int>(number % Q_LEN);
        const Element* const output = o + start_of<O>(head) + query * O::SEQUENCE_STRIDE;
        const Element* const gradient = o_gradient + start_of<OGradient>(head) + query * OGradient::SEQUENCE_STRIDE;
        float sum = 0.0f;
        for (int feature = lane; feature < VALUE_DIM; feature += 32) {
            sum = __fmaf_rn(widen(output[feature]), widen(gradient[feature]), sum);
        }
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        }
        if (lane == 0) {
            delta[number] = sum;
        }
    }
}
