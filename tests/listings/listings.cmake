# The listings of C++ and CMake in README.md and docs, which tests/python/test_integration_listings.py puts in the places that
# `@listing PAGE NUMBER` marks. PAGE's blocks are counted by language.
cmake_minimum_required(VERSION 3.22)
project(listings LANGUAGES C CXX)
# @listing docs/plugins.md 1
add_executable(sell sell.c)
# @listing docs/plugins.md 2
add_executable(shop shop.cpp)
target_link_libraries(shop PRIVATE Troupe::troupe)
add_executable(calls calls.cpp)
target_link_libraries(calls PRIVATE Troupe::troupe)
add_executable(fleet fleet.cpp)
target_link_libraries(fleet PRIVATE Troupe::troupe Troupe::collectives)
find_package(Troupe COMPONENTS training)
if(TARGET Troupe::training)
  add_executable(group group.cpp)
  target_link_libraries(group PRIVATE Troupe::training)
endif()
