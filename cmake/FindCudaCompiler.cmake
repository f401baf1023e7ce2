# Sets CMAKE_CUDA_COMPILER (or leaves it empty) and CMAKE_CUDA_ARCHITECTURES.
#
# The compiler is, in this order: the one set explicitly, CUDACXX, CUDA_HOME's, PATH's, or that of
# NVIDIA's wheels (nvidia-cuda-nvcc and its companions) in the build's Python.

if(JAX_SOFTMAX_CUDA STREQUAL "off")
  set(CMAKE_CUDA_COMPILER "")
  message(STATUS "jax_softmax: JAX_SOFTMAX_CUDA=off, building for the CPU only")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER)
  find_program(JAX_SOFTMAX_NVCC NAMES "$ENV{CUDACXX}" nvcc
               PATHS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" /usr/local/cuda/bin
               NO_CMAKE_FIND_ROOT_PATH)
  set(CMAKE_CUDA_COMPILER ${JAX_SOFTMAX_NVCC})
endif()
if(NOT CMAKE_CUDA_COMPILER)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import nvidia, pathlib; print(*(c for p in nvidia.__path__ for c in pathlib.Path(p).glob('cu1*') if (c / 'bin/nvcc').exists()))"
    OUTPUT_VARIABLE wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(wheels)
    set(CMAKE_CUDA_COMPILER ${wheels}/bin/nvcc)
    # The wheels keep the static runtime where this nvcc does not look.
    set(CMAKE_CUDA_FLAGS_INIT "-L${wheels}/lib")
    link_directories(${wheels}/lib)
  endif()
endif()

if(NOT CMAKE_CUDA_COMPILER)
  if(JAX_SOFTMAX_CUDA STREQUAL "on")
    message(FATAL_ERROR "JAX_SOFTMAX_CUDA=on, but there is no CUDA compiler: set CUDACXX or "
                        "CUDA_HOME, or install with JAX_SOFTMAX_CUDA=wheels in the environment")
  endif()
  message(STATUS "jax_softmax: no CUDA compiler found (CUDACXX, CUDA_HOME, PATH, NVIDIA's wheels): "
                 "building for the CPU only")
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
