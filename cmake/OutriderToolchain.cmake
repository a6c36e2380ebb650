# Compiler flags that every target shares, ccache.

find_program(OUTRIDER_CCACHE ccache)
if(OUTRIDER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths below the sources are hashed relative to the build folder, so that clones share a cache.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      ${OUTRIDER_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()
# __FILE__ is relative to the sources: in messages, and so that clones share a cache. Sources that are
# compiled together are included by their whole path.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=>)

add_library(outrider_flags INTERFACE)
# No contraction of a*b+c behind our back: the bits of a row are part of the contract.
target_compile_options(outrider_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror=return-type
  -ffp-contract=off -fno-math-errno>)
target_include_directories(outrider_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
