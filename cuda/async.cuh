// Copies and messages that arrive by themselves, and the barriers that count their bytes (sm_90).
//
// A message between blocks brings its own signal. A barrier of the cluster would first wait until
// every store of its threads is visible to the whole device.
#pragma once

#include <cstdint>

#include "plan.h"

namespace jax_softmax::JS_ISA {

__device__ __forceinline__ unsigned SharedAddress(const void* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

// In shared memory. Its phases are awaited by turns, as parity 0, 1, 0, …
class ByteBarrier {
 public:
  // By one thread, before any other's first use: see PublishBarriers. A phase takes so many
  // arrivals.
  __device__ __forceinline__ void Init(int arrivals = 1) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(Address()), "r"(arrivals)
                 : "memory");
  }
  __device__ __forceinline__ void Arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(Address()) : "memory");
  }
  // An arrival, after which the phase ends when so many bytes have come too.
  __device__ __forceinline__ void Expect(unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Address()),
                 "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void Await(unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(Address()),
        "r"(parity)
        : "memory");
  }
  __device__ __forceinline__ unsigned Address() const { return SharedAddress(&state_); }

 private:
  uint64_t state_;
};

// Makes fresh barriers known to copies, and to the cluster's blocks when they have met.
__device__ __forceinline__ void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One vector as by __pipeline_memcpy_async, with its whole line of the cache: other blocks will
// want the rest.
__device__ __forceinline__ void CopyVectorOfLine(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], %2;" ::"r"(SharedAddress(to)),
               "l"(from), "n"(kVectorBytes)
               : "memory");
#else
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
#endif
}

// Of whole vectors, from and to their alignment.
__device__ __forceinline__ void CopyToShared(void* to, const void* from, unsigned bytes,
                                             ByteBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(SharedAddress(to)),
      "l"(from), "r"(bytes), "r"(barrier.Address())
      : "memory");
}

// Orders this thread's accesses to shared memory before later copies to it.
__device__ __forceinline__ void FenceCopies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// How many of `packs` vectors from `offset` on are to be copied: those that the operand has whole.
template <typename W, typename Load>
__device__ __forceinline__ int CopiedPacks(const Load& load, int64_t offset, int packs) {
  if constexpr (W::kWhole) return packs;
  const int64_t left = load.elements - offset;
  return static_cast<int>(min(int64_t{packs}, max(left, int64_t{0}) / W::kVector));
}

// What blocks tell each other: any trivially copyable value.
template <typename V>
struct alignas(kVectorBytes) Message {
  static constexpr int kVectors = (sizeof(V) + kVectorBytes - 1) / kVectorBytes;
  union {
    V value;
    uint4 vector[kVectors];
  };
  __device__ __forceinline__ Message() {}
  __device__ __forceinline__ explicit Message(const V& v) : value(v) {}
};

// Writes `message` to `place` in another block's shared memory, and counts it at its `barrier`.
template <typename V>
__device__ __forceinline__ void Send(const Message<V>& message, const Message<V>& place,
                                     const ByteBarrier& barrier, int rank) {
  unsigned to, signal;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(SharedAddress(&place)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(signal) : "r"(barrier.Address()), "r"(rank));
#pragma unroll
  for (int i = 0; i < Message<V>::kVectors; ++i) {
    const uint4 v = message.vector[i];
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(to + i * kVectorBytes),
        "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(signal)
        : "memory");
  }
}

}  // namespace jax_softmax::JS_ISA
