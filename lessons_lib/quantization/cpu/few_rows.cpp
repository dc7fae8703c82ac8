// Attention of a few queries to a long text (lesson 11), its keys and values read once for up to eight of them. A query
// is a lane, an entry of the text a number that all lanes meet, and no sum runs across a vector.

namespace {
constexpr int QUERIES = 8;  // lanes: half a vector, since the 9 queries of 3 rows would leave much of a whole one empty
constexpr int CHUNK = 16;   // entries that are widened at a time, and stay in the nearest cache

// 2^x by its Taylor series between -1/2 and 1/2, to the seventh digit. Of -infinity the rest is no number, and 0 comes
// of it all the same: scaling by 2^-infinity gives 0, whatever is scaled.
__m256 power_of_two(__m256 x) {
    constexpr float TERMS[] = {1.5403530e-4f, 1.3333558e-3f, 9.6181291e-3f,
                               5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f};  // log(2)^n / n!, n from 6 to 1
    __m256 whole = _mm256_roundscale_ps(x, 0), rest = _mm256_sub_ps(x, whole), sum = _mm256_setzero_ps();
    for (float term : TERMS) sum = _mm256_mul_ps(_mm256_add_ps(sum, _mm256_set1_ps(term)), rest);
    return _mm256_scalef_ps(_mm256_add_ps(sum, _mm256_set1_ps(1)), whole);
}

__m256 lanes(const std::vector<float>& of, int64_t i) { return _mm256_loadu_ps(&of[i * QUERIES]); }
void put(std::vector<float>& of, int64_t i, __m256 values) { _mm256_storeu_ps(&of[i * QUERIES], values); }

// Up to QUERIES queries, each with a row of the mask (S,), of one head of keys and values (S, dim).
template <class X> struct Queries {
    int64_t count = 0, entries, dim;
    const bool* sees[QUERIES];
    X* to[QUERIES];
    std::vector<float> q, weights, sums;  // (dim, QUERIES), (S, QUERIES), (dim, QUERIES)

    Queries(int64_t entries, int64_t dim)
        : entries(entries), dim(dim), q(dim * QUERIES), weights(entries * QUERIES), sums(dim * QUERIES) {}

    void add(const X* query, const bool* mask, X* out) {
        const float scale = 1 / std::sqrt((float)dim) / std::log(2.0f);  // powers of two instead of e
        for (int64_t d = 0; d < dim; d++) q[d * QUERIES + count] = query[d] * scale;
        sees[count] = mask;
        to[count++] = out;
    }

    // Entries `from` and on, as many as a chunk holds, as single precision -> how many.
    int64_t widen(const X* x, int64_t from, float* wide) const {
        int64_t held = std::min<int64_t>(CHUNK, entries - from);
        for (int64_t i = 0; i < held * dim; i += LANES) store(wide + i, load(x + from * dim + i));
        return held;
    }

    __mmask8 seen(int64_t entry) const {
        unsigned bits = 0;
        for (int64_t i = 0; i < count; i++) bits |= (unsigned)sees[i][entry] << i;
        return bits;
    }

    void look(const X* keys) {
        std::vector<float> wide(CHUNK * dim);
        for (int64_t from = 0; from < entries; from += CHUNK) {
            int64_t held = widen(keys, from, wide.data());
            for (int64_t s = 0; s < held; s += 4) {  // four sums at a time, as an addition waits for the one before it
                __m256 sum[4] = {};
                const float* key = wide.data() + s * dim;
                for (int64_t d = 0; d < dim; d++)
#pragma GCC unroll 4
                    for (int i = 0; i < 4; i++)
                        sum[i] = _mm256_fmadd_ps(_mm256_set1_ps(key[i * dim + d]), lanes(q, d), sum[i]);
                for (int64_t i = 0; i < std::min<int64_t>(4, held - s); i++) put(weights, from + s + i, sum[i]);
            }
        }
    }

    void weigh() {
        const __m256 none = _mm256_set1_ps(-INFINITY);
        __m256 most = none, total = _mm256_setzero_ps();
        for (int64_t s = 0; s < entries; s++) {
            __m256 score = _mm256_mask_blend_ps(seen(s), none, lanes(weights, s));
            put(weights, s, score);
            most = _mm256_max_ps(most, score);
        }
        for (int64_t s = 0; s < entries; s++) {
            __m256 weight = power_of_two(_mm256_sub_ps(lanes(weights, s), most));
            put(weights, s, weight);
            total = _mm256_add_ps(total, weight);
        }
        for (int64_t s = 0; s < entries; s++) put(weights, s, _mm256_div_ps(lanes(weights, s), total));
    }

    void gather(const X* values) {
        std::vector<float> wide(CHUNK * dim);
        for (int64_t from = 0; from < entries; from += CHUNK) {
            int64_t held = widen(values, from, wide.data());
            for (int64_t d = 0; d < dim; d += QUERIES) {
                __m256 sum[QUERIES];
                for (int i = 0; i < QUERIES; i++) sum[i] = lanes(sums, d + i);
                for (int64_t s = 0; s < held; s++) {
                    const float* value = wide.data() + s * dim + d;
#pragma GCC unroll 16
                    for (int i = 0; i < QUERIES; i++)
                        sum[i] = _mm256_fmadd_ps(_mm256_set1_ps(value[i]), lanes(weights, from + s), sum[i]);
                }
                for (int i = 0; i < QUERIES; i++) put(sums, d + i, sum[i]);
            }
        }
    }

    void write() const {
        for (int64_t i = 0; i < count; i++)
            for (int64_t d = 0; d < dim; d++) to[i][d] = sums[d * QUERIES + i];
    }
};

// q (H, T, dim) of any strides but the last, out (T, H, dim). The queries of a task share a head of keys and values.
template <class X>
void attend(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values, const bool* mask, at::Tensor& out) {
    const int64_t shared = keys.size(0), entries = keys.size(1), dim = keys.size(2), heads = q.size(0), rows = q.size(1);
    const int64_t each = heads / shared * rows, parts = (each + QUERIES - 1) / QUERIES;
    const X* from = q.const_data_ptr<X>();
    X* to = out.mutable_data_ptr<X>();
    at::parallel_for(0, shared * parts, 1, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++) {
            int64_t of = task / parts, part = task % parts;
            Queries<X> queries(entries, dim);
            for (int64_t i = each * part / parts; i < each * (part + 1) / parts; i++) {
                int64_t row = i % rows, head = of * (heads / shared) + i / rows;
                queries.add(from + head * q.stride(0) + row * q.stride(1), mask + row * entries, to + (row * heads + head) * dim);
            }
            queries.look(keys.const_data_ptr<X>() + of * entries * dim);
            queries.weigh();
            queries.gather(values.const_data_ptr<X>() + of * entries * dim);
            queries.write();
        }
    });
}

at::Tensor attend_few_rows(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask) {
    TORCH_CHECK_VALUE(q.dim() == 3 && k.dim() == 3 && k.sizes() == v.sizes() && q.size(2) == k.size(2) && k.size(0) > 0
                          && q.size(0) % k.size(0) == 0 && k.scalar_type() == q.scalar_type()
                          && v.scalar_type() == q.scalar_type(),
                      "keys and values have to be (H_kv, S, d) and q (H, T, d), H a multiple of H_kv, in one format; not ",
                      k.sizes(), " ", k.scalar_type(), ", ", v.sizes(), " ", v.scalar_type(), " and ", q.sizes(), " ", q.scalar_type());
    TORCH_CHECK_VALUE(mask.sizes() == at::IntArrayRef({q.size(1), k.size(1)}) && mask.scalar_type() == at::kBool,
                      "the mask has to be (T, S) of bool, not ", mask.sizes(), " of ", mask.scalar_type());
    TORCH_CHECK_VALUE(k.size(2) % LANES == 0, "a head is ", k.size(2), " wide, not a multiple of ", LANES);
    const at::Tensor given = q.stride(2) == 1 ? q : q.contiguous();
    const at::Tensor keys = k.contiguous(), values = v.contiguous(), may = mask.contiguous();
    at::Tensor out = at::empty({q.size(1), q.size(0), q.size(2)}, q.options());
    with_format(q, [&](auto format) {
        attend<decltype(format)>(given, keys, values, may.const_data_ptr<bool>(), out);
    });
    return out.transpose(0, 1);  // heads beside one another, as the next matmul reads them
}
}  // namespace

TORCH_LIBRARY_FRAGMENT(lessons_lib, library) {
    library.def("attend_few_rows(Tensor q, Tensor keys, Tensor values, Tensor mask) -> Tensor");
    library.impl("attend_few_rows", c10::DispatchKey::CPU, attend_few_rows);
}
