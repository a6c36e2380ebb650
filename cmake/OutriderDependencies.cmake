# Every outside library is named here, found explicitly, and comes from Debian.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_path(NLOHMANN_JSON_INCLUDE nlohmann/json.hpp REQUIRED)
add_library(outrider_json INTERFACE)
target_include_directories(outrider_json SYSTEM INTERFACE ${NLOHMANN_JSON_INCLUDE})

find_library(ZEROMQ_LIBRARY zmq REQUIRED)
find_path(ZEROMQ_INCLUDE zmq.h REQUIRED)
add_library(outrider_zeromq INTERFACE)
target_include_directories(outrider_zeromq SYSTEM INTERFACE ${ZEROMQ_INCLUDE})
target_link_libraries(outrider_zeromq INTERFACE ${ZEROMQ_LIBRARY})

find_library(PCRE2_LIBRARY pcre2-8 REQUIRED)
find_path(CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(prometheus-cpp REQUIRED COMPONENTS core)
# Debian's own interpreter: python3-jinja2 and pybind11-dev belong to it.
set(Python3_EXECUTABLE /usr/bin/python3 CACHE FILEPATH "The interpreter that chat templates embed")
find_package(Python3 REQUIRED COMPONENTS Interpreter Development.Embed)
find_package(pybind11 REQUIRED)

if(OUTRIDER_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
  include(GoogleTest)
endif()
