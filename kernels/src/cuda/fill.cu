// Sets `bytes` bytes from `target` on to a pattern of four bytes, over and over. The pattern repeats itself at every
// multiple of the element's size, to which `target` is aligned; so the pattern has no phase.

extern "C" __global__ void __launch_bounds__(256) KERNEL(unsigned char* target, long long bytes, long long pattern) {
    const unsigned word = static_cast<unsigned>(pattern);
    const long long thread = thread_of_launch();
    const long long threads = threads_of_launch();

    // Up to the first multiple of 16, and behind the last, byte by byte.
    const long long unaligned = static_cast<long long>((0 - address(target)) % 16);
    const long long head = unaligned < bytes ? unaligned : bytes;
    const long long vectors = (bytes - head) / 16;
    const long long tail = head + vectors * 16;

    uint4* const middle = reinterpret_cast<uint4*>(target + head);
    for (long long vector = thread; vector < vectors; vector += threads) {
        middle[vector] = make_uint4(word, word, word, word);
    }
    for (long long byte = thread; byte < head; byte += threads) {
        target[byte] = static_cast<unsigned char>(word >> (byte % 4 * 8));
    }
    for (long long byte = tail + thread; byte < bytes; byte += threads) {
        target[byte] = static_cast<unsigned char>(word >> ((byte - tail) % 4 * 8));
    }
}
