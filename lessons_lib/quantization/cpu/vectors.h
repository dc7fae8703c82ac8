// What both kernels begin with: 16 values of any of three formats as single precision, and back. AVX512.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <immintrin.h>
#include <torch/library.h>

namespace {
constexpr int LANES = 16;

__m512 load(const float* p) { return _mm512_loadu_ps(p); }
__m512 load(const at::Half* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
__m512 load(const at::BFloat16* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}

void store(float* p, __m512 values) { _mm512_storeu_ps(p, values); }
template <class X> void store(X* p, __m512 values) {
    float wide[LANES];
    _mm512_storeu_ps(wide, values);
    for (int i = 0; i < LANES; i++) p[i] = wide[i];
}

// call(X{}) with the format of a tensor as X.
template <class F> void with_format(const at::Tensor& x, F call) {
    switch (x.scalar_type()) {
        case at::kFloat: return call(float{});
        case at::kHalf: return call(at::Half{});
        case at::kBFloat16: return call(at::BFloat16{});
        default: TORCH_CHECK_VALUE(false, "the kernels take float32, bfloat16 and float16, not ", x.scalar_type());
    }
}
}  // namespace
