// What every kernel builds on: floats of 16 bits and the numbering of threads. No header of NVIDIA's is needed.

#define DTL_INLINE __device__ __forceinline__

// The upper half of a float.
struct alignas(2) bf16 {
    unsigned short bits;
};

// IEEE binary16.
struct alignas(2) f16 {
    unsigned short bits;
};

DTL_INLINE float widen(float x) {
    return x;
}

DTL_INLINE float widen(bf16 x) {
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

DTL_INLINE float widen(f16 x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}

// The nearest number of the type; of two, the even one.
template <class T>
DTL_INLINE T narrow(float x);

template <>
DTL_INLINE float narrow<float>(float x) {
    return x;
}

template <>
DTL_INLINE bf16 narrow<bf16>(float x) {
    bf16 nearest;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(nearest.bits) : "f"(x));
    return nearest;
}

template <>
DTL_INLINE f16 narrow<f16>(float x) {
    f16 nearest;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(nearest.bits) : "f"(x));
    return nearest;
}

DTL_INLINE unsigned long long address(const void* pointer) {
    return reinterpret_cast<unsigned long long>(pointer);
}

// This thread's number among all of a launch that is linear in x.
DTL_INLINE long long thread_of_launch() {
    return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

DTL_INLINE long long threads_of_launch() {
    return static_cast<long long>(gridDim.x) * blockDim.x;
}
