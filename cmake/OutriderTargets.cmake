# outrider_room, outrider_test, outrider_covers and outrider_fuzzer: how a room, its tests and its fuzzers are declared.

# tests/source_directory.h, for tests and benchmarks. An image is built without tests/ (.dockerignore).
if(OUTRIDER_BUILD_TESTS OR OUTRIDER_BUILD_BENCHMARKS)
  add_library(outrider_source_directory STATIC EXCLUDE_FROM_ALL tests/source_directory.cc)
  target_compile_definitions(outrider_source_directory PRIVATE OUTRIDER_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_include_directories(outrider_source_directory PUBLIC ${CMAKE_SOURCE_DIR})
endif()

# With OUTRIDER_UNITY_BUILD, a target's sources are compiled several at a time.
function(outrider_compile_together target)
  if(OUTRIDER_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
    # GCC takes sources that are compiled together for headers, whose classes must not have members
    # of local types.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# The Python package's module is a shared library made of the object files of a program. Hidden names
# cost no more calls than in a program.
function(outrider_for_shared_library target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

# outrider_room(NAME SOURCES file... [DEPS room-or-library...] [ONE_BY_ONE] [COLD] [HOT] [UNFUZZED])
# One static library outrider_NAME per room of src/outrider; DEPS name the rooms above it and libraries.
# ONE_BY_ONE: never compile several of its sources at a time; they use the same names for their own things.
# COLD: it runs when a command begins or ends; Release compiles it with -O1, which takes two thirds of the time.
# HOT: tests spend their time in it; builds with sanitizers, which scripts/test.sh does not optimize, compile it with
# -O2, which takes twice the time.
# UNFUZZED: no fuzzer comes here; what guides fuzzers is left out, as it takes half of the time of a small loop.
function(outrider_room name)
  cmake_parse_arguments(ARG "ONE_BY_ONE;COLD;HOT;UNFUZZED" "" "SOURCES;DEPS" ${ARGN})
  add_library(outrider_${name} STATIC ${ARG_SOURCES})
  if(NOT ARG_ONE_BY_ONE)
    outrider_compile_together(outrider_${name})
  endif()
  outrider_for_shared_library(outrider_${name})
  target_link_libraries(outrider_${name} PUBLIC outrider_flags ${ARG_DEPS})
  if(ARG_COLD AND CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(outrider_${name} PRIVATE -O1)
  endif()
  if(ARG_HOT AND OUTRIDER_SANITIZE)
    target_compile_options(outrider_${name} PRIVATE -O2)
  endif()
  if(ARG_UNFUZZED AND OUTRIDER_BUILD_FUZZERS)
    target_compile_options(outrider_${name} PRIVATE -fno-sanitize=fuzzer-no-link)
  endif()
endfunction()

# outrider_test(NAME SOURCES file... [DEPS library...] [LABELS label...] [ENVIRONMENT VAR=value...]
#   [SANITIZED_TESTS filter] [COLD])
# One GoogleTest program. Each of its tests is a ctest test; with sanitizers, which make processes slow
# to start and caches slow to fill, the whole program is one. Where that takes minutes, SANITIZED_TESTS
# (a --gtest_filter) says what scripts/test.sh runs of it: then there are NAME_0 and NAME_1 with these tests and
# the label "part", and NAME_all_0 and NAME_all_1 with all tests and the label "full". COLD: the tests' own code takes no time; it
# is not optimized at all.
function(outrider_test name)
  cmake_parse_arguments(ARG "COLD" "SANITIZED_TESTS" "SOURCES;DEPS;LABELS;ENVIRONMENT" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  outrider_compile_together(${name})
  target_link_libraries(${name} PRIVATE
    ${ARG_DEPS} outrider_flags outrider_source_directory GTest::gmock GTest::gtest_main)
  # The tests' own code need not be fast, and it is half of what is compiled: this halves its time.
  # Undefined behaviour is looked for in the library, which keeps its flags.
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE $<IF:$<BOOL:${ARG_COLD}>,-O0,-O1>)
  endif()
  if(OUTRIDER_SANITIZE)
    target_compile_definitions(${name} PRIVATE OUTRIDER_SANITIZED)  # tests/sanitized.h
  endif()
  if(OUTRIDER_SANITIZE MATCHES "undefined")
    target_compile_options(${name} PRIVATE -fno-sanitize=undefined)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT OUTRIDER_SANITIZE)
    # One at a time on a GPU: some measure its memory, or take all of it.
    set(lock)
    if("gpu" IN_LIST ARG_LABELS)
      set(lock RESOURCE_LOCK gpu)
    endif()
    # ENVIRONMENT comes last, as it would take the next name for its value where it is empty.
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 120
      PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600 ${lock} ENVIRONMENT "${ARG_ENVIRONMENT}")
    return()
  endif()
  if(NOT ARG_SANITIZED_TESTS)
    add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 3600 ENVIRONMENT "${ARG_ENVIRONMENT}")
    return()
  endif()
  # In two halves, and before short ones (COST), so that none runs alone at the end.
  foreach(half 0 1)
    set(environment ${ARG_ENVIRONMENT} GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=${half})
    add_test(NAME ${name}_${half} COMMAND ${name} --gtest_brief=1 --gtest_filter=${ARG_SANITIZED_TESTS})
    add_test(NAME ${name}_all_${half} COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${name}_${half} PROPERTIES
      LABELS "${ARG_LABELS};part" TIMEOUT 3600 ENVIRONMENT "${environment}" COST 100)
    set_tests_properties(${name}_all_${half} PROPERTIES
      LABELS "${ARG_LABELS};full" TIMEOUT 7200 ENVIRONMENT "${environment}" COST 100)
  endforeach()
endfunction()

# outrider_covers(TEST SOURCE...)
# In tests/ROOM/CMakeLists.txt: TEST, a file of tests/, covers these sources of the room, which have no test of their name.
# SOURCE may be a pattern. tests/coverage_test.py checks the names.
function(outrider_covers test)
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME room)
  list(TRANSFORM ARGN PREPEND ${room}:${test}:)
  set_property(GLOBAL APPEND PROPERTY OUTRIDER_COVERS ${ARGN})
endfunction()

# outrider_fuzzer(NAME SOURCE file [DEPS library...])
# One libFuzzer program; ctest runs it for OUTRIDER_FUZZ_SECONDS from its seeds, which
# tests/fuzz/corpus/NAME.tar.gz holds (tools/fuzz_corpus.py).
function(outrider_fuzzer name)
  cmake_parse_arguments(ARG "" "SOURCE" "DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCE})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} outrider_flags)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/found/${name})
  set(archive ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name}.tar.gz)
  set(seeds ${CMAKE_CURRENT_BINARY_DIR}/seeds/${name})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${archive})
  file(REMOVE_RECURSE ${seeds})  # also of seeds that the archive no longer has
  file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${seeds})
  add_test(NAME ${name} COMMAND ${name} -max_total_time=${OUTRIDER_FUZZ_SECONDS} -timeout=10 -rss_limit_mb=2048
    ${CMAKE_CURRENT_BINARY_DIR}/found/${name} ${seeds})
  set_tests_properties(${name} PROPERTIES LABELS fuzz)
endfunction()
