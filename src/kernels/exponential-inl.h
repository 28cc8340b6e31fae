#pragma once

// Over `Vec`, 16 float32 side by side, which the including file defines before this. Everything
// here has internal linkage (see matmul.h).
namespace galley::kernels {
namespace {

// e^x for x <= 0: 2^n times a polynomial in r = x - n ln 2, |r| <= ln 2 / 2 (Taylor to r^7 / 7!:
// what is cut off is below 2^-24 of the value, and the roundings below 3 times that). Below -87 the
// result would leave the normal numbers: 0.
inline Vec exponential(Vec x) {
  const Vec n = round(mul(x, set(1.44269504F)));
  Vec r = fma(n, set(-0.693359375F), x);  // ln 2 in two parts, the first exact in a product with n
  r = fma(n, set(2.12194440e-4F), r);
  Vec p = set(1.0F / 5040.0F);
  p = fma(p, r, set(1.0F / 720.0F));
  p = fma(p, r, set(1.0F / 120.0F));
  p = fma(p, r, set(1.0F / 24.0F));
  p = fma(p, r, set(1.0F / 6.0F));
  p = fma(p, r, set(0.5F));
  p = fma(p, r, set(1.0F));
  p = fma(p, r, set(1.0F));
  return zero_below(x, -87.0F, times_power(p, n));
}

}  // namespace
}  // namespace galley::kernels
