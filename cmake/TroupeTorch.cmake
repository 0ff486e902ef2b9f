# LibTorch, for collective_groups/torch. Debian's libtorch-dev is found by itself; for another one, say of pip's torch:
#   cmake -DTorch_DIR="$(python -c 'import torch; print(torch.utils.cmake_prefix_path)')/Torch" ...
# Sets TROUPE_TORCH_FOUND and says in one line what was found or why not.
option(TROUPE_BUILD_TORCH "Build elastic training of LibTorch modules if LibTorch is found" ON)
set(TROUPE_TORCH_FOUND OFF)
set(TROUPE_TORCH_WHY "switched off by TROUPE_BUILD_TORCH")
if(TROUPE_BUILD_TORCH)
  # Its package sets variables of the project's.
  set(kept_standard ${CMAKE_CXX_STANDARD})
  set(kept_message_level "${CMAKE_MESSAGE_LOG_LEVEL}")
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
  # Without it a LibTorch that was asked for gives its headers, and one in the system's folders its libraries.
  get_filename_component(torch_caffe2 "${Torch_DIR}/../Caffe2" ABSOLUTE)
  if(Torch_DIR AND EXISTS "${torch_caffe2}")
    set(Caffe2_DIR "${torch_caffe2}" CACHE PATH "Of the same LibTorch as Torch_DIR" FORCE)
  endif()
  find_package(Torch QUIET)
  set(CMAKE_MESSAGE_LOG_LEVEL "${kept_message_level}")
  set(CMAKE_CXX_STANDARD ${kept_standard})
  if(NOT TARGET torch)
    set(TROUPE_TORCH_WHY "LibTorch was not found (package libtorch-dev, or -DTorch_DIR=)")
  elseif(TORCH_CXX_FLAGS MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
    # std::string would be two types in one program.
    set(TROUPE_TORCH_WHY "the LibTorch in ${Torch_DIR} has the C++ ABI from before GCC 5; take one with the new ABI")
  elseif(TROUPE_SANITIZE STREQUAL "thread")
    set(TROUPE_TORCH_WHY "the thread sanitizer cannot see into LibTorch's own threads")
  else()
    # clang 14 cannot read the headers of LibTorch 1.13 as C++20.
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_LIBRARIES torch)
    check_cxx_source_compiles("#include <torch/nn/module.h>\nint main() { return torch::zeros({1}).item<int>(); }"
                              TROUPE_TORCH_COMPILES)
    unset(CMAKE_REQUIRED_LIBRARIES)
    set(TROUPE_TORCH_FOUND ${TROUPE_TORCH_COMPILES})
    set(TROUPE_TORCH_WHY "this compiler cannot build a program with the LibTorch in ${Torch_DIR}")
  endif()
endif()
if(TROUPE_TORCH_FOUND)
  message(STATUS "LibTorch ${Torch_VERSION} in ${Torch_DIR}: troupe_torch is built")
else()
  message(STATUS "troupe_torch is not built: ${TROUPE_TORCH_WHY}")
endif()
