// Documents on the tensor cores: which of a tile's scores are of one.

// The documents of a lane's rows, and those of columns.
struct RowDocuments {
    unsigned of_rows[TILES_DOWN][2];
    Documents documents;
};

// Which columns of a lane belong to the documents of two of its rows, a bit for each: so few registers hold it while scores are made.
struct Marks {
    unsigned of_rows[2];

    DTL_INLINE bool has(int half, int across, int number) const {
        return of_rows[half] >> (across * 2 + number) & 1;
    }
};

DTL_INLINE Marks marks_of(const unsigned (&of_rows)[2], Documents documents, int first_key) {
    static_assert(TILES_ACROSS * 2 <= 32, "a bit for each column");
    Marks marks = {};
#pragma unroll
    for (int column = 0; column < TILES_ACROSS * 2; ++column) {
        const unsigned of_column = documents.of_key(first_key + column_of(column / 2, column % 2));
        marks.of_rows[0] |= static_cast<unsigned>(is_same(of_rows[0], of_column)) << column;
        marks.of_rows[1] |= static_cast<unsigned>(is_same(of_rows[1], of_column)) << column;
    }
    return marks;
}
