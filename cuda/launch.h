// What a handler needs to start a kernel: no device code, no template arguments.
#pragma once

#include <cuda_runtime_api.h>

#include "absmax.h"
#include "broadcast.h"
#include "cross_entropy.h"
#include "plan.h"

namespace jax_softmax {

// Two values for each row, of which the maxima are the output: logsumexp's terms, or those that the
// elements of softmax or log-softmax are made of, of 16 bits in float32 or, of log-softmax, of
// float32 itself (ops/row_pairs.h). Or three, that both are made of.
struct PairsOfRows {
  void* seconds = nullptr;  // none if there is one value for each row
  OpKind of = OpKind::kLogSumExp;
  void* factors = nullptr;  // of log-softmax's, none if softmax's are not wanted too
};

struct Call {
  const void* inputs[kMaxInputs];
  void* output;
  void* workspace;
  Problem problem;
  Plan plan;
  Terms terms = {};               // of ops that take them
  double scale = 1;               // of softmax_tangent, or of logits
  bool zeros_are_masked = false;  // in softmax_tangent
  PairsOfRows pairs = {};         // of logsumexp
};

// Starts the planned kernel on `stream`; returns what CUDA said, cudaErrorInvalidValue for a plan
// that no kernel was compiled for. Neither allocates nor synchronises.
cudaError_t Launch(const Call& call, cudaStream_t stream);
cudaError_t Launch(const Absmax& call, cudaStream_t stream);
cudaError_t Launch(const CrossEntropyGradient& call, cudaStream_t stream);

// Blocks of the planned kernel that fit on a multiprocessor, as CUDA counts them.
cudaError_t MeasureResidentBlocks(const Call& call, int* blocks);

// Clusters of the configured launch that are resident at a time on the current device.
cudaError_t ResidentClusters(const void* kernel, const cudaLaunchConfig_t& config, int* clusters);

}  // namespace jax_softmax
