// Tiles that arrive in bulk on devices of compute capability 9.0: tensor maps, barriers of phases, and stages that go round.
//
// A warp behind THREADS threads brings tiles, those of a step at a time, through STAGES places of STAGE_BYTES in shared memory, and
// the others multiply, four together. Each stage has two barriers. One phase of `full` is over when the bytes of a step are there, one of `empty`
// when every warp that multiplies is done with them. Both sides count the steps of the block: a stage's phases have the parity of how often the ring
// went round.

// What a kernel is given of a tensor map.
struct alignas(128) TensorMap {
    unsigned long long opaque[16];
};

__shared__ unsigned long long full[STAGES];
__shared__ unsigned long long empty[STAGES];

constexpr unsigned MULTIPLYING_WARPS = THREADS / 32;

DTL_INLINE unsigned barrier_address(const unsigned long long& barrier) {
    return static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
}

DTL_INLINE void make_barrier(unsigned long long& barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier_address(barrier)), "r"(arrivals) : "memory");
}

// Arrives, behind all that this thread did.
DTL_INLINE void arrive(unsigned long long& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier_address(barrier)) : "memory");
}

// Arrives; the phase waits for so many bytes more.
DTL_INLINE void arrive_expecting(unsigned long long& barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier_address(barrier)), "r"(bytes)
                 : "memory");
}

// Waits until the phase of this parity is over, the current one or the one before.
DTL_INLINE void wait_for_phase(const unsigned long long& barrier, unsigned parity) {
    unsigned is_over;
    do {
        asm volatile("{.reg .pred over; mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2; selp.b32 %0, 1, 0, over;}"
                     : "=r"(is_over)
                     : "r"(barrier_address(barrier)), "r"(parity)
                     : "memory");
    } while (is_over == 0);
}

// Begins to copy the box at these places of the map's dimensions to this byte of shared memory.
DTL_INLINE void begin_box(unsigned target, const TensorMap& map, int first, int second, int third,
                          const unsigned long long& barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(target)),
                 "l"(&map), "r"(first), "r"(second), "r"(third), "r"(barrier_address(barrier))
                 : "memory");
}

// The place of the block's so-manieth step.
struct Stage {
    unsigned number, round;

    DTL_INLINE explicit Stage(int step) : number(static_cast<unsigned>(step) % STAGES), round(static_cast<unsigned>(step) / STAGES) {}

    DTL_INLINE unsigned first_byte() const {
        return number * STAGE_BYTES;
    }
};

// Makes all barriers, in one thread; the others know of them behind the block's next barrier.
DTL_INLINE void make_stages() {
    if (threadIdx.x == 0) {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            make_barrier(full[stage], 1);
            make_barrier(empty[stage], MULTIPLYING_WARPS);
        }
        // Copies may know of the barriers from here on.
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
}

// Waits until a stage is empty, for so many bytes; gives the barrier that waits for their copies.
DTL_INLINE unsigned long long& open_stage(Stage stage, unsigned bytes) {
    // The phase before the first counts as over.
    wait_for_phase(empty[stage.number], (stage.round + 1) % 2);
    unsigned long long& barrier = full[stage.number];
    arrive_expecting(barrier, bytes);
    return barrier;
}

// Waits until all of a stage is there.
DTL_INLINE void await_stage(Stage stage) {
    wait_for_phase(full[stage.number], stage.round % 2);
}

// Gives back the stage of a step whose products are done.
DTL_INLINE void give_back(int step) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        arrive(empty[Stage(step).number]);
    }
}
