// Outputs of a product with an epilogue, a generated kernel's body. The text ahead of this defines it:
//
//     struct Epilogue {
//         ...                                         // pointers to the kernel's tensors, its integers as `long long`
//         static constexpr int WIDTH = ...;           // neighbours that are done at once, or 1 if each is done alone
//         struct Results { float at[WIDTH]; };
//         struct Loads { ... };
//         void operator()(integer element, float result) const;
//         Loads load(integer element) const;
//         void operator()(integer element, const Results& results, Loads loads) const;  // where WIDTH is not 1
//     };
//
// The first operator does all that the kernel does where the result at this element of the output is read, the second the same for WIDTH results
// that are neighbours in memory, of which the first is at a multiple of WIDTH. What that reads of memory has been read by `load`, as long before
// as one likes: each element of the output is given once, and what is done with one touches nothing that is done with another.

// An element of the output; `elements` is the first one if results are kept.
struct Place {
    Epilogue epilogue;
    Output::Element* elements;
    Offset element;

    DTL_INLINE Place operator+(Offset further) const {
        return Place{epilogue, elements, element + further};
    }

    DTL_INLINE Place& operator+=(Offset further) {
        element += further;
        return *this;
    }
};

// Where vectors begin is decided by where results are kept; without that, by their numbers alone.
DTL_INLINE unsigned long long address(const Place& place) {
    return KEEPS_RESULTS ? address(place.elements + place.element) : 0;
}

// A sum as it would be read back from the output.
DTL_INLINE float read_back(float sum) {
    return widen(narrow<Output::Element>(result_of(sum, 0.0f)));
}

DTL_INLINE void store_output(const Place& place, float sum) {
    if constexpr (KEEPS_RESULTS) {
        store_output(place.elements + place.element, sum);
    }
    place.epilogue(place.element, read_back(sum));
}

DTL_INLINE Epilogue::Loads read_ahead(const Place& place) {
    return place.epilogue.load(place.element);
}

// What follows the sums of neighbours from this element on, at once where the epilogue does so.
template <class Body>
DTL_INLINE void follow(const Body& epilogue, Offset element, const float* sums, const typename Body::Loads& loads) {
    constexpr int NEIGHBOURS = Vector<Output::Element>::COUNT;
    if constexpr (Body::WIDTH == NEIGHBOURS) {
        typename Body::Results results;
#pragma unroll
        for (int number = 0; number < NEIGHBOURS; ++number) {
            results.at[number] = read_back(sums[number]);
        }
        epilogue(element, results, loads);
    } else {
#pragma unroll 1
        for (int number = 0; number < NEIGHBOURS; ++number) {
            epilogue(element + number, read_back(sums[number]));
        }
    }
}

DTL_INLINE void store_vector(const Place& place, const float* sums, const Epilogue::Loads& loads) {
    if constexpr (KEEPS_RESULTS) {
        store_vector(place.elements + place.element, sums, Nothing{});
    }
    follow(place.epilogue, place.element, sums, loads);
}
