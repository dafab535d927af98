// What all attention kernels share: where heads lie.

// One query head.
struct Head {
    int batch, kv_head, group;
};

DTL_INLINE Head head_of(unsigned number) {
    return Head{static_cast<int>(number / (GROUP * KV_HEADS)), static_cast<int>(number / GROUP % KV_HEADS),
                static_cast<int>(number % GROUP)};
}

// Where a head's first position lies in a tensor.
template <class Tensor>
DTL_INLINE long long start_of(Head head) {
    return head.batch * Tensor::BATCH_STRIDE + head.kv_head * Tensor::KV_HEAD_STRIDE + head.group * Tensor::GROUP_STRIDE;
}

// Some neighbouring numbers, `first` to `end - 1`.
struct Range {
    int first, end;
};

DTL_INLINE int clamped(long long x, int low, int high) {
    return x < low ? low : x > high ? high : static_cast<int>(x);
}
