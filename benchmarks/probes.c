/* How fast this machine is right now: fused multiply-adds from registers, and copies between buffers. */
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#if defined(__x86_64__)
#define REGISTER(x) "+v"(x)
#else
#define REGISTER(x) "+w"(x)
#endif
typedef float Vector __attribute__((vector_size(BYTES)));

/* Twelve independent chains: a latency of four on two ports, and some to spare. */
#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define START(i) Vector c##i = (Vector){} + (float)(i + 1);
#define STEP(i) c##i = c##i * factor + term;
#define KEEP(i) __asm__ volatile("" : REGISTER(c##i)); /* no step is left out, and none is computed ahead */
#define SUM(i) sum += c##i[0];

/* GFLOP/s of `threads` threads together, each running `steps` steps of twelve multiply-adds. */
double fma_rate(int threads, long steps) {
  double sum = 0, start = omp_get_wtime();
#pragma omp parallel num_threads(threads) reduction(+ : sum)
  {
    Vector factor = (Vector){} + 0.999f, term = (Vector){} + 0.001f;
    EACH(START)
    for (long step = 0; step < steps; step++) {
      EACH(STEP)
      EACH(KEEP)
    }
    EACH(SUM)
  }
  double seconds = omp_get_wtime() - start;
  return sum == 0 ? 0 : 2.0 * 12 * (BYTES / 4) * steps * threads / seconds * 1e-9;
}

static void stream(char *to, const char *from, size_t bytes) {
#if defined(__AVX512F__)
  for (size_t i = 0; i < bytes; i += 64) _mm512_stream_si512((void *)(to + i), _mm512_load_si512((void *)(from + i)));
  _mm_sfence();
#elif defined(__SSE2__)
  for (size_t i = 0; i < bytes; i += 16) _mm_stream_si128((void *)(to + i), _mm_load_si128((void *)(from + i)));
  _mm_sfence();
#else
  memcpy(to, from, bytes);
#endif
}

/* GB/s read and written by `threads` threads together, each copying between two buffers of its own, `repeat` times; the
   better of plain and non-temporal stores. `footprint`: bytes of all buffers together. Negative where memory is short. */
double copy_rate(int threads, size_t footprint, int repeat) {
  size_t each = footprint / (2 * threads) / 64 * 64;
  char *memory = aligned_alloc(64, 2 * each * threads);
  if (!memory) return -1;
  double best = 0;
#pragma omp parallel num_threads(threads)
  memset(memory + 2 * each * omp_get_thread_num(), 1, 2 * each);
  for (int streaming = 0; streaming < 2; streaming++) {
    double start = omp_get_wtime();
#pragma omp parallel num_threads(threads)
    {
      char *mine = memory + 2 * each * omp_get_thread_num();
      for (int i = 0; i < repeat; i++) {
        if (streaming) stream(mine + each, mine, each);
        else memcpy(mine + each, mine, each);
        __asm__ volatile("" ::: "memory");
      }
    }
    double rate = 2.0 * each * threads * repeat / (omp_get_wtime() - start) * 1e-9;
    if (rate > best) best = rate;
  }
  free(memory);
  return best;
}

/* GB/s of `threads` threads together, each reading a buffer of its own, `repeat` times; they were read before. */
double read_rate(int threads, size_t footprint, int repeat) {
  size_t each = footprint / threads / 256 * 256;
  char *memory = aligned_alloc(64, each * threads);
  if (!memory) return -1;
  double start = 0, sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
  {
    char *mine = memory + each * omp_get_thread_num();
    memset(mine, 0, each);
    Vector total[4] = {{0}, {0}, {0}, {0}};
#pragma omp barrier
#pragma omp single
    start = omp_get_wtime();
    for (int i = 0; i < repeat; i++)
      for (size_t at = 0; at < each; at += 4 * BYTES)
        for (int k = 0; k < 4; k++) total[k] += *(Vector *)(mine + at + k * BYTES);
    for (int k = 0; k < 4; k++) sum += total[k][0];
  }
  double seconds = omp_get_wtime() - start;
  free(memory);
  return sum == 0 ? (double)each * threads * repeat / seconds * 1e-9 : 0;
}

/* A kernel of the runtime that does nothing. */
void nothing(void *const *buffers, const int64_t *symbols, int64_t begin, int64_t end, char *scratch, int64_t *status) {
  (void)buffers, (void)symbols, (void)begin, (void)end, (void)scratch, (void)status;
}
