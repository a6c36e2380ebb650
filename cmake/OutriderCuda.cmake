# Whether kernels for Hopper GPUs are built, and what they need: nvcc; for the engine, cuDNN's headers and
# those of its frontend, which are downloaded once by pip into build/downloads. No GPU is needed to build.
#
# Afterwards OUTRIDER_CUDA is ON or OFF, OUTRIDER_CUDNN_INCLUDE and OUTRIDER_CUDNN_FRONTEND_INCLUDE name
# folders or are false.

set(OUTRIDER_CUDNN_FRONTEND_INCLUDE "" CACHE PATH
    "Folder of cudnn-frontend's headers, for machines without a network; empty: downloaded with pip")
set(cuda_wanted ${OUTRIDER_CUDA})
set(OUTRIDER_CUDA OFF)
if(NOT cuda_wanted)
  return()
endif()

find_program(OUTRIDER_NVCC nvcc HINTS /usr/local/cuda/bin)
if(NOT OUTRIDER_NVCC)
  if(NOT cuda_wanted STREQUAL "AUTO")
    message(FATAL_ERROR "OUTRIDER_CUDA is ${cuda_wanted}, and nvcc is not in PATH or /usr/local/cuda/bin "
      "(docs/gpu.md). Give its place: -DOUTRIDER_NVCC=/path/to/nvcc")
  endif()
  message(STATUS "GPU: not built, no nvcc found (docs/gpu.md)")
  return()
endif()
find_path(OUTRIDER_CUDNN_INCLUDE cudnn_graph.h DOC "Folder of cuDNN's headers"
  HINTS /usr/local/cuda/include /usr/include/x86_64-linux-gnu)
if(NOT OUTRIDER_CUDNN_INCLUDE AND cuda_wanted STREQUAL "AUTO")
  message(STATUS "GPU: not built, nvcc found but no headers of cuDNN 9 (docs/gpu.md, OUTRIDER_CUDNN_INCLUDE)")
  return()
endif()

set(OUTRIDER_CUDA ON)
set(CMAKE_CUDA_COMPILER ${OUTRIDER_NVCC})
# Machine code for sm_90a only (wgmma, setmaxnreg).
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD_DEFAULT "")  # -std comes from the targets
find_package(CUDAToolkit REQUIRED)
if(NOT OUTRIDER_CUDNN_INCLUDE)
  message(STATUS "GPU: kernels only, no headers of cuDNN 9 found (OUTRIDER_CUDNN_INCLUDE)")
  return()
endif()

# The headers do not depend on the Python that the wheel is for, so every machine takes the same file.
if(NOT OUTRIDER_CUDNN_FRONTEND_INCLUDE)
  set(frontend_version 1.32.0)
  set(frontend_sha256 c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0)
  set(frontend_downloads ${CMAKE_SOURCE_DIR}/build/downloads)
  set(frontend_root ${frontend_downloads}/cudnn-frontend-${frontend_version})
  set(frontend_platform manylinux_2_27_x86_64.manylinux_2_28_x86_64)
  set(frontend_wheel
      ${frontend_downloads}/nvidia_cudnn_frontend-${frontend_version}-cp311-cp311-${frontend_platform}.whl)
  if(NOT EXISTS ${frontend_root}/include/cudnn_frontend.h)
    message(STATUS "Downloading the headers of cudnn-frontend ${frontend_version} from PyPI")
    execute_process(
      # pip hides packages, itself too, from what it builds.
      COMMAND ${CMAKE_COMMAND} -E env --unset=PYTHONPATH --unset=PYTHONNOUSERSITE
              ${Python3_EXECUTABLE} -m pip --disable-pip-version-check download --quiet --no-deps
              --only-binary :all: --implementation cp --python-version 3.11 --abi cp311
              --platform manylinux_2_28_x86_64 --dest ${frontend_downloads}
              nvidia-cudnn-frontend==${frontend_version}
      RESULT_VARIABLE frontend_result ERROR_VARIABLE frontend_error OUTPUT_VARIABLE frontend_output)
    if(NOT frontend_result EQUAL 0 OR NOT EXISTS ${frontend_wheel})
      message(FATAL_ERROR "nvidia-cudnn-frontend ${frontend_version} could not be downloaded from PyPI with "
        "\"${Python3_EXECUTABLE} -m pip\":\n${frontend_error}\n"
        "Without a network, give its headers: -DOUTRIDER_CUDNN_FRONTEND_INCLUDE=/path/to/include; "
        "or build without a GPU: -DOUTRIDER_CUDA=OFF")
    endif()
    file(SHA256 ${frontend_wheel} frontend_found_sha256)
    if(NOT frontend_found_sha256 STREQUAL frontend_sha256)
      message(FATAL_ERROR "${frontend_wheel} is not the file that was meant: its SHA-256 is "
        "${frontend_found_sha256}, not ${frontend_sha256}. Delete it to have it downloaded again.")
    endif()
    file(ARCHIVE_EXTRACT INPUT ${frontend_wheel} DESTINATION ${frontend_root}
      PATTERNS include/* *.dist-info/licenses/* TOUCH)
  endif()
  set(OUTRIDER_CUDNN_FRONTEND_INCLUDE ${frontend_root}/include)
endif()
if(NOT EXISTS ${OUTRIDER_CUDNN_FRONTEND_INCLUDE}/cudnn_frontend.h)
  message(FATAL_ERROR "There is no cudnn_frontend.h in ${OUTRIDER_CUDNN_FRONTEND_INCLUDE} "
    "(OUTRIDER_CUDNN_FRONTEND_INCLUDE)")
endif()
message(STATUS "GPU: kernels for Hopper by ${OUTRIDER_NVCC}, cuDNN's headers in ${OUTRIDER_CUDNN_INCLUDE}")
