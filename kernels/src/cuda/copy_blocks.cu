// Copies `rows` by `columns` blocks of `block_bytes` bytes, contiguous on both sides. Strides are in bytes.

struct Blocks {
    long long rows, columns, block_bytes;
    long long source_row_stride, source_column_stride;
    long long target_row_stride, target_column_stride;
};

// Copies in pieces of a Piece, which divides all sizes and addresses; Index holds their number.
template <class Piece, class Index>
DTL_INLINE void copy(const unsigned char* source, unsigned char* target, const Blocks& blocks) {
    const Index pieces_of_block = static_cast<Index>(blocks.block_bytes / sizeof(Piece));
    const Index columns = static_cast<Index>(blocks.columns);
    const Index pieces = static_cast<Index>(blocks.rows) * columns * pieces_of_block;
    const Index threads = static_cast<Index>(threads_of_launch());
    for (Index piece = static_cast<Index>(thread_of_launch()); piece < pieces; piece += threads) {
        const Index block = piece / pieces_of_block;
        const long long within = static_cast<long long>(piece % pieces_of_block) * sizeof(Piece);
        const long long row = block / columns;
        const long long column = block % columns;
        const unsigned char* from =
            source + row * blocks.source_row_stride + column * blocks.source_column_stride + within;
        unsigned char* to =
            target + row * blocks.target_row_stride + column * blocks.target_column_stride + within;
        *reinterpret_cast<Piece*>(to) = *reinterpret_cast<const Piece*>(from);
    }
}

template <class Piece>
DTL_INLINE void copy_pieces(const unsigned char* source, unsigned char* target, const Blocks& blocks) {
    // Division of 32-bit numbers is several times as fast. A thread's last step must not wrap either.
    const long long pieces = blocks.rows * blocks.columns * (blocks.block_bytes / static_cast<long long>(sizeof(Piece)));
    if (pieces < 0x7fffffff) {
        copy<Piece, unsigned>(source, target, blocks);
    } else {
        copy<Piece, unsigned long long>(source, target, blocks);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    KERNEL(const unsigned char* source, unsigned char* target, long long rows, long long columns, long long block_bytes,
           long long source_row_stride, long long source_column_stride, long long target_row_stride,
           long long target_column_stride) {
    const Blocks blocks = {rows,
                           columns,
                           block_bytes,
                           source_row_stride,
                           source_column_stride,
                           target_row_stride,
                           target_column_stride};
    const unsigned long long all = address(source) | address(target) | block_bytes | source_row_stride |
                                   source_column_stride | target_row_stride | target_column_stride;
    if (all % 16 == 0) {
        copy_pieces<uint4>(source, target, blocks);
    } else if (all % 4 == 0) {
        copy_pieces<unsigned>(source, target, blocks);
    } else {
        copy_pieces<unsigned char>(source, target, blocks);
    }
}
