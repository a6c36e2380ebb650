# The library xgrammar, which grammar/ stands on: its source distribution from PyPI, downloaded once by
# pip into build/downloads for all build folders, checked by its hash, and built as a target of our own.

set(OUTRIDER_XGRAMMAR_SDIST "" CACHE FILEPATH
    "xgrammar-0.2.8.tar.gz of PyPI, for machines without a network; empty: downloaded with pip")
set(xgrammar_version 0.2.8)
set(xgrammar_sha256 8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80)
set(xgrammar_downloads ${CMAKE_SOURCE_DIR}/build/downloads)
set(xgrammar_sdist ${OUTRIDER_XGRAMMAR_SDIST})
if(NOT xgrammar_sdist)
  set(xgrammar_sdist ${xgrammar_downloads}/xgrammar-${xgrammar_version}.tar.gz)
endif()

if(NOT EXISTS ${xgrammar_sdist} AND NOT OUTRIDER_XGRAMMAR_SDIST)
  message(STATUS "Downloading xgrammar ${xgrammar_version} from PyPI")
  file(MAKE_DIRECTORY ${xgrammar_downloads})
  execute_process(
    # pip hides packages, itself too, from what it builds.
    COMMAND ${CMAKE_COMMAND} -E env --unset=PYTHONPATH --unset=PYTHONNOUSERSITE
            ${Python3_EXECUTABLE} -m pip --disable-pip-version-check download --quiet --no-deps
            --no-binary xgrammar --dest ${xgrammar_downloads} xgrammar==${xgrammar_version}
    RESULT_VARIABLE xgrammar_result ERROR_VARIABLE xgrammar_error OUTPUT_VARIABLE xgrammar_output)
  if(NOT xgrammar_result EQUAL 0)
    message(FATAL_ERROR "xgrammar ${xgrammar_version} could not be downloaded from PyPI with "
      "\"${Python3_EXECUTABLE} -m pip\" (Debian's package python3-pip):\n${xgrammar_error}\n"
      "Without a network, give its source distribution: "
      "-DOUTRIDER_XGRAMMAR_SDIST=/path/to/xgrammar-${xgrammar_version}.tar.gz")
  endif()
endif()
if(NOT EXISTS ${xgrammar_sdist})
  message(FATAL_ERROR "There is no file ${xgrammar_sdist} (OUTRIDER_XGRAMMAR_SDIST)")
endif()
file(SHA256 ${xgrammar_sdist} xgrammar_found_sha256)
if(NOT xgrammar_found_sha256 STREQUAL xgrammar_sha256)
  message(FATAL_ERROR "${xgrammar_sdist} is not the file that was meant: its SHA-256 is "
    "${xgrammar_found_sha256}, not ${xgrammar_sha256}. Delete it to have it downloaded again.")
endif()

# Unpacked and patched in one place for all build folders of this clone: a compiler cache then compiles
# it once. The mark names the patch that was applied.
set(xgrammar_root ${xgrammar_downloads}/xgrammar-${xgrammar_version})
set(xgrammar_patch ${CMAKE_CURRENT_LIST_DIR}/xgrammar.patch)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${xgrammar_patch})
file(SHA256 ${xgrammar_patch} xgrammar_patch_sha256)
set(xgrammar_mark ${xgrammar_root}/.patched-${xgrammar_patch_sha256})
if(NOT EXISTS ${xgrammar_mark})
  find_program(OUTRIDER_PATCH patch REQUIRED)
  file(REMOVE_RECURSE ${xgrammar_root})
  file(ARCHIVE_EXTRACT INPUT ${xgrammar_sdist} DESTINATION ${xgrammar_downloads} PATTERNS
    xgrammar-*/cpp/* xgrammar-*/include/* xgrammar-*/3rdparty/picojson/*
    xgrammar-*/3rdparty/dlpack/include/* xgrammar-*/LICENSE xgrammar-*/NOTICE
    TOUCH)
  execute_process(
    COMMAND ${OUTRIDER_PATCH} --batch --forward --fuzz=0 -p1 --directory=${xgrammar_root}
            --input=${xgrammar_patch}
    RESULT_VARIABLE xgrammar_result OUTPUT_VARIABLE xgrammar_output ERROR_VARIABLE xgrammar_output)
  if(NOT xgrammar_result EQUAL 0)
    message(FATAL_ERROR "${xgrammar_patch} does not apply to xgrammar ${xgrammar_version}: "
      "adapt the patch to this version.\n${xgrammar_output}")
  endif()
  file(TOUCH ${xgrammar_mark})
endif()

file(GLOB_RECURSE xgrammar_sources ${xgrammar_root}/cpp/*.cc)
list(FILTER xgrammar_sources EXCLUDE REGEX "/cpp/tvm_ffi/")
# Its messages and failures go to functions of ours: the library never prints.
add_library(outrider_xgrammar STATIC EXCLUDE_FROM_ALL
  ${xgrammar_sources} ${CMAKE_SOURCE_DIR}/src/outrider/grammar/compile_deadline.cc
  ${CMAKE_SOURCE_DIR}/src/outrider/grammar/xgrammar_log.cc)
target_include_directories(outrider_xgrammar PRIVATE ${xgrammar_root}/cpp ${CMAKE_SOURCE_DIR}/src)
target_compile_definitions(outrider_xgrammar PUBLIC XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_LOG_CUSTOMIZE=1)
target_include_directories(outrider_xgrammar SYSTEM PUBLIC ${xgrammar_root}/include
  ${xgrammar_root}/3rdparty/picojson ${xgrammar_root}/3rdparty/dlpack/include)
set_target_properties(outrider_xgrammar PROPERTIES CXX_STANDARD 17 CXX_CLANG_TIDY ""
  UNITY_BUILD ${OUTRIDER_UNITY_BUILD} UNITY_BUILD_BATCH_SIZE 6
  POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
# It lets overlong escapes of a grammar overflow an int, which therefore has to wrap. Fuzzers watch its memory by
# calls, which compile in two thirds of the time of checks in place.
target_compile_options(outrider_xgrammar PRIVATE -w -g0 -fwrapv)
if(OUTRIDER_SANITIZE_XGRAMMAR)
  target_compile_options(outrider_xgrammar PRIVATE -O1 -fsanitize=address,fuzzer-no-link
    -fsanitize-address-outline-instrumentation)
elseif(OUTRIDER_SANITIZE)
  target_compile_options(outrider_xgrammar PRIVATE -O1)
else()
  target_compile_options(outrider_xgrammar PRIVATE -O2)
endif()
target_link_libraries(outrider_xgrammar PUBLIC Threads::Threads)
