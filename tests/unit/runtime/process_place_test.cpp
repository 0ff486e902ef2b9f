#include "runtime/process_place.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace troupe {
namespace {

// The place of a child, and its pid; it ends when `go` is closed.
struct Child {
  Child() {
    int place[2];
    int go[2];
    EXPECT_EQ(::pipe(place), 0);
    EXPECT_EQ(::pipe(go), 0);
    pid = ::fork();
    if (pid == 0) {
      ::close(go[1]);
      const std::string own = ProcessPlace();
      char byte = 0;
      const bool told = ::write(place[1], own.data(), own.size()) > 0;
      ::_exit(told && ::read(go[0], &byte, 1) == 0 ? 0 : 1);
    }
    char text[256];
    const ssize_t size = ::read(place[0], text, sizeof text);
    at.assign(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
    for (const int fd : {place[0], place[1], go[0]}) ::close(fd);
    let_go = go[1];
  }
  pid_t pid = 0;
  int let_go = -1;
  std::string at;
};

TEST(ProcessPlaceTest, ARunningProcessHasNotEnded) {
  EXPECT_FALSE(ProcessPlace().empty());
  EXPECT_FALSE(SurelyEnded(ProcessPlace()));
}

TEST(ProcessPlaceTest, AZombieHasEndedAndSoHasAReapedOne) {
  const Child child;
  EXPECT_FALSE(SurelyEnded(child.at));
  ::close(child.let_go);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(SurelyEnded(child.at));
  ASSERT_EQ(::waitpid(child.pid, nullptr, 0), child.pid);
  EXPECT_TRUE(SurelyEnded(child.at));
}

TEST(ProcessPlaceTest, AnotherLifeOfThePidIsNotTakenForIt) {
  EXPECT_TRUE(SurelyEnded(ProcessPlace() + "0"));
}

TEST(ProcessPlaceTest, WhatCannotBeSeenFromHereHasNotSurelyEnded) {
  EXPECT_FALSE(SurelyEnded(""));
  EXPECT_FALSE(SurelyEnded("another-boot pid:[1] 1 1"));
  const std::string own = ProcessPlace();
  EXPECT_FALSE(SurelyEnded(own.substr(0, own.find(']') + 1) + " ../../etc 1"));
  EXPECT_FALSE(SurelyEnded(own.substr(0, own.find(']') + 1) + " 99999999999 1")) << "no pid";
}

}  // namespace
}  // namespace troupe
