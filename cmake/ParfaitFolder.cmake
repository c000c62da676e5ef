# parfait_folder(NAME DEPENDS target...): the folder src/NAME as one object library parfait_NAME made
# of its *.cc, and (where tests are built) the program NAME_test made of its *_test.cc.
function(parfait_folder name)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  add_library(parfait_${name} OBJECT ${sources})
  target_include_directories(parfait_${name} PUBLIC ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(parfait_${name} PUBLIC ${ARG_DEPENDS} PRIVATE parfait_flags)
  set_property(GLOBAL APPEND PROPERTY PARFAIT_FOLDERS parfait_${name})
  set_property(GLOBAL APPEND PROPERTY PARFAIT_PACKAGES ${ARG_DEPENDS})
  # What a test program of this folder links: the objects of the folder and of all below it.
  set(below parfait_${name})
  foreach(dependency ${ARG_DEPENDS})
    get_property(inherited GLOBAL PROPERTY PARFAIT_BELOW_${dependency})
    list(APPEND below ${inherited})
  endforeach()
  list(REMOVE_DUPLICATES below)
  set_property(GLOBAL PROPERTY PARFAIT_BELOW_parfait_${name} ${below})
  if(PARFAIT_TESTS AND tests)
    parfait_test(${name}_test SOURCES ${tests} OBJECTS ${below})
  endif()
endfunction()

# parfait_test(NAME SOURCES file... OBJECTS object-library...): a GoogleTest program, each of whose
# cases CTest runs by itself. The repository's root reaches the tests as PARFAIT_SOURCE_DIR.
function(parfait_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;OBJECTS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES PARFAIT_USES_LIBRARY ON)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src
                                             ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE PARFAIT_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_OBJECTS} GTest::gtest_main parfait_flags)
  if(NOT TARGET parfait_test_headers)
    parfait_test_headers()
  endif()
  target_precompile_headers(${name} REUSE_FROM parfait_test_headers)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 120)
endfunction()

# What every test includes, compiled once: a third of the time that a test takes to compile.
function(parfait_test_headers)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/parfait_test_headers.cc CONTENT "int main() {}\n")
  # A program, since the options must be those of one.
  add_executable(parfait_test_headers ${CMAKE_BINARY_DIR}/parfait_test_headers.cc)
  set_target_properties(parfait_test_headers PROPERTIES PARFAIT_USES_LIBRARY ON)
  target_link_libraries(parfait_test_headers PRIVATE GTest::gtest fmt::fmt Threads::Threads parfait_flags)
  target_precompile_headers(parfait_test_headers PRIVATE
    <algorithm> <filesystem> <fstream> <functional> <map> <memory> <optional> <random> <set> <span>
    <string> <unordered_map> <vector> <fmt/format.h> <gtest/gtest.h>)
endfunction()

# The installed library: every folder's objects in one archive, and its CMake package.
function(parfait_library)
  get_property(folders GLOBAL PROPERTY PARFAIT_FOLDERS)
  set(objects)
  foreach(folder ${folders})
    list(APPEND objects $<TARGET_OBJECTS:${folder}>)
  endforeach()
  add_library(parfait STATIC ${objects})
  add_library(parfait::parfait ALIAS parfait)
  set_target_properties(parfait PROPERTIES LINKER_LANGUAGE CXX)
  target_compile_features(parfait PUBLIC cxx_std_20)
  target_include_directories(parfait PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
                                            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(parfait PRIVATE fmt::fmt simdjson::simdjson Threads::Threads PNG::PNG utf8proc
                                        ${PARFAIT_ONEDNN_LIBRARIES})
  if(PARFAIT_SANITIZE)
    target_link_options(parfait PUBLIC -fsanitize=${PARFAIT_SANITIZE})
  endif()

  include(CMakePackageConfigHelpers)
  install(TARGETS parfait EXPORT parfaitTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/parfait DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT parfaitTargets NAMESPACE parfait::
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/parfait)
  configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/parfaitConfig.cmake.in
    ${CMAKE_BINARY_DIR}/parfaitConfig.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/parfait)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/parfaitConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/parfaitConfig.cmake ${CMAKE_BINARY_DIR}/parfaitConfigVersion.cmake
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/parfait)
endfunction()
