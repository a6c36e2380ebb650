# Sanitizers for every target that is declared after this file is included: ours. The library xgrammar, declared
# before, is not watched, so that all sanitizer builds compile it alike, unless OUTRIDER_SANITIZE_XGRAMMAR is on.
if(OUTRIDER_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${OUTRIDER_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
  add_link_options(-fsanitize=${OUTRIDER_SANITIZE})
endif()
if(OUTRIDER_BUILD_FUZZERS)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()
