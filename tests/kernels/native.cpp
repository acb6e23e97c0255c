// Kernels for tests. Each takes contiguous float32 memory.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

extern "C" {

// c = a @ b, in tiles; a is m x k, b is k x n.
void matmul(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n) {
  constexpr int64_t T = 32;
  std::fill(c, c + m * n, 0.0f);
  for (int64_t i0 = 0; i0 < m; i0 += T)
    for (int64_t p0 = 0; p0 < k; p0 += T)
      for (int64_t j0 = 0; j0 < n; j0 += T)
        for (int64_t i = i0; i < std::min(i0 + T, m); ++i)
          for (int64_t p = p0; p < std::min(p0 + T, k); ++p) {
            const float x = a[i * k + p];
            for (int64_t j = j0; j < std::min(j0 + T, n); ++j) c[i * n + j] += x * b[p * n + j];
          }
}

// Softmax of each row.
void softmax(const float* x, float* y, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r, x += columns, y += columns) {
    float most = -std::numeric_limits<float>::infinity();
    for (int64_t c = 0; c < columns; ++c) most = std::isnan(x[c]) ? x[c] : std::max(most, x[c]);
    double sum = 0;
    for (int64_t c = 0; c < columns; ++c) sum += y[c] = std::exp(x[c] - most);
    for (int64_t c = 0; c < columns; ++c) y[c] = static_cast<float>(y[c] / sum);
  }
}

// Layer norm of each row.
void layer_norm(const float* x, const float* w, const float* b, float* y, int64_t rows,
                int64_t columns, double eps) {
  for (int64_t r = 0; r < rows; ++r, x += columns, y += columns) {
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < columns; ++c) mean += x[c];
    mean /= columns;
    for (int64_t c = 0; c < columns; ++c) variance += (x[c] - mean) * (x[c] - mean);
    const double scale = 1.0 / std::sqrt(variance / columns + eps);
    for (int64_t c = 0; c < columns; ++c)
      y[c] = static_cast<float>((x[c] - mean) * scale * w[c] + b[c]);
  }
}

// max(x, 0); reads `more` elements past the end, and from `before` elements before the start on.
void relu(const float* x, float* y, int64_t n, int64_t before, int64_t more) {
  volatile float sink = 0;
  for (int64_t i = -before; i < 0; ++i) sink = sink + x[i];
  for (int64_t i = n; i < n + more; ++i) sink = sink + x[i];
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] > 0 || std::isnan(x[i]) ? x[i] : 0.0f;
}

// Writes zeros after the last element, up to a multiple of 8 elements.
void pad(float* x, int64_t n) {
  for (int64_t i = n; i % 8; ++i) x[i] = 0;
}
}
