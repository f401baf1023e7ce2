// Chunks of work over XLA's thread pool, without ever waiting for a task that has not started.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>

#include "xla/ffi/api/ffi.h"

namespace jax_softmax::cpu {

// Calls work(i) for every i below `chunks`, and returns when all are done.
//
// Waiting for scheduled tasks deadlocks once every pool thread runs a handler that waits. So the
// caller claims chunks itself, through the same counter as the tasks that come to help, and waits
// only for chunks that some thread is already working on.
template <typename Work>
void ParallelFor(xla::ffi::ThreadPool& pool, int64_t chunks, const Work& work) {
  struct Shared {
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> done{0};
    int64_t chunks;
    int64_t threads;
    const Work* work;  // outlives every claimed chunk, not a helper that comes too late

    // The claimth of all chunks: those claimed one after another, by different threads, lie far
    // apart. As neighbours they would meet on new pages, which one thread at a time can clear.
    int64_t Chunk(int64_t claim) const {
      const int64_t part = claim % threads;
      return chunks / threads * part + std::min(part, chunks % threads) + claim / threads;
    }

    void Help() {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) {
        (*work)(Chunk(i));
        if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == chunks) done.notify_all();
      }
    }
  };
  const int64_t helpers = std::min(pool.num_threads(), chunks) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < chunks; ++i) work(i);
    return;
  }
  const auto shared = std::make_shared<Shared>();
  shared->chunks = chunks;
  shared->threads = helpers + 1;
  shared->work = &work;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([shared] { shared->Help(); });
  shared->Help();
  for (int64_t done; (done = shared->done.load(std::memory_order_acquire)) < chunks;) {
    shared->done.wait(done, std::memory_order_acquire);
  }
}

}  // namespace jax_softmax::cpu
