// Hot operators of the training network for float32 on a CPU, each one pass over memory: entry and
// exit of a hyper-connection site, attention over the window and the compressed rows of one
// document, SwiGLU, norm, rotary positions, fake quantisation. ops.py holds the plain versions,
// which define the results. Plain C interface, called through ctypes (fused.py): no headers of the
// framework, so it compiles in seconds. Every pointer is a contiguous float32 array unless said
// otherwise.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <omp.h>
#include <vector>

namespace {

constexpr int kStreams = 4;
constexpr int kMix = 2 * kStreams + kStreams * kStreams;  // pre, post, comb
constexpr int kLanes = 8;  // tokens side by side in one vector register

// exp to float32 accuracy for |x| < 87, written so that the compiler vectorises it.
inline float fast_exp(float x) {
  x = std::min(std::max(x, -87.0f), 87.0f);
  const float n = std::nearbyint(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const std::int32_t bits = (static_cast<std::int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, 4);
  return p * scale;
}

inline float sigmoid(float x) {
  return 1.0f / (1.0f + fast_exp(-x));
}

struct Lanes {
  float v[kLanes];
};

// One division by the sums over an axis: `step` walks along the axis, `other` across it.
inline void normalise(const Lanes* in, Lanes* out, Lanes* inverse, int step, int other, float eps) {
  for (int a = 0; a < kStreams; a++) {
    for (int l = 0; l < kLanes; l++) {
      float s = eps;
      for (int b = 0; b < kStreams; b++) {
        s += in[a * other + b * step].v[l];
      }
      inverse[a].v[l] = 1.0f / s;
    }
    for (int b = 0; b < kStreams; b++) {
      for (int l = 0; l < kLanes; l++) {
        out[a * other + b * step].v[l] = in[a * other + b * step].v[l] * inverse[a].v[l];
      }
    }
  }
}

inline void normalise_back(Lanes* g, const Lanes* out, const Lanes* inverse, int step, int other) {
  for (int a = 0; a < kStreams; a++) {
    for (int l = 0; l < kLanes; l++) {
      float dot = 0;
      for (int b = 0; b < kStreams; b++) {
        dot += g[a * other + b * step].v[l] * out[a * other + b * step].v[l];
      }
      for (int b = 0; b < kStreams; b++) {
        g[a * other + b * step].v[l] = (g[a * other + b * step].v[l] - dot) * inverse[a].v[l];
      }
    }
  }
}

// ---- attention ----------------------------------------------------------------------------------

constexpr int kHeadsMax = 8;
constexpr int kVec = 16;
constexpr int kBlock = 2 * kVec;   // keys whose products are made together
constexpr float kHidden = -1e30f;  // score of a key that is not seen
using Vec = float __attribute__((vector_size(4 * kVec), aligned(4), may_alias));

inline Vec& vec(float* p) {
  return *reinterpret_cast<Vec*>(p);
}
inline const Vec& vec(const float* p) {
  return *reinterpret_cast<const Vec*>(p);
}

struct Attention {
  const float *q, *kv, *rows;
  const std::int64_t* start;
  const float* sink;
  const std::uint8_t* selected;
  long batch, T;
  int heads, d, window, ratio;
};

struct Gradients {
  const float *out, *lse, *g;
  float *gq, *gkv, *grows, *gsink;
};

// Keys of one row of the batch, also with their values apart: value i of key j at columns[i *
// stride + j], zeros behind the last, so that the products of a block of keys need no sums across
// lanes.
struct Columns {
  std::vector<float> values;
  long stride = 0;

  void set(const float* keys, long count, int d) {
    stride = count + kBlock;
    values.assign(static_cast<std::size_t>(stride) * d, 0.0f);
    for (long j = 0; j < count; j++) {
      for (int i = 0; i < d; i++) {
        values[i * stride + j] = keys[j * d + i];
      }
    }
  }
};

// What one position sees of one kind of keys.
struct Seen {
  const float* columns;  // of the first one
  long stride;
  const float* keys;
  float* grads;
  long count;
  const std::uint8_t* chosen;

  bool hidden(long j) const { return chosen && !chosen[j]; }
};

// The two kinds: the window, then the closed groups. Returns how many there are.
inline int seen_from(const Attention& a,
                     long b,
                     long t,
                     const Columns (&columns)[2],
                     float* gkv,
                     float* grows,
                     Seen (&out)[2]) {
  const long begin = a.start[b * a.T + t], near = std::max(begin, t - a.window + 1);
  const long row = (b * a.T + near) * a.d;
  out[0] = {columns[0].values.data() + near, columns[0].stride, a.kv + row,
            gkv ? gkv + row : nullptr,       t - near + 1,      nullptr};
  if (!a.ratio) {
    return 1;
  }
  const long groups = a.T / a.ratio, far = begin / a.ratio,
             count = std::max(0L, (t + 1) / a.ratio - far), group = (b * groups + far) * a.d;
  out[1] = {columns[1].values.data() + far,
            columns[1].stride,
            a.rows + group,
            grows ? grows + group : nullptr,
            count,
            a.selected ? a.selected + (b * a.T + t) * groups + far : nullptr};
  return 2;
}

// to[h * stride + j] = x_h . key j for a block of keys from `first`.
template <int H, int D>
inline void products(
    const float* x, const Seen& seen, long first, int heads, int d, float* to, long stride) {
  const int n = H ? H : heads, width = D ? D : d;
  Vec a[kHeadsMax] = {}, b[kHeadsMax] = {};
  for (int i = 0; i < width; i++) {
    const float* column = seen.columns + i * seen.stride + first;
    const Vec k = vec(column), l = vec(column + kVec);
    for (int h = 0; h < n; h++) {
      a[h] += x[h * width + i] * k;
      b[h] += x[h * width + i] * l;
    }
  }
  for (int h = 0; h < n; h++) {
    vec(to + h * stride) = a[h];
    vec(to + h * stride + kVec) = b[h];
  }
}

// to_h += sum over keys `first` ... `last` - 1 of weights[h * stride + j - first] key_j.
template <int H, int D>
inline void add_keys(const float* weights,
                     long stride,
                     const Seen& seen,
                     long first,
                     long last,
                     int heads,
                     int d,
                     float* to) {
  const int n = H ? H : heads, width = D ? D : d;
  if constexpr (H != 0) {
    Vec sum[H * D / kVec];
#pragma GCC unroll 16
    for (int i = 0; i < H * D / kVec; i++) {
      sum[i] = vec(to + i * kVec);
    }
    for (long j = first; j < last; j++) {
      if (seen.hidden(j)) {
        continue;
      }
#pragma GCC unroll 16
      for (int i = 0; i < H * D / kVec; i++) {
        sum[i] += weights[i / (D / kVec) * stride + j - first] *
                  vec(seen.keys + j * D + i % (D / kVec) * kVec);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < H * D / kVec; i++) {
      vec(to + i * kVec) = sum[i];
    }
  } else {
    for (long j = first; j < last; j++) {
      for (int h = 0; h < n && !seen.hidden(j); h++) {
        for (int i = 0; i < width; i++) {
          to[h * width + i] += weights[h * stride + j - first] * seen.keys[j * width + i];
        }
      }
    }
  }
}

// key gradient j += sum_h ds[h * kBlock + j] q_h + p[h * kBlock + j] g_h for N keys; ds, p of the
// first of them.
template <int H, int D, int N>
inline void add_to_keys(const float* ds,
                        const float* p,
                        const float* q,
                        const float* g,
                        int heads,
                        int d,
                        float* grads) {
  const int n = H ? H : heads, width = D ? D : d;
  for (int i = 0; i < width; i += kVec) {
    Vec sum[N];
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) {
      sum[j] = vec(grads + j * width + i);
    }
    for (int h = 0; h < n; h++) {
      const Vec a = vec(q + h * width + i), b = vec(g + h * width + i);
#pragma GCC unroll 8
      for (int j = 0; j < N; j++) {
        sum[j] += ds[h * kBlock + j] * a + p[h * kBlock + j] * b;
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) {
      vec(grads + j * width + i) = sum[j];
    }
  }
}

// H heads of D values; 0, 0: as many as the arguments say. One thread per row of the batch, which
// has its keys by columns.
template <int H, int D>
void forward(const Attention& a, float* out, float* lse, float* mass) {
  const int heads = H ? H : a.heads, d = D ? D : a.d;
  const long stride = a.window + a.T + 3 * kBlock;
#pragma omp parallel
  {
    std::vector<float> scores(static_cast<std::size_t>(heads) * stride);
    Columns columns[2];
#pragma omp for schedule(dynamic, 1)
    for (long b = 0; b < a.batch; b++) {
      columns[0].set(a.kv + b * a.T * d, a.T, d);
      if (a.ratio) {
        columns[1].set(a.rows + b * (a.T / a.ratio) * d, a.T / a.ratio, d);
      }
      for (long t = 0; t < a.T; t++) {
        const long at = (b * a.T + t) * heads;
        Seen seen[2];
        const int kinds = seen_from(a, b, t, columns, nullptr, nullptr, seen);
        long place[3] = {};
        for (int kind = 0; kind < kinds; kind++) {
          float* s = scores.data() + place[kind];
          const long count = seen[kind].count, all = (count + kBlock - 1) / kBlock * kBlock;
          for (long j = 0; j < all; j += kBlock) {
            products<H, D>(a.q + at * d, seen[kind], j, heads, d, s + j, stride);
          }
          for (int h = 0; h < heads; h++) {
            for (long j = 0; seen[kind].chosen && j < count; j++) {
              s[h * stride + j] = seen[kind].chosen[j] ? s[h * stride + j] : kHidden;
            }
            std::fill(s + h * stride + count, s + h * stride + all, kHidden);
          }
          place[kind + 1] = place[kind] + all;
        }
        const long all = place[kinds];
        for (int h = 0; h < heads; h++) {
          float* sh = scores.data() + h * stride;
          float highest[kVec], sums[kVec] = {};
          std::fill(highest, highest + kVec, a.sink[h]);
          for (long j = 0; j < all; j += kVec) {
            for (int i = 0; i < kVec; i++) {
              highest[i] = highest[i] > sh[j + i] ? highest[i] : sh[j + i];
            }
          }
          const float top = *std::max_element(highest, highest + kVec);
          for (long j = 0; j < all; j += kVec) {
            for (int i = 0; i < kVec; i++) {
              // fast_exp never gives 0, and what it gives far below is slow to reckon with.
              sh[j + i] = sh[j + i] == kHidden ? 0.0f : fast_exp(sh[j + i] - top);
              sums[i] += sh[j + i];
            }
          }
          const float sum = std::accumulate(sums, sums + kVec, fast_exp(a.sink[h] - top));
          const float inverse = 1.0f / sum;
          for (long j = 0; j < all; j++) {
            sh[j] *= inverse;
          }
          lse[at + h] = top + std::log(sum);
        }
        if (mass) {
          float* m = mass + (b * a.T + t) * (a.T / a.ratio) + a.start[b * a.T + t] / a.ratio;
          for (int h = 0; h < heads; h++) {
            for (long j = 0; j < seen[1].count; j++) {
              m[j] += scores[h * stride + place[1] + j];
            }
          }
        }
        std::fill(out + at * d, out + (at + heads) * d, 0.0f);
        for (int kind = 0; kind < kinds; kind++) {
          add_keys<H, D>(scores.data() + place[kind], stride, seen[kind], 0, seen[kind].count,
                         heads, d, out + at * d);
        }
      }
    }
  }
}

// One thread per row of the batch, so nobody shares a key's gradient.
template <int H, int D>
void backward(const Attention& a, const Gradients& to) {
  const int heads = H ? H : a.heads, d = D ? D : a.d;
#pragma omp parallel
  {
    float my_sink[kHeadsMax] = {};
    Columns columns[2];
#pragma omp for schedule(dynamic, 1)
    for (long b = 0; b < a.batch; b++) {
      columns[0].set(a.kv + b * a.T * d, a.T, d);
      if (a.ratio) {
        columns[1].set(a.rows + b * (a.T / a.ratio) * d, a.T / a.ratio, d);
      }
      for (long t = 0; t < a.T; t++) {
        const long at = (b * a.T + t) * heads;
        const float *q = a.q + at * d, *g = to.g + at * d, *o = to.out + at * d;
        float* gq = to.gq + at * d;
        float delta[kHeadsMax];
        for (int h = 0; h < heads; h++) {
          float v = 0;
          for (int i = 0; i < d; i++) {
            v += g[h * d + i] * o[h * d + i];
          }
          delta[h] = v;
          my_sink[h] -= fast_exp(a.sink[h] - to.lse[at + h]) * v;
        }
        std::fill(gq, gq + heads * d, 0.0f);
        Seen seen[2];
        const int kinds = seen_from(a, b, t, columns, to.gkv, to.grows, seen);
        for (int kind = 0; kind < kinds; kind++) {
          const Seen& keys = seen[kind];
          for (long first = 0; first < keys.count; first += kBlock) {
            const long last = std::min(first + kBlock, keys.count);
            float p[kHeadsMax * kBlock], ds[kHeadsMax * kBlock];
            products<H, D>(q, keys, first, heads, d, p, kBlock);
            products<H, D>(g, keys, first, heads, d, ds, kBlock);
            for (int h = 0; h < heads; h++) {
              float *ph = p + h * kBlock, *dh = ds + h * kBlock;
              for (int j = 0; j < kBlock; j++) {
                ph[j] = fast_exp(ph[j] - to.lse[at + h]);
              }
              for (long j = 0; keys.chosen && j < last - first; j++) {
                ph[j] = keys.hidden(first + j) ? 0.0f : ph[j];
              }
              for (int j = 0; j < kBlock; j++) {
                dh[j] = ph[j] * (dh[j] - delta[h]);
              }
            }
            add_keys<H, D>(ds, kBlock, keys, first, last, heads, d, gq);
            long j = first;
            for (; j + 8 <= last; j += 8) {
              add_to_keys<H, D, 8>(ds + j - first, p + j - first, q, g, heads, d,
                                   keys.grads + j * d);
            }
            for (; j < last; j++) {
              add_to_keys<H, D, 1>(ds + j - first, p + j - first, q, g, heads, d,
                                   keys.grads + j * d);
            }
          }
        }
      }
    }
#pragma omp critical
    for (int h = 0; h < heads; h++) {
      to.gsink[h] += my_sink[h];
    }
  }
}

}  // namespace

extern "C" {

// Threads of the operators called from this thread.
void set_threads(int count) {
  omp_set_num_threads(count);
}

// X [n, 4, h], pre [n, 4], mix [n, 24] = X fn^T -> x [n, h] (normed input), r [n] (1 / rms of X),
// rc [n] (1 / rms of the collapsed row).
void site_forward(const float* X,
                  const float* pre,
                  const float* norm,
                  float* x,
                  float* r,
                  float* rc,
                  long n,
                  long h,
                  float norm_eps) {
#pragma omp parallel for schedule(static)
  for (long t = 0; t < n; t++) {
    const float* Xt = X + t * kStreams * h;
    const float* p = pre + t * kStreams;
    float* xt = x + t * h;
    float all = 0, one = 0;
    for (long i = 0; i < h; i++) {
      const float a = Xt[i], b = Xt[h + i], c = Xt[2 * h + i], d = Xt[3 * h + i];
      const float s = p[0] * a + p[1] * b + p[2] * c + p[3] * d;
      all += a * a + b * b + c * c + d * d;
      one += s * s;
      xt[i] = s;
    }
    r[t] = 1.0f / std::sqrt(all / (kStreams * h) + norm_eps);
    rc[t] = 1.0f / std::sqrt(one / h + norm_eps);
    for (long i = 0; i < h; i++) {
      xt[i] *= rc[t] * norm[i];
    }
  }
}

// Mixing coefficients of kLanes tokens at a time; iters Sinkhorn rounds. If `grad` is given
// (gradients of pre, post, comb in the layout of the outputs), the gradient goes to gmix [n, 24]
// (of the raw products), gr [n] (of r), gbase [24] and gscale [3] (added).
void mix_coefficients(const float* mix,
                      const float* r,
                      const float* base,
                      const float* scale,
                      float* pre,
                      float* post,
                      float* comb,
                      const float* gpre,
                      const float* gpost,
                      const float* gcomb,
                      float* gmix,
                      float* gr,
                      float* gbase,
                      float* gscale,
                      long n,
                      int iters,
                      float eps) {
  const long groups = (n + kLanes - 1) / kLanes;
#pragma omp parallel
  {
    std::vector<Lanes> state((2 * iters + 2) * kStreams * kStreams), inverse(2 * iters * kStreams);
    std::vector<float> my_base(kMix, 0.0f), my_scale(3, 0.0f);
#pragma omp for schedule(static)
    for (long g = 0; g < groups; g++) {
      Lanes z[kMix], raw[kMix], rr;
      for (int l = 0; l < kLanes; l++) {
        const long t = std::min(g * kLanes + l, n - 1);
        rr.v[l] = r[t];
        for (int k = 0; k < kMix; k++) {
          raw[k].v[l] = mix[t * kMix + k];
        }
      }
      for (int k = 0; k < kMix; k++) {
        const float s = scale[k < kStreams ? 0 : k < 2 * kStreams ? 1 : 2];
        for (int l = 0; l < kLanes; l++) {
          z[k].v[l] = raw[k].v[l] * rr.v[l] * s + base[k];
        }
      }
      for (int k = 0; k < 2 * kStreams; k++) {
        for (int l = 0; l < kLanes; l++) {
          z[k].v[l] = sigmoid(z[k].v[l]);
        }
      }
      // Row soft-max, then rounds of column and row sums.
      Lanes* soft = state.data();
      for (int a = 0; a < kStreams; a++) {
        for (int l = 0; l < kLanes; l++) {
          const Lanes* row = z + 2 * kStreams + a * kStreams;
          const float top =
              std::max(std::max(row[0].v[l], row[1].v[l]), std::max(row[2].v[l], row[3].v[l]));
          float e[kStreams], sum = 0;
          for (int b = 0; b < kStreams; b++) {
            sum += e[b] = fast_exp(row[b].v[l] - top);
          }
          for (int b = 0; b < kStreams; b++) {
            soft[a * kStreams + b].v[l] = e[b] / sum;
          }
        }
      }
      Lanes* at = state.data() + kStreams * kStreams;
      for (int k = 0; k < kStreams * kStreams; k++) {
        for (int l = 0; l < kLanes; l++) {
          at[k].v[l] = soft[k].v[l] + eps;
        }
      }
      int step = 0;
      for (int i = 0; i < iters; i++) {
        if (i) {
          normalise(at, at + 16, &inverse[4 * step], 1, kStreams, eps);  // sums along a row
          at += 16, step++;
        }
        normalise(at, at + 16, &inverse[4 * step], kStreams, 1, eps);  // sums along a column
        at += 16, step++;
      }
      if (!gcomb) {
        for (int l = 0; l < kLanes && g * kLanes + l < n; l++) {
          const long t = g * kLanes + l;
          for (int k = 0; k < kStreams; k++) {
            pre[t * kStreams + k] = z[k].v[l] + eps;
            post[t * kStreams + k] = 2 * z[kStreams + k].v[l];
          }
          for (int k = 0; k < 16; k++) {
            comb[t * 16 + k] = at[k].v[l];
          }
        }
        continue;
      }
      Lanes gz[kMix];
      for (int l = 0; l < kLanes; l++) {
        const bool real = g * kLanes + l < n;
        const long t = real ? g * kLanes + l : 0;
        for (int k = 0; k < kStreams; k++) {
          gz[k].v[l] = real ? gpre[t * kStreams + k] : 0;
          gz[kStreams + k].v[l] = real ? 2 * gpost[t * kStreams + k] : 0;
        }
        for (int k = 0; k < 16; k++) {
          gz[2 * kStreams + k].v[l] = real ? gcomb[t * 16 + k] : 0;
        }
      }
      for (int k = 0; k < 2 * kStreams; k++) {
        for (int l = 0; l < kLanes; l++) {
          gz[k].v[l] *= z[k].v[l] * (1 - z[k].v[l]);
        }
      }
      Lanes* gc = gz + 2 * kStreams;
      for (int i = iters - 1; i >= 0; i--) {
        step--;
        normalise_back(gc, at, &inverse[4 * step], kStreams, 1);
        at -= 16;
        if (i) {
          step--;
          normalise_back(gc, at, &inverse[4 * step], 1, kStreams);
          at -= 16;
        }
      }
      for (int a = 0; a < kStreams; a++) {
        for (int l = 0; l < kLanes; l++) {
          float dot = 0;
          for (int b = 0; b < kStreams; b++) {
            dot += gc[a * kStreams + b].v[l] * soft[a * kStreams + b].v[l];
          }
          for (int b = 0; b < kStreams; b++) {
            gc[a * kStreams + b].v[l] =
                soft[a * kStreams + b].v[l] * (gc[a * kStreams + b].v[l] - dot);
          }
        }
      }
      Lanes grr{};
      for (int k = 0; k < kMix; k++) {
        const int part = k < kStreams ? 0 : k < 2 * kStreams ? 1 : 2;
        for (int l = 0; l < kLanes; l++) {
          const float v = gz[k].v[l];
          my_base[k] += v;
          my_scale[part] += v * raw[k].v[l] * rr.v[l];
          grr.v[l] += v * scale[part] * raw[k].v[l];
          gz[k].v[l] = v * scale[part] * rr.v[l];
        }
      }
      for (int l = 0; l < kLanes && g * kLanes + l < n; l++) {
        const long t = g * kLanes + l;
        gr[t] = grr.v[l];
        for (int k = 0; k < kMix; k++) {
          gmix[t * kMix + k] = gz[k].v[l];
        }
      }
    }
    if (gcomb) {
#pragma omp critical
      {
        for (int k = 0; k < kMix; k++) {
          gbase[k] += my_base[k];
        }
        for (int k = 0; k < 3; k++) {
          gscale[k] += my_scale[k];
        }
      }
    }
  }
}

// Gradient of site_forward: gX (written), gpre (written), gnorm (added).  gr = gradient of r.
void site_backward(const float* X,
                   const float* pre,
                   const float* norm,
                   const float* r,
                   const float* rc,
                   const float* gx,
                   const float* gr,
                   float* gX,
                   float* gpre,
                   float* gnorm,
                   long n,
                   long h) {
#pragma omp parallel
  {
    std::vector<float> my_norm(h, 0.0f), c(h), gc(h);
#pragma omp for schedule(static)
    for (long t = 0; t < n; t++) {
      const float* Xt = X + t * kStreams * h;
      const float* p = pre + t * kStreams;
      const float* g = gx + t * h;
      float dot = 0;
      for (long i = 0; i < h; i++) {
        c[i] = p[0] * Xt[i] + p[1] * Xt[h + i] + p[2] * Xt[2 * h + i] + p[3] * Xt[3 * h + i];
        gc[i] = g[i] * norm[i];
        my_norm[i] += g[i] * c[i] * rc[t];
        dot += gc[i] * c[i];
      }
      const float k = dot * rc[t] * rc[t] * rc[t] / h;
      const float all = -gr[t] * r[t] * r[t] * r[t] / (kStreams * h);
      float gp[kStreams] = {};
      for (long i = 0; i < h; i++) {
        gc[i] = gc[i] * rc[t] - c[i] * k;
      }
      for (int j = 0; j < kStreams; j++) {
        const float* Xj = Xt + j * h;
        float* out = gX + (t * kStreams + j) * h;
        float s = 0;
        for (long i = 0; i < h; i++) {
          s += gc[i] * Xj[i];
          out[i] = p[j] * gc[i] + all * Xj[i];
        }
        gp[j] = s;
      }
      for (int j = 0; j < kStreams; j++) {
        gpre[t * kStreams + j] = gp[j];
      }
    }
#pragma omp critical
    for (long i = 0; i < h; i++) {
      gnorm[i] += my_norm[i];
    }
  }
}

// out_k = post_k y + sum_j comb[j, k] X_j.
void expand_forward(const float* y,
                    const float* X,
                    const float* post,
                    const float* comb,
                    float* out,
                    long n,
                    long h) {
#pragma omp parallel for schedule(static)
  for (long t = 0; t < n; t++) {
    const float* Xt = X + t * kStreams * h;
    const float* yt = y + t * h;
    for (int k = 0; k < kStreams; k++) {
      const float *c = comb + t * 16 + k, p = post[t * kStreams + k];
      float* o = out + (t * kStreams + k) * h;
      const float c0 = c[0], c1 = c[4], c2 = c[8], c3 = c[12];
      for (long i = 0; i < h; i++) {
        o[i] = p * yt[i] + c0 * Xt[i] + c1 * Xt[h + i] + c2 * Xt[2 * h + i] + c3 * Xt[3 * h + i];
      }
    }
  }
}

void expand_backward(const float* y,
                     const float* X,
                     const float* post,
                     const float* comb,
                     const float* g,
                     float* gy,
                     float* gX,
                     float* gpost,
                     float* gcomb,
                     long n,
                     long h) {
#pragma omp parallel for schedule(static)
  for (long t = 0; t < n; t++) {
    const float *Xt = X + t * kStreams * h, *gt = g + t * kStreams * h, *yt = y + t * h,
                *p = post + t * kStreams, *c = comb + t * 16;
    float* gyt = gy + t * h;
    float sp[kStreams] = {};
    for (long i = 0; i < h; i++) {
      const float a = gt[i], b = gt[h + i], e = gt[2 * h + i], d = gt[3 * h + i];
      gyt[i] = p[0] * a + p[1] * b + p[2] * e + p[3] * d;
      sp[0] += yt[i] * a, sp[1] += yt[i] * b, sp[2] += yt[i] * e, sp[3] += yt[i] * d;
    }
    for (int k = 0; k < kStreams; k++) {
      gpost[t * kStreams + k] = sp[k];
    }
    for (int j = 0; j < kStreams; j++) {
      const float* Xj = Xt + j * h;
      float* o = gX + (t * kStreams + j) * h;
      const float c0 = c[j * 4], c1 = c[j * 4 + 1], c2 = c[j * 4 + 2], c3 = c[j * 4 + 3];
      float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      for (long i = 0; i < h; i++) {
        const float a = gt[i], b = gt[h + i], e = gt[2 * h + i], d = gt[3 * h + i], x = Xj[i];
        o[i] = c0 * a + c1 * b + c2 * e + c3 * d;
        s0 += x * a, s1 += x * b, s2 += x * e, s3 += x * d;
      }
      gcomb[t * 16 + j * 4] = s0, gcomb[t * 16 + j * 4 + 1] = s1, gcomb[t * 16 + j * 4 + 2] = s2,
                         gcomb[t * 16 + j * 4 + 3] = s3;
    }
  }
}

// Attention of each position over the last `window` rows of kv and the closed groups of `rows`,
// both within its document. q [b, t, heads, d] scaled, kv [b, t, d], rows [b, t / ratio, d] (ratio
// 0: none), start [b, t] int64, sink [heads]; selected [b, t, t / ratio] bytes, only these groups
// are seen (null: all); out like q, lse [b, t, heads]; mass [b, t, t / ratio] (or null, zeroed by
// the caller): the probability of each group summed over heads. d is a multiple of 16.
void attend_forward(const float* q,
                    const float* kv,
                    const float* rows,
                    const std::int64_t* start,
                    const float* sink,
                    const std::uint8_t* selected,
                    float* out,
                    float* lse,
                    float* mass,
                    long batch,
                    long T,
                    int heads,
                    int d,
                    int window,
                    int ratio) {
  const Attention a{q, kv, rows, start, sink, selected, batch, T, heads, d, window, ratio};
  if (heads == 4 && d == 64) {
    forward<4, 64>(a, out, lse, mass);
  } else {
    forward<0, 0>(a, out, lse, mass);
  }
}

// gq written; gkv, grows, gsink added (zeroed by the caller).
void attend_backward(const float* q,
                     const float* kv,
                     const float* rows,
                     const std::int64_t* start,
                     const float* sink,
                     const std::uint8_t* selected,
                     const float* out,
                     const float* lse,
                     const float* g,
                     float* gq,
                     float* gkv,
                     float* grows,
                     float* gsink,
                     long batch,
                     long T,
                     int heads,
                     int d,
                     int window,
                     int ratio) {
  const Attention a{q, kv, rows, start, sink, selected, batch, T, heads, d, window, ratio};
  const Gradients to{out, lse, g, gq, gkv, grows, gsink};
  if (heads == 4 && d == 64) {
    backward<4, 64>(a, to);
  } else {
    backward<0, 0>(a, to);
  }
}

// silu(min(gate, limit)) * clamp(up) * weight; rows of gate and up lie `stride` apart.  weight may
// be null.
void swiglu_forward(const float* gate,
                    const float* up,
                    const float* weight,
                    float* out,
                    long n,
                    long width,
                    long stride,
                    float limit) {
#pragma omp parallel for schedule(static)
  for (long t = 0; t < n; t++) {
    const float *g = gate + t * stride, *u = up + t * stride, w = weight ? weight[t] : 1.0f;
    float* o = out + t * width;
    for (long i = 0; i < width; i++) {
      const float a = std::min(g[i], limit);
      o[i] = a * sigmoid(a) * std::min(std::max(u[i], -limit), limit) * w;
    }
  }
}

void swiglu_backward(const float* gate,
                     const float* up,
                     const float* weight,
                     const float* go,
                     float* gg,
                     float* gu,
                     float* gw,
                     long n,
                     long width,
                     long stride,
                     long out_stride,
                     float limit) {
#pragma omp parallel for schedule(static)
  for (long t = 0; t < n; t++) {
    const float *g = gate + t * stride, *u = up + t * stride, *o = go + t * width,
                w = weight ? weight[t] : 1.0f;
    float *a_out = gg + t * out_stride, *u_out = gu + t * out_stride, sum = 0;
    for (long i = 0; i < width; i++) {
      const float a = std::min(g[i], limit), s = sigmoid(a), silu = a * s,
                  c = std::min(std::max(u[i], -limit), limit);
      sum += o[i] * silu * c;
      a_out[i] = g[i] < limit ? o[i] * w * c * (s + silu * (1 - s)) : 0.0f;
      u_out[i] = std::fabs(u[i]) < limit ? o[i] * w * silu : 0.0f;
    }
    if (gw) {
      gw[t] = sum;
    }
  }
}

void rms_forward(
    const float* x, const float* weight, float* y, float* r, long n, long width, float eps) {
#pragma omp parallel for schedule(static)
  for (long t = 0; t < n; t++) {
    const float* a = x + t * width;
    float s = 0;
    for (long i = 0; i < width; i++) {
      s += a[i] * a[i];
    }
    const float k = r[t] = 1.0f / std::sqrt(s / width + eps);
    for (long i = 0; i < width; i++) {
      y[t * width + i] = a[i] * k * weight[i];
    }
  }
}

void rms_backward(const float* x,
                  const float* weight,
                  const float* r,
                  const float* g,
                  float* gx,
                  float* gweight,
                  long n,
                  long width) {
#pragma omp parallel
  {
    std::vector<float> mine(width, 0.0f);
#pragma omp for schedule(static)
    for (long t = 0; t < n; t++) {
      const float *a = x + t * width, *b = g + t * width;
      float dot = 0;
      for (long i = 0; i < width; i++) {
        dot += b[i] * weight[i] * a[i];
        mine[i] += b[i] * a[i] * r[t];
      }
      const float k = dot * r[t] * r[t] * r[t] / width;
      for (long i = 0; i < width; i++) {
        gx[t * width + i] = b[i] * weight[i] * r[t] - a[i] * k;
      }
    }
#pragma omp critical
    for (long i = 0; i < width; i++) {
      gweight[i] += mine[i];
    }
  }
}

// Rotates the last 2 * pairs channels of rows [n, width]; row i uses line (i / repeat) % period of
// cos and sin; sign -1 turns back.
void rope_rows(const float* x,
               const float* cosine,
               const float* sine,
               float* y,
               long n,
               long width,
               long pairs,
               long repeat,
               long period,
               float sign) {
#pragma omp parallel for schedule(static)
  for (long t = 0; t < n; t++) {
    const long line = (t / repeat) % period, plain = width - 2 * pairs;
    const float *a = x + t * width, *c = cosine + line * pairs, *s = sine + line * pairs;
    float* o = y + t * width;
    for (long i = 0; i < plain; i++) {
      o[i] = a[i];
    }
    for (long i = 0; i < pairs; i++) {
      const float e = a[plain + 2 * i], f = a[plain + 2 * i + 1], sn = sign * s[i];
      o[plain + 2 * i] = e * c[i] - f * sn;
      o[plain + 2 * i + 1] = e * sn + f * c[i];
    }
  }
}

}  // extern "C"

namespace {

inline float from_bits(std::uint32_t b) {
  float f;
  std::memcpy(&f, &b, 4);
  return f;
}

inline std::uint32_t to_bits(float f) {
  std::uint32_t b;
  std::memcpy(&b, &f, 4);
  return b;
}

inline float pow2_ceil(float v) {
  const std::uint32_t b = to_bits(v);
  return from_bits(((b >> 23) + ((b & 0x7FFFFF) != 0)) << 23);
}

// Nearest E4M3 value, ties to even, |v| <= 448.
inline float round_e4m3(float v) {
  const std::uint32_t b = to_bits(v);
  const float normal = from_bits((b + 0x7FFFF + ((b >> 20) & 1)) & ~0xFFFFFu);
  const float small = std::nearbyint(v * 512.0f) * (1.0f / 512.0f);
  return std::fabs(v) < 0.015625f ? small : normal;
}

inline float round_e2m1(float v) {
  const float a = std::fabs(v), step = a < 2 ? 0.5f : a < 4 ? 1.0f : 2.0f;
  return std::copysign(std::nearbyint(a / step) * step, v);
}

}  // namespace

extern "C" {

// kind 8: E4M3, power-of-two scale; 4: E2M1, power-of-two scale; 41: E2M1, E4M3 scale.  n blocks of
// `block` values.
void fake_quantise(const float* x, float* y, long n, long block, int kind) {
#pragma omp parallel for schedule(static)
  for (long t = 0; t < n; t++) {
    const float* a = x + t * block;
    float* o = y + t * block;
    float top = 0;
    for (long i = 0; i < block; i++) {
      top = std::max(top, std::fabs(a[i]));
    }
    if (kind == 8) {
      const float s = pow2_ceil(std::max(top, 1e-4f) * (1.0f / 448)), inverse = 1.0f / s;
      for (long i = 0; i < block; i++) {
        o[i] = round_e4m3(std::min(std::max(a[i] * inverse, -448.0f), 448.0f)) * s;
      }
    } else {
      const float s = kind == 4 ? pow2_ceil(std::max(top, 6 * 0x1p-126f) * (1.0f / 6))
                                : round_e4m3(std::max(top, 6 * 0x1p-9f) / 6);
      for (long i = 0; i < block; i++) {
        o[i] = round_e2m1(std::min(std::max(a[i] / s, -6.0f), 6.0f)) * s;
      }
    }
  }
}

}  // extern "C"
