//! What every emitted file opens with: our own 16-bit floats, 16-byte accesses, reductions over a warp or a block and random
//! bits, instead of NVIDIA's headers.

use super::math::Function;
use std::collections::BTreeSet;

/// Ahead of the functions that a file uses.
const TYPES: &str = "\
#define DTL_INLINE __device__ __forceinline__

namespace dtl {

// The upper half of a float.
struct alignas(2) bf16 {
    unsigned short bits;
};

DTL_INLINE float widen(bf16 x) {
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

// IEEE 754 half precision.
struct alignas(2) f16 {
    unsigned short bits;
};

DTL_INLINE float widen(f16 x) {
    float wide;
    asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(wide) : \"h\"(x.bits));
    return wide;
}

DTL_INLINE f16 narrow_to_f16(float x) {
    f16 nearest;
    asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(nearest.bits) : \"f\"(x));
    return nearest;
}

";

/// Behind them.
const OPERATIONS: &str = "
DTL_INLINE bf16 narrow(float x) {
    return bf16{static_cast<unsigned short>(to_bf16_bits(x))};
}

// The nearest bf16 as a float.
DTL_INLINE float round_to_bf16(float x) {
    return __uint_as_float(to_bf16_bits(x) << 16);
}

// Neighbouring elements that are read and written as one, in 16 bytes where there are as many.
template <class T, int Count>
struct alignas(sizeof(T) * Count < 16 ? sizeof(T) * Count : 16) pack {
    T at[Count];
};

template <int Count, class T>
DTL_INLINE pack<T, Count> load_pack(const T* from) {
    return *reinterpret_cast<const pack<T, Count>*>(from);
}

template <class T, int Count>
DTL_INLINE void store_pack(T* to, const pack<T, Count>& value) {
    *reinterpret_cast<pack<T, Count>*>(to) = value;
}

// A number read from data as an index: nothing leads outside of a tensor.
DTL_INLINE unsigned below(unsigned bound, unsigned x) {
    return x < bound ? x : bound - 1;
}

template <class T>
DTL_INLINE T least(T left, T right) {
    return left < right ? left : right;
}

// Integer arithmetic that wraps and never traps.
DTL_INLINE int add(int left, int right) {
    return static_cast<int>(static_cast<unsigned>(left) + static_cast<unsigned>(right));
}
DTL_INLINE int subtract(int left, int right) {
    return static_cast<int>(static_cast<unsigned>(left) - static_cast<unsigned>(right));
}
DTL_INLINE int multiply(int left, int right) {
    return static_cast<int>(static_cast<unsigned>(left) * static_cast<unsigned>(right));
}
DTL_INLINE int quotient(int left, int right) {
    return right == 0 ? 0 : right == -1 ? subtract(0, left) : left / right;
}
DTL_INLINE unsigned quotient(unsigned left, unsigned right) {
    return right == 0 ? 0 : left / right;
}
DTL_INLINE int remainder(int left, int right) {
    return right == 0 ? left : right == -1 ? 0 : left % right;
}
DTL_INLINE unsigned remainder(unsigned left, unsigned right) {
    return right == 0 ? left : left % right;
}

// How values combine in a reduction; a NaN stays.
struct sum {
    static DTL_INLINE float of(float left, float right) { return left + right; }
    static DTL_INLINE int of(int left, int right) { return add(left, right); }
    static DTL_INLINE unsigned of(unsigned left, unsigned right) { return left + right; }
};
struct maximum {
    static DTL_INLINE float of(float left, float right) {
        return left > right || left != left ? left : right;
    }
    static DTL_INLINE int of(int left, int right) { return left > right ? left : right; }
    static DTL_INLINE unsigned of(unsigned left, unsigned right) { return left > right ? left : right; }
};
struct minimum {
    static DTL_INLINE float of(float left, float right) {
        return left < right || left != left ? left : right;
    }
    static DTL_INLINE int of(int left, int right) { return left < right ? left : right; }
    static DTL_INLINE unsigned of(unsigned left, unsigned right) { return left < right ? left : right; }
};

// The values of all lanes of a warp combined, the same bits in each: lanes 16 apart, then 8, 4, 2 and 1.
template <class Combination, class T>
DTL_INLINE T warp_total(T value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        value = Combination::of(value, __shfl_xor_sync(0xffffffffu, value, distance));
    }
    return __shfl_sync(0xffffffffu, value, 0);
}

// The values of all threads of a block combined, the same bits in each: each warp, then the warps in order.
template <class Combination, int Warps, class T>
DTL_INLINE T block_total(T value) {
    __shared__ T of_warp[Warps];
    value = warp_total<Combination>(value);
    if (threadIdx.x % 32 == 0) {
        of_warp[threadIdx.x / 32] = value;
    }
    __syncthreads();
    T total = of_warp[0];
#pragma unroll
    for (int warp = 1; warp < Warps; ++warp) {
        total = Combination::of(of_warp[warp], total);
    }
    __syncthreads();
    return total;
}

// A block has Across columns beside each other, and each of its threads has some rows of one, or of as many neighbours as it has values: combined in
// the order of the threads, the same bits in each.
template <class Combination, int Across, int Threads, class T, int Width>
DTL_INLINE void columns_total(T (&values)[Width]) {
    __shared__ T of_thread[Width][Threads];
#pragma unroll
    for (int at = 0; at < Width; ++at) {
        of_thread[at][threadIdx.x] = values[at];
    }
    __syncthreads();
    for (int column = threadIdx.x; column < Width * Across; column += Threads) {
        T* const parts = &of_thread[column / Across][column % Across];
        T total = parts[0];
#pragma unroll 8
        for (int down = 1; down < Threads / Across; ++down) {
            total = Combination::of(parts[down * Across], total);
        }
        parts[0] = total;
    }
    __syncthreads();
#pragma unroll
    for (int at = 0; at < Width; ++at) {
        values[at] = of_thread[at][threadIdx.x % Across];
    }
    __syncthreads();
}

// Word `word` of Philox-4x32-10.
template <int Word>
DTL_INLINE unsigned random_bits(unsigned key0, unsigned key1, unsigned long long counter) {
    unsigned state[4] = {static_cast<unsigned>(counter), static_cast<unsigned>(counter >> 32), 0, 0};
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned high0 = __umulhi(state[0], 0xd2511f53u);
        const unsigned low0 = state[0] * 0xd2511f53u;
        const unsigned high1 = __umulhi(state[2], 0xcd9e8d57u);
        const unsigned low1 = state[2] * 0xcd9e8d57u;
        state[0] = high1 ^ state[1] ^ key0;
        state[1] = low1;
        state[2] = high0 ^ state[3] ^ key1;
        state[3] = low0;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return state[Word];
}

// 32 random bits as a number in [0, 1).
DTL_INLINE float unit(unsigned bits) {
    return static_cast<float>(bits >> 8) * 5.9604645e-8f;
}

}  // namespace dtl
";

/// The text ahead of kernels that use these functions.
pub(super) fn text(functions: &BTreeSet<Function>) -> String {
    let mut text = TYPES.to_owned();
    let mut functions = functions.clone();
    functions.insert(Function::ToBf16Bits);
    let definitions: Vec<String> = functions.iter().map(|function| function.definition()).collect();
    text.push_str(&definitions.join("\n"));
    text.push_str(OPERATIONS);
    text
}

/// A literal with exactly these bits.
pub(super) fn float_literal(value: f32) -> String {
    let decimal = format!("{value:?}");
    // A compiler may read a literal as a double first.
    let through_double = decimal.parse::<f64>().map(|double| double as f32);
    match through_double {
        Ok(read) if value.is_finite() && read.to_bits() == value.to_bits() => format!("{decimal}f"),
        Ok(_) | Err(_) => format!("__uint_as_float(0x{:x}u)", value.to_bits()),
    }
}

#[cfg(test)]
mod tests {
    use super::float_literal;

    #[test]
    fn literals_keep_their_bits() {
        assert_eq!(float_literal(-0.5), "-0.5f");
        assert_eq!(float_literal(1e-5), "1e-5f");
        assert_eq!(float_literal(f32::INFINITY), "__uint_as_float(0x7f800000u)");
        assert_eq!(float_literal(-0.0), "-0.0f");
    }
}
