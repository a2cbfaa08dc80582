/* The memory-bound workloads in one pass each, as one would write them by hand: rows or chunks go to threads, and vector
   functions are the C library's. Operands are passed as the workload has them: inputs, then parameters. */
#include <math.h>

typedef const float *restrict In;
typedef float *restrict Out;

void chain20(const float **in, float **out, const long *sizes) {
  In x = in[0], y = in[1];
  Out z = out[0];
#pragma omp parallel for simd schedule(static)
  for (long i = 0; i < sizes[0]; i++) {
    float t = (x[i] + y[i]) * 0.5f - y[i];
    t = fabsf(fmaxf(t, 0) + x[i]);
    t = fmaxf(t, y[i]) * x[i] - 1.25f;
    t = fminf(t, x[i]) * y[i] + 0.125f;
    t = x[i] - fmaxf(t, 0);
    t = fabsf(t * 0.75f) - x[i];
    z[i] = fmaxf(t, y[i]) + y[i];
  }
}

void gelu_bias_mul(const float **in, float **out, const long *sizes) {
  long width = sizes[1];
#pragma omp parallel for schedule(static)
  for (long row = 0; row < sizes[0]; row++) {
    In x = in[0] + row * width, bias = in[1], gate = in[2] + row * width;
    Out z = out[0] + row * width;
#pragma omp simd
    for (long i = 0; i < width; i++) {
      float t = x[i] + bias[i];
      z[i] = 0.5f * t * (1 + tanhf(0.7978845608f * (t + 0.044715f * t * t * t))) * gate[i];
    }
  }
}

void silu_gate(const float **in, float **out, const long *sizes) {
  In x = in[0], y = in[1];
  Out z = out[0];
#pragma omp parallel for simd schedule(static)
  for (long i = 0; i < sizes[0] * sizes[1]; i++) z[i] = x[i] / (1 + expf(-x[i])) * y[i];
}

void softmax(const float **in, float **out, const long *sizes) {
  long width = sizes[1];
#pragma omp parallel for schedule(static)
  for (long row = 0; row < sizes[0]; row++) {
    In x = in[0] + row * width;
    Out z = out[0] + row * width;
    float largest = -INFINITY, sum = 0;
#pragma omp simd reduction(max : largest)
    for (long i = 0; i < width; i++) largest = fmaxf(largest, x[i]);
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < width; i++) sum += z[i] = expf(x[i] - largest);
    float scale = 1 / sum;
#pragma omp simd
    for (long i = 0; i < width; i++) z[i] *= scale;
  }
}

void layernorm_gelu(const float **in, float **out, const long *sizes) {
  long width = sizes[1];
#pragma omp parallel for schedule(static)
  for (long row = 0; row < sizes[0]; row++) {
    In x = in[0] + row * width, scale = in[1], shift = in[2];
    Out z = out[0] + row * width;
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < width; i++) sum += x[i];
    float mean = sum / width;
#pragma omp simd reduction(+ : squares)
    for (long i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
    float factor = 1 / sqrtf(squares / width + 1e-5f);
#pragma omp simd
    for (long i = 0; i < width; i++) {
      float t = (x[i] - mean) * factor * scale[i] + shift[i];
      z[i] = 0.5f * t * (1 + erff(t * 0.7071067812f));
    }
  }
}

void rmsnorm_residual(const float **in, float **out, const long *sizes) {
  long width = sizes[1];
#pragma omp parallel for schedule(static)
  for (long row = 0; row < sizes[0]; row++) {
    In x = in[0] + row * width, residual = in[1] + row * width, scale = in[2];
    Out normed = out[0] + row * width, total = out[1] + row * width;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (long i = 0; i < width; i++) {
      total[i] = x[i] + residual[i];
      squares += total[i] * total[i];
    }
    float factor = 1 / sqrtf(squares / width + 1e-6f);
#pragma omp simd
    for (long i = 0; i < width; i++) normed[i] = total[i] * factor * scale[i];
  }
}

void adamw(const float **in, float **out, const long *sizes) {
  In p = in[0], g = in[1], m = in[2], v = in[3];
  Out p2 = out[0], m2 = out[1], v2 = out[2];
  const float rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, decay = 0.01;
  const float step = rate / (1 - pow(0.9, 10)), root = 1 / sqrt(1 - pow(0.999, 10));
#pragma omp parallel for simd schedule(static)
  for (long i = 0; i < sizes[0]; i++) {
    float a = m[i] * beta1 + g[i] * (1 - beta1), b = v[i] * beta2 + g[i] * g[i] * (1 - beta2);
    p2[i] = p[i] * (1 - rate * decay) - step * a / (sqrtf(b) * root + epsilon);
    m2[i] = a;
    v2[i] = b;
  }
}
