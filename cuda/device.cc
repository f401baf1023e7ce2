// The limits of an attached GPU.
#include "device.h"

#include <map>
#include <mutex>

namespace jax_softmax {

namespace {

cudaError_t Ask(int ordinal, Device* device) {
  const struct {
    int* field;
    cudaDeviceAttr attribute;
  } questions[] = {
      {&device->multiprocessors, cudaDevAttrMultiProcessorCount},
      {&device->threads_per_multiprocessor, cudaDevAttrMaxThreadsPerMultiProcessor},
      {&device->blocks_per_multiprocessor, cudaDevAttrMaxBlocksPerMultiprocessor},
      {&device->registers_per_multiprocessor, cudaDevAttrMaxRegistersPerMultiprocessor},
      {&device->shared_per_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor},
      {&device->shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin},
      {&device->shared_reserved, cudaDevAttrReservedSharedMemoryPerBlock},
  };
  for (const auto& question : questions) {
    const cudaError_t status = cudaDeviceGetAttribute(question.field, question.attribute, ordinal);
    if (status != cudaSuccess) return status;
  }
  int supported = 0, major = 0;
  cudaError_t status = cudaDeviceGetAttribute(&supported, cudaDevAttrClusterLaunch, ordinal);
  if (status != cudaSuccess) return status;
  status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
  // No attribute says how many: 8 anywhere, 16 on Hopper and the larger Blackwells.
  device->cluster_blocks = !supported ? 1 : major == 9 || major == 10 ? 16 : 8;
  return status;
}

}  // namespace

cudaError_t QueryDevice(int ordinal, Device* device) {
  static std::mutex mutex;
  static auto& known = *new std::map<int, Device>;
  const std::lock_guard lock(mutex);
  auto found = known.find(ordinal);
  if (found == known.end()) {
    Device fresh{};
    const cudaError_t status = Ask(ordinal, &fresh);
    if (status != cudaSuccess) return status;
    found = known.emplace(ordinal, fresh).first;
  }
  *device = found->second;
  return cudaSuccess;
}

}  // namespace jax_softmax
