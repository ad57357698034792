# One library per room, one test binary per room. Sources are found by folder, so that adding a file touches one room.

# foresail_room(NAME FOLDER folder [DEPENDS libraries...]): static library foresail_NAME from the .cpp files of the folder.
function(foresail_room name)
  cmake_parse_arguments(ROOM "" "FOLDER" "DEPENDS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${ROOM_FOLDER}/*.cpp)
  if(sources)
    add_library(foresail_${name} STATIC ${sources})
    target_link_libraries(foresail_${name} PUBLIC ${ROOM_DEPENDS} foresail_options)
  else()
    add_library(foresail_${name} INTERFACE)
    target_link_libraries(foresail_${name} INTERFACE ${ROOM_DEPENDS} foresail_options)
  endif()
endfunction()

# foresail_test(NAME FOLDER folder [LABEL label] [READS_FOLDER] DEPENDS libraries...): GoogleTest binary test_NAME from the *_test.cpp files
# of the folder (and helper .cpp files beside them), every test registered with CTest under the label.
function(foresail_test name)
  cmake_parse_arguments(TEST "READS_FOLDER" "FOLDER;LABEL" "DEPENDS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${TEST_FOLDER}/*.cpp)
  if(NOT sources)
    return()
  endif()
  if(NOT TEST_LABEL)
    set(TEST_LABEL unit)
  endif()
  add_executable(test_${name} ${sources})
  target_link_libraries(test_${name} PRIVATE ${TEST_DEPENDS} foresail_options GTest::gtest GTest::gtest_main)
  if(TEST_READS_FOLDER)  # only where it is needed: the path keeps compilers' caches from being shared between checkouts
    target_compile_definitions(test_${name} PRIVATE TEST_FOLDER="${PROJECT_SOURCE_DIR}/${TEST_FOLDER}")
  endif()
  gtest_discover_tests(test_${name} DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${TEST_LABEL} TIMEOUT 600)
endfunction()
