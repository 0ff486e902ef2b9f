# Headers of NCCL and CUDA. The libraries are found and loaded at run time; nothing of them is linked.
#   TROUPE_NCCL=AUTO  with NCCL if the headers are there (scripts/fetch_cuda_headers.sh)
#   TROUPE_NCCL=ON    an error if they are not; what CI builds
#   TROUPE_NCCL=OFF   without
set(TROUPE_NCCL AUTO CACHE STRING "Collectives of GPU buffers over NCCL: AUTO, ON or OFF")
set(TROUPE_CUDA_HEADERS ${PROJECT_SOURCE_DIR}/.third_party/cuda/include CACHE PATH "Where nccl.h and cuda.h are")
set(TROUPE_NCCL_FOUND FALSE)
# So that a build folder notices when they come.
file(GLOB troupe_cuda_headers CONFIGURE_DEPENDS ${TROUPE_CUDA_HEADERS}/nccl.h ${TROUPE_CUDA_HEADERS}/cuda.h)
if(NOT TROUPE_NCCL STREQUAL "OFF")
  if(EXISTS ${TROUPE_CUDA_HEADERS}/nccl.h AND EXISTS ${TROUPE_CUDA_HEADERS}/cuda.h)
    set(TROUPE_NCCL_FOUND TRUE)
  elseif(TROUPE_NCCL STREQUAL "ON")
    message(FATAL_ERROR "TROUPE_NCCL=ON, but ${TROUPE_CUDA_HEADERS} has no nccl.h and cuda.h; run: make install-deps")
  endif()
endif()
if(TROUPE_NCCL_FOUND)
  message(STATUS "NCCL: with the headers in ${TROUPE_CUDA_HEADERS}")
else()
  message(STATUS "NCCL: without; tensors of GPUs go through host memory")
endif()
