/* Made by tunefarm. A model as C functions; link with the library and -lpthread.
 *
@ports@
 *
 *   static @model@_session session;
 *   if (@model@_start(&session, 4)) return 1;      // threads, the caller's among them
 *   const void *inputs[] = {x};  void *outputs[] = {y};
 *   @model@_call(&session, inputs, outputs);
 *   @model@_stop(&session);
 *
 * Every input and output is dense and row-major. Outputs are 64-byte aligned; inputs are read
 * fastest if they are, and have to be aligned to their elements. One session serves one call at a
 * time; sessions are independent. No more than @cores@ threads share a large convolution.
 */
#ifndef @MODEL@_H
#define @MODEL@_H

#ifndef __wasm__ /* which has one thread here */
#include <pthread.h>
#endif
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__) && defined(__linux__)
#include <unistd.h>
#endif

#if defined(__STRICT_ANSI__) && !defined(__cplusplus)
int posix_memalign(void **memory, size_t alignment, size_t bytes); /* -std=c11 and such hide it */
#if defined(__x86_64__) && defined(__linux__)
long syscall(long number, ...);
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define @MODEL@_INPUTS @input_count@
#define @MODEL@_OUTPUTS @output_count@
#define @MODEL@_MEMORY_BYTES @memory_bytes@ /* the peak of a call, beside weights and arguments */
#define @MODEL@_POOL_BYTES @pool_bytes@
#define @MODEL@_POOL_ALIGNMENT @pool_alignment@
#define @MODEL@_MAX_THREADS 64
#define @MODEL@_SPIN_TICKS 3000000 /* about a millisecond of an idle thread's patience */

/* Run the model. pool may be NULL (one thread); memory is @MODEL@_MEMORY_BYTES bytes, 64-byte
 * aligned, for this call alone. Returns 0, or 1 on a processor whose vectors are shorter than the
 * code's (RISC-V). */
int32_t @model@_run(void *pool, void *memory, const void *weights, const void *const *inputs,
                    void *const *outputs);
void @model@_worker_main(void *pool);
void @model@_pool_shutdown(void *pool);
int64_t @model@_pool_spin(void *pool, int64_t ticks);
int64_t @model@_ticks(void);
const void *@model@_weights(void);  /* the weights, mapped from the library */
const char *@model@_metadata(void); /* JSON */

typedef struct {
  void *pool;
  void *memory;
  int workers;
#ifndef __wasm__
  pthread_t threads[@MODEL@_MAX_THREADS];
#endif
} @model@_session;

#ifndef __wasm__
static inline void *@model@_thread(void *pool) {
  @model@_worker_main(pool);
  return NULL;
}
#endif

static inline void @model@_stop_threads(@model@_session *session) {
#ifndef __wasm__
  int i;
  if (session->pool) @model@_pool_shutdown(session->pool);
  for (i = 0; i < session->workers; i++) pthread_join(session->threads[i], NULL);
#endif
  free(session->pool);
  session->pool = NULL;
  session->workers = 0;
}

static inline void @model@_stop(@model@_session *session) {
  @model@_stop_threads(session);
  free(session->memory);
  session->memory = NULL;
}

/* Let another number of threads run the next calls; the results do not depend on it. Not during a
 * call. Returns 0, or -1 if they cannot be had: then the caller's thread runs alone. */
static inline int @model@_set_threads(@model@_session *session, int threads) {
#ifndef __wasm__
  int i;
#endif
  @model@_stop_threads(session);
  if (threads <= 1) return 0;
#ifndef __wasm__
  if (threads > @MODEL@_MAX_THREADS) threads = @MODEL@_MAX_THREADS;
  if (posix_memalign(&session->pool, @MODEL@_POOL_ALIGNMENT, @MODEL@_POOL_BYTES)) {
    session->pool = NULL;
    return -1;
  }
  memset(session->pool, 0, @MODEL@_POOL_BYTES);
  @model@_pool_spin(session->pool, @MODEL@_SPIN_TICKS);
  for (i = 0; i < threads - 1; i++) {
    if (pthread_create(&session->threads[i], NULL, @model@_thread, session->pool)) {
      @model@_stop_threads(session);
      return -1;
    }
    session->workers = i + 1;
  }
#endif
  return 0;
}

/* Returns 0, or -1 if memory or threads cannot be had. */
static inline int @model@_start(@model@_session *session, int threads) {
  memset(session, 0, sizeof *session);
#if defined(__x86_64__) && defined(__linux__)
  syscall(158, 0x1023, 18); /* Linux gives tile registers (AMX) to processes that ask */
#endif
  if (posix_memalign(&session->memory, 4096, @MODEL@_MEMORY_BYTES)) {
    session->memory = NULL;
    return -1;
  }
  if (@model@_set_threads(session, threads) == 0) return 0;
  @model@_stop(session);
  return -1;
}

static inline int @model@_call(@model@_session *session, const void *const *inputs,
                               void *const *outputs) {
  return @model@_run(session->pool, session->memory, @model@_weights(), inputs, outputs);
}

#ifdef __cplusplus
}
#endif

#endif
