# Sets CMAKE_CUDA_COMPILER (or leaves it empty) and CMAKE_CUDA_ARCHITECTURES.
#
# The compiler is, in this order: the one set explicitly, CUDACXX, CUDA_HOME's, PATH's, or that of
# NVIDIA's wheels (nvidia-cuda-nvcc and its companions) in the build's Python.

if(JAX_SOFTMAX_CUDA STREQUAL "off")
  set(CMAKE_CUDA_COMPILER "")
  message(STATUS "jax_softmax: JAX_SOFTMAX_CUDA=off, building for the CPU only")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER AND NOT JAX_SOFTMAX_CUDA STREQUAL "wheels")
  find_program(JAX_SOFTMAX_NVCC NAMES "$ENV{CUDACXX}" nvcc
               HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" PATHS /usr/local/cuda/bin)
  if(JAX_SOFTMAX_NVCC)
    set(CMAKE_CUDA_COMPILER ${JAX_SOFTMAX_NVCC})
  endif()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import nvidia; print(*nvidia.__path__, sep=';')"
    OUTPUT_VARIABLE wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  foreach(wheel IN LISTS wheels)
    file(GLOB nvcc ${wheel}/cu1*/bin/nvcc)
    if(nvcc)
      list(GET nvcc 0 CMAKE_CUDA_COMPILER)
      # The wheels keep the static runtime where their nvcc does not look.
      cmake_path(GET CMAKE_CUDA_COMPILER PARENT_PATH bin)
      set(CMAKE_CUDA_FLAGS_INIT "-L${bin}/../lib")
      link_directories(${bin}/../lib)
    endif()
  endforeach()
endif()

if(NOT CMAKE_CUDA_COMPILER)
  set(message "no CUDA compiler found (CUDACXX, CUDA_HOME, PATH, NVIDIA's wheels)")
  if(NOT JAX_SOFTMAX_CUDA STREQUAL "auto")
    message(FATAL_ERROR "jax_softmax: ${message}, and JAX_SOFTMAX_CUDA=${JAX_SOFTMAX_CUDA}")
  endif()
  message(STATUS "jax_softmax: ${message}: building for the CPU only")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE no_gpu OUTPUT_QUIET ERROR_QUIET)
  if(no_gpu EQUAL 0)
    set(CMAKE_CUDA_ARCHITECTURES native)
  else()
    # Turing, Ampere, Hopper, Blackwell, and PTX of the newest for what comes after.
    set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 90-real 100-real 120)
  endif()
endif()
