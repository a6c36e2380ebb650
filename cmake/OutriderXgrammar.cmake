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
    COMMAND ${Python3_EXECUTABLE} -m pip --disable-pip-version-check download --quiet --no-deps
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

# Replaces text in one of its files.
function(outrider_change_xgrammar name from to)
  set(file ${xgrammar_root}/cpp/${name})
  file(READ ${file} text)
  string(REPLACE "${from}" "${to}" changed "${text}")
  if(changed STREQUAL text)
    message(FATAL_ERROR "${file} has no text \"${from}\"")
  endif()
  file(WRITE ${file} "${changed}")
endfunction()

# Unpacked in one place for all build folders of this clone: a compiler cache then compiles it once.
# Another set of changes needs another name of the mark.
set(xgrammar_root ${xgrammar_downloads}/xgrammar-${xgrammar_version})
set(xgrammar_mark ${xgrammar_root}/.complete-2)
if(NOT EXISTS ${xgrammar_mark})
  file(REMOVE_RECURSE ${xgrammar_root})
  file(ARCHIVE_EXTRACT INPUT ${xgrammar_sdist} DESTINATION ${xgrammar_downloads} PATTERNS
    xgrammar-*/cpp/* xgrammar-*/include/* xgrammar-*/3rdparty/picojson/*
    xgrammar-*/3rdparty/dlpack/include/* xgrammar-*/LICENSE xgrammar-*/NOTICE)
  # Compiling looks at a deadline between two states of a grammar.
  set(xgrammar_call "add_task_adaptive_token_mask(cur_stack_element, rule_id == root_rule_id);")
  outrider_change_xgrammar(grammar_compiler.cc "${xgrammar_call}"
    "outrider::CheckCompileDeadline();\n      ${xgrammar_call}")
  outrider_change_xgrammar(grammar_compiler.cc "namespace xgrammar {"
    "namespace outrider {\nvoid CheckCompileDeadline();\n}\nnamespace xgrammar {")
  # JSON's strings have no control characters: here those of bounded length would, too.
  outrider_change_xgrammar(json_schema_converter.cc
    [=[builder_.AddCharacterClass({{'"', '"'}, {'\\', '\\'}, {'\r', '\r'}, {'\n', '\n'}}, true);]=]
    [=[builder_.AddCharacterClass({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}}, true);]=])
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
  UNITY_BUILD ${OUTRIDER_UNITY_BUILD} UNITY_BUILD_BATCH_SIZE 6)
# Fuzzers watch its memory, by calls, which compile in two thirds of the time of checks in place. It
# lets overlong escapes of a grammar overflow an int, which therefore has to wrap.
target_compile_options(outrider_xgrammar PRIVATE -w -g0 -fwrapv)
if(OUTRIDER_BUILD_FUZZERS)
  target_compile_options(outrider_xgrammar PRIVATE -O1 -fno-sanitize=undefined
    -fsanitize-address-outline-instrumentation)
else()
  target_compile_options(outrider_xgrammar PRIVATE -O2 -fno-sanitize=all)
endif()
target_link_libraries(outrider_xgrammar PUBLIC Threads::Threads)
