// exp, SiLU and GELU in float: one sequence of operations, for single floats (functions.cc) and for
// vectors (functions.inc), so that every variant of every kernel gives the same bits. Where a
// result is NaN, its sign and payload are not defined.
//
//   exp(x)        c = x clamped to [−104, 89]; a NaN stays
//                 n = rne(c · log2 e); r = c − n · ln2_high − n · ln2_low, fused
//                 p = 1 + r + e[0]·r² + … + e[4]·r⁶, Horner, fused; p · 2ⁿ, rounded once
//   silu(x)       x / (1 + exp(−x))
//   gelu_tanh(x)  ½·x·(1 + tanh u) = x / (1 + exp(−2u)), u = √(2/π) · (x + 0.044715·x³);
//                 −2u = x · fma(tanh_cubic, x², tanh_linear)
//   gelu_erf(x)   ½·x·(1 + erf(x/√2)) = x · Φ(x). With a = min(|x|, 16) and t = 1 / (1 + tail_t·a):
//                 h = exp(−a²/2) · t · (q[0] + q[1]·t + … + q[8]·t⁸), Horner, fused
//                 a² = s + l exactly: exp(−a²/2) is taken as e − e·l/2 with e = exp(−s/2)
//                 Φ = 1 − h, or h where x < 0
//
// The form of h is Hastings' for erfc (Abramowitz and Stegun 7.1.26, which has five coefficients
// and an absolute error of 1.5e-7), with nine coefficients fitted here for relative error: at most
// 6.4e-8 over 0 ≤ a ≤ 16 in exact arithmetic, so GELU keeps its digits far into the negative tail.
// The polynomial of exp is fitted likewise: 3.8e-9. Errors in float, measured over every 61st float
// (functions_test.cc holds them to it): exp 0.88 ulp, silu 2.3 ulp, gelu_erf 8.6 ulp down to −13,
// gelu_tanh 2.5 ulp near 0 and 200 ulp at −10, where its argument's rounding counts. Φ is
// off by at most 2.2e-7, erf by twice that.
//
// All overflow and underflow as IEEE arithmetic has it, like PyTorch's formulas in float: each
// function of −∞ is NaN (−∞/∞ or −∞·0), and silu is −0 below −88.73, where exp(−x) overflows and
// the true value is at most 2.6e-37.
#ifndef PARFAIT_KERNELS_SIMD_FUNCTIONS_H_
#define PARFAIT_KERNELS_SIMD_FUNCTIONS_H_

namespace parfait::kernels::simd {

inline constexpr float exp_lowest = -104.0f, exp_highest = 89.0f;
inline constexpr float log2_e = 0x1.715476p+0f;
inline constexpr float ln2_high = 0x1.63p-1f, ln2_low = -0x1.bd0106p-13f;  // high · n is exact
inline constexpr float exp_coefficients[5] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f,
                                              0x1.1239ep-7f, 0x1.6a2438p-10f};
// Adding it rounds to an integer, which then stands in the low bits.
inline constexpr float rounding = 0x1.8p+23f;

inline constexpr float tanh_linear = -1.5957691216057308f;  // −2·√(2/π)
inline constexpr float tanh_cubic = -0.07135481627159025f;  // the same · 0.044715

inline constexpr float tail_end = 16.0f, tail_t = 0.3515625f;
inline constexpr float tail_coefficients[9] = {0x1.1f396cp-3f, 0x1.1fa4dap-3f,  0x1.edbf88p-4f,
                                               0x1.a971a2p-4f, -0x1.3ba7b4p-6f, 0x1.35670ep-3f,
                                               -0x1.0129cp-2f, 0x1.261d94p-3f,  -0x1.e19854p-6f};

float exp(float x);
float silu(float x);
float gelu_tanh(float x);
float gelu_erf(float x);

}  // namespace parfait::kernels::simd

#endif  // PARFAIT_KERNELS_SIMD_FUNCTIONS_H_
