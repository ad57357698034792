# foresail_version(TARGET): compiles git describe, compiler and build type into TARGET as core/version.h wants them. Taken
# when configuring: scripts/build always configures, while a plain rebuild need not relink everything for each commit.
function(foresail_version target)
  set(FORESAIL_GIT unknown)
  find_package(Git QUIET)
  if(GIT_FOUND)
    # safe.directory: a checkout of another owner (a container's mount) is described too.
    execute_process(COMMAND ${GIT_EXECUTABLE} -c safe.directory=* describe --always --dirty --tags --abbrev=10
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE
      RESULT_VARIABLE failed ERROR_QUIET)
    if(NOT failed)
      set(FORESAIL_GIT ${described})
    endif()
  endif()
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated/version.cpp)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/version.cpp.in ${generated} @ONLY)
  target_sources(${target} PRIVATE ${generated})
endfunction()
