// Rows of 8-bit inputs times a matrix of 4 or 8 bits, both with a scale per group of 32 (lesson 11), for CPUs with
// AVX512-VNNI. `quantization.cpu.layouts` says what is computed and lays the codes out.
//
// One instruction (dpbusd) multiplies 64 pairs of bytes and adds them up by fours: 16 rows of the matrix, 4 columns of
// each. So 16 rows stand side by side, no sum runs across a vector, and codes of 4 bits come two to a byte: the lower
// halves are one vector of codes, the upper ones another. Codes are unsigned and inputs signed, as it wants them.

namespace {
constexpr int GROUP = 32, QUADS = GROUP / 4;
constexpr int MOST = 12;  // rows of x at a time: their sums, two vectors each, stay in the CPU's 32 registers
constexpr int GRAIN = 4;  // blocks of LANES rows that are worth a thread

// Up to MOST rows of x, rounded. Of T rows, row t's group g lies at [g * T + t].
struct Rounded {
    std::vector<int8_t> levels;         // GROUP of them
    std::vector<float> scales, totals;  // totals: sums of the rounded values, for what is added to all codes

    Rounded(int rows, int groups) : levels(rows * groups * GROUP), scales(rows * groups), totals(rows * groups) {}

    template <class X> void round(const X* x, int place) {
        __m512 a = load(x), b = load(x + LANES);
        float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
        float scale = scales[place] = largest == 0 ? 1 : largest / 127;
        __m512i low = _mm512_cvtps_epi32(_mm512_div_ps(a, _mm512_set1_ps(scale)));
        __m512i high = _mm512_cvtps_epi32(_mm512_div_ps(b, _mm512_set1_ps(scale)));
        auto to = (__m128i*)(levels.data() + place * GROUP);
        _mm_storeu_si128(to, _mm512_cvtepi32_epi8(low));
        _mm_storeu_si128(to + 1, _mm512_cvtepi32_epi8(high));
        totals[place] = _mm512_reduce_add_epi32(_mm512_add_epi32(low, high)) * scale;
        if (_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q)) totals[place] = NAN;  // which no integer says
    }
};

// T rows of x times LANES rows of the matrix: sum over groups of scale * x's scale * sum(code * level) + low * total.
template <int T, int BITS, class X>
void block(const Rounded& x, const uint8_t* codes, const at::Half* grid, int groups, X* out, int64_t stride) {
    const int32_t* quads = (const int32_t*)x.levels.data();
    const float *scales = x.scales.data(), *totals = x.totals.data();
    const __m512i half = _mm512_set1_epi8(15);
    __m512 sums[T];
    for (int t = 0; t < T; t++) sums[t] = _mm512_setzero_ps();
    for (int g = 0; g < groups; g++, grid += 2 * LANES, quads += QUADS * T, scales += T, totals += T) {
        __m512i products[T];
#pragma GCC unroll 16
        for (int t = 0; t < T; t++) products[t] = _mm512_setzero_si512();
#pragma GCC unroll 16
        for (int quad = 0; quad < QUADS; quad++) {
            __m512i part = _mm512_loadu_si512(codes);
            if (BITS == 4) part = _mm512_and_si512(quad % 2 ? _mm512_srli_epi16(part, 4) : part, half);
            if (BITS == 8 || quad % 2) codes += 4 * LANES;
#pragma GCC unroll 16
            for (int t = 0; t < T; t++)
                products[t] = _mm512_dpbusd_epi32(products[t], part, _mm512_set1_epi32(quads[QUADS * t + quad]));
        }
        __m512 scale = load(grid), low = load(grid + LANES);
#pragma GCC unroll 16
        for (int t = 0; t < T; t++) {
            __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(scales[t]));
            sums[t] = _mm512_fmadd_ps(low, _mm512_set1_ps(totals[t]), sums[t]);
            sums[t] = _mm512_fmadd_ps(both, _mm512_cvtepi32_ps(products[t]), sums[t]);
        }
    }
    for (int t = 0; t < T; t++) store(out + t * stride, sums[t]);
}

// The block for as many rows as there are, 1 to T: a compiler wants their number as a constant.
template <int T, int BITS, class X, class... Rest> void blocks(int rows, const Rest&... rest) {
    if (rows == T) return block<T, BITS, X>(rest...);
    if constexpr (T > 1) blocks<T - 1, BITS, X>(rows, rest...);
}

template <int BITS, class X>
void multiply(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& grid, at::Tensor& out) {
    const int64_t wide = x.size(1), tall = out.size(1), groups = codes.size(1);
    const X* rows = x.const_data_ptr<X>();
    const uint8_t* read = codes.const_data_ptr<uint8_t>();
    const at::Half* scales = grid.const_data_ptr<at::Half>();
    for (int64_t first = 0; first < x.size(0); first += MOST) {
        int count = std::min<int64_t>(MOST, x.size(0) - first);
        Rounded rounded(count, groups);
        for (int t = 0; t < count; t++)
            for (int g = 0; g < groups; g++) rounded.round(rows + (first + t) * wide + g * GROUP, g * count + t);
        X* to = out.mutable_data_ptr<X>() + first * tall;
        at::parallel_for(0, codes.size(0), GRAIN, [&](int64_t begin, int64_t end) {
            for (int64_t b = begin, g = b * groups; b < end; b++, g += groups)
                blocks<MOST, BITS, X>(count, rounded, read + g * GROUP * LANES * BITS / 8, scales + g * 2 * LANES,
                                      groups, to + b * LANES, tall);
        });
    }
}

at::Tensor multiply_grouped(const at::Tensor& given, const at::Tensor& codes, const at::Tensor& grid, int64_t bits) {
    const at::Tensor x = given.contiguous();
    TORCH_CHECK_VALUE((bits == 4 || bits == 8) && codes.dim() == 3 && codes.size(2) == GROUP * LANES * bits / 8
                          && grid.sizes() == at::IntArrayRef({codes.size(0), codes.size(1), 2, LANES})
                          && codes.scalar_type() == at::kByte && grid.scalar_type() == at::kHalf
                          && codes.is_contiguous() && grid.is_contiguous(),
                      "codes of 4 or 8 bits and their grid are laid out by quantization.cpu.layouts");
    const int64_t wide = codes.size(1) * GROUP;
    TORCH_CHECK_VALUE(x.dim() == 2 && x.size(1) == wide, "x is ", x.sizes(), ", not (T, ", wide, ")");
    at::Tensor out = at::empty({x.size(0), codes.size(0) * LANES}, x.options());
    with_format(x, [&](auto format) {
        using X = decltype(format);
        bits == 4 ? multiply<4, X>(x, codes, grid, out) : multiply<8, X>(x, codes, grid, out);
    });
    return out;
}
}  // namespace

TORCH_LIBRARY_FRAGMENT(lessons_lib, library) {
    library.def("multiply_grouped(Tensor x, Tensor codes, Tensor grid, int bits) -> Tensor");
    library.impl("multiply_grouped", c10::DispatchKey::CPU, multiply_grouped);
}
