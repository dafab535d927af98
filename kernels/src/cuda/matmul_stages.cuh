// The tiles of factors of a product on the tensor cores, as they lie in shared memory.

constexpr unsigned WARPS_ACROSS = TILE_COLUMNS / WARP_COLUMNS;
constexpr unsigned THREADS = TILE_ROWS / WARP_ROWS * WARPS_ACROSS * 32;

// A tile of a factor in shared memory, as it lies in device memory: its rows are lines if the terms of a line are neighbours, else
// terms, of which floats are read as words.
template <class Operand, int TILE_LINES, unsigned CHUNKS = (Operand::TERMS_ARE_NEIGHBOURS ? TILE_TERMS : TILE_LINES) / CHUNK>
struct Tile : Strips<Operand::TERMS_ARE_NEIGHBOURS ? TILE_LINES : TILE_TERMS, CHUNKS, chunks_of_strip(CHUNKS),
                     sizeof(Factor) == sizeof(float) && !Operand::TERMS_ARE_NEIGHBOURS ? 2 : 1> {
    static constexpr bool ROWS_ARE_LINES = Operand::TERMS_ARE_NEIGHBOURS;
};

using LeftTile = Tile<Left, TILE_ROWS>;
using RightTile = Tile<Right, TILE_COLUMNS>;
constexpr unsigned STAGE_BYTES = LeftTile::BYTES + RightTile::BYTES;
