# Installs the built tree BUILD under FOLDER, builds examples/inspect against it, and runs both.
cmake_minimum_required(VERSION 3.23)

# must(WHAT command...): runs a command and fails unless it succeeds; its output is left in `output`.
function(must what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed (${status}):\n${out}${err}")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

function(expect_output what part)
  if(NOT output MATCHES "${part}")
    message(FATAL_ERROR "${what} did not print ${part} but:\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${FOLDER})
set(prefix ${FOLDER}/prefix)
must("installing" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})

# Exactly the public headers, byte for byte.
file(GLOB_RECURSE public RELATIVE ${SOURCE}/include ${SOURCE}/include/*)
file(GLOB_RECURSE installed RELATIVE ${prefix}/include ${prefix}/include/*)
if(NOT public STREQUAL installed)
  message(FATAL_ERROR "installed headers: ${installed}\npublic headers: ${public}")
endif()

set(example ${FOLDER}/example)
must("configuring the example" ${CMAKE_COMMAND} -S ${SOURCE}/examples/inspect -B ${example}
     -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${prefix})
must("building the example" ${CMAKE_COMMAND} --build ${example})

set(file ${SOURCE}/examples/minilm/minilm_mixed.safetensors)
must("the example" ${example}/inspect ${file})
expect_output("the example" "convrot_w4a4")
expect_output("the example" "bytes resident")
execute_process(COMMAND ${example}/inspect ${FOLDER}/absent RESULT_VARIABLE status ERROR_VARIABLE err)
if(NOT status EQUAL 2 OR NOT err MATCHES "absent")
  message(FATAL_ERROR "the example, given no file, ended with ${status}: ${err}")
endif()

must("the installed program" ${prefix}/${BINDIR}/parfait check ${file})
expect_output("the installed program" "^sound")
